"""`posterity curvature` and `posterity merge --sweep`: files beside models, and losses under many weights."""

import csv
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from networks import perceptron
from posterity.checkpoints import open_checkpoint
from posterity.cli import app, main
from posterity.cli._subjects import beside
from posterity.merging import gram_matrices, merge_state_dicts

FACTORY = """
from torch import nn

def make():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
"""


def network(seed):
    torch.manual_seed(seed)
    return perceptron(3, 4, 2)


def arrays(path):
    with np.load(path) as stored:
        return dict(stored)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "factory_of_tests", raising=False)
    (tmp_path / "factory_of_tests.py").write_text(FACTORY)
    for number, name in enumerate(("base", "a", "b")):
        save_file(network(number).state_dict(), tmp_path / f"{name}.safetensors")
        rng = np.random.default_rng(number)
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(9, 3)), y=rng.integers(2, size=9))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False).output


def gradients(model, x, y):
    """∇ −log p(y | x) of one example, by autograd."""
    loss = nn.functional.cross_entropy(model(x[None]), y[None])
    return torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("kind", ["true", "empirical"])
def test_fisher_is_a_mean_over_examples(folder, kind):
    stored = arrays("a.npz")
    x, y, model = torch.as_tensor(stored["x"]).float(), torch.as_tensor(stored["y"]), network(1)
    wanted = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(9):
        chances = model(x[i]).softmax(-1).tolist() if kind == "true" else [1.0 * (y[i] == 0), 1.0 * (y[i] == 1)]
        for label, chance in enumerate(chances):
            for total, g in zip(wanted, gradients(model, x[i], torch.tensor(label)), strict=True):
                total += chance * g**2 / 9
    for size in (1, 4, 9):
        arguments = ("--checkpoint", "a.safetensors", "--kind", kind, "--batch-size", size)
        assert "wrote a.fisher.safetensors" in run("curvature", "factory_of_tests:make", "a.npz", *arguments)
        found = load_file("a.fisher.safetensors")
        for (name, _), total in zip(model.named_parameters(), wanted, strict=True):
            torch.testing.assert_close(found[name], total, rtol=1e-4, atol=1e-8)
    with safe_open("a.fisher.safetensors", "pt") as file:
        assert file.metadata() == {"kind": kind, "examples": "9"}


def test_gram_matrices_of_every_linear_layer(folder):
    run("curvature", "factory_of_tests:make", "a.npz", "--checkpoint", "a.safetensors", "--kind", "gram")
    found, x, model = load_file("a.gram.safetensors"), torch.as_tensor(arrays("a.npz")["x"]).float(), network(1)
    hidden = torch.tanh(model[0](x))
    torch.testing.assert_close(found["0.weight"], x.mT @ x / 9)
    torch.testing.assert_close(found["2.weight"], hidden.mT @ hidden / 9)
    assert not any(handles for module in model.modules() for handles in [module._forward_pre_hooks])


def test_regmean_averages_inputs_that_never_fire():
    layers = {"a": {"w": torch.tensor([[1.0, 2.0]])}, "b": {"w": torch.tensor([[3.0, 4.0]])}}
    grams = {name: {"w": torch.tensor([[5.0, 0.0], [0.0, 0.0]])} for name in layers}
    merged = merge_state_dicts(layers, method="regmean", curvatures=grams)["w"]
    torch.testing.assert_close(merged, torch.tensor([[2.0, 3.0]]))


def test_merge_reads_the_number_of_examples_from_the_file(folder):
    for name in ("base", "a", "b"):
        run("curvature", "factory_of_tests:make", f"{name}.npz", "--checkpoint", f"{name}.safetensors")
    flags = [("--curvature", f"{name}={name}.fisher.safetensors") for name in ("base", "a", "b")]
    models = ("--base", "base.safetensors", "--model", "a=a.safetensors", "--model", "b=b.safetensors")
    run("merge", "--method", "gradient_matching", *models, *(x for pair in flags for x in pair), "--out", "merged")
    state = {name: load_file(f"{name}.safetensors") for name in ("base", "a", "b")}
    sums = {n: {k: 9 * t for k, t in load_file(f"{n}.fisher.safetensors").items()} for n in ("base", "a", "b")}
    wanted = merge_state_dicts(
        {name: state[name] for name in "ab"},
        state["base"],
        method="gradient_matching",
        curvatures={name: sums[name] for name in "ab"},
        base_precision={name: t + 1e-12 for name, t in sums["base"].items()},
    )
    merged = load_file("merged/model.safetensors")
    for name, t in wanted.items():
        torch.testing.assert_close(merged[name], t)
    assert open_checkpoint("a.fisher.safetensors").metadata["examples"] == "9"


