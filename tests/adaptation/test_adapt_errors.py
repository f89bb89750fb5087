"""Bad requests get clear errors, and nothing that was given is ever changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import posterity as po
from adaptation.problems import classes, glm, logistic, newton_logistic
from networks import perceptron
from posterity.adaptation import (
    EWC,
    MultiHead,
    accumulate,
    adapt,
    ewc,
    fromp,
    k_prior,
    learn_stream,
    permuted,
    remember,
    select,
    split,
    toy,
)
from posterity.posterior import Ensemble, Posterior
from posterity.trees import snapshot, trainable


@pytest.fixture
def old():
    x, y = logistic(30)
    w, _ = newton_logistic(x, y, 1.0)
    return (*glm(w, x), x, y)


def refuses(match, *args, **kwargs):
    with pytest.raises(po.PosterityError, match=match):
        adapt(*args, **kwargs)


def test_requests_that_cannot_be_right(old):
    model, posterior, x, y = old
    refuses("something to change", model, posterior, data=(x, y))
    refuses(r"remove: expected ids .* \[30, 99\]", model, posterior, data=(x, y), remove=[1, 30, 99])
    refuses("relabel: expected ids", model, posterior, data=(x, y), relabel={77: 1.0})
    refuses("not removed", model, posterior, data=(x, y), remove=[1], relabel={1: 1.0})
    refuses("at least one", model, posterior, data=(x, y), remove=[])
    refuses("at least one example left", model, posterior, data=(x, y), remove=list(range(30)))
    refuses("none picked", model, posterior, data=(x, y), remove=lambda batch: batch.targets[:, 0] > 5)
    refuses("data or a memory", model, posterior, remove=[1], add=(x, y))
    refuses("at least one example", model, posterior, data=(x, y), add=(x[:0], y[:0]))
    refuses("the 30 examples", model, posterior, data=(x[:20], y[:20]), remove=[1])
    refuses("new ones", model, posterior, data=(x, y), add=(x[:2], y[:2], torch.tensor([29, 30])))
    refuses("each only once", model, posterior, data=(x, y), add=(x[:2], y[:2], torch.tensor([40, 40])))
    refuses("each only once", model, posterior, data=(x, y, torch.arange(30) // 2), remove=[1])
    refuses("remove: expected ids, whole numbers", model, posterior, data=(x, y), remove=y[:, 0] > 0)
    refuses("remove: expected ids, whole numbers", model, posterior, data=(x, y), remove=[1.5])
    refuses("something to change", model, posterior, data=(x, y), relabel={})
    refuses("numbers, shaped as before", model, posterior, data=(x, y), relabel={0: "yes"})
    refuses(r"values in \[0, 1\]", model, posterior, data=(x, y), relabel={0: float("nan")})
    refuses("like the logits", model, posterior, data=(x, y), add=(x[:3], y[:3, 0]))
    refuses("like the logits", model, posterior, data=(x, y[:, 0]), remove=[1])
    refuses("clip", model, posterior, data=(x, y), remove=[1], clip=-1.0)
    refuses("a model with 1 outputs", model, posterior, data=(x, y), into=nn.Linear(4, 2, dtype=x.dtype))
    refuses("prior_precision", model, posterior, data=(x, y), prior_precision=-1.0)
    refuses("method", model, posterior, data=(x, y), remove=[1], method="magic")
    refuses("seed: expected a whole number", model, posterior, data=(x, y), remove=[1], seed=1.5)
    refuses("seed: expected a whole number in 64 bits", model, posterior, data=(x, y), remove=[1], seed=10**400)
    refuses("30 truth values, got None", model, posterior, data=(x, y), remove=lambda batch: None)
    refuses("categorical", model, posterior, data=(x, y), classes=3)
    for odd in (3.0, "abc"):
        refuses("classes: expected how many", model, posterior, data=(x, y), classes=odd)
    refuses("old data, a memory", model, posterior, prior_precision=2.0)
    refuses("number to choose", model, posterior, add=(x, y), memory=3)
    refuses("compare", model, posterior, add=(x, y), compare=True)


def test_arguments_of_other_kinds(old):
    model, posterior, x, y = old
    refuses("model: expected a Module, got 'str'", "model", posterior, data=(x, y), remove=[1])
    refuses("posterior: expected a Posterior, got 'Linear'", model, model, data=(x, y), remove=[1])
    refuses("into: expected a torch.nn.Module", model, posterior, data=(x, y), into="another")
    refuses("relabel: expected new targets by id", model, posterior, data=(x, y), relabel=[1, 2])
    refuses("relabel: expected ids, whole numbers", model, posterior, data=(x, y), relabel={1.7: 1.0})
    refuses("epochs: expected a whole number", model, posterior, data=(x, y), remove=[1], epochs=1.5)
    refuses("memory: expected at least one example", model, posterior, data=(x, y), remove=[1], memory=0)
    refuses(
        "what the model takes, got float64 (.*5)", model, posterior, data=(torch.randn(30, 5).double(), y), remove=[1]
    )
    refuses(
        "what the model takes, got float64 (.*5)", model, posterior, data=(x, y), add=(torch.ones(2, 5).double(), y[:2])
    )
    refuses("what the model takes, got float64 (.*5)", model, posterior, add=(torch.ones(2, 5).double(), y[:2]))
    refuses("what the model takes, got float64 (.*4)", model, posterior, data=(x, y), into=nn.Linear(5, 1).double())
    refuses("what the model takes, got float32", model, posterior, data=(x.float(), y), remove=[1])
    refuses(r"NaN or infinity in the examples \[30, 31\]", model, posterior, data=(x, y), add=(x[:2] / 0, y[:2]))
    assert adapt(model, posterior, data=(x, y), remove=[1], memory=np.int64(7)).report.memory[0] == 7


def test_memory_and_posterior_of_other_models(old):
    model, posterior, x, y = old
    memory = remember(model, (x, y))
    other, _ = glm(np.ones(4), x)
    refuses("those of another model", model, posterior, memory=remember(other, (x, y)), remove=[1])
    wide = type(memory)(torch.randn(30, 7).double(), y, memory.ids)
    refuses("inputs that the model takes", model, posterior, memory=wide, remove=[1])
    refuses("shape", nn.Linear(7, 1, bias=False), posterior, memory=memory, remove=[1])
    point = Posterior.of(
        model, Ensemble([snapshot(trainable(model))]), prior=posterior.prior, n=30, ess=30, likelihood="bernoulli"
    )
    refuses("a Gaussian one", model, point, data=(x, y), remove=[1])


def test_classes_have_to_be_declared():
    x, y = classes(40)
    model, posterior = glm(np.zeros((3, 4)), x, likelihood="categorical")
    refuses("classes=5", model, posterior, data=(x, y), add=(x[:2], torch.tensor([1, 4])))
    assert adapt(model, posterior, data=(x, y), classes=np.int64(4)).model.out_features == 4
    refuses("at least the 3", model, posterior, data=(x, y), classes=2)
    refuses("classes: expected at most 16777216, got 1000000000000", model, posterior, data=(x, y), classes=10**12)
    refuses("different names", model, posterior, data=(x, y), classes=["a", "b", "c", "c"])
    refuses("labels: expected integers in 0..2", model, posterior, data=(x, y), relabel={0: -1})
    refuses("a label, a whole number", model, posterior, data=(x, y), relabel={0: 1.7})
    wide = nn.Linear(4, 4, bias=False, dtype=x.dtype)
    refuses("a model with 3 outputs", model, posterior, data=(x, y), into=wide)
    named = Posterior.of(
        model, posterior.structure, prior=posterior.prior, n=40, ess=40, likelihood="categorical", class_names="abc"
    )
    refuses("old names", model, named, data=(x, y), classes=["b", "a", "c", "d"])
    result = adapt(model, named, data=(x, y), add=(x[:2], torch.tensor([3, 3])), classes=["a", "b", "c", "d"])
    assert result.posterior.class_names == ("a", "b", "c", "d")
    assert adapt(model, named, data=(x, y), remove=[0], classes=3).posterior.class_names == ("a", "b", "c")


def test_an_interrupted_adaptation_leaves_everything_as_it_was():
    torch.manual_seed(0)
    x, y = classes(60)
    x = x.float()
    model = perceptron(4, 8, 3)
    posterior = po.laplace(model, (x, y), structure="diag", prior_precision=1.0)
    weights, mean = snapshot(model.state_dict()), snapshot(posterior.mean)
    calls = 0

    def interrupt(module, args):
        nonlocal calls
        calls += 1
        if calls > 20:
            raise KeyboardInterrupt

    handle = model.register_forward_pre_hook(interrupt)  # copies of the model carry the hook along
    with pytest.raises(KeyboardInterrupt):
        adapt(model, posterior, data=(x, y), add=(x + 1, y), epochs=50)
    handle.remove()
    assert calls > 20
    assert all(torch.equal(model.state_dict()[name], t) for name, t in weights.items())
    assert all(torch.equal(posterior.mean[name], t) for name, t in mean.items())


class Numbered(torch.utils.data.Dataset):
    """Examples with ids of their own, from 500 on."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i], 500 + i


