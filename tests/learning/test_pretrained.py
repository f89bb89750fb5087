"""Defaults of `fit` for networks that were trained before."""

import pytest
import torch
from torch import nn
from transformers import BertForSequenceClassification

import posterity as po
from features.encoders import tiny_text_encoder
from networks import perceptron
from posterity.adapters import insert_lora
from posterity.learning import pretrained
from posterity.learning.learners import METHODS
from posterity.learning.pretrained import is_pretrained


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return BertForSequenceClassification.from_pretrained(tiny_text_encoder(tmp_path_factory.mktemp("bert")))


def frozen(model, kept):
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith(kept))
    return model


def test_is_told_by_where_weights_come_from_and_by_what_is_frozen(loaded):
    new = BertForSequenceClassification(type(loaded.config)(**{**loaded.config.to_dict(), "_name_or_path": ""}))
    assert is_pretrained(loaded)
    assert is_pretrained(nn.Sequential(loaded.bert))  # inside a model of one's own
    assert not is_pretrained(new)
    assert not is_pretrained(perceptron(4, 8, 2))
    assert is_pretrained(frozen(perceptron(4, 8, 2), "2"))
    assert not is_pretrained(frozen(perceptron(4, 8, 2), "0"))  # most weights are trained


@pytest.mark.parametrize(("method", "whole", "parts"), [("variational", 1e-4, 1e-3), ("adamw", 1e-4, 1e-3)])
def test_learning_rates(loaded, method, whole, parts):
    assert METHODS[method].usual_lr(loaded) == whole
    adapted = perceptron(200, 200, 2)
    insert_lora(adapted, ["0"], rank=1)
    assert METHODS[method].usual_lr(adapted) == parts


@pytest.mark.parametrize("method", ["ivon", "sgd"])
def test_other_learning_rates_are_those_of_the_method(loaded, method):
    assert METHODS[method].usual_lr(loaded) == METHODS[method].usual_lr(perceptron(4, 8, 2))


@pytest.mark.parametrize(
    ("given", "steps", "norm"), [({}, 4 * pretrained.MOST, 1.0), ({"epochs": 1, "clip": 0.5}, 4, 0.5)]
)
def test_few_passes_and_clipped_gradients(given, steps, norm):
    model = nn.Sequential(nn.Conv1d(1, 100, 3), nn.Tanh(), nn.Flatten(), nn.Linear(200, 2))
    model[0].requires_grad_(True)
    model[3].requires_grad_(False)
    x, y = torch.randn(64, 1, 4), torch.randint(0, 2, (64,))
    rates, norms = [], []

    class Seen(po.learning.callbacks.Callback):
        def step(self, moment):
            rates.append(moment.optimizer.param_groups[0]["lr"])
            norms.append(torch.cat([p.grad.flatten() for p in model[0].parameters()]).norm().item())

    run = po.fit(model, (1e4 * x, y), batch_size=16, callbacks=[Seen()], progress=False, **given)
    assert run.steps == steps
    assert max(rates) <= 1e-4 == run.posterior.training.lr
    assert max(norms) == pytest.approx(norm, rel=1e-5)


def test_a_head_on_few_data_is_trained_to_the_end():
    backbone = nn.Sequential(nn.Unflatten(1, (1, 16)), nn.Linear(16, 32), nn.Tanh(), nn.Flatten()).requires_grad_(False)
    model = nn.Sequential(backbone, nn.Linear(32, 1, bias=False))
    x = torch.randn(1200, 16)
    y = (backbone(x) @ torch.randn(32) > 0).float()[:, None]
    run = po.fit(model, (x[:200], y[:200]), method="adamw", likelihood="bernoulli", progress=False)
    assert run.steps >= 1000
    assert ((run.model(x[200:]) > 0) == (y[200:] > 0)).float().mean() > 0.8
