"""The posterior comes back in the structure that it had, as `po.laplace` computes it for the data there are now."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import posterity as po
from adaptation.problems import classes, logistic, newton_softmax, tanh_network
from networks import perceptron
from posterity.adaptation import adapt, remember, select
from posterity.posterior import Diagonal, Full, Kronecker, LastLayer, Posterior, Rotated
from posterity.trees import snapshot, to_vector, trainable

STRUCTURES = {"diag": Diagonal, "kron": Kronecker, "full": Full}


def precision_of(posterior):
    """The precision as one matrix."""
    inner = posterior.structure.inner if isinstance(posterior.structure, LastLayer) else posterior.structure
    return inner.precision_matrix()


def away(posterior, other):
    """Relative distance between two precisions."""
    a, b = precision_of(posterior), precision_of(other)
    return ((a - b).norm() / b.norm()).item()


def fitted_softmax(x, y, precision, k=3):
    """A softmax regression with a bias, at its optimum."""
    w = newton_softmax(torch.cat((x, torch.ones(len(x), 1)), 1), y, precision, k)
    model = nn.Linear(4, k, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(w[:, :4]))
        model.bias.copy_(torch.tensor(w[:, 4]))
    return model


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_linear_model_gets_the_posterior_of_retraining(structure):
    x, y = classes(80)
    x2, y2 = classes(30, seed=3)
    now = torch.cat((x[10:], x2)), torch.cat((y[10:], y2))
    model = fitted_softmax(x, y, 0.5)
    posterior = po.laplace(model, (x, y), structure=structure, prior_precision=0.5)
    result = adapt(model, posterior, data=(x, y), add=(x2, y2), remove=list(range(10)))
    wanted = po.laplace(fitted_softmax(*now, 0.5), now, structure=structure, prior_precision=0.5)
    assert isinstance(result.posterior.structure, STRUCTURES[structure])
    assert not result.report.notes
    assert torch.allclose(result.posterior.mean["weight"], wanted.mean["weight"], atol=1e-8)
    if structure == "diag":  # the diagonal of the Hessian, which is that of the Gauss-Newton matrix
        assert torch.allclose(result.posterior.structure.precision["bias"], wanted.structure.precision["bias"])
    else:
        assert away(result.posterior, wanted) < 1e-8


def test_a_linear_model_that_remembers_a_part_gets_nearly_the_posterior_of_its_data():
    x, y = classes(300)
    x2, y2 = classes(60, seed=7)
    now = torch.cat((x, x2 + 1)), torch.cat((y, y2))
    model = fitted_softmax(x, y, 1.0)
    posterior = po.laplace(model, (x, y), structure="diag", prior_precision=1.0)
    for seed in range(3):
        memory = select(model, posterior, (x, y), 100, seed=seed)
        result = adapt(model, posterior, memory=memory, add=(x2 + 1, y2))
        wanted = po.laplace(result.model, now, structure="diag", prior_precision=1.0)
        assert away(result.posterior, wanted) < 0.04  # negative parts of a remainder count too
    renamed = nn.Sequential(nn.Linear(4, 3).double())
    result = adapt(model, posterior, add=(x2 + 1, y2), into=renamed, method="ewc")
    assert result.posterior.structure.precision["0.weight"].min() > 20  # though no weight has its old name


@pytest.fixture(scope="module")
def network():
    """A tanh network for binary labels at its optimum, and the one that other data lead to from there."""
    x, y = logistic(120)
    x2, y2 = logistic(30, seed=5, shift=0.5)
    now = torch.cat((x[20:], x2)), torch.cat((y[20:], y2))
    model = tanh_network(x, y, hidden=2)
    again = tanh_network(*now, hidden=2, start=model)
    return model, (x, y), (x2, y2), again, now


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_network_gets_the_posterior_of_its_data(network, structure):
    model, data, new, again, now = network
    settings = {"likelihood": "bernoulli", "structure": structure, "prior_precision": 1.0}
    posterior = po.laplace(model, data, **settings)
    change = {"add": new, "remove": list(range(20)), "lr": 3e-2, "epochs": 300, "batch_size": 200}
    exact = adapt(model, posterior, data=data, memory=120, method="combined", **change)
    assert isinstance(exact.posterior.structure, STRUCTURES[structure])
    assert away(exact.posterior, po.laplace(exact.model, now, **settings)) < 1e-8
    retrained = po.laplace(again, now, **settings)
    assert away(exact.posterior, retrained) < 1e-4
    assert away(posterior, retrained) > 0.4
    memory = select(model, posterior, data, 40)
    part = adapt(model, posterior, data=data, memory=memory, **change)
    assert isinstance(part.posterior.structure, STRUCTURES[structure])
    assert away(part.posterior, po.laplace(part.model, now, **settings)) < 0.4  # what is not remembered stays as it was
    assert not part.report.notes


def test_a_network_that_remembers_all_comes_back_when_what_was_added_goes(network):
    model, data, new, *_ = network
    posterior = po.laplace(model, data, likelihood="bernoulli", structure="kron", prior_precision=1.0)
    how = {"method": "combined", "lr": 3e-2, "epochs": 300, "batch_size": 200}
    there = adapt(model, posterior, data=data, memory=120, add=new, **how)
    back = adapt(there.model, there.posterior, remove=there.report.added, **how)
    moved, left = (to_vector(p.mean) - to_vector(posterior.mean) for p in (there.posterior, back.posterior))
    assert left.norm() < 1e-4 < 0.1 < moved.norm()
    assert away(back.posterior, posterior) < 1e-4
    assert (back.posterior.n, len(back.posterior.memory)) == (120, 120)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_without_a_memory_the_old_factors_stay(network, structure):
    model, data, new, *_ = network
    settings = {"likelihood": "bernoulli", "structure": structure, "prior_precision": 1.0}
    posterior = po.laplace(model, data, **settings)
    result = adapt(model, posterior, add=new, method="ewc", lr=1e-12, epochs=1)  # at the old weights nothing else moves
    both = tuple(torch.cat(parts) for parts in zip(data, new))
    assert away(result.posterior, po.laplace(model, both, **settings)) < 1e-8
    wider = adapt(model, posterior, prior_precision=0.5, data=data, method="ewc", lr=1e-12, epochs=1)
    assert away(wider.posterior, po.laplace(model, data, **{**settings, "prior_precision": 0.5})) < 1e-10


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_grown_head_has_the_structure_too(structure):
    torch.manual_seed(0)
    x, y = classes(60, k=4, seed=2)
    first = y < 3
    model = perceptron(4, 5, 3).double()
    old = (x[first], y[first])
    prior = {"0.weight": 1.0, "0.bias": 1.0, "2.weight": 4.0, "2.bias": 9.0}
    posterior = po.laplace(model, old, structure=structure, prior_precision=prior)
    for memory in (int(first.sum()), 20):
        result = adapt(
            model, posterior, data=old, memory=memory, add=(x[~first], y[~first]), classes=4, epochs=2, lr=1e-3
        )
        assert isinstance(result.posterior.structure, STRUCTURES[structure])
        for name, delta in prior.items():  # each layer keeps its own prior
            assert result.posterior.prior.precision[name].item() == delta
        both = torch.cat((old[0], x[~first])), torch.cat((old[1], y[~first]))
        wanted = po.laplace(result.model, both, structure=structure, prior_precision=prior)
        assert away(result.posterior, wanted) < (1e-8 if memory > 20 else 0.15)


class Shifted(nn.Module):
    """A network whose outputs are not those of a linear layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        """Logits, shifted."""
        return self.head(self.body(x)) + 0.5