def test_hugging_face_folder(folder):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=2
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained("tiny")
    tokens = torch.randint(1, 20, (4, 5))
    arrays = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.tensor([0, 1, 1, 0])}
    save_file(arrays, "texts.safetensors")
    assert "tiny.fisher.safetensors" in run("curvature", "tiny", "texts.safetensors", "--kind", "empirical")
    found = load_file("tiny.fisher.safetensors")
    wanted = torch.zeros(2)
    for i in range(4):
        out = model(input_ids=tokens[i : i + 1], attention_mask=torch.ones(1, 5, dtype=torch.long)).logits
        loss = nn.functional.cross_entropy(out, arrays["labels"][i : i + 1])
        wanted += torch.autograd.grad(loss, model.classifier.bias)[0] ** 2 / 4
    torch.testing.assert_close(found["classifier.bias"], wanted, rtol=1e-4, atol=1e-8)


def test_sweep(folder):
    models = ("--base", "base.safetensors", "--model", "a=a.safetensors", "--model", "b=b.safetensors")
    scores = ("--score", "first=a.npz", "--score", "second=b.npz", "--architecture", "factory_of_tests:make")
    said = run("merge", "--method", "task_arithmetic", *models, "--sweep", 3, *scores, "--out", "swept")
    assert "swept/sweep.csv" in said
    rows = list(csv.DictReader((folder / "swept" / "sweep.csv").read_text().splitlines()))
    assert [row["weight of a"] for row in rows] == ["0.0", "0.5", "1.0"]
    stored, model = arrays("a.npz"), network(1)  # all of a, nothing of b: model a itself
    loss = nn.functional.cross_entropy(model(torch.as_tensor(stored["x"]).float()), torch.as_tensor(stored["y"]))
    assert float(rows[2]["first"]) == pytest.approx(loss.item(), rel=1e-5)
    assert (folder / "swept" / "sweep.png").stat().st_size > 1000
    assert sorted(p.name for p in (folder / "swept").iterdir()) == ["sweep.csv", "sweep.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere", "a.npz"), "model: expected a Hugging Face folder, the folder of a run, or module:factory"),
        (("factory_of_tests:make", "a.npz"), "checkpoint: expected the weights"),
        (("factory_of_tests:make", "a.csv", "--checkpoint", "a.safetensors"), "data: expected a file"),
        (("factory_of_tests:make", "a.npz", "--checkpoint", "a.safetensors", "--kind", "exact"), "kind: expected"),
        (("factory_of_tests:make", "a.npz", "--checkpoint", "wrong.safetensors"), "wrong.safetensors: expected"),
        (("factory_of_tests:make", "empty.npz", "--checkpoint", "a.safetensors"), "expected inputs and one array"),
        ((".", "a.npz"), "expected"),
        (("/", "a.npz"), "expected"),
    ],
)
def test_mistakes_are_named(folder, monkeypatch, capsys, arguments, message):
    save_file({"w": torch.zeros(2)}, "wrong.safetensors")
    np.savez("empty.npz", x=np.zeros(3))
    monkeypatch.setattr(sys, "argv", ["posterity", "curvature", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_the_curvature_of_a_model_where_we_are_stands_beside_it(folder):
    assert beside(".", None, "fisher") == folder.parent / f"{folder.name}.fisher.safetensors"


def test_gram_needs_linear_layers():
    with pytest.raises(ValueError, match=r"model: expected at least one nn\.Linear"):
        gram_matrices(nn.Sequential(nn.Flatten()), [])
