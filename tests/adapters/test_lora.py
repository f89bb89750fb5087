"""Adapters in plain torch answer, learn and are kept as PEFT's are."""

import json

import peft
import pytest
import torch
from torch import nn

import posterity as po
from posterity.adapters import adapted_modules, insert_lora, load_adapter, save_adapter
from posterity.errors import InvalidInput, RefusedFile

SETTINGS = {"rank": 3, "alpha": 5.0, "trained": ["head"]}


class Net(nn.Module):
    """Two layers to adapt and a head."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def adapted(seed=0):
    model = Net(seed)
    insert_lora(model, ["first", "second"], **SETTINGS)
    return model


def of_peft(model):
    """PEFT's wrapping of the same base with the same factors."""
    config = peft.LoraConfig(r=3, lora_alpha=5.0, target_modules=["first", "second"], modules_to_save=["head"])
    wrapped = peft.get_peft_model(Net(), config)
    theirs = dict(wrapped.named_parameters())
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                theirs[_theirs(name)].copy_(p)
    return wrapped


def _theirs(name):
    if name.startswith("head"):
        return name.replace("head.", "base_model.model.head.modules_to_save.default.")
    return f"base_model.model.{name.removesuffix('.weight')}.default.weight"


@pytest.fixture
def data():
    torch.manual_seed(1)
    x = torch.randn(48, 6)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def moved(model):
    """Adapters that no longer change nothing."""
    with torch.no_grad():
        for layer in adapted_modules(model).values():
            layer.lora_B.weight.normal_()
    return model


def test_answers_and_gradients_are_those_of_peft(data):
    ours = moved(adapted())
    theirs = of_peft(ours)
    found = [nn.functional.cross_entropy(model(data[0]), data[1]) for model in (ours, theirs)]
    for loss in found:
        loss.backward()
    assert found[0].item() == found[1].item()
    wanted = dict(theirs.named_parameters())
    trained = {name: p for name, p in ours.named_parameters() if p.requires_grad}
    assert len(trained) == 6
    assert {_theirs(name) for name in trained} == {name for name, p in wanted.items() if p.requires_grad}
    for name, p in trained.items():
        torch.testing.assert_close(p.grad, wanted[_theirs(name)].grad)


def test_starts_where_the_base_was():
    x = torch.randn(5, 6)
    assert torch.equal(adapted()(x), Net()(x))
    layer = adapted_modules(moved(adapted()))["first"]
    wanted = nn.functional.linear(x, layer.base_layer.weight + layer.change, layer.base_layer.bias)
    torch.testing.assert_close(layer(x), wanted)


def test_peft_loads_what_is_saved(tmp_path, data):
    ours = moved(adapted())
    save_adapter(ours, tmp_path / "adapter", task=None)
    theirs = peft.PeftModel.from_pretrained(Net(), tmp_path / "adapter").eval()
    assert torch.equal(theirs(data[0]), ours(data[0]))


def test_what_peft_saves_is_loaded(tmp_path, data):
    theirs = of_peft(moved(adapted()))
    theirs.save_pretrained(tmp_path / "adapter")
    ours = adapted()
    load_adapter(ours, tmp_path / "adapter")
    assert torch.equal(theirs(data[0]), ours(data[0]))


def test_adapters_of_another_base_are_refused(tmp_path):
    save_adapter(moved(adapted()), tmp_path / "adapter")
    with pytest.raises(RefusedFile, match="got one of other weights"):
        load_adapter(adapted(seed=1), tmp_path / "adapter")
    other = Net()
    insert_lora(other, ["first"], **SETTINGS)
    with pytest.raises(RefusedFile, match="another base, rank or choice of layers"):
        load_adapter(other, tmp_path / "adapter")
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": 7.0}))
    with pytest.raises(RefusedFile, match="expected the scale"):
        load_adapter(adapted(), tmp_path / "adapter")


