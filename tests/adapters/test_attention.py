"""Curvature and memory of adapters inside attention, beside gradients of one text at a time."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import posterity as po
from posterity.adapters import adapted_modules, adapter_curvature, insert_lora

PROJECTIONS = ["query", "key", "value", "attention.output.dense"]
SIZE = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}


@pytest.fixture(params=["sdpa", "eager"])
def model(request):
    torch.manual_seed(0)
    config = BertConfig(vocab_size=12, num_labels=3, attn_implementation=request.param, **SIZE)
    found = BertForSequenceClassification(config).double().eval()
    assert len(insert_lora(found, PROJECTIONS, rank=2, trained=["classifier"])) == 8
    for layer in adapted_modules(found).values():
        torch.nn.init.normal_(layer.lora_B.weight)
    return found


@pytest.fixture
def data():
    torch.manual_seed(1)
    lengths = torch.tensor([5, 3, 1, 4, 2, 5])
    mask = (torch.arange(5) < lengths.unsqueeze(1)).long()
    return {"input_ids": torch.randint(1, 12, (6, 5)) * mask, "attention_mask": mask}, torch.arange(6) % 3


def gradients(model, inputs, weights, chosen):
    """The gradients of what `chosen` makes of the logits of each text, (N, C, P)."""
    found = []
    for i in range(len(inputs["input_ids"])):
        values = chosen(model(**{name: t[i : i + 1] for name, t in inputs.items()}).logits[0], i)
        rows = [torch.autograd.grad(value, weights, retain_graph=True) for value in values]
        found.append(torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]))
    return torch.stack(found)


def test_widths_and_variances_are_those_of_jacobians(model, data):
    inputs, _ = data
    posterior = po.laplace(model, data, structure="diag", prior_precision=1.0, likelihood="categorical")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    jacobians = gradients(model, inputs, list(trained.values()), lambda f, _: f)
    p = model(**inputs).logits.detach().softmax(-1)
    hessians = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    precision = 1 + torch.einsum("nkp,nkl,nlp->p", jacobians, hessians, jacobians)
    found = torch.cat([posterior.variance[name].flatten() for name in trained])
    torch.testing.assert_close(found, 1 / precision)
    expected = torch.einsum("nkp,p,nlp->nkl", jacobians, 1 / precision, jacobians)
    torch.testing.assert_close(po.dual(model, posterior, data).variance, expected)


def test_the_curvature_of_adapted_projections_is_that_of_their_gradients(model, data):
    inputs, _ = data
    found = adapter_curvature(model, data, "categorical")
    layers = {name: layer.base_layer.weight for name, layer in adapted_modules(model).items()}
    weights = [weight.requires_grad_() for weight in layers.values()]
    p = model(**inputs).logits.detach().softmax(-1)
    scores = gradients(model, inputs, weights, lambda f, _: f.log_softmax(-1))
    fisher = torch.einsum("nc,ncp->p", p, scores.square())
    expected = dict(zip(layers, fisher.split([w.numel() for w in weights])))
    assert found.keys() == {f"base_model.model.{name}" for name in layers}
    for name, weight in layers.items():
        torch.testing.assert_close(found[f"base_model.model.{name}"], expected[name].view_as(weight))
