"""Adapters that PEFT wrote carry no hash: where their base can be known, another one is refused."""

import json
import warnings

import peft
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertModel

from networks import perceptron
from posterity.adapters import insert_lora, load_adapter, save_adapter
from posterity.errors import RefusedFile
from posterity.merging import MergeSource, merge_adapters

SIZE = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
QUERY = "bert.encoder.layer.0.attention.self.query"


def bert(folder, seed):
    """A folder with an encoder alone, as those of a hub are."""
    torch.manual_seed(seed)
    BertModel(BertConfig(**SIZE)).save_pretrained(folder)
    return folder


def classifier(folder):
    torch.manual_seed(0)
    return BertForSequenceClassification.from_pretrained(folder, num_labels=2)


def tuned_by_peft(folder, out):
    """An adapter of PEFT, which knows the folder of its base."""
    model = peft.get_peft_model(classifier(folder), peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    model.save_pretrained(out)
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == str(folder)
    return out


def renamed(adapter, name):
    config = adapter / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": name}))


def test_the_weights_of_a_base_on_this_machine_decide(tmp_path):
    adapter = tuned_by_peft(bert(tmp_path / "a", 0), tmp_path / "adapter")
    load_adapter(classifier(tmp_path / "a"), adapter)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a copy under another name is the same base
        load_adapter(classifier(bert(tmp_path / "copy", 0)), adapter)
    with pytest.raises(RefusedFile, match=f"other weights; load its own base .{tmp_path / 'a'}"):
        load_adapter(classifier(bert(tmp_path / "b", 1)), adapter)


def test_names_decide_where_the_weights_are_not_here(tmp_path):
    adapter = tuned_by_peft(bert(tmp_path / "a", 0), tmp_path / "adapter")
    model = classifier(tmp_path / "a")
    renamed(adapter, "some/base")
    with pytest.warns(UserWarning, match="trained beside 'some/base', and the model is"):
        load_adapter(model, adapter)
    model = classifier(tmp_path / "a")
    model.config._name_or_path = model.name_or_path = "another/model"
    with pytest.raises(RefusedFile, match="an adapter of 'another/model', got one of 'some/base'; load that base"):
        load_adapter(model, adapter)
    renamed(adapter, "mirror/model")  # the same model from another place
    load_adapter(model, adapter)


def test_adapters_of_two_bases_are_not_merged(tmp_path):
    for name, seed, layer in (("a", 0, "0"), ("b", 0, "2"), ("c", 1, "0")):
        torch.manual_seed(seed)
        model = perceptron(4, 5, 3, hidden=nn.ReLU)
        insert_lora(model, [layer], rank=2)
        save_adapter(model, tmp_path / name)
    sources = {name: MergeSource(tmp_path / name) for name in "abc"}
    with pytest.raises(RefusedFile, match="got 'c', trained beside other weights in 0"):
        merge_adapters({"a": sources["a"], "c": sources["c"]}, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()
    # Adapters of different layers of one base are; the result knows its base, and a plain model takes it.
    merge_adapters({"a": sources["a"], "b": sources["b"]}, tmp_path / "both")
    torch.manual_seed(0)
    load_adapter(perceptron(4, 5, 3, hidden=nn.ReLU), tmp_path / "both")
    with pytest.raises(RefusedFile, match="other weights"):
        load_adapter(perceptron(4, 5, 3, hidden=nn.ReLU), tmp_path / "both")


def test_damaged_hashes_are_named(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3))
    insert_lora(model, ["0"], rank=2)
    save_adapter(model, tmp_path / "a")
    (tmp_path / "a" / "adapter_base.json").write_text('{"layers": 3}')
    with pytest.raises(RefusedFile, match="hashes of the base by layer"):
        load_adapter(model, tmp_path / "a")


def test_a_folder_of_that_name_without_weights_proves_nothing(tmp_path):
    adapter = tuned_by_peft(bert(tmp_path / "a", 0), tmp_path / "adapter")
    (tmp_path / "a" / "model.safetensors").unlink()
    save_file({"unrelated": torch.zeros(2)}, tmp_path / "a" / "model.safetensors")
    with pytest.warns(UserWarning, match="cannot be seen"):
        load_adapter(classifier(bert(tmp_path / "b", 1)), adapter)
