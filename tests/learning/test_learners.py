"""SWAG, Bayes by backprop, dropout and ensembles against what can be computed without them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from learning.problems import blobs, line, mlp
from networks import perceptron
from posterity.learning import Callback, bayes_by_backprop, dropout, ensemble, fit, insert_dropout, swag
from posterity.learning.learners import BayesByBackpropLearner, TrainingPlan
from posterity.likelihoods import GaussianLikelihood
from posterity.posterior import Diagonal, Dropout, Ensemble, LowRank, Mixture
from posterity.prediction import predict
from posterity.trees import to_vector, trainable

# Most runs here are far too short for IVON's Hessian, and it says so.
pytestmark = pytest.mark.filterwarnings("ignore:IVON. only .* of the Hessian has been learnt")


def flat(model):
    return to_vector(trainable(model)).detach().double().numpy()


def fresh():
    return perceptron(2, 8, 3, hidden=nn.ReLU)


class Path(Callback):
    """The weights after each epoch."""

    def __init__(self):
        self.weights = []

    def epoch(self, moment):
        self.weights.append(flat(moment.model).copy())


def test_swag_moments():
    path = Path()
    run = fit(mlp(), blobs(), method="swag", epochs=20, rank=4, start=0.5, callbacks=[path])
    snapshots = np.stack(path.weights[10:])
    means = np.cumsum(snapshots, 0) / np.arange(1, 11)[:, None]
    rows = (snapshots - means)[-4:]
    covariance = 0.5 * np.diag(snapshots.var(0)) + 0.5 * rows.T @ rows / 3
    structure = run.posterior.structure
    assert isinstance(structure, LowRank)
    np.testing.assert_allclose(to_vector(structure.mean).numpy(), snapshots.mean(0), atol=1e-6)
    np.testing.assert_allclose(structure.covariance_matrix().numpy(), covariance, atol=1e-6)
    np.testing.assert_allclose(flat(run.model), snapshots.mean(0), atol=1e-6)


def test_swag_refreshes_batch_norm():
    x, y = blobs()
    model = nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    posterior = swag(model, (x, y), epochs=10, batch_size=100)
    hidden = model[0](x)
    torch.testing.assert_close(posterior.buffers["1.running_mean"], hidden.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(posterior.buffers["1.running_var"], hidden.var(0), rtol=1e-4, atol=1e-5)
    assert model[1].momentum == 0.1


@pytest.mark.parametrize("local", [False, True])
def test_bayes_by_backprop_finds_the_mean_field_optimum(local):
    """Linear regression: the mean is that of the exact posterior, each precision the diagonal of the exact one."""
    x, y = line(60, noise=0.5)
    model = nn.Linear(3, 1)
    options = {"prior": 2.0, "epochs": 600, "batch_size": 60, "draws": 1 if local else 4, "lr": 0.03, "local": local}
    posterior = bayes_by_backprop(model, (x, y), likelihood=GaussianLikelihood(4.0), **options)
    design = np.column_stack([x.double().numpy(), np.ones(60)])
    precision = 4 * design.T @ design + 2 * np.eye(4)
    mean = np.linalg.solve(precision, 4 * design.T @ y.double().numpy())
    sigma = 1 / np.sqrt(np.diag(precision))
    assert isinstance(posterior.structure, Diagonal)
    np.testing.assert_array_less(np.abs(to_vector(posterior.mean).numpy() - mean[:, 0]) / sigma, 0.15)
    np.testing.assert_allclose(to_vector(posterior.variance).sqrt().numpy(), sigma, rtol=0.05)


def test_the_penalty_of_bayes_by_backprop_is_the_kl():
    """Without data that matter (a constant loss), q goes to the prior, whatever it is."""
    x, y = torch.zeros(50, 3), torch.zeros(50, 1)
    model = nn.Linear(3, 1, bias=False)
    prior = Diagonal({"weight": torch.tensor([[1.0, -1.0, 2.0]])}, {"weight": torch.tensor([[4.0, 25.0, 100.0]])})
    posterior = bayes_by_backprop(
        model, (x, y), likelihood=GaussianLikelihood(1.0), prior=prior, epochs=1000, batch_size=50, lr=0.05
    )
    assert float(posterior.kl(prior)) < 1e-3
    assert posterior.prior is prior


def test_yesterdays_posterior_is_todays_prior():
    first = fit(mlp(), blobs(), method="ivon", epochs=20).posterior
    for method in ("ivon", "bayes_by_backprop"):
        second = fit(mlp(), blobs(seed=1), method=method, prior=first, epochs=1).posterior
        assert torch.equal(to_vector(second.prior.mean), to_vector(first.mean))
        torch.testing.assert_close(to_vector(second.prior.variance), to_vector(first.variance))


def test_a_cold_posterior_is_a_prior_at_temperature_one():
    data, model = blobs(200), mlp()
    first = fit(model, data, method="variational", epochs=20, budget=1e-3, progress=False).posterior
    assert first.temperature < 0.9
    for method in ("variational", "ivon"):
        second = fit(mlp(), data, method=method, prior=first, epochs=1, progress=False).posterior
        for name, t in first.structure.precision_diagonal().items():
            wanted = t * first.temperature / second.temperature
            torch.testing.assert_close(second.prior.precision[name], wanted, rtol=1e-4, atol=0.0)


def test_dropout_is_inserted_without_renaming():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
    x = torch.randn(8, 1, 4, 4)
    names, before = list(dict(model.named_parameters())), model(x)
    insert_dropout(model, 0.4)
    assert list(dict(model.named_parameters())) == names
    assert torch.equal(model.eval()(x), before)
    hidden = model[0].train()(x.expand(8, 1, 4, 4))
    assert 0.2 < (hidden == 0).float().mean() < 0.6
    torch.testing.assert_close(hidden[hidden != 0], (model[0].eval()(x) / 0.6)[hidden != 0])


def test_dropout_posterior_draws_masks():
    model = mlp()
    run = fit(model, blobs(), method="dropout", p=0.3, epochs=10)
    assert isinstance(run.posterior.structure, Dropout)
    assert run.posterior.structure.rates == {"0.dropout": 0.3}
    x = blobs()[0]
    averaged = predict(model, run.posterior, x, samples=0)
    torch.testing.assert_close(averaged.probs, model(x).softmax(-1).detach())
    first, again = (predict(model, run.posterior, x, samples=5) for _ in range(2))
    assert torch.equal(first.probs, again.probs)
    assert (first.probs - averaged.probs).abs().max() > 0.01
    posterior = dropout(model, likelihood="categorical", n=100)
    assert torch.equal(predict(model, posterior, x, samples=5).probs, first.probs)


def test_ensemble_members_differ_and_are_reproducible():
    data = blobs()
    posterior = ensemble(fresh, data, members=3, epochs=5, base="sgd")
    assert isinstance(posterior.structure, Ensemble)
    members = [to_vector(member) for member in posterior.structure.members]
    assert min((a - b).abs().max() for a, b in itertools.pairwise(members)) > 0.01
    again = ensemble(fresh, data, members=3, epochs=5, base="sgd")
    assert all(torch.equal(a, to_vector(b)) for a, b in zip(members, again.structure.members, strict=True))


def test_a_model_is_drawn_anew_for_each_member():
    model = mlp()
    before = flat(model)
    posterior = ensemble(model, blobs(), members=2, epochs=1, lr=1e-9)
    members = [to_vector(member).numpy() for member in posterior.structure.members]
    assert np.abs(members[0] - members[1]).max() > 0.1
    np.testing.assert_array_equal(flat(model), before)


def test_ensembles_carry_the_statistics_of_each_member():
    def make():
        return nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))

    run = fit(make, blobs(), method="ensemble", members=2, epochs=2)
    means = [member["1.running_mean"] for member in run.posterior.structure.members]
    assert not torch.equal(*means)
    assert predict(run.model, run.posterior, blobs()[0], samples=2).probs.shape == (100, 3)


def test_an_ensemble_of_gaussians_is_a_mixture_and_noises_average():
    run = fit(lambda: mlp(3, 8, 1), line(), method="ensemble", base="ivon", members=2, epochs=3)
    assert isinstance(run.posterior.structure, Mixture)
    singles = [row["noise_precision"] for row in run.history if row["epoch"] == 3]
    assert run.posterior.likelihood.precision == pytest.approx(2 / sum(1 / b for b in singles))


def test_laplace_after_training():
    run = fit(mlp(3, 8, 1), line(), method="laplace", structure="diag", prior_precision=3.0, epochs=30, lr=0.01)
    assert run.posterior.prior.precision["0.weight"] == 3
    assert run.posterior.likelihood.precision == pytest.approx(4.0, rel=0.25)


@pytest.mark.parametrize("local", [False, True])
def test_noise_on_outputs_is_the_noise_of_weights(local):
    """Mean and variance of the outputs of a layer whose weights are drawn, over many draws."""
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 2), torch.randn(5, 3)
    sigma = {"weight": 0.1 + torch.rand(2, 3), "bias": 0.1 + torch.rand(2)}
    plan = TrainingPlan(n=10, steps=1, lr=0.1, seed=0)
    learner = BayesByBackpropLearner(layer, plan, sigma_init=sigma, local=local)
    drawn = []
    for step in range(4000):
        with learner.draw(step, 0):
            drawn.append(learner.forward(x).detach())
    found = torch.stack(drawn)
    variance = x.square() @ sigma["weight"].square().T + sigma["bias"].square()
    torch.testing.assert_close(found.mean(0), layer(x).detach(), atol=0.12, rtol=0)
    torch.testing.assert_close(found.var(0) / variance, torch.ones(5, 2), atol=0.12, rtol=0)
    shared = torch.corrcoef(found[:, :2, 0].T)[0, 1]
    assert abs(shared) < 0.06 if local else abs(shared) > 0.1
    assert not layer._forward_hooks


def test_local_noise_meets_layers_that_are_called_by_name():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(input=x)

    model = Named()
    learner = BayesByBackpropLearner(model, TrainingPlan(n=10, steps=1, lr=0.1, seed=0), sigma_init=0.5, local=True)
    x = torch.randn(5, 3)
    mean = model(x)
    with learner.draw(1, 0):
        assert (learner.forward(x) - mean).abs().min() > 0


def test_local_noise_survives_half_precision():
    widths, rows = torch.tensor([[1e-4, 3e-5, 2e-5]]), torch.tensor([400.0, -1000.0, 3.0])
    model = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(model.weight)
    learner = BayesByBackpropLearner(
        model, TrainingPlan(n=10, steps=1, lr=0.1, seed=0), sigma_init={"weight": widths}, local=True
    )
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.float16), learner.draw(1, 0):
        noise = learner.forward(rows.repeat(20_000, 1)).float()
    (2.0**16 * noise.square().mean()).backward()
    parts = (widths * rows).square()[0]  # of the variance, and dσ²/dρ = 2σ² for small σ
    torch.testing.assert_close(noise.var(), parts.sum(), rtol=0.05, atol=0.0)
    torch.testing.assert_close(learner.rho.grad, 2.0**17 * parts, rtol=0.05, atol=0.0)


def test_local_noise_leaves_shared_weights_to_be_drawn():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.attention = nn.Embedding(7, 4), nn.MultiheadAttention(4, 2, batch_first=True)
            self.middle, self.head = nn.Linear(4, 4), nn.Linear(4, 7, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x):
            h = self.embedding(x)
            return self.head(self.middle(self.attention(h, h, h)[0])).mean(1)

    learner = BayesByBackpropLearner(Tied(), TrainingPlan(n=10, steps=1, lr=0.1, seed=0), local=True)
    assert set(learner.means) - set(learner.outside) == {"middle.weight", "middle.bias"}
    data = torch.arange(12).reshape(4, 3) % 7, torch.arange(4)
    run = fit(Tied(), data, method="bayes_by_backprop", local=True, epochs=2)
    assert all(bool(p.isfinite().all()) for p in run.model.parameters())
