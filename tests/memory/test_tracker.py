"""The tracker: its scores against autograd written out, and wrong labels in a network that has memorised them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import posterity as po
from memory.problems import digits
from networks import perceptron
from posterity.errors import InvalidInput
from posterity.memory import MemoryTracker, memory_map
from posterity.memory.optimizer_state import covariance_of
from posterity.metrics import auroc
from posterity.optim import EVON, IVON, SAM, VariationalNewton


def problem(n=40):
    torch.manual_seed(0)
    model = perceptron(4, 6, 3).double()
    return model, torch.randn(n, 4, dtype=torch.float64), torch.randint(0, 3, (n,))


def gradients(model, x, y):
    """Gradient of each example's loss, (N, P)."""
    rows = []
    for a, b in zip(x, y):
        found = torch.autograd.grad(F.cross_entropy(model(a), b), list(model.parameters()))
        rows.append(torch.cat([g.reshape(-1) for g in found]))
    return torch.stack(rows)


def one_step(optimizer, model, x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize(("decay", "precision"), [(0.1, 4.0), (0.0, 1.0)])
def test_adam_state(decay, precision):
    model, x, y = problem()
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=decay)
    one_step(optimizer, model, x, y)
    squares = torch.cat([optimizer.state[p]["exp_avg_sq"].reshape(-1) for p in model.parameters()])
    tracker = MemoryTracker(model, optimizer, (x, y), batch_size=16)
    tracker.snapshot()
    expected = (gradients(model, x, y) ** 2 / (40 * squares.sqrt() + precision)).sum(1)
    assert np.allclose(tracker.table["self_influence"], expected)


def test_a_part_of_the_data_has_the_scores_it_has_among_all():
    model, x, y = problem()
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)
    one_step(optimizer, model, x, y)
    whole, part = MemoryTracker(model, optimizer, (x, y)), MemoryTracker(model, optimizer, (x[:10], y[:10]), n=40)
    whole.snapshot()
    part.snapshot()
    assert np.allclose(whole.table["loo_nll"][:10], part.table["loo_nll"])
    with pytest.raises(InvalidInput, match="n: expected a whole number >= 10, got 9"):
        MemoryTracker(model, optimizer, (x[:10], y[:10]), n=9)


def test_sgd_is_tracin():
    model, x, y = problem()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    tracker = MemoryTracker(model, optimizer, (x, y))
    expected = torch.zeros(40, dtype=torch.float64)
    for lr in (0.2, 0.1):
        optimizer.param_groups[0]["lr"] = lr
        one_step(optimizer, model, x, y)
        tracker.snapshot()
        expected += lr * gradients(model, x, y).square().sum(1) / 40
    assert np.allclose(2 * tracker.table["self_influence"], expected)


def test_variational_optimizers_bring_their_own_covariance():
    model, _, _ = problem()
    optimizer = IVON(model.parameters(), lr=0.1, ess=80, hess_init=0.5, weight_decay=0.01)
    variance = covariance_of(optimizer, model, 40).variance
    assert all(torch.allclose(v, torch.full_like(v, 1 / (40 * 0.51))) for v in variance.values())
    with pytest.raises(InvalidInput, match="the model's parameter"):
        covariance_of(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0), model, 40)


@pytest.mark.parametrize("kind", [EVON, VariationalNewton])
def test_covariances_of_every_structure(kind):
    model, x, y = problem()
    optimizer = kind(model.parameters(), lr=0.1, ess=80)
    for _ in range(3):
        with optimizer.sampled_params(train=True):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    tracker = MemoryTracker(model, optimizer, (x, y))
    tracker.snapshot()
    precision = optimizer.structure(dict(model.named_parameters())).precision_matrix().double() * 40 / 80
    g = gradients(model, x, y)
    expected = torch.einsum("np,pq,nq->n", g, torch.linalg.inv(precision), g)
    assert np.allclose(tracker.table["self_influence"], expected, rtol=1e-5)


def test_points_count_as_sgd():
    model, _, _ = problem()
    variance = covariance_of(SAM(model.parameters(), lr=0.2), model, 40).variance
    assert all(torch.allclose(v, torch.full_like(v, 0.2 / 40)) for v in variance.values())


