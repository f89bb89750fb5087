"""One model asked from several threads: every answer is that of a single thread, and the model is only read."""

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn

from posterity.doubles import double, duplicate
from posterity.learning import laplace
from posterity.memory import memory_map
from posterity.posterior import Posterior
from posterity.prediction import PredictiveModule, predict
from posterity.trees import snapshot, trainable
from prediction.cases import structure

WATCHED = []  # models that must look the same in the middle of a call


class Pause(nn.Module):
    """Gives way to other threads in the middle of every forward pass."""

    def forward(self, x):
        time.sleep(2e-4)
        for model, parameters, modes in WATCHED:
            assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
            assert [m.training for m in model.modules()] == modes
            assert not any(m._forward_hooks for m in model.modules())
        return x


def make(kind, pause=None):
    torch.manual_seed(0)
    dropout = nn.Dropout(0.5)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), pause or Pause(), dropout, nn.Linear(6, 3)).double()
    model(torch.randn(50, 4, dtype=torch.float64))
    mean = snapshot(trainable(model))
    own = {name: t + 0.1 for name, t in mean.items()}  # not what the model holds
    posterior = Posterior.of(
        model, structure(kind, own), prior=structure("diagonal", mean), n=50, ess=50, likelihood="categorical"
    )
    return model.train(), posterior


@pytest.fixture
def watched():
    yield WATCHED
    WATCHED.clear()


def asked(questions, workers=4):
    """Answers of all questions, put by several threads at once."""
    with ThreadPoolExecutor(workers) as pool:
        return [future.result() for future in [pool.submit(question) for question in questions]]


@pytest.mark.parametrize(
    ("kind", "method"), [("diagonal", "sampled"), ("dropout", "sampled"), ("full", "linearised"), ("full", "probit")]
)
def test_threads_get_the_answers_of_one_thread_and_the_model_is_only_read(kind, method, watched):
    model, posterior = make(kind)
    inputs = torch.randn(6, 8, 4, dtype=torch.float64)
    one = [predict(model, posterior, x, samples=4, method=method, seed=i).probs for i, x in enumerate(inputs)]
    values = snapshot(model.state_dict())
    watched.append((model, list(model.parameters()), [m.training for m in model.modules()]))
    many = asked(
        [partial(predict, model, posterior, x, samples=4, method=method, seed=i) for i, x in enumerate(inputs)] * 3
    )
    for i, answer in enumerate(many):
        torch.testing.assert_close(answer.probs, one[i % 6], rtol=1e-12, atol=1e-12)
    for name, value in model.state_dict().items():
        assert torch.equal(value, values[name])


def test_where_no_double_can_be_made_threads_wait():
    model, posterior = make("diagonal")
    layer, plain = model[4], model[4].forward
    layer.forward = lambda x: plain(x)  # holds the layer itself, with whatever weights are in it
    assert double(model, {}) is None
    parameters = list(model.parameters())
    inputs = torch.randn(6, 8, 4, dtype=torch.float64)
    one = [predict(model, posterior, x, samples=4).probs for x in inputs]
    many = asked([partial(predict, model, posterior, x, samples=4) for x in inputs] * 2)
    for i, answer in enumerate(many):
        torch.testing.assert_close(answer.probs, one[i % 6], rtol=1e-12, atol=1e-12)
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    assert model.training
    assert len({*one[0].flatten().tolist()}) > 3  # the drawn weights reach the layer


def test_a_predictive_module_called_by_threads():
    model, posterior = make("diagonal")
    module = PredictiveModule(model, posterior, samples=4)
    inputs = torch.randn(6, 8, 4, dtype=torch.float64)
    one = [module(x) for x in inputs]
    for answer, expected in zip(asked([partial(module, x) for x in inputs]), one, strict=True):
        torch.testing.assert_close(answer, expected, rtol=1e-12, atol=1e-12)


