"""Configurations of mergekit are read unmodified, and give what mergekit itself answered on the same tensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from posterity.cli import app
from posterity.errors import InvalidInput
from posterity.merging.dare import Dare
from posterity.merging.mergekit import translated
from posterity.merging.recipes import read_yaml, recipe

RECORDED = json.loads((Path(__file__).parent / "mergekit.json").read_text())

# In the form of mergekit's own examples; weights and densities are those of the recorded cases.
HEAD = """
models:
  - model: base  # no parameters necessary for the base model
  - model: a
    parameters: {weight: 0.7, density: DENSITY_A}
  - model: b
    parameters: {weight: 0.4, density: DENSITY_B}
  - model: c
    parameters:
      weight: 1.2
      density: DENSITY_C
base_model: base
"""
LINEAR = """
models:
  - {model: a, parameters: {weight: 0.7}}
  - {model: b, parameters: {weight: 0.4}}
  - {model: c, parameters: {weight: 1.2}}
merge_method: linear
"""
SLERP = """
models:
  - model: b
  - model: a
merge_method: slerp
base_model: a
parameters:
  t: 0.3
"""


def sparse(densities: tuple[float, ...], tail: str) -> str:
    text = HEAD
    for letter, density in zip("ABC", densities, strict=True):
        text = text.replace(f"DENSITY_{letter}", str(density))
    return text + tail


def plain(tail: str) -> str:
    return (
        HEAD.replace(", density: DENSITY_A", "")
        .replace(", density: DENSITY_B", "")
        .replace("\n      density: DENSITY_C", "")
        + tail
    )


CASES = {
    "linear": LINEAR,
    "slerp": SLERP,
    "task_arithmetic": plain("merge_method: task_arithmetic\ntokenizer_source: base\n"),
    "task_arithmetic, normalised": plain("merge_method: task_arithmetic\nparameters: {normalize: true, lambda: 0.5}\n"),
    "ties": sparse((0.4, 0.4, 0.4), "merge_method: ties\nparameters: {normalize: true, int8_mask: true}\n"),
    "ties, summed": sparse((0.4, 0.8, 1.0), "merge_method: ties\nparameters: {normalize: false, lambda: 0.5}\n"),
    "dare_linear": sparse((0.5, 0.5, 0.5), "merge_method: dare_linear\n"),
    "dare_ties": sparse((0.5, 0.5, 0.5), "merge_method: dare_ties\nparameters: {normalize: true}\n"),
    "dare_ties, summed": sparse((0.5, 0.7, 0.9), "merge_method: dare_ties\n"),
}


@pytest.fixture
def folder(tmp_path):
    for name, values in zip(("base", "a", "b", "c"), (RECORDED["base"], *RECORDED["models"]), strict=True):
        (tmp_path / name).mkdir()
        save_file({"w": torch.tensor(values)}, tmp_path / name / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_equals_mergekit(case, folder, monkeypatch):
    recorded = RECORDED["cases"][case]
    masks = [torch.tensor(mask).bool() for mask in recorded["masks"]]  # which mergekit draws in another way
    if masks:
        monkeypatch.setattr(
            Dare, "mask", lambda self, k, chunk: masks[k].reshape(-1)[chunk.start :][: chunk.models[k].numel()]
        )
    (folder / "config.yml").write_text(CASES[case])
    done = CliRunner().invoke(app, ["merge", str(folder / "config.yml"), "--out", str(folder / "merged")])
    assert done.exit_code == 0, done.output
    merged = load_file(folder / "merged" / "model.safetensors")["w"]
    torch.testing.assert_close(merged, torch.tensor(recorded["merged"]), atol=1e-6, rtol=0)


def test_flags_override_a_configuration(folder):
    (folder / "config.yml").write_text(LINEAR)
    words = ["merge", str(folder / "config.yml"), "--weight", "a=0", "--weight", "b=0", "--out", str(folder / "merged")]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert torch.equal(load_file(folder / "merged" / "model.safetensors")["w"], torch.tensor(RECORDED["models"][2]))


def test_small_weights_are_normalised_too():
    models = [{"model": name, "parameters": {"weight": 0.2}} for name in "ab"]
    found = translated({
        "merge_method": "task_arithmetic", "base_model": "base", "models": models, "parameters": {"normalize": True},
    })  # fmt: skip
    assert [model["weight"] for model in found["models"].values()] == [0.5, 0.5]


def test_the_dtype_that_is_not_applied_is_named(folder):
    (folder / "config.yml").write_text(LINEAR + "dtype: float16\n")
    with pytest.warns(UserWarning, match="dtype of the mergekit configuration is not applied"):
        assert read_yaml(folder / "config.yml")["method"] == "linear"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"merge_method": "breadcrumbs"}, "merge_method: expected one of .*'dare_ties'.* got 'breadcrumbs'"),
        ({"modules": {}}, "mergekit configuration: expected keys among .* got 'modules'"),
        ({"slices": []}, "mergekit configuration: expected `models`, got `slices`; .* one number"),
        ({"tokenizer_source": "union"}, "tokenizer_source: expected 'base'"),
        ({"tokenizer": {"source": "union"}}, "tokenizer: expected 'base'"),
        ({"tokenizer": {"source": "base", "pad_to_multiple_of": 8}}, "tokenizer: expected the key 'source' alone"),
        ({"parameters": {"weight": [0, 1]}}, "weight: expected one number, got a list; gradients over layers"),
        ({"parameters": {"weight": 1.0, "t": 0.5}}, r"parameters of 'a': expected among .* got 't'"),
        ({"parameters": {"weight": 1.0, "rescale": True}}, "rescale: expected False for ties"),
        ({"parameters": {"weight": 1.0, "lambda": 0.5}}, "lambda: expected 1 beside normalize: true"),
        ({"parameters": {}}, "parameters of 'a': expected a weight"),
        ({"base_model": None}, "base_model: expected the model that 'ties' starts from"),
        ({"models": {"a": 1}}, "models: expected a list of models"),
        ({"models": [{"model": 3}]}, "models: expected entries with `model` and `parameters`"),
        ({"models": [{"model": "a", "colour": 1}]}, "models: expected entries with `model` and `parameters`"),
        ({"models": [{"model": "a"}, {"model": "a"}]}, "models: expected each model once"),
        ({"merge_method": "slerp", "parameters": {"t": 0.5}}, "models: expected two, of which base_model is one"),
        (
            {"merge_method": "slerp", "parameters": {"t": 0.5, "weight": 1}},
            r"parameters: expected among .* got 'weight'",
        ),
        ({"merge_method": "linear", "parameters": {"weight": 1.0, "normalize": False}}, "normalize: expected true"),
    ],
)
def test_what_is_not_read_is_named(change, message):
    content = {
        "merge_method": "ties",
        "base_model": "base",
        "models": [{"model": "a"}, {"model": "b"}],
        "parameters": {"weight": 1.0},
        "out": "merged",
    }
    with pytest.raises(InvalidInput, match=message):
        recipe(content | change)


def test_the_tokenizer_and_the_template_of_the_base_are_kept():
    content = {
        "merge_method": "ties",
        "base_model": "hub/base",
        "models": [{"model": "a", "parameters": {"weight": 1}}],
    }
    for source in ("base", "hub/base"):
        assert translated(content | {"tokenizer": {"source": source}, "tokenizer_source": source}) == translated(
            content
        )
    with pytest.warns(UserWarning, match="chat_template of the mergekit configuration is not applied"):
        assert translated(content | {"chat_template": "auto"}) == translated(content)


def test_what_is_left_out_is_as_mergekit_has_it():
    models = [{"model": f"{folder}/tuned", "parameters": {"weight": 1.0}} for folder in ("a", "b")]
    models.append({"model": "c/other", "parameters": {"weight": 1.0, "density": 0.5}})
    found = translated({"merge_method": "ties", "base_model": "base", "models": models})
    assert found["options"]["density"] == [1.0, 1.0, 0.5]
    assert list(found["models"]) == ["a/tuned", "b/tuned", "other"]  # the last part of a path, where it is unique