@pytest.mark.parametrize("inner", STRUCTURES)
@pytest.mark.parametrize("layer", ["head", "body.0"])
def test_one_uncertain_layer_stays_the_only_one(inner, layer):
    torch.manual_seed(0)
    x, y = classes(60)
    model = Shifted().double()
    settings = {"structure": "last_layer", "last_layer": layer, "inner": inner, "prior_precision": 1.0}
    posterior = po.laplace(model, (x, y), **settings)
    result = adapt(model, posterior, data=(x, y), memory=60, remove=[0, 1, 2], epochs=3, lr=1e-2)
    assert isinstance(result.posterior.structure, LastLayer)
    assert away(result.posterior, po.laplace(result.model, (x[3:], y[3:]), **settings)) < 1e-8
    there = dict(result.model.named_parameters())
    for name, p in model.named_parameters():
        assert torch.equal(p, there[name]) != name.startswith(layer)
        assert there[name].requires_grad


def test_another_network_has_the_structure_too():
    torch.manual_seed(0)
    x, y = classes(60)
    model, other = (perceptron(4, h, 3).double() for h in (5, 7))
    for structure, kind in STRUCTURES.items():
        posterior = po.laplace(model, (x, y), structure=structure, prior_precision=1.0)
        result = adapt(model, posterior, data=(x, y), memory=60, into=other, epochs=3)
        assert isinstance(result.posterior.structure, kind)
        assert away(result.posterior, po.laplace(result.model, (x, y), structure=structure, prior_precision=1.0)) < 1e-8