@pytest.mark.parametrize("stabilised", [False, True])
def test_a_plain_model_gets_the_adapters_of_a_folder(tmp_path, data, stabilised):
    config = {"r": 3, "lora_alpha": 5.0, "target_modules": ["first", "second"], "modules_to_save": ["head"]}
    theirs = peft.get_peft_model(Net(), peft.LoraConfig(**config, use_rslora=stabilised))
    with torch.no_grad():
        for p in theirs.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape))
    theirs.save_pretrained(tmp_path / "adapter")
    ours = Net()
    load_adapter(ours, tmp_path / "adapter")
    torch.testing.assert_close(ours(data[0]), theirs(data[0]))
    assert sorted(adapted_modules(ours)) == ["first", "second"]
    assert sum(p.requires_grad for p in ours.parameters()) == 6


def test_a_refused_adapter_leaves_the_model_as_it_was(tmp_path):
    save_adapter(moved(adapted()), tmp_path / "adapter")
    plain = Net(seed=1)
    with pytest.raises(RefusedFile, match="got one of other weights"):
        load_adapter(plain, tmp_path / "adapter")
    assert not adapted_modules(plain)
    assert all(p.requires_grad for p in plain.parameters())
    with pytest.raises(RefusedFile, match=r"'first\.lora_A\.weight' of shape none"):
        load_adapter(nn.Sequential(nn.Linear(6, 8)), tmp_path / "adapter")
    with pytest.raises(InvalidInput, match="without PEFT's wrapping"):
        load_adapter(of_peft(adapted()), tmp_path / "adapter")


def test_adapters_of_several_scales_are_left_to_peft(tmp_path):
    pattern = {"r": 3, "target_modules": ["first", "second"]}
    for extra in ({"alpha_pattern": {"first": 7}}, {"rank_pattern": {"first": 2}}):
        peft.get_peft_model(Net(), peft.LoraConfig(**pattern, **extra)).save_pretrained(tmp_path / "adapter")
        with pytest.raises(RefusedFile, match=r"of one rank and scale.*load them by PEFT"):
            load_adapter(Net(), tmp_path / "adapter")


def test_what_is_saved_for_peft_carries_the_hashes_of_its_base(tmp_path):
    save_adapter(of_peft(moved(adapted())), tmp_path / "adapter")
    load_adapter(Net(), tmp_path / "adapter")
    with pytest.raises(RefusedFile, match="got one of other weights"):
        load_adapter(Net(seed=1), tmp_path / "adapter")


def test_a_posterior_over_adapters_alone(tmp_path, data):
    model = adapted()
    run = po.fit(model, data, method="ivon", epochs=100, batch_size=16, lr=0.3, hess_init=1.0, ess=5000)
    assert set(run.posterior.names) == {name for name, p in model.named_parameters() if p.requires_grad}
    assert po.metrics.accuracy(model(data[0]).softmax(-1).detach(), data[1]) > 0.8
    run.posterior.save(tmp_path / "posterior")
    posterior = po.Posterior.load(tmp_path / "posterior")
    fresh = adapted()
    wanted = po.predict(model, run.posterior, data[0], samples=8)
    assert torch.equal(po.predict(fresh, posterior, data[0], samples=8).probs, wanted.probs)
    # The mean goes back to PEFT.
    save_adapter(model, tmp_path / "adapter", posterior=posterior, task=None)
    theirs = peft.PeftModel.from_pretrained(Net(), tmp_path / "adapter").eval()
    torch.testing.assert_close(theirs(data[0]).softmax(-1), po.predict(model, posterior, data[0], samples=0).probs)


def test_the_mean_of_a_posterior_over_adapters_of_peft_is_saved_by_peft(tmp_path, data):
    model = of_peft(moved(adapted()))
    run = po.fit(model, data, method="ivon", epochs=2, ess=1000)
    posterior = run.posterior.prune(fraction=0.3).posterior
    before = model(data[0])
    save_adapter(model, tmp_path / "adapter", posterior=posterior)
    assert torch.equal(model(data[0]), before)
    theirs = peft.PeftModel.from_pretrained(Net(), tmp_path / "adapter").eval()
    torch.testing.assert_close(theirs(data[0]).softmax(-1), po.predict(model, posterior, data[0], samples=0).probs)


def test_unknown_layers_are_refused():
    with pytest.raises(InvalidInput, match="targets: expected ends of names"):
        insert_lora(Net(), ["query"])
    with pytest.raises(InvalidInput, match="no adapters yet"):
        insert_lora(adapted(), ["first"])
