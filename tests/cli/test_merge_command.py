"""`posterity merge`: recipes, flags and what is said about mistakes."""

import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from posterity.cli import app, main
from posterity.errors import InvalidInput, RefusedFile
from posterity.merging.recipes import read_yaml, recipe

RECIPE = """
method: gradient_matching
base: {path: base.safetensors, curvature: h.safetensors, n: 2}
models:
  a: {path: a.safetensors, weight: 0.5, curvature: h.safetensors, n: 1e1}
  b: {path: b.safetensors, weight: -1, curvature: h.safetensors, n: 1}
prior_precision: 1e-3
temperature: 2
shard_size: 5MB
out: merged
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for number, name in enumerate(("base", "a", "b")):
        save_file({"w": torch.full((2, 2), float(number))}, tmp_path / f"{name}.safetensors")
    save_file({"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}, tmp_path / "h.safetensors")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments):
    return CliRunner().invoke(app, ["merge", *map(str, arguments)], catch_exceptions=False)


def complaint(monkeypatch, capsys, *arguments):
    """What the command line says about a mistake, and its exit code."""
    monkeypatch.setattr(sys, "argv", ["posterity", "merge", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_recipe(folder):
    assert "merged into" in invoke(folder / "recipe.yaml").output
    H = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    prior, a, b = 1e-3 + 2 * H / 2, 10 * H / 2, 1 * H / 2
    wanted = (0.5 * (prior + a) * 1 - (prior + b) * 2) / (prior + 0.5 * a - b)
    torch.testing.assert_close(load_file(folder / "merged" / "model.safetensors")["w"], wanted)


def test_flags_alone(folder):
    models = ("--model", "a=a.safetensors", "--model", "b=b.safetensors", "--weight", "b=0.25")
    invoke("--method", "ties", "--option", "density=1", "--base", "base.safetensors", *models, "--out", "x")
    # Both changes are positive; PEFT and the paper divide 1 + 0.25 · 2 by the number that agree.
    assert load_file(folder / "x" / "model.safetensors")["w"].tolist() == [[0.75] * 2] * 2


def test_flags_override_the_recipe(folder):
    invoke(
        "recipe.yaml", "--method", "task_arithmetic", "--weight", "a=2", "--out", "y", "--examples", "base=3",
        "--curvature", "a=h.safetensors",
    )  # fmt: skip
    assert load_file(folder / "y" / "model.safetensors")["w"].unique().tolist() == [0.0]  # 2 · 1 − 1 · 2


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("temperature", "temprature", "'shard_size', 'rank'], got 'temprature'"),
        ("weight: 0.5", "wieght: 0.5", "model 'a': expected keys among ['path', 'weight',"),
        ("gradient_matching", "gradient_magic", "method: expected one of ["),
        ("weight: 0.5", "weight: .nan", "weights: expected finite numbers, got nan"),
        ("weight: 0.5", "weight: much", "weight of model 'a': expected a number, got 'much'"),
        ("5MB", "5 MiB", "shard_size: expected bytes such as"),
        ("out: merged", "", "recipe: expected a key 'out'"),
        ("a.safetensors", "c.safetensors", "expected a checkpoint, got no such file"),
        ("a.safetensors, weight", "a.safetensors weight", "expected a recipe in YAML"),
        ("out: merged", 'out: "\\0"', "out: expected a path, got"),
        ("out: merged", "out: merged\nrank: 2", "rank: expected none, it is for adapters"),
        ("out: merged", "out: merged\noptions: {density: 1}", "expected none, got 'density'"),
    ],
)
def test_mistakes_in_recipes_are_named(folder, monkeypatch, capsys, before, after, message):
    assert before in RECIPE
    (folder / "wrong.yaml").write_text(RECIPE.replace(before, after))
    assert message in complaint(monkeypatch, capsys, "wrong.yaml")
    assert not list(folder.glob("merged*"))


def test_weights_that_sum_to_zero(folder, monkeypatch, capsys):
    models = ("--model", "a=a.safetensors", "--model", "b=b.safetensors", "--weight", "b=-1")
    said = complaint(monkeypatch, capsys, "--method", "linear", *models, "--out", "x")
    assert "sum of weights: expected not zero, got 0.0" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--weight", "a"), "--weight: expected NAME=VALUE, got 'a'"),
        (("--weight", "z=1"), "--weight: expected a model among ['a', 'b'], got 'z'"),
        (("--option", "density=[1"), "option: expected a value in YAML"),
    ],
)
def test_mistakes_in_flags_are_named(folder, monkeypatch, capsys, arguments, message):
    assert message in complaint(monkeypatch, capsys, "recipe.yaml", *arguments)


def test_keys_without_content_and_numbers_as_names(folder):
    (folder / "bare.yaml").write_text("method: ties\nbase: base.safetensors\nmodels:\noptions:\nout: x\n")
    invoke("bare.yaml", "--model", "a=a.safetensors", "--option", "density=1e-1", "--option", "convention=mergekit")
    assert load_file(folder / "x" / "model.safetensors")["w"].tolist() == [[1.0] * 2] * 2
    (folder / "numbers.yaml").write_text("method: linear\nmodels: {1: a.safetensors, 2: b.safetensors}\nout: y\n")
    invoke("numbers.yaml", "--weight", "2=3")
    assert load_file(folder / "y" / "model.safetensors")["w"].tolist() == [[1.75] * 2] * 2


def test_models_that_are_no_mapping(folder, monkeypatch, capsys):
    (folder / "list.yaml").write_text("method: linear\nmodels: [a.safetensors]\nout: x\n")
    said = complaint(monkeypatch, capsys, "list.yaml", "--model", "b=b.safetensors")
    assert "models: expected a mapping, got ['a.safetensors']" in said


def test_no_recipe(folder, monkeypatch, capsys):
    assert "expected a recipe, got No such file" in complaint(monkeypatch, capsys, "nothing.yaml")
    (folder / "list.yaml").write_text("- 1")
    assert "expected keys such as method" in complaint(monkeypatch, capsys, "list.yaml")


def test_adapters(folder):
    B, A = torch.randn(4, 2), torch.randn(2, 3)
    (folder / "lora").mkdir()
    save_file({"m.lora_A.weight": A, "m.lora_B.weight": B}, folder / "lora" / "adapter_model.safetensors")
    (folder / "lora" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    invoke("--method", "task_arithmetic", "--model", "a=lora", "--weight", "a=0.5", "--rank", "1", "--out", "z")
    merged = load_file(folder / "z" / "adapter_model.safetensors")
    U, sigma, Vh = torch.linalg.svd(0.5 * 2 * B @ A)
    found = 4 * merged["m.lora_B.weight"] @ merged["m.lora_A.weight"]
    torch.testing.assert_close(found, sigma[0] * U[:, :1] @ Vh[:1], atol=1e-5, rtol=1e-5)


BOMB = "a: &a [x, x]\n" + "".join(f"k{i}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(24))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 20_000, "too deep"),
        ("method: " + "[" * 20_000 + "]" * 20_000, "too deep"),
        ("method: {a: " * 5_000, "too deep"),
        ("- " * 5_000, "too deep"),
        (BOMB, "an alias"),
        ("when: 2026-99-99", "got"),
        ("n: " + "9" * 5000, "got"),
        ("x" * 2_000_000, "at most"),
        ("a: \0", "got"),
        ("!!python/object/apply:os.system [ls]", "got"),
        ("method: ties\nmethod: linear\n", "'method' twice"),
        ("method: ties\nmodels: {a: x, b: y, a: z}\n", "'a' twice"),
        ("models: [{path: x, path: y}]\n", "'path' twice"),
        ("layers: {1: x, 0x1: y}\n", "'1' twice"),
        ("layers: {true: x, 1: y}\n", "twice"),
        ("layers: {!!int '': x}\n", "got"),
        ("layers: !!bool word\n", "got"),
        (f"{'k' * 1000}: x\n{'k' * 1000}: y\n", "twice"),
    ],
    ids=[
        "open",
        "deep",
        "maps",
        "lists",
        "aliases",
        "date",
        "digits",
        "long",
        "nul",
        "object",
        "key",
        "model",
        "list",
        "number",
        "truth",
        "no number",
        "no truth",
        "long key",
    ],
)
def test_hostile_recipes_are_refused(tmp_path, text, message):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(RefusedFile, match=message) as refused:
        read_yaml(tmp_path / "r.yaml")
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("key", ["temperature", "prior_precision"])
def test_numbers_that_no_float_holds_are_named(key):
    with pytest.raises(InvalidInput, match=f"{key}: expected a number"):
        recipe({"method": "linear", "models": {"a": "a.safetensors"}, "out": "o", key: 10**400})


@pytest.mark.parametrize("out", ["\0", "\ud800"], ids=["nul", "half a pair"])
def test_what_no_path_can_be_is_named(out):
    with pytest.raises(InvalidInput, match="out: expected a path, got"):
        recipe({"method": "linear", "models": {"a": "a.safetensors"}, "out": out})