def test_where_the_structure_cannot_stay_the_report_says_so():
    torch.manual_seed(0)
    x, y = classes(40)
    model = perceptron(4, 5, 3).double()
    posterior = po.laplace(model, (x, y), structure="kron", prior_precision=1.0)
    weights = snapshot(trainable(model))
    prior = Diagonal(
        {name: torch.zeros_like(w) for name, w in weights.items()}, {n: 1 + w.abs() for n, w in weights.items()}
    )
    result = adapt(model, posterior, data=(x, y), prior_precision=prior, epochs=1)
    assert isinstance(result.posterior.structure, Diagonal)
    assert "prior is not one number" in repr(result.report)
    turned = Posterior.of(
        model, Rotated(weights, {}, {name: torch.ones_like(w) for name, w in weights.items()}),
        prior=posterior.prior, n=40, ess=40, likelihood="categorical",
    )  # fmt: skip
    assert "rotated" in adapt(model, turned, data=(x, y), remove=[0], epochs=1).report.notes[0]
    last = po.laplace(Shifted().double(), (x, y), structure="last_layer", prior_precision=1.0)
    into = adapt(Shifted().double(), last, data=(x, y), into=model, epochs=1)
    assert set(into.posterior.names) == set(weights)
    assert not isinstance(into.posterior.structure, LastLayer)
    assert "does not have the layer" in into.report.notes[0]


def test_a_prior_has_to_be_that_of_the_model():
    torch.manual_seed(0)
    x, y = classes(40)
    model = fitted_softmax(x, y, 1.0)
    posterior = po.laplace(model, (x, y), structure="full", prior_precision=1.0)
    with pytest.raises(po.PosterityError, match="prior_precision: expected a tensor for parameter 'bias'"):
        adapt(model, posterior, data=(x, y), prior_precision=Diagonal.isotropic({"weight": model.weight}, 2.0))
    backwards = Diagonal.isotropic({"bias": model.bias, "weight": model.weight}, 2.0)
    result = adapt(model, posterior, data=(x, y), prior_precision=backwards)
    wanted = fitted_softmax(x, y, 2.0)
    assert np.abs((to_vector(result.posterior.mean) - to_vector(trainable(wanted))).detach().numpy()).max() < 1e-8


def test_more_may_be_removed_than_the_curvature_has():
    torch.manual_seed(0)
    x, y = classes(40)
    model = perceptron(4, 5, 3).double()
    posterior = po.laplace(model, (x[:20], y[:20]), structure="full", prior_precision=1.0, n=40)  # others were smaller
    gone = 10 * x[20:30]
    memory = remember(model, (torch.cat((x[:30], gone)), torch.cat((y[:30], y[:10]))))
    result = adapt(model, posterior, memory=memory, remove=list(range(30, 40)), method="ewc", epochs=1)
    assert torch.linalg.eigvalsh(result.posterior.structure.precision)[0] > 0.999
