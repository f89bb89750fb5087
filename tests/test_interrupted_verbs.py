"""An interrupt at any line of any verb leaves the model as it was: values, mode, hooks and what may be trained."""

import random
import sys

import pytest
import torch
from torch import nn

import posterity as po

TRIALS = 8
X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
DATA = X, (X.sum(1) > 0).long()
VERBS = {
    "predict": lambda m, q: po.predict(m, q, X, samples=3),
    "memory_map": lambda m, q: po.memory_map(m, q, DATA),
    "what_if": lambda m, q: po.memory_map(m, q, DATA).what_if(remove=[1]),
    "laplace": lambda m, q: po.laplace(m, DATA),
    "adapt": lambda m, q: po.adapt(m, q, data=DATA, remove=[1, 2], epochs=1),
    "merge": lambda m, q: po.merge({"a": q, "b": q}, base=q),
    "acquire": lambda m, q: po.acquire(m, q, X[:10], k=2),
}


@pytest.fixture(scope="module")
def fitted():
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    run = po.fit(model, DATA, method="ivon", epochs=3, batch_size=16, progress=False)
    run.model.train()
    run.model[1].eval()
    run.model[0].bias.requires_grad_(False)
    return run.model, run.posterior


def lines(verb, stop=None):
    """Run a verb, up to the line of the package with this number; how many lines it ran."""
    ran = 0

    def line(frame, event, argument):
        nonlocal ran
        ran += 1
        if ran == stop:
            raise KeyboardInterrupt
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: line if "posterity" in frame.f_code.co_filename else None)
    try:
        verb()
    except KeyboardInterrupt:
        assert stop is not None
    finally:
        sys.settrace(before)
    return ran


def state(model):
    hooks = [(m._forward_hooks, m._forward_pre_hooks, m._backward_hooks) for m in model.modules()]
    return (
        [m.training for m in model.modules()],
        [(type(p), p.requires_grad) for p in model.parameters()],
        [len(kind) for each in hooks for kind in each],
        torch.is_grad_enabled(),
    )


@pytest.mark.filterwarnings("ignore")  # of short trainings
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_the_model_is_as_it_was(verb, fitted):
    model, posterior = fitted
    values, before = {name: t.clone() for name, t in model.state_dict().items()}, state(model)
    verb(model, posterior)  # what is made once is made here
    count = lines(lambda: verb(model, posterior))
    for stop in random.Random(0).choices(range(1, count + 1), k=TRIALS):
        lines(lambda: verb(model, posterior), stop)
        assert state(model) == before, stop
        assert all(torch.equal(values[name], t) for name, t in model.state_dict().items()), stop
