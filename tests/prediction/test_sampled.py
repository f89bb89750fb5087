"""Sampled predictions against the plain loop over draws, for every structure."""

import copy

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import nn

from networks import perceptron
from posterity.errors import Undefined
from posterity.posterior import Diagonal, Posterior
from posterity.prediction import _forward, _stream, predict
from posterity.trees import snapshot, trainable
from prediction.cases import STRUCTURES, Case, make_case, plain_loop, regression


@pytest.mark.parametrize("kind", STRUCTURES)
def test_predictions_are_the_average_over_the_draws(kind):
    case = make_case(kind)
    samples = 5 if kind == "ensemble" else 8
    logits = plain_loop(case, samples).numpy()
    log_p = special.log_softmax(logits, -1)
    p = predict(*case, samples=samples, keep_samples=True)
    np.testing.assert_allclose(p.outputs, logits, atol=1e-12)
    np.testing.assert_allclose(p.probs, np.exp(log_p).mean(0), atol=1e-12)
    np.testing.assert_allclose(p.log_probs, special.logsumexp(log_p, 0) - np.log(samples), atol=1e-12)
    np.testing.assert_allclose(p.std, np.exp(log_p).std(0), atol=1e-12)
    np.testing.assert_allclose(p.entropy, stats.entropy(np.exp(log_p).mean(0), axis=-1), atol=1e-12)
    np.testing.assert_allclose(p.aleatoric, stats.entropy(np.exp(log_p), axis=-1).mean(0), atol=1e-12)
    np.testing.assert_allclose(p.mutual_information, p.entropy - p.aleatoric, atol=1e-12)
    np.testing.assert_allclose(p.quantiles([0.1, 0.5]), np.quantile(np.exp(log_p), [0.1, 0.5], axis=0), atol=1e-12)


@pytest.mark.parametrize("kind", [*STRUCTURES, "dropout"])
def test_the_batch_size_changes_nothing(kind):
    case = make_case(kind)
    whole, pieces = (predict(*case, samples=6, seed=3, batch_size=size) for size in (1000, 7))
    np.testing.assert_allclose(whole.log_probs, pieces.log_probs, atol=1e-12)
    np.testing.assert_allclose(whole.std, pieces.std, atol=1e-12)
    other = predict(*case, samples=6, seed=4)
    assert kind == "ensemble" or (whole.probs - other.probs).abs().max() > 1e-3


@pytest.mark.parametrize("kind", STRUCTURES)
def test_one_pass_for_all_draws_equals_a_loop(kind, monkeypatch):
    case = make_case(kind)
    together = predict(*case, samples=4)
    monkeypatch.setattr(_forward.Runner, "_block_size", lambda self, forward, inputs: 1)
    np.testing.assert_allclose(predict(*case, samples=4).log_probs, together.log_probs, atol=1e-12)


def test_small_batches_take_one_pass_and_large_ones_a_loop():
    case = make_case("diagonal")
    calls = []
    model = case.model
    model.register_forward_hook(lambda module, inputs, output: calls.append(len(inputs[0])))
    predict(*case, samples=9)
    assert len(calls) == 1
    calls.clear()
    many = case.inputs.repeat(200, 1)
    predict(model, case.posterior, many, samples=9, batch_size=len(many))
    assert len(calls) == 9


def test_a_last_layer_with_many_outputs_takes_several_passes(monkeypatch):
    case = make_case("last_layer")
    calls = []
    case.model[0].register_forward_hook(lambda module, inputs, output: calls.append(len(inputs[0])))
    whole = predict(*case, samples=9)
    assert calls == [1, 23]  # one example, for the size of its outputs, and everything below the last layer once
    calls.clear()
    monkeypatch.setattr(_forward, "STACK", 4 * 23 * 3 * 8)  # bytes of the outputs of four draws
    pieces = predict(*case, samples=9)
    assert calls == [1, 23, 23, 23]
    np.testing.assert_allclose(pieces.log_probs, whole.log_probs, atol=1e-12)