def test_added_examples_keep_their_ids_whatever_they_come_in(old):
    model, posterior, x, y = old
    new = Numbered(x[:6] + 1, y[:6])
    for add in (new, torch.utils.data.DataLoader(new, batch_size=4), (new.x, new.y, torch.arange(500, 506))):
        more = adapt(model, posterior, data=(x, y), add=add)
        assert more.report.added.tolist() == list(range(500, 506))
        assert adapt(more.model, more.posterior, remove={500, 505}).posterior.n == 34
    assert adapt(model, posterior, data=(x, y), add=(x[:2], y[:2])).report.added.tolist() == [30, 31]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, q, data: select(m, q, data, 2.5), "size: expected a number of examples"),
        (lambda m, q, data: select(m, q, data, 2, seed="now"), "seed: expected a whole number"),
        (lambda m, q, data: k_prior(m, q, data), "memory: expected a Memory"),
        (lambda m, q, data: fromp(m, remember(m, data), q), "memories: expected a list"),
        (lambda m, q, data: ewc([m]), "posteriors: expected a Posterior"),
        (lambda m, q, data: accumulate(q, m, data, "bernoulli"), "prior: expected a Diagonal or a Full"),
        (lambda m, q, data: learn_stream(m, [data], EWC()), r"tasks: expected each a Task\(name, train, test\)"),
        (lambda m, q, data: learn_stream(m, toy(count=1), EWC), r"strategy: expected a Strategy such as EWC\(\)"),
        (lambda m, q, data: split(data, data, [0, 1]), "groups: expected a list of classes for each task"),
        (lambda m, q, data: permuted(data, data, 2.5), "count: expected a whole number"),
        (lambda m, q, data: MultiHead(nn.Linear(4, 3).double(), 2)(data[0], None), "outputs of the body: expected"),
    ],
)
def test_parts_of_their_own_refuse_what_they_cannot_use(old, call, message):
    model, posterior, x, y = old
    with pytest.raises(po.PosterityError, match=message):
        call(model, posterior, (x, y))


def test_seeds_of_numpy_are_seeds(old, tmp_path):
    model, posterior, x, y = old
    one, other = (adapt(model, posterior, data=(x, y), remove=[1], memory=9, seed=s) for s in (3, np.int64(3)))
    # The seed chooses the memory; sums over it may differ in their last bits, as memory happens to be aligned.
    assert torch.equal(one.posterior.memory.ids, other.posterior.memory.ids)
    torch.testing.assert_close(one.model.weight, other.model.weight, rtol=1e-12, atol=1e-12)
    line = nn.Linear(2, 2)
    learn_stream(line, toy(count=1, per_class=5), EWC({"epochs": 1}), seed=np.int64(1), folder=tmp_path)
    learn_stream(line, toy(count=1, per_class=5), EWC({"epochs": 1}), seed=1, folder=tmp_path)
