"""Pruning by signal-to-noise: the stated cost is the real one where the loss is quadratic."""

import pytest
import torch
from torch import nn

import posterity as po
from posterity.errors import InvalidInput
from posterity.posterior import Diagonal, Posterior


def regression(n=40, d=6, noise_precision=9.0, prior=2.0):
    """A linear regression on orthogonal inputs, whose posterior is a diagonal Gaussian exactly."""
    torch.manual_seed(0)
    x = torch.linalg.qr(torch.randn(n, d, dtype=torch.float64)).Q * n**0.5
    y = x @ torch.tensor([[2.0], [-1.0], [0.3], [0.05], [-0.02], [0.0]], dtype=torch.float64)
    y = y + torch.randn_like(y) / noise_precision**0.5
    precision = noise_precision * n + prior
    mean = noise_precision * (x.T @ y) / precision
    model = nn.Linear(d, 1, bias=False, dtype=torch.float64)
    structure = Diagonal({"weight": mean.T}, {"weight": torch.tensor(precision, dtype=torch.float64)})
    likelihood = po.likelihoods.GaussianLikelihood(noise_precision)
    flat = Diagonal.isotropic({"weight": mean.T}, prior)
    posterior = Posterior.of(model, structure, prior=flat, n=n, ess=n, likelihood=likelihood)

    def objective(w):
        return (noise_precision / 2 * (x @ w.T - y).square().sum() + prior / 2 * w.square().sum()) / n

    return model, posterior, objective


@pytest.mark.parametrize("how", [{"fraction": 0.5}, {"below": 2.5}, {"cost": 0.02}])
def test_the_cost_is_what_it_costs(how):
    _, posterior, objective = regression()
    found = posterior.prune(**how)
    pruned = found.posterior.mean["weight"]
    assert 0 < found.removed < found.weights == 6
    assert int((pruned == 0).sum()) == found.removed
    real = objective(pruned) - objective(posterior.mean["weight"])
    assert found.cost == pytest.approx(real.item(), rel=1e-9)
    ratio = posterior.mean["weight"].abs() / posterior.variance["weight"].sqrt()
    assert ratio[pruned == 0].max().item() == pytest.approx(found.snr)
    assert ratio[pruned != 0].min() > found.snr


def test_pruned_weights_stay_at_zero_in_every_draw(tmp_path):
    model, posterior, _ = regression()
    pruned = posterior.prune(fraction=0.5).posterior
    drawn = pruned.sample(3)["weight"]
    assert drawn[pruned.mean["weight"] == 0].abs().max() < 1e-6
    pruned.save(tmp_path / "pruned")
    again = Posterior.load(tmp_path / "pruned")
    x = torch.randn(4, 6, dtype=torch.float64)
    assert torch.equal(po.predict(model, again, x).mean, po.predict(model, pruned, x).mean)


def test_a_cost_is_never_exceeded():
    _, posterior, _ = regression()
    nothing = posterior.prune(cost=0.0)
    assert (nothing.removed, nothing.cost, nothing.snr) == (0, 0.0, 0.0)
    half = posterior.prune(fraction=0.5)
    assert posterior.prune(cost=half.cost).removed == half.removed
    for allowed in (0.001, 0.01, 0.1, 1.0):
        assert posterior.prune(cost=allowed).cost <= allowed


def test_a_weight_at_the_bound_is_kept():
    _, posterior, _ = regression()
    assert posterior.prune(below=posterior.prune(fraction=0.5).snr).removed == 2


def test_what_cannot_be_pruned_is_refused():
    _, posterior, _ = regression()
    with pytest.raises(InvalidInput, match="cost: expected nats for each example >= 0, got -1"):
        posterior.prune(cost=-1.0)
    with pytest.raises(InvalidInput, match="below: expected a signal-to-noise ratio >= 0, got -1"):
        posterior.prune(below=-1.0)
    for share in (-0.5, 1.5):
        with pytest.raises(InvalidInput, match="fraction: expected a share of the weights"):
            posterior.prune(fraction=share)
    with pytest.raises(InvalidInput, match="one of fraction, below and cost"):
        posterior.prune()
    with pytest.raises(InvalidInput, match="one of fraction, below and cost"):
        posterior.prune(fraction=0.1, below=1.0)
    with pytest.raises(InvalidInput, match="diagonal"):
        posterior.project("full").prune(fraction=0.1)