def test_heavier_networks_take_a_loop_sooner():
    """128 rows through 1 KiB of weights are one pass, through 100 KiB a loop."""
    for width, passes in ((8, 1), (800, 5)):
        model = perceptron(16, width, 16, hidden=nn.ReLU)
        prior = Diagonal.isotropic(snapshot(trainable(model)), 1.0)
        posterior = Posterior.of(model, prior, prior=prior, n=10, ess=10, likelihood="categorical")
        calls = []
        model.register_forward_hook(lambda *_: calls.append(1))
        predict(model, posterior, torch.zeros(128, 16), samples=5)
        assert len(calls) == passes
        calls.clear()
        predict(model, posterior, torch.zeros(8, 16), samples=5)
        assert len(calls) == 1


def test_memory_budgets_change_nothing(monkeypatch):
    case = make_case("diagonal")
    expected = predict(*case, samples=10).log_probs
    weights = 8 * sum(p.numel() for p in case.model.parameters())
    for stack, group in ((3 * weights, 1), (3 * weights, 2**30), (1, 1), (1, 300)):
        monkeypatch.setattr(_forward, "STACK", stack)
        monkeypatch.setattr(_stream, "GROUP", group)
        np.testing.assert_allclose(predict(*case, samples=10, batch_size=4).log_probs, expected, atol=1e-12)


@pytest.mark.parametrize("kind", [*STRUCTURES, "dropout"])
def test_no_samples_means_the_mean_weights(kind):
    case = make_case(kind)
    reference = copy.deepcopy(case.model).eval()
    case.posterior.apply(reference)
    p = predict(*case, samples=0)
    np.testing.assert_allclose(p.probs, reference(case.inputs).softmax(-1).detach(), atol=1e-12)
    np.testing.assert_allclose(p.mutual_information, 0.0, atol=1e-12)


def test_linear_regression_is_what_algebra_says():
    case, f, covariance = regression(precision=4.0)
    p = predict(*case, samples=6000)
    error = covariance.diagonal(dim1=1, dim2=2).sqrt() / np.sqrt(6000)
    assert ((p.mean - f).abs() < 5 * error).all()
    np.testing.assert_allclose(p.epistemic_std, covariance.diagonal(dim1=1, dim2=2).sqrt(), rtol=0.06)
    np.testing.assert_allclose(p.noise_std, 0.5)
    np.testing.assert_allclose(p.std**2, p.epistemic_std**2 + 0.25)


def test_regression_log_density_and_quantiles_are_those_of_the_mixture():
    case, f, _ = regression(precision=4.0)
    p = predict(*case, samples=7)
    outputs, y = p.outputs.numpy(), (f + 0.3).numpy()
    density = stats.norm.pdf(y, outputs, 0.5).mean(0)
    np.testing.assert_allclose(p.log_prob(torch.as_tensor(y)), np.log(density), atol=1e-12)
    for level, values in zip((0.05, 0.8), p.quantiles([0.05, 0.8])):
        np.testing.assert_allclose(stats.norm.cdf(values, outputs, 0.5).mean(0), level, atol=1e-9)
    entropy = stats.norm.entropy(scale=p.std)
    np.testing.assert_allclose(p.entropy, entropy, atol=1e-12)
    np.testing.assert_allclose(p.mutual_information, entropy - stats.norm.entropy(scale=0.5), atol=1e-12)


def test_counts_have_poisson_mixtures():
    case, _, _ = regression("poisson")
    p = predict(*case, samples=9)
    rates = np.exp(p.outputs.numpy())
    np.testing.assert_allclose(p.mean, rates.mean(0))
    np.testing.assert_allclose(p.std, np.sqrt(rates.mean(0) + rates.var(0)))
    counts = np.full(p.mean.shape, 2.0)
    np.testing.assert_allclose(p.log_prob(torch.as_tensor(counts)), np.log(stats.poisson.pmf(2, rates).mean(0)))
    assert not p.quantiles(0.001).signbit().any()
    q = p.quantiles(0.9).numpy()
    assert (stats.poisson.cdf(q, rates).mean(0) >= 0.9).all()
    assert (stats.poisson.cdf(q - 1, rates).mean(0) < 0.9).all()


def test_outliers_have_mixtures_of_student_t():
    case, _, _ = regression("student_t", degrees=5.0, scale=2.0)
    p = predict(*case, samples=9)
    outputs = p.outputs.numpy()
    np.testing.assert_allclose(p.std, np.sqrt(stats.t.var(5, scale=2) + outputs.var(0)))
    density = stats.t.pdf(0.7, 5, outputs, 2).mean(0)
    np.testing.assert_allclose(p.log_prob(torch.full_like(p.mean, 0.7)), np.log(density))
    case, _, _ = regression("student_t", degrees=2.0)
    with pytest.raises(Undefined, match="std: a Student t of 2 degrees of freedom has no variance"):
        _ = predict(*case, samples=2).std


