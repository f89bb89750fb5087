"""The memory map: its columns against Jacobians written out, its scores against other packages, its questions."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import torch
import torch.nn.functional as F
from statsmodels.stats.outliers_influence import OLSInfluence
from torch import nn
from torch.func import functional_call, jacrev
from torch.utils.data import DataLoader, Dataset

import posterity as po
from memory.problems import diabetes, digits, least_squares, linear, newton
from networks import perceptron
from posterity.errors import InvalidInput, MissingExtra, RefusedFile, Undefined
from posterity.memory import MemoryMap, MemoryTracker, memory_map
from posterity.posterior import Diagonal, Posterior
from posterity.trees import snapshot, to_vector, trainable


@pytest.fixture(scope="module")
def problem():
    torch.manual_seed(0)
    model = perceptron(4, 5, 3).double()
    x, y = torch.randn(60, 4, dtype=torch.float64), torch.randint(0, 3, (60,))
    return model, x, y


def dense(model, x, posterior):
    """Jacobians (N, K, P) and the covariance at temperature 1, written out."""
    parameters = {name: p.detach() for name, p in trainable(model).items()}
    rows = jacrev(lambda p: functional_call(model, p, (x,)))(parameters)
    jacobian = torch.cat([rows[name].flatten(2) for name in parameters], dim=-1)
    structure = posterior.structure
    return jacobian, structure.covariance_matrix() * posterior.ess / posterior.n


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_columns_are_the_definitions(problem, structure):
    model, x, y = problem
    posterior = po.laplace(model, (x, y), structure=structure, prior_precision=1.0)
    m = memory_map(model, posterior, (x, y), scores=("tracin", "margin", "self_confidence"), batch_size=16)
    jacobian, sigma = dense(model, x, posterior)
    f = model(x).detach()
    p, onehot = f.softmax(-1), F.one_hot(y).double()
    e, curvature = p - onehot, torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    v = jacobian @ sigma @ jacobian.mT
    vc = v @ curvature
    change = (v @ e[..., None])[..., 0]
    if structure == "full":
        change = torch.linalg.solve(torch.eye(3) - vc, change)
    expected = {
        "error": e.norm(dim=-1),
        "leverage": vc.diagonal(dim1=1, dim2=2).clamp_min(0).square().sum(-1).sqrt(),
        "variance": v.diagonal(dim1=1, dim2=2).sum(-1),
        "sensitivity": ((f + change).softmax(-1) - p).abs().sum(-1),
        "self_influence": torch.einsum("nk,nkl,nl->n", e, v, e),
        "relevance": (p * (1 - p)).sum(-1),
        "loo_nll": F.cross_entropy(f + change, y, reduction="none"),
        "loss": F.cross_entropy(f, y, reduction="none"),
        "tracin": torch.einsum("nk,nkp->np", e, jacobian).square().sum(-1),
        "margin": f.gather(1, y[:, None])[:, 0] - f.masked_fill(onehot.bool(), -torch.inf).amax(1),
        "self_confidence": p.gather(1, y[:, None])[:, 0],
    }
    for name, column in expected.items():
        assert np.allclose(m.table[name], column), name
    assert m.table["prediction"].tolist() == f.argmax(1).tolist()
    largest = torch.linalg.eigvals(vc).real.amax().item()
    assert m.reliability.max_leverage == pytest.approx(largest)
    assert m.reliability.effective_dimension == pytest.approx(vc.diagonal(dim1=1, dim2=2).sum().item())
    assert m.reliability.deflated == (structure == "full")


def test_tempered_posteriors_are_put_back_to_temperature_one(problem):
    model, x, y = problem
    mean = snapshot(trainable(model))
    prior = Diagonal.isotropic(mean, 1.0)
    make = {"prior": prior, "n": 60, "likelihood": "categorical"}
    cold = Posterior.of(model, Diagonal.isotropic(mean, 240.0), ess=240, **make)
    cold = Posterior.of(model, Diagonal(mean, cold.structure.precision), ess=240, **make)
    warm = Posterior.of(model, Diagonal(mean, Diagonal.isotropic(mean, 60.0).precision), ess=60, **make)
    assert np.allclose(
        memory_map(model, cold, (x, y)).table["variance"], memory_map(model, warm, (x, y)).table["variance"]
    )


def test_the_posterior_mean_is_what_is_asked_not_the_weights_in_the_model(problem):
    model, x, y = problem
    posterior = po.laplace(model, (x, y), structure="full", prior_precision=1.0)
    before = memory_map(model, posterior, (x, y)).table
    with torch.no_grad():
        model[0].weight.add_(1.0)
    moved = snapshot(trainable(model))
    after = memory_map(model, posterior, (x, y)).table
    assert all(torch.equal(moved[name], p) for name, p in trainable(model).items())
    pd.testing.assert_frame_equal(before, after)
    posterior.apply(model)


def test_cooks_distance_is_that_of_statsmodels():
    x, y = diabetes()
    influence = OLSInfluence(sm.OLS(y[:, 0].numpy(), x.numpy()).fit())
    model, posterior = least_squares(x, y, 1 / influence.results.mse_resid)
    found = memory_map(model, posterior, (x, y), scores=("cook",)).table["cook"]
    assert np.abs(found - influence.cooks_distance[0]).max() < 1e-9
    assert (found > 4 / len(x)).sum() == 22
    assert found.sum() == pytest.approx(0.9896432210, abs=1e-9)
    assert found.argmax() == 382


def test_influence_functions(problem):
    model, x, y = problem
    posterior = po.laplace(model, (x, y), structure="kron", prior_precision=1.0)
    test = (torch.randn(20, 4, dtype=torch.float64), torch.randint(0, 3, (20,)))
    m = memory_map(model, posterior, (x, y), scores=("influence",), test=test, batch_size=7)
    jacobian, sigma = dense(model, x, posterior)
    e = model(x).detach().softmax(-1) - F.one_hot(y)
    gradients = torch.einsum("nk,nkp->np", e, jacobian)
    loss = F.cross_entropy(model(test[0]), test[1])
    gradient = to_vector(dict(enumerate(torch.autograd.grad(loss, list(model.parameters())))))
    assert np.allclose(m.table["influence"], gradients @ sigma @ gradient)
    assert np.allclose(m.influence(test), m.table["influence"])
    assert m.influence(test).index.tolist() == m.table["id"].tolist()


def test_map_of_digits_has_the_known_quadrants():
    x, y = digits(1797)
    model = linear(newton(x, F.one_hot(y).double(), 1.0, torch.zeros(10, 65, dtype=x.dtype))[0])
    m = memory_map(model, po.laplace(model, (x, y), structure="full", prior_precision=1.0), (x, y))
    counts = m.table["category"].value_counts()
    assert [counts[c] for c in ("regular", "unpredictable", "uncertain")] == [1573, 44, 44]
    assert counts["unpredictable and uncertain"] == 136
    assert np.corrcoef(m.table["leverage"], m.table["error"])[0, 1] == pytest.approx(0.883, abs=1e-3)
    half = m.with_guides(leverage=0.5, error=1.0)
    assert set(half.table["category"]) == {"regular", "uncertain"}
    assert (half.table["category"] == "uncertain").sum() == 898
    wrong = m.table["suspected_label"].notna()
    assert (m.table["suspected_label"][wrong] != m.table["label"][wrong]).all()
    assert m.top(5)["loo_nll"].is_monotonic_decreasing
    assert m.top(1)["loo_nll"].item() == m.table["loo_nll"].max()
    assert "<table" in m._repr_html_()
    memory = m.memorable(23)
    assert sorted(torch.bincount(memory.targets).tolist()) == [2] * 7 + [3] * 3
    assert torch.equal(memory.inputs, x[memory.ids])
    assert torch.allclose(memory.predictions, model(memory.inputs))
    best = m.memorable(10, per_class=False)
    assert set(best.ids.tolist()) == set(m.top(10, by="relevance")["id"])


class WithIds(Dataset):
    """Examples that bring their own ids, as mappings."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.y[i], "id": 1000 - i}


