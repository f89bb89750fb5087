"""Maps, tokens, loaders of every kind; models that come back as they were; input that cannot be right."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from posterity.batches import batches
from posterity.errors import InvalidInput, Undefined
from posterity.posterior import Diagonal, Posterior
from posterity.prediction import predict
from posterity.trees import snapshot, trainable
from prediction.cases import make_case


def around(model, likelihood="categorical", **settings):
    mean = snapshot(trainable(model))
    q = Diagonal(mean, {name: torch.tensor(10.0) for name in mean})
    return Posterior.of(model, q, prior=q, n=9, ess=9, likelihood=likelihood, **settings)


def test_maps_have_their_classes_on_axis_one_and_predictions_last():
    model = nn.Conv2d(3, 5, 3, padding=1)
    posterior, x = around(model), torch.rand(4, 3, 6, 8)
    p = predict(model, posterior, x, samples=3, keep_samples=True)
    assert p.probs.shape == (4, 6, 8, 5)
    assert p.entropy.shape == p.mutual_information.shape == (4, 6, 8)
    assert p.outputs.shape == (3, 4, 6, 8, 5)
    np.testing.assert_allclose(p.probs.sum(-1), 1, atol=1e-6)
    assert p.log_prob(torch.zeros(4, 6, 8, dtype=torch.long)).shape == (4, 6, 8)


def test_the_class_axis_can_be_said():
    class Last(nn.Conv2d):
        def forward(self, x):
            return super().forward(x).movedim(1, -1)

    model = Last(3, 5, 1)
    posterior, x = around(model), torch.rand(2, 3, 6, 8)
    assert predict(model, posterior, x, samples=2, class_axis=-1).probs.shape == (2, 6, 8, 5)


class Tokens(nn.Module):
    """A sequence model in the manner of transformers: keyword inputs, an output object with logits."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, input_ids, attention_mask):
        hidden = self.embedding(input_ids) * attention_mask.unsqueeze(-1)
        return SimpleNamespace(logits=self.head(hidden))


def test_tokens_with_keyword_inputs():
    model = Tokens()
    batch = {"input_ids": torch.randint(0, 11, (6, 7)), "attention_mask": torch.ones(6, 7)}
    posterior = around(model)
    p = predict(model, posterior, batch | {"labels": torch.zeros(6, 7)}, samples=3, batch_size=4)
    assert p.probs.shape == (6, 7, 11)
    assert p.entropy.shape == (6, 7)
    arrays = {name: t.numpy() for name, t in batch.items()}
    assert torch.equal(predict(model, posterior, arrays, samples=3, batch_size=4).probs, p.probs)


class Pairs(Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], 0


class Stream(IterableDataset):
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        return iter(self.x)