def test_binary_targets():
    case, _, _ = regression("bernoulli")
    p = predict(*case, samples=9, keep_samples=True)
    draws = special.expit(p.outputs.numpy())
    np.testing.assert_allclose(p.probs, draws.mean(0))
    np.testing.assert_allclose(p.entropy, stats.bernoulli.entropy(draws.mean(0)), atol=1e-12)
    np.testing.assert_allclose(p.aleatoric, stats.bernoulli.entropy(draws).mean(0), atol=1e-12)
    for ones in (torch.ones(12, 2), torch.ones(12, 2, dtype=torch.bool)):
        np.testing.assert_allclose(p.log_prob(ones), np.log(draws.mean(0)), atol=1e-12)


def test_probabilities_too_small_for_floats_keep_their_logarithm():
    model = nn.Linear(1, 2)
    mean = {"weight": torch.tensor([[900.0], [0.0]]), "bias": torch.zeros(2)}
    narrow = Diagonal(mean, {"weight": torch.tensor(1.0), "bias": torch.tensor(1.0)})
    posterior = Posterior.of(model, narrow, prior=narrow, n=1, ess=1, likelihood="categorical")
    case = Case(model, posterior, torch.ones(1, 1))
    p = predict(*case, samples=16)
    log_p = special.log_softmax(plain_loop(case, 16).double().numpy(), -1)
    assert p.probs[0, 1] == 0
    np.testing.assert_allclose(p.log_prob(torch.tensor([1])), special.logsumexp(log_p[:, 0, 1]) - np.log(16), rtol=1e-6)
    assert torch.isfinite(p.entropy).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_answer_in_float32(dtype):
    model = nn.Linear(4, 3).to(dtype)
    mean = snapshot(trainable(model))
    q = Diagonal(mean, {name: torch.tensor(100.0) for name in mean})
    posterior = Posterior.of(model, q, prior=q, n=9, ess=9, likelihood="categorical")
    p = predict(model, posterior, torch.randn(5, 4, dtype=dtype), samples=4)
    assert p.probs.dtype == torch.float32
    np.testing.assert_allclose(p.probs.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("first", [-1, 1])
def test_a_model_that_cannot_be_vectorised_is_looped(first):
    """At any batch, or only at the second, whose inputs take the branch that looks at the weights."""

    class Branching(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() < 0 or self.weight.sum().item() > 0 else super().forward(-x)

    model = Branching(4, 3).double()
    mean = snapshot(trainable(model))
    q = Diagonal(mean, {name: torch.tensor(1.0) for name in mean})
    posterior = Posterior.of(model, q, prior=q, n=9, ess=9, likelihood="categorical")
    inputs = torch.rand(2, 3, 4).double() * torch.tensor([first, 1]).view(2, 1, 1)
    expected = [plain_loop(Case(model, posterior, x), 6).softmax(-1).mean(0) for x in inputs]
    found = predict(model, posterior, inputs.flatten(0, 1), samples=6, batch_size=3).probs
    np.testing.assert_allclose(found, torch.cat(expected), atol=1e-12)


def test_a_model_that_keeps_an_activation_can_be_copied_afterwards():
    class Remembering(nn.Linear):
        def forward(self, x):
            self.activation = super().forward(x)
            return self.activation

    model = Remembering(4, 3)
    q = Diagonal.isotropic(snapshot(trainable(model)), 1.0)
    posterior = Posterior.of(model, q, prior=q, n=9, ess=9, likelihood="categorical")
    predict(model, posterior, torch.randn(5, 4))  # in one vectorised pass
    copy.deepcopy(model)


def test_fused_modules_are_looped():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(self.layer(x).mean(1))

    torch.manual_seed(0)
    model = Encoder()
    mean = snapshot(trainable(model))
    q = Diagonal(mean, {name: torch.tensor(100.0) for name in mean})
    posterior = Posterior.of(model, q, prior=q, n=9, ess=9, likelihood="categorical")
    case = Case(model, posterior, torch.randn(5, 4, 8))
    expected = plain_loop(case, 3).softmax(-1).mean(0)
    np.testing.assert_allclose(predict(*case, samples=3).probs, expected, atol=1e-6)