def test_what_accumulates():
    model, x, y = problem()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    tracker = MemoryTracker(model, optimizer, (x, y), batch_size=16)
    seen = []
    for _ in range(6):
        one_step(optimizer, model, x, y)
        seen.append(model(x).detach())
        tracker.snapshot()
    f = torch.stack(seen)  # (snapshots, N, K)
    p = f.softmax(-1)[:, torch.arange(40), y]
    others = f.masked_fill(F.one_hot(y).bool(), -torch.inf).amax(-1)
    right = f.argmax(-1) == y
    expected = {
        "loss": -p.log().mean(0),
        "confidence": p.mean(0),
        "variability": p.std(0, unbiased=False),
        "margin": (f[:, torch.arange(40), y] - others).mean(0),
        "correctness": right.double().mean(0),
        "forgetting": (right[:-1] & ~right[1:]).double().sum(0),
    }
    for name, column in expected.items():
        assert np.allclose(tracker.table[name], column, atol=1e-12), name
    assert tracker.table["forgetting"].sum() > 0
    assert np.allclose(tracker.history["loss"], -p.log().mean(1))


def test_leave_one_out_loss_is_that_of_the_map():
    model, x, y = problem()
    optimizer = IVON(model.parameters(), lr=0.1, ess=40)
    tracker = MemoryTracker(model, optimizer, (x, y))
    tracker.snapshot()
    with pytest.warns(UserWarning, match="of the Hessian has been learnt"):
        posterior = optimizer.posterior(model, likelihood="categorical", n=40)
    m = memory_map(model, posterior, (x, y), tracker=tracker)
    assert np.allclose(m.table["tracked_loo_nll"], m.table["loo_nll"])
    assert np.allclose(m.table["tracked_self_influence"], m.table["self_influence"])
    assert m.ranking == "tracked_self_influence"
    assert "a diagonal posterior" in m.reliability.warning


def test_as_a_callback_of_fit_with_a_shuffled_loader_that_has_ids():
    model, x, y = problem()
    loader = DataLoader(TensorDataset(x, y, 100 + torch.arange(40)), batch_size=8, shuffle=True)
    tracker = MemoryTracker(model, None, loader, every=2)
    run = po.fit(model, (x, y), method="adamw", epochs=6, batch_size=8, callbacks=[tracker])
    assert tracker.snapshots == 3
    assert tracker.history["step"].tolist() == [10, 20, 30]
    assert tracker.table["id"].tolist() == list(range(100, 140))
    assert run.steps == 30
    each = MemoryTracker(model, None, loader)  # after every epoch
    po.fit(model, (x, y), method="adamw", epochs=2, batch_size=8, callbacks=[each])
    assert each.snapshots == 2


def test_regression_has_no_confidence():
    torch.manual_seed(0)
    model, x = nn.Linear(2, 1), torch.randn(10, 2)
    tracker = MemoryTracker(model, torch.optim.SGD(model.parameters(), lr=0.1), (x, x[:, :1]))
    tracker.snapshot()
    assert list(tracker.table) == ["id", "self_influence", "loo_nll", "loss"]


@pytest.mark.filterwarnings("ignore::posterity.curvature.SlowPath")  # nothing is known about layers that give NaN
def test_scores_that_are_not_numbers_are_refused():
    model, x, y = problem()
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)
    tracker = MemoryTracker(model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y))
    with pytest.raises(InvalidInput, match="finite"):
        tracker.snapshot()


def test_accumulated_scores_find_wrong_labels_that_the_network_has_memorised():
    x, clean = digits(1000)
    x = x[:, 1:].float()
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(1000, generator=generator) < 0.1
    y = torch.where(wrong, (clean + torch.randint(1, 10, (1000,), generator=generator)) % 10, clean)
    torch.manual_seed(0)
    model = perceptron(64, 200, 10, hidden=nn.ReLU)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    tracker = MemoryTracker(model, optimizer, (x, y))
    for epoch in range(100):
        for part in torch.randperm(1000, generator=generator).split(50):
            one_step(optimizer, model, x[part], y[part])
        if epoch % 5 == 0:
            tracker.snapshot()
    posterior = po.laplace(model, (x, y), structure="diag", prior_precision=1.0)
    table = memory_map(model, posterior, (x, y), tracker=tracker).table
    names = ("tracked_self_influence", "tracked_loo_nll", "tracked_loss", "loss", "sensitivity")
    found = {name: auroc(table[name].to_numpy(copy=True), wrong) for name in names}
    assert (table["prediction"] == table["label"]).mean() > 0.98  # the labels are memorised, wrong ones too
    assert found["tracked_self_influence"] >= 0.995
    assert found["tracked_loo_nll"] >= 0.995
    assert found["tracked_loss"] >= 0.995  # accumulation is what matters; the plain loss has it as well
    assert found["tracked_self_influence"] > found["loss"] + 0.02
    assert found["tracked_self_influence"] > found["sensitivity"] + 0.02