def test_maps_and_predictions_and_curvature_at_once():
    model, posterior = make("diagonal")
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3
    one = memory_map(model.eval(), posterior, (x, y)).table
    width = laplace(model, (x, y), likelihood="categorical", structure="diag").structure.precision
    probs = predict(model, posterior, x, samples=4).probs
    questions = [
        partial(memory_map, model, posterior, (x, y)),
        partial(predict, model, posterior, x, samples=4),
        partial(laplace, model, (x, y), likelihood="categorical", structure="diag"),
    ]
    for answer in asked(questions * 3, workers=6):
        if hasattr(answer, "table"):
            torch.testing.assert_close(torch.tensor(answer.table.loss), torch.tensor(one.loss), rtol=1e-12, atol=0.0)
        elif isinstance(answer, Posterior):
            torch.testing.assert_close(dict(answer.structure.precision), dict(width), rtol=1e-12, atol=0.0)
        else:
            torch.testing.assert_close(answer.probs, probs, rtol=1e-12, atol=1e-12)
    assert not model.training
    assert all(type(p) is nn.Parameter and p.requires_grad for p in model.parameters())


def test_what_ifs_of_several_maps_leave_the_posterior_as_it_is():
    model, posterior = make("diagonal")
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.arange(20) % 3
    before = snapshot(posterior.mean)

    def question(remove):
        return memory_map(model, posterior, (x, y)).what_if(remove=remove, passes=6).parameters

    removed = [[k, k + 1] for k in range(6)]
    one = [question(remove) for remove in removed]
    for found, wanted in zip(asked([partial(question, remove) for remove in removed]), one, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert all(torch.equal(posterior.mean[name], t) for name, t in before.items())


class Meanwhile(nn.Module):
    """Lets another thread do something in the middle of the first forward pass, and gives it some time."""

    def __init__(self):
        super().__init__()
        self.work = self.found = None

    def forward(self, x):
        if self.work is not None:
            work, self.work = self.work, None
            self.found = ThreadPoolExecutor(1).submit(work)
            time.sleep(0.05)
        return x

    def __deepcopy__(self, memo):
        return nn.Identity()  # what a thread has found is not copied


def test_a_model_is_copied_when_nobody_has_hooks_in_it():
    pause = Meanwhile()
    model, _ = make("diagonal", pause)
    pause.work = partial(duplicate, model)
    laplace(model, (torch.randn(20, 4).double(), torch.arange(20) % 3), likelihood="categorical", structure="diag")
    twin = pause.found.result(60)
    assert not any(module._forward_hooks for module in twin.modules())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


class Odd(nn.Module):
    """Keeps its layers also in a list, a tied weight, a bound method and a list of what it saw."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.order, self.step, self.seen = [self.first, [self.second]], self.walk, []

    def walk(self, x):
        self.seen.append(len(x))
        return self.order[1][0](torch.tanh(self.order[0](x)))

    def forward(self, x):
        self.last = x
        return self.step(x)


def test_a_double_finds_layers_wherever_the_model_keeps_them():
    model, x = Odd(), torch.randn(2, 3)
    weights = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    expected = torch.func.functional_call(model, weights, x)
    del model.last
    twin = double(model, weights)
    torch.testing.assert_close(twin(x), expected)
    assert twin.first.weight is twin.second.weight
    assert not hasattr(model, "last")
    assert model.seen == [2, 2]  # a list that the caller reads
    twin.register_forward_hook(lambda *_: None)
    twin.eval().requires_grad_(False)
    assert (model.training, model.first.weight.requires_grad) == (True, True)
    assert not model._forward_hooks


@pytest.mark.parametrize("held", ["closure", "partial", "object", "parameter"])
def test_no_double_of_models_that_hide_their_layers(held):
    class Hiding(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer = nn.Linear(3, 3)
            if held == "closure":
                self.run = lambda x: layer(x)
            elif held == "partial":
                self.run = partial(torch.nn.functional.linear, weight=layer.weight)
            elif held == "object":
                self.run = type("Runner", (), {})()
                self.run.layer = layer
            else:
                layer.weight = nn.UninitializedParameter()

    assert double(Hiding(), {}) is None


def test_no_double_of_compiled_models():
    assert double(torch.compile(nn.Linear(2, 2), backend="eager"), {}) is None
    inside = nn.Linear(2, 2)
    inside.compile(backend="eager")
    assert double(nn.Sequential(inside), {}) is None