def test_every_source_of_inputs_gives_the_same_answer():
    model, posterior, x = make_case("diagonal")
    y = torch.zeros(len(x), dtype=torch.long)
    expected = predict(model, posterior, x, samples=3).log_probs
    for source in (
        x.numpy(),
        pd.DataFrame(x.numpy()),
        Stream(x),
        DataLoader(Stream(x), batch_size=7),
        (x, y),
        batches((x, y), batch_size=5),
        Pairs(x),
        TensorDataset(x),
        DataLoader(Pairs(x), batch_size=4),
        DataLoader(x, batch_size=6),
        (piece for piece in x.split(10)),
        {"input": x},
    ):
        found = predict(model, posterior, source, samples=3, batch_size=8).log_probs
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("method", ["sampled", "linearised", "probit"])
def test_empty_batches_have_nothing_to_say(method):
    model, posterior, x = make_case("diagonal")
    expected = predict(model, posterior, x, samples=4, method=method).probs
    found = predict(model, posterior, [x[:0], x[:9], x[9:9], x[9:]], samples=4, method=method).probs
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_model_comes_back_as_it_was():
    model, posterior, x = make_case("diagonal")
    model[1].eval()
    with torch.no_grad():
        for tensor in (*model.parameters(), model[1].running_mean):
            tensor.add_(1.0)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    predict(model, posterior, x, samples=3)
    with pytest.raises(InvalidInput, match=r"inputs: expected what the model takes, got float64 \(3, 5\): "):
        predict(model, posterior, torch.zeros(3, 5).double(), samples=3)
    assert [module.training for module in model] == [True, False, True, True, True]
    assert all(bool((t == before[name]).all()) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_buffers_of_the_posterior_are_used_and_never_written():
    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 1
            return super().forward(x)

    model = Counting()
    posterior = around(model)
    predict(model, posterior, torch.zeros(300, 2), samples=3, batch_size=200)
    assert model.seen == 0
    assert posterior.buffers["seen"] == 0


def test_regressions_have_no_probabilities_and_say_so():
    model = nn.Linear(2, 1)
    p = predict(model, around(model, "gaussian"), torch.zeros(3, 2), samples=2, keep_samples=False)
    assert p.outputs is None
    assert repr(p) == "Prediction(gaussian, (3, 1))"
    assert len(p) == 3
    for ask in (lambda: p.probs, lambda: p.quantiles(0.5), lambda: p.log_prob(torch.zeros(3, 1))):
        with pytest.raises(Undefined):
            ask()


def test_counts_have_no_closed_entropy_and_say_so():
    model = nn.Linear(2, 1)
    p = predict(model, around(model, "poisson"), torch.zeros(3, 2), samples=2)
    with pytest.raises(Undefined, match="entropy: has no closed form"):
        _ = p.entropy


MODEL, POSTERIOR, X = make_case("diagonal")
OTHER = nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 3)).double()
ONE, WIDE = nn.Linear(4, 1).double(), nn.Linear(4, 3).double()
nn.init.constant_(WIDE.weight, 9.0)
NAN = torch.where(X > 0, X, torch.nan)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: predict(OTHER, POSTERIOR, X), r"'0.weight': expected shape \(6, 4\), got \(7, 4\)"),
        (lambda: predict(ONE, POSTERIOR, X), "expected a parameter '0.weight'"),
        (lambda: predict(MODEL, POSTERIOR, NAN), "inputs: expected numbers, got '.* NaN'"),
        (lambda: predict(MODEL, POSTERIOR, X[:0]), "inputs: expected at least one example"),
        (lambda: predict(MODEL, POSTERIOR, DataLoader(X[:0])), "inputs: expected at least one batch, got 'an empty"),
        (lambda: predict(MODEL, POSTERIOR, X, samples=-1), "samples: expected a whole number >= 0, got -1"),
        (lambda: predict(MODEL, POSTERIOR, X, samples=2.5), r"samples: expected a whole number >= 0, got 2\.5"),
        (lambda: predict(MODEL, POSTERIOR, X, 2.5, method="linearised"), "samples: expected a whole number >= 1"),
        (lambda: predict(MODEL, POSTERIOR, X, batch_size=0), "batch_size"),
        (lambda: predict(MODEL, POSTERIOR, X, class_axis=0), r"class_axis: expected an axis .* after the first, got 0"),
        (lambda: predict(MODEL, POSTERIOR, X, class_axis=2), r"class_axis: expected an axis of the outputs \(23, 3\)"),
        (lambda: predict(MODEL, POSTERIOR, X, method="magic"), "method: expected one of .*'sampled'"),
        (lambda: predict(MODEL, "posterior", X), "posterior: expected a Posterior, got 'str'"),
        (lambda: predict(MODEL, POSTERIOR, 3), "inputs: expected a tensor"),
        (
            lambda: predict(MODEL, POSTERIOR, ["text"]),
            r"inputs: expected batches of tensors \(po.tokenised .*, got 'str'",
        ),
        (lambda: predict(WIDE, around(WIDE), 1e308 * X.sign(), method="probit"), "model outputs: expected finite"),
        (lambda: predict(MODEL, POSTERIOR, {"a": X, "b": X[:3]}), "examples in every tensor"),
        (lambda: predict(ONE, around(ONE), X), "at least 2 classes for this categorical likelihood"),
        (lambda: predict(MODEL, around(MODEL, class_names="ab"), X), "expected 2 classes"),
        (lambda: predict(WIDE, around(WIDE), 1e308 * X.sign()), "model outputs: expected finite numbers"),
        (lambda: predict(MODEL, POSTERIOR, X, samples=1).quantiles(1.0), "q: expected levels strictly between"),
        (lambda: predict(MODEL, POSTERIOR, X, samples=1).log_prob(torch.full((23,), 3)), "integers in 0..2"),
        (lambda: predict(MODEL, POSTERIOR, X, samples=1).log_prob(torch.zeros(5).long()), "labels: expected shape"),
        (lambda: predict(Tokens(), around(Tokens()), [_tokens(4), _tokens(5)]), "the same shape in every batch"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidInput, match=message):
        call()


def _tokens(length):
    return {"input_ids": torch.zeros(2, length, dtype=torch.long), "attention_mask": torch.ones(2, length)}
