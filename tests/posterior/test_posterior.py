"""The Posterior: drawing again by number, writing into models, refusing other architectures."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from networks import perceptron
from posterior import cases
from posterity.errors import InvalidInput
from posterity.likelihoods import GaussianLikelihood
from posterity.posterior import Diagonal, FittedModel, Memory, Posterior
from posterity.posterior.fitted_model import check_belongs
from posterity.posterior.training import Training
from posterity.trees import snapshot, to_vector, trainable


@pytest.mark.parametrize("name", list(cases.STRUCTURES))
def test_draws_are_numbered(name: str) -> None:
    posterior = cases.posterior(cases.STRUCTURES[name]())
    again = cases.posterior(cases.STRUCTURES[name]())
    assert torch.equal(to_vector(posterior.sample(3)), to_vector(again.sample(3)))
    assert torch.equal(to_vector(posterior.structure.sample(3)), to_vector(posterior.structure.sample(3, seed=0)))
    if name != "dropout":
        assert not torch.equal(to_vector(posterior.sample(3)), to_vector(posterior.sample(4)))
    if name not in ("dropout", "ensemble"):
        assert not torch.equal(to_vector(posterior.sample(3)), to_vector(posterior.sample(3, seed=1)))


@pytest.mark.parametrize("name", list(cases.STRUCTURES))
def test_draws_and_means_belong_to_the_caller(name: str) -> None:
    posterior = cases.posterior(cases.STRUCTURES[name]())
    before = snapshot(posterior.mean)
    for t in posterior.sample(0).values():
        t.zero_()
    model = cases.network(3)
    posterior.apply(model)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert all(torch.equal(posterior.mean[n], t) for n, t in before.items())


def test_a_posterior_of_a_live_model_does_not_move_with_it() -> None:
    model = cases.network()
    live = trainable(model)
    q = Diagonal(dict(live), {name: torch.ones(()) for name in live})
    posterior = Posterior.of(model, q, prior=q, n=10, ess=10, likelihood="categorical")
    before = snapshot(posterior.mean)
    assert posterior.output_temperature == 1
    posterior.apply(model, posterior.sample(0))
    assert all(torch.equal(posterior.mean[n], t) for n, t in before.items())
    assert not any(t.requires_grad for t in posterior.mean.values())


def test_apply_writes_parameters_and_buffers_in_place() -> None:
    posterior = cases.posterior()
    model = cases.network(9)
    addresses = [p.data_ptr() for p in model.parameters()]
    posterior.apply(model)
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert all(torch.equal(p, posterior.mean[n]) for n, p in model.named_parameters())
    assert torch.equal(model[1].running_mean, cases.network()[1].running_mean)
    posterior.apply(model, posterior.sample(2))
    assert all(torch.equal(p, posterior.sample(2)[n]) for n, p in model.named_parameters())
    half = copy.deepcopy(model).to(torch.bfloat16)
    posterior.apply(half)
    assert half[0].weight.dtype == torch.bfloat16


def test_apply_reaches_a_model_under_autocast() -> None:
    posterior, model = cases.posterior(), cases.network(9).float().eval()
    inputs = torch.randn(5, model[0].in_features)
    with torch.autocast("cpu", torch.bfloat16):
        before = model(inputs)
        with posterior.applied(model):
            inside = model(inputs)
        after = model(inputs)
        posterior.apply(model)
        found = model(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(found, model(inputs))
    assert torch.equal(inside, found)
    assert torch.equal(after, before)
    assert not torch.equal(found, before)


def test_apply_leaves_a_model_alone_that_does_not_fit() -> None:
    posterior = cases.posterior()
    model = cases.network(2)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InvalidInput, match=r"parameters of '0\.weight': expected shape"):
        posterior.apply(model, {**posterior.mean, "0.weight": torch.zeros(1)})
    with pytest.raises(InvalidInput, match=r"a tensor for parameter '4\.bias'"):
        posterior.apply(model, {n: t for n, t in posterior.mean.items() if n != "4.bias"})
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_the_first_mismatch_is_named() -> None:
    posterior = cases.posterior()
    posterior.check(cases.network(4))
    with pytest.raises(InvalidInput, match=r"parameter '0.weight': expected shape \(4, 3\), got \(5, 3\)"):
        posterior.check(cases.network(hidden=5))
    with pytest.raises(InvalidInput, match=r"a parameter '1.weight' of shape \(4,\), got no such parameter"):
        posterior.check(perceptron(3, 4, 2))
    wider = cases.network()
    wider.add_module("5", nn.Linear(2, 2).double())
    with pytest.raises(InvalidInput, match=r"got another parameter '5\.weight'"):
        posterior.check(wider)
    other = cases.network()
    other[3] = nn.ReLU()
    with pytest.raises(InvalidInput, match="names and shapes agree, modules do not"):
        posterior.check(other)
    without = cases.network()
    without[1] = nn.BatchNorm1d(4, track_running_stats=False)
    with pytest.raises(InvalidInput, match=r"a buffer '1\.running_mean'"):
        posterior.check(without)
    with pytest.raises(InvalidInput, match="parameters with values"):
        posterior.check(cases.network().to("meta"))


def test_a_posterior_is_made_for_its_own_model_alone() -> None:
    q = cases.diagonal()
    with pytest.raises(InvalidInput, match="model: expected"):
        Posterior.of(nn.Linear(3, 2), q, prior=q, n=1, ess=1, likelihood="gaussian")


def test_frozen_parameters_need_not_be_known() -> None:
    model = cases.network()
    model[0].requires_grad_(False)
    mean = snapshot(trainable(model))
    q = Diagonal.isotropic(mean, 1.0)
    posterior = Posterior.of(model, q, prior=q, n=5, ess=5, likelihood="categorical")
    posterior.check(cases.network())
    assert "0.weight" not in posterior.names


def test_untempered_covariance() -> None:
    posterior = cases.posterior(n=50, ess=200.0)
    tempered, plain = posterior.covariance(), posterior.covariance(untempered=True)
    torch.testing.assert_close(to_vector(plain.variance), 4.0 * to_vector(tempered.variance))


def test_another_temperature_changes_the_width_alone() -> None:
    posterior = cases.posterior(n=50, ess=50.0)
    cold = posterior.tempered(0.25)
    assert (cold.n, cold.ess, cold.temperature) == (50, 200.0, 0.25)
    torch.testing.assert_close(to_vector(cold.mean), to_vector(posterior.mean))
    torch.testing.assert_close(4.0 * to_vector(cold.variance), to_vector(posterior.variance))
    untempered = cold.covariance(untempered=True).variance
    torch.testing.assert_close(to_vector(untempered), to_vector(posterior.variance))
    torch.testing.assert_close(
        to_vector((cold - cold.prior).precision), 4.0 * to_vector((posterior - posterior.prior).precision)
    )
    torch.testing.assert_close(to_vector(cold.tempered(1.0).variance), to_vector(posterior.variance))
    for build, kind in ((cases.full, "full"), (cases.last_layer, "last_layer"), (cases.kronecker, "diagonal")):
        assert replace(posterior, structure=build()).tempered(0.5).structure.kind == kind
    with pytest.raises(InvalidInput, match="temperature"):
        posterior.tempered(0.0)


def test_as_a_prior_a_posterior_is_at_temperature_one() -> None:
    cold = cases.posterior(n=50, ess=200.0)
    prior = cold.as_prior()
    torch.testing.assert_close(to_vector(prior.precision), to_vector(cold.structure.precision_diagonal()) / 4)
    assert torch.equal(to_vector(prior.mean), to_vector(cold.mean))


def test_the_likelihood_can_be_a_name_or_an_object() -> None:
    q = cases.diagonal()
    posterior = Posterior(q, prior=q, n=1, ess=1, likelihood=GaussianLikelihood(3.0))
    assert posterior.likelihood == GaussianLikelihood(3.0)
    assert repr(posterior) == (
        "Posterior(Diagonal(34 weights in 6 tensors), n=1, ess=1, likelihood=GaussianLikelihood(precision=3.0))"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n: expected a whole number >= 1, got 0"),
        ({"n": 2.5}, "n: expected a whole number >= 1, got 2.5"),
        ({"ess": 0.0}, "ess: expected a positive finite number"),
        ({"ess": float("nan")}, "ess: expected a positive finite number"),
        ({"likelihood": "cauchy"}, "likelihood: expected one of"),
        ({"prior": "flat"}, "prior: expected a Diagonal Gaussian, got 'str'"),
        ({"predictive": "guessed"}, "predictive: expected one of"),
        ({"structure": {}}, "structure: expected a structure such as Diagonal or Full, got 'dict'"),
        ({"prior": Diagonal({"z": torch.zeros(1)}, {"z": torch.ones(1)})}, "prior: expected parameters among"),
        (
            {"prior": Diagonal({"0.bias": torch.zeros(1)}, {"0.bias": torch.ones(1)})},
            "prior of '0.bias': expected shape",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(change: dict[str, object], message: str) -> None:
    arguments = {"structure": cases.diagonal(), "prior": cases.diagonal(), "n": 1, "ess": 1, "likelihood": "gaussian"}
    with pytest.raises(InvalidInput, match=message):
        Posterior(**{**arguments, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": torch.tensor([])}, "memory ids: expected a vector of integers"),
        ({"ids": torch.tensor([1.0, 2.0])}, "memory ids: expected a vector of integers"),
        ({"targets": torch.zeros(3)}, "memory targets: expected 2 rows, one for each id, got 3"),
        ({"inputs": {"a": torch.zeros(1)}}, "memory inputs/a: expected 2 rows"),
        ({"inputs": [1, 2]}, "memory inputs: expected a tensor, got 'list'"),
        ({"weights": torch.tensor([1.0, -1.0])}, "memory weights: expected finite numbers >= 0"),
    ],
)
def test_memories_are_checked(change: dict[str, object], message: str) -> None:
    arguments = {"inputs": torch.zeros(2, 3), "targets": torch.zeros(2), "ids": torch.tensor([0, 1])}
    with pytest.raises(InvalidInput, match=message):
        Memory(**{**arguments, **change})


def test_examples_of_a_memory_may_count_for_nothing() -> None:
    assert len(Memory(torch.zeros(2, 3), torch.zeros(2), torch.tensor([0, 1]), torch.tensor([1.0, 0.0]))) == 2


def test_memory_as_a_batch() -> None:
    memory = Memory({"a": torch.zeros(2, 3)}, torch.tensor([1, 0]), torch.tensor([8, 9]))
    batch = memory.batch()
    assert batch.ids.tolist() == [8, 9]
    assert memory.weights.tolist() == [1.0, 1.0]
    assert repr(memory) == "Memory(2 examples)"


def test_rows_of_a_memory_and_memories_as_one():
    whole = Memory(torch.arange(3.0), torch.arange(3), torch.arange(3) + 7, predictions=torch.eye(3))
    one = replace(whole.take(torch.tensor([2])), weights=torch.tensor([5.0], dtype=torch.float64))
    both = Memory.concatenate([whole, one])
    assert both.ids.tolist() == [7, 8, 9, 9]
    assert both.weights.tolist() == [1, 1, 1, 5]
    assert both.predictions is not None
    assert torch.equal(both.predictions[3], torch.eye(3)[2])
    assert Memory.concatenate([whole, replace(one, predictions=None)]).predictions is None


def test_a_fitted_model_belongs_together():
    model = nn.Linear(2, 1)
    weights = snapshot(trainable(model))
    prior = Diagonal.isotropic(weights, 1.0)
    posterior = Posterior.of(model, Diagonal(weights, prior.precision), prior=prior, n=10, ess=5, likelihood="gaussian")
    assert posterior.temperature == 2.0
    fitted = FittedModel.of(model, posterior, (torch.ones(4, 2), torch.zeros(4, 1)), batch_size=3)
    assert fitted.likelihood is posterior.likelihood
    assert [len(b) for b in fitted.batches("all")] == [3, 1]
    assert [len(b) for b in fitted.own_batches("all")] == [3, 1]  # of one process
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight += 1
    with fitted.at_mean():  # in a double: other threads may use the caller's model meanwhile
        assert torch.equal(fitted.model.weight, before)
        assert torch.equal(model.weight, before + 1)
    assert torch.equal(model.weight, before + 1)
    with pytest.raises(InvalidInput, match="weight"):
        FittedModel.of(nn.Linear(3, 1), posterior, (torch.ones(4, 3), torch.zeros(4, 1)))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.Unflatten(1, (1, 1)), r"one row of outputs for each example, \(B, K\)"),
        (nn.Threshold(1e9, torch.nan), "finite"),
    ],
)
def test_outputs_of_a_fitted_model_are_rows_of_numbers(layer, message):
    model = nn.Sequential(nn.Linear(2, 1), layer)
    prior = Diagonal.isotropic(snapshot(trainable(model)), 1.0)
    posterior = Posterior.of(model, prior, prior=prior, n=6, ess=6, likelihood="gaussian")
    fitted = FittedModel.of(model, posterior, (torch.ones(4, 2), torch.zeros(4, 1)))
    with pytest.raises(InvalidInput, match=f"model output: expected .*{message}"):
        fitted.outputs(torch.ones(4, 2))


@pytest.mark.parametrize("loader", [False, True])
def test_examples_of_a_fitted_model_are_those_with_the_ids(loader):
    model = nn.Linear(2, 1)
    prior = Diagonal.isotropic(snapshot(trainable(model)), 1.0)
    posterior = Posterior.of(model, prior, prior=prior, n=6, ess=6, likelihood="gaussian")
    x = torch.arange(12.0).reshape(6, 2)
    data = (x, torch.zeros(6, 1))
    given = DataLoader(TensorDataset(*data), batch_size=4) if loader else data
    found = FittedModel.of(model, posterior, given, batch_size=4).examples(torch.tensor([1, 5]), torch.tensor([1, 5]))
    assert torch.equal(torch.cat([batch.ids for batch in found]), torch.tensor([1, 5]))
    assert torch.equal(torch.cat([batch.inputs for batch in found]), x[[1, 5]])


def test_examples_of_a_loader_that_shuffles_are_found_by_their_ids():
    model = nn.Linear(2, 1)
    prior = Diagonal.isotropic(snapshot(trainable(model)), 1.0)
    posterior = Posterior.of(model, prior, prior=prior, n=6, ess=6, likelihood="gaussian")
    data = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.zeros(6, 1), 10 * torch.arange(6))
    fitted = FittedModel.of(model, posterior, DataLoader(data, batch_size=4, shuffle=True))
    found = fitted.examples(torch.tensor([10, 50]), torch.tensor([0, 3]))  # rows of another pass
    assert sorted(i for batch in found for i in batch.ids.tolist()) == [10, 50]
    for batch in found:
        assert torch.equal(batch.inputs[:, 0], batch.ids / 5)


def test_examples_of_a_dataset_are_read_alone():
    class Noting(TensorDataset):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    model = nn.Linear(2, 1)
    prior = Diagonal.isotropic(snapshot(trainable(model)), 1.0)
    posterior = Posterior.of(model, prior, prior=prior, n=6, ess=6, likelihood="gaussian")
    read: list[int] = []
    fitted = FittedModel.of(model, posterior, Noting(torch.ones(6, 2), torch.zeros(6, 1)), batch_size=4)
    read.clear()
    fitted.examples(torch.tensor([1, 5]), torch.tensor([1, 5]))
    assert read == [1, 5]


def test_applied_puts_mean_and_buffers_into_a_model_and_takes_them_out_again() -> None:
    model, posterior = cases.network(9), cases.posterior()
    with torch.no_grad():
        for t in (*model.parameters(), *model.buffers()):
            t.add_(1)
    before = snapshot(dict(model.state_dict()))

    def inside() -> None:
        with posterior.applied(model):
            for name, t in {**posterior.mean, **posterior.buffers}.items():
                assert torch.equal(model.state_dict()[name], t)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inside()
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    with (
        pytest.raises(InvalidInput, match="expected the architecture"),
        posterior.applied(nn.Sequential(*model, nn.Tanh())),
    ):
        pass


def test_a_prior_that_training_centred_at_its_means_pulls_at_nothing() -> None:
    q = cases.STRUCTURES["diagonal"]()
    apart = Diagonal({name: t + 1 for name, t in q.mean.items()}, q.precision)
    for prior, training, pulls in ((q, None, True), (q, Training(1.0, 1, None), False), (apart, None, True)):
        posterior = Posterior(q, prior=prior, n=1, ess=1, likelihood="gaussian", training=training)
        assert posterior.prior_pulls == pulls
    assert replace(posterior, training=Training(1.0, 1, None)).prior_pulls


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ((0.0, 1, None), "epochs"),
        ((1.0, 0, None), "batch_size"),
        ((1.0, 1, 0.0), "lr"),
    ],
)
def test_a_training_that_cannot_have_been_is_refused(training, message) -> None:
    content = Training(*training)._asdict()
    with pytest.raises(InvalidInput, match=f"{message}: expected"):
        Training.read(content)


def test_what_is_no_model_and_what_is_no_posterior_are_named() -> None:
    model = cases.network()
    with pytest.raises(InvalidInput, match="model: expected a Module, got 'int'"):
        check_belongs(3, cases.posterior(cases.STRUCTURES["diagonal"]()))
    with pytest.raises(InvalidInput, match="posterior: expected a Posterior, got 'dict'"):
        check_belongs(model, {})