class Named(nn.Module):
    """A model that takes its inputs by name."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def test_ids_stay_with_their_examples_in_any_order(problem):
    inner, x, y = problem
    model = Named(inner)
    posterior = po.laplace(model, DataLoader(WithIds(x, y), batch_size=16), structure="full", prior_precision=1.0)
    shuffled = DataLoader(WithIds(x, y), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(1))
    a = memory_map(model, posterior, WithIds(x, y))
    b = memory_map(model, posterior, shuffled)
    assert a.table["id"].tolist() != b.table["id"].tolist()
    pd.testing.assert_frame_equal(
        a.table.set_index("id").sort_index(), b.table.set_index("id").sort_index(), check_exact=False, rtol=1e-9
    )
    chosen = [1000, 977, 950]
    one, two = a.what_if(remove=chosen, passes=0), b.what_if(remove=chosen, passes=0)
    for name, change in one.parameters.items():
        assert torch.allclose(change, two.parameters[name], rtol=1e-8, atol=1e-12)
    assert sorted(b.memorable(9).ids.tolist()) == sorted(a.memorable(9).ids.tolist())
    moved = b.influence((x[:5], y[:5]))
    assert moved.index.tolist() == b.table["id"].tolist()
    np.testing.assert_allclose(moved.sort_index(), a.influence((x[:5], y[:5])).sort_index(), rtol=1e-7, atol=1e-12)


def test_saved_maps_answer_again(problem, tmp_path):
    model, x, y = problem
    posterior = po.laplace(model, (x, y), structure="kron", prior_precision=1.0)
    m = memory_map(model, posterior, (x, y), scores=("cook",)).with_guides(0.8, 0.7)
    m.save(tmp_path / "map")
    assert all(json.loads(file.read_text())["version"] == 1 for file in (tmp_path / "map").glob("*.json"))
    alone = MemoryMap.load(tmp_path / "map")
    pd.testing.assert_frame_equal(alone.table, m.table)
    assert alone.reliability == m.reliability
    with pytest.raises(InvalidInput, match="the model and the data"):
        alone.what_if(remove=[3])
    again = MemoryMap.load(tmp_path / "map", model, (x, y))
    for name, change in m.what_if(remove=[3, 5]).parameters.items():
        assert torch.equal(change, again.what_if(remove=[3, 5]).parameters[name])
    m.to_csv(tmp_path / "map.csv")
    assert np.allclose(pd.read_csv(tmp_path / "map.csv")["leverage"], m.table["leverage"])
    with pytest.raises(RefusedFile):
        MemoryMap.load(tmp_path)


def test_parquet(problem, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    model, x, y = problem
    m = memory_map(model, po.laplace(model, (x, y), prior_precision=1.0), (x, y))
    m.to_parquet(tmp_path / "map.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "map.parquet"), m.table)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pyarrow"):
        m.to_parquet(tmp_path / "map.parquet")


def test_last_layer_moves_only_the_last_layer(problem):
    model, x, y = problem
    posterior = po.laplace(model, (x, y), structure="last_layer", prior_precision=1.0)
    m = memory_map(model, posterior, (x, y))
    assert m.reliability.posterior == "last_layer/full"
    change = m.what_if(remove=[1])
    assert list(change.parameters) == ["2.weight", "2.bias"]
    assert change.reliability.deflated
    assert "last layer" in change.reliability.warning


def test_diagonal_and_kronecker_groups_stay_first_order(problem):
    model, x, y = problem
    for structure in ("diag", "kron"):
        posterior = po.laplace(model, (x, y), structure=structure, prior_precision=1.0)
        m = memory_map(model, posterior, (x, y))
        jacobian, sigma = dense(model, x, posterior)
        e = model(x).detach().softmax(-1) - F.one_hot(y)
        expected = sigma @ torch.einsum("nkp,nk->p", jacobian[[3, 8]], e[[3, 8]])
        change = m.what_if(remove=[3, 8], passes=0)
        assert torch.allclose(to_vector(change.parameters), expected)
        assert not change.reliability.deflated
        moved = change.on((x, y)).change
        assert torch.allclose(moved, jacobian @ expected)


def test_regressions_with_several_outputs():
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    x, y = torch.randn(20, 3, dtype=torch.float64), torch.randn(20, 2, dtype=torch.float64)
    posterior = po.laplace(model, (x, y), structure="full", prior_precision=1.0, noise_precision=2.0)
    table = memory_map(model, posterior, (x, y)).table
    assert np.allclose(table[["label_0", "label_1"]], y)
    assert np.allclose(table["error"], (model(x) - y).norm(dim=1).detach())
    with pytest.raises(Undefined, match="margin"):
        memory_map(model, posterior, (x, y), scores=("margin",))


def test_bad_input(problem):
    model, x, y = problem
    posterior = po.laplace(model, (x, y), prior_precision=1.0)
    m = memory_map(model, posterior, (x, y))
    shuffled = DataLoader(list(zip(x, y)), shuffle=True)
    cases = [
        (lambda: memory_map(nn.Linear(4, 3).double(), posterior, (x, y)), "expected a parameter"),
        (lambda: memory_map(model, posterior.structure, (x, y)), "a Posterior"),
        (lambda: memory_map(model, posterior, shuffled), "shuffled loader"),
        (lambda: memory_map(model, posterior, (x, y + 1)), "integers in 0..2"),
        (lambda: memory_map(model, posterior, (x[:, :3], y)), "inputs: expected what the model takes, got float64"),
        (lambda: m.what_if(remove=[3]).on((x[:, :3], y)), "inputs: expected what the model takes, got float64"),
        (lambda: memory_map(model, posterior, (x, y, torch.zeros(60, dtype=torch.long))), "each only once"),
        (lambda: memory_map(model, posterior, (x * torch.nan, y)), "finite"),
        (lambda: memory_map(model, posterior, (x, y), scores=("nonsense",)), "names among"),
        (lambda: memory_map(model, posterior, (x, y), scores=("influence",)), "test data"),
        (lambda: memory_map(model, posterior, (x, y), deflate="yes"), "'auto'"),
        (lambda: m.what_if(), "an empty selection"),
        (lambda: m.what_if(remove=[]), "an empty selection"),
        (lambda: m.what_if(remove=[60]), "ids of the data, got \\[60\\]"),
        (lambda: m.what_if(relabel={3: 7}), "integers in 0..2"),
        (lambda: m.what_if(reweight={3: -1.0}), "a finite number >= 0"),
        (lambda: m.what_if(remove=[3], relabel={3: 1}), "id 3 twice"),
        (lambda: m.top(3, by="nonsense"), "a column among"),
        (lambda: m.memorable(3, by="nonsense"), "a column among"),
        (lambda: m.what_if(remove=m.table["label"] == 1), "ids, whole numbers"),  # a mask is not the ids 0 and 1
        (lambda: m.what_if(remove=[1.5]), "ids, whole numbers"),
        (lambda: m.what_if(relabel={3: 0.7}), "a label, a whole number"),
        (lambda: m.what_if(relabel={1.5: 1}), "relabel: expected ids, whole numbers"),  # not the id 1
        (lambda: m.what_if(relabel=[(3, 1)]), "relabel: expected a mapping by id"),
        (lambda: m.what_if(reweight={"3": 0.5}), "reweight: expected ids, whole numbers"),
        (lambda: m.what_if(reweight={3: None}), "a finite number >= 0, got None"),
        (lambda: m.what_if(reweight={3: torch.ones(2)}), "weight of id 3: expected a finite number"),
        (lambda: m.what_if(remove=3), "remove: expected a list of ids, got 3"),
        (lambda: m.top(2.5), "k: expected a whole number"),
        (lambda: m.memorable(2.5), "from 1 to 60"),
        (lambda: memory_map("model", posterior, (x, y)), "model: expected a Module"),
        (lambda: memory_map(model, posterior, (x, y), scores="cook"), "scores: expected a list of names"),
        (lambda: memory_map(model, posterior, (x, y), tracker=m), "tracker: expected a MemoryTracker"),
        (lambda: MemoryTracker(model, "sgd", (x, y)), "optimizer: expected a torch.optim.Optimizer"),
        (lambda: MemoryTracker(model, None, (x, y), every=1.5), "every: expected a whole number"),
        (lambda: m.with_guides(leverage=1.5), "a quantile"),
        (lambda: m.memorable(0), "from 1 to 60"),
        (lambda: MemoryTracker(model, None, (x, y)).snapshot(), "optimizer"),
        (lambda: MemoryTracker(model, None, (x, y)).table, "at least one snapshot"),
    ]
    for question, message in cases:
        with pytest.raises(InvalidInput, match=message):
            question()
