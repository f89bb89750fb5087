"""Edges of merging: what another merge left behind, odd companions, weights below zero, recipes that lack a part."""

import io
import json
import struct
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from merging.checkpoints import random_tree, save_plain
from posterity.checkpoints import open_checkpoint
from posterity.errors import InvalidInput, RefusedFile
from posterity.merging import merge, merge_state_dicts, shards, stream
from posterity.merging._sweep import trade_offs
from posterity.merging.curvatures import write_curvature
from posterity.merging.job import Job, MergeSource
from posterity.merging.methods import method_of
from posterity.merging.recipes import DEEPEST, read_value, recipe
from posterity.merging.stream import merge_checkpoints
from posterity.posterior import Diagonal, Posterior


def averaged(files):
    return Job({"a": MergeSource(files / "a"), "b": MergeSource(files / "b.pt")}, method_of("linear"))


def test_shards_of_an_interrupted_merge_of_another_kind_do_not_stay(files, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(stream, "write_index", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            merge_checkpoints(replace(averaged(files), shard_size=300), files / "out")
    assert len(list((files / "out.partial").glob("*.safetensors"))) > 1
    out = merge_checkpoints(averaged(files), files / "out")
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "model.safetensors"]


def test_a_folder_with_the_name_of_a_companion_is_left_where_it_is(files):
    (files / "a" / "logs.json").mkdir()
    (files / "a" / "tokenizer.json").write_text("{}")
    out = merge_checkpoints(averaged(files), files / "out")
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "model.safetensors", "tokenizer.json"]


def test_a_companion_of_more_than_64_mib_is_left_where_it_is(files):
    for name, size in (("whole.txt", 2**26), ("large.txt", 2**26 + 1)):
        with (files / "a" / name).open("wb") as file:
            file.truncate(size)  # holes take no room on the disk
    out = merge_checkpoints(averaged(files), files / "out")
    assert (out / "whole.txt").stat().st_size == 2**26
    assert not (out / "large.txt").exists()


def test_whole_numbers_are_copied_chunk_by_chunk(files, monkeypatch):
    monkeypatch.setattr(stream, "CHUNK", 3)  # of the five positions
    out = merge_checkpoints(averaged(files), files / "out")
    assert load_file(out / "model.safetensors")["position_ids"].tolist() == list(range(5))


@pytest.mark.parametrize("length", range(1, 9))
def test_numbers_of_a_shard_start_at_multiples_of_eight_bytes(tmp_path, length):
    save_plain(tmp_path / "a", {"w" * length: torch.ones(2)})
    out = merge_checkpoints(Job({"a": MergeSource(tmp_path / "a")}, method_of("linear")), tmp_path / "out")
    written = (out / "model.safetensors").read_bytes()
    header = struct.unpack("<Q", written[:8])[0]
    assert header % 8 == 0
    assert json.loads(written[8 : 8 + header])["w" * length]["data_offsets"] == [0, 8]


def test_a_disk_that_fails_at_the_end_of_the_last_shard_is_no_success(files, monkeypatch):
    @contextmanager
    def failing(_):
        yield io.BytesIO()
        raise OSError("no space left")

    monkeypatch.setattr(shards, "atomic", failing)
    with pytest.raises(OSError, match="no space left"):
        merge_checkpoints(averaged(files), files / "out")


def test_tied_tensors_of_different_shapes_are_not_tied(files):
    weight = random_tree(0)["embed.weight"]
    torch.save({"embed": weight, "head": weight}, files / "tied.pt")
    save_file({"embed": weight, "head": weight[:7].clone()}, files / "cut.safetensors")
    cut = Job(
        {"a": MergeSource(files / "cut.safetensors")}, method_of("task_arithmetic"), MergeSource(files / "tied.pt")
    )
    with pytest.raises(InvalidInput, match="a: head is not tied to embed"):
        merge_checkpoints(cut, files / "out")


def test_tied_tensors_that_differ_in_their_first_number_are_not_tied(files):
    weight = random_tree(0)["embed.weight"]
    torch.save({"embed": weight, "head": weight}, files / "tied.pt")
    apart = weight.clone()
    apart[0, 0] += 1
    save_file({"embed": weight, "head": apart}, files / "apart.safetensors")
    job = Job(
        {"a": MergeSource(files / "apart.safetensors")}, method_of("task_arithmetic"), MergeSource(files / "tied.pt")
    )
    with pytest.raises(InvalidInput, match="a: head is not tied to embed"):
        merge_checkpoints(job, files / "out")


def test_curvature_that_a_method_does_not_need_is_not_opened(files):
    models = {"a": MergeSource(files / "a", curvature=files / "nowhere.safetensors"), "b": MergeSource(files / "b.pt")}
    out = merge_checkpoints(Job(models, method_of("linear")), files / "out")
    wanted = (random_tree(1)["layer.bias"] + random_tree(2)["layer.bias"]) / 2
    torch.testing.assert_close(load_file(out / "model.safetensors")["layer.bias"], wanted)


@pytest.mark.parametrize("told", ["0", "-3", "nan", "many"])
def test_a_curvature_of_no_examples_is_refused(files, told):
    path = files / "a.fisher.safetensors"
    save_file(load_file(path), path, metadata={"examples": told})
    job = Job({"a": MergeSource(files / "a", curvature=path)}, method_of("fisher"))
    with pytest.raises(RefusedFile, match="expected a number of examples in its header"):
        merge_checkpoints(job, files / "out")


def test_fifty_problems_are_listed_and_the_rest_counted(tmp_path):
    save_plain(tmp_path / "like", {f"w{i}": torch.ones(1) for i in range(60)})
    save_plain(tmp_path / "other", {f"w{i}": torch.ones(2) for i in range(60)})
    job = Job({name: MergeSource(tmp_path / name) for name in ("like", "other")}, method_of("linear"))
    with pytest.raises(InvalidInput) as caught:
        merge_checkpoints(job, tmp_path / "out")
    assert str(caught.value).count("instead of") == 50
    assert str(caught.value).endswith("... and 10 more")


def test_a_prior_has_no_negative_precision(files):
    with pytest.raises(InvalidInput, match="prior_precision: expected a number >= 0, got -1"):
        replace(averaged(files), prior_precision=-1.0)


def test_dare_keeps_the_norm_of_small_changes():
    generator = torch.Generator().manual_seed(0)
    base, change = torch.zeros(400), 1e-4 * torch.randn(400, generator=generator)
    merged = merge_state_dicts({"a": {"w": change}}, {"w": base}, method="dare", density=0.5, rescale="l1")["w"]
    assert 0.3 < (merged == 0).float().mean() < 0.7
    torch.testing.assert_close(merged.abs().sum(), change.abs().sum())


def test_a_negative_weight_turns_a_vote():
    """As mergekit elects and averages, over α_t Δ_t: here all agree, and α sums to 1/2."""
    models = {"a": {"w": torch.tensor([2.0, -1.0])}, "b": {"w": torch.tensor([-3.0, 4.0])}}
    options = {"method": "ties", "density": 1.0, "convention": "mergekit", "weights": {"a": 1.0, "b": -0.5}}
    merged = merge_state_dicts(models, {"w": torch.zeros(2)}, **options)
    assert merged["w"].tolist() == [7.0, -6.0]


@pytest.mark.parametrize("name", ["linear", "ties"])
def test_a_method_needs_weights(name):
    with pytest.raises(InvalidInput, match="models: expected at least one, got 'none'"):
        method_of(name).check([])


def test_posteriors_of_the_same_classes_keep_them():
    prior = Diagonal.isotropic({"w": torch.zeros(2)}, 1.0)

    def trained(names):
        return Posterior(prior, prior=prior, n=3, ess=3, likelihood="categorical", class_names=names)

    merged = merge({"a": trained(("cat", "dog")), "b": trained(())}, trained(("cat", "dog")))
    assert tuple(merged.class_names) == ("cat", "dog")
    with pytest.raises(InvalidInput, match="class_names of 'a'"):
        merge({"a": trained(("dog", "cat"))}, trained(("cat", "dog")))


def test_a_model_that_counts_for_nothing_brings_no_buffers():
    def trained(value, n):
        prior = Diagonal.isotropic({"w": torch.zeros(2)}, 1.0)
        buffers = {"running": torch.tensor([value])}
        return Posterior(prior, prior=prior, n=n, ess=n, likelihood="gaussian", buffers=buffers)

    merged = merge({"a": trained(1.0, 10)}, trained(4.0, 20), weights={"a": 0.0})
    assert merged.buffers["running"].item() == 4.0


def test_a_sweep_has_eleven_points_by_default():
    assert [choice["a"] for choice in trade_offs(["a", "b"])] == pytest.approx([i / 10 for i in range(11)])


def test_a_sweep_has_two_ends():
    with pytest.raises(InvalidInput, match="steps: expected a whole number >= 2, got 1"):
        trade_offs(["a", "b"], steps=1)


def test_curvature_is_written_as_a_mean_over_examples(tmp_path):
    """A logistic regression with one input: E[g²] = p (1 − p) x²."""
    model, x = nn.Linear(1, 2, bias=False), torch.tensor([[1.0], [2.0], [-3.0]])
    out = write_curvature(model, (x, torch.tensor([0, 1, 1])), tmp_path / "m.fisher.safetensors")
    p = model(x).softmax(-1).detach()
    wanted = (p * (1 - p) * x**2).mean(0)[:, None]
    torch.testing.assert_close(load_file(out)["weight"], wanted)
    assert open_checkpoint(out).metadata["examples"] == "3"


@pytest.mark.parametrize("key", ["method", "models", "out"])
def test_a_recipe_without_one_of_its_parts_is_refused(key):
    whole = {"method": "linear", "models": {"a": "a"}, "out": "out"}
    with pytest.raises(InvalidInput, match=f"recipe: expected a key '{key}'"):
        recipe({name: value for name, value in whole.items() if name != key})


def test_a_recipe_with_a_key_that_nobody_reads_is_refused():
    with pytest.raises(InvalidInput, match="'metod'"):
        recipe({"method": "linear", "models": {"a": "a"}, "out": "out", "metod": "ties"})
    with pytest.raises(InvalidInput, match=r"model 'a': expected keys among .*, got 'wieght'"):
        recipe({"method": "linear", "models": {"a": {"path": "a", "wieght": 2}}, "out": "out"})


def test_fifty_brackets_within_one_another_are_read():
    found = read_value("[" * DEEPEST + "]" * DEEPEST)
    for _ in range(DEEPEST - 1):
        (found,) = found
    assert found == []
    with pytest.raises(InvalidInput, match="option: expected a value in YAML"):
        read_value("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1))


@pytest.mark.parametrize("rank", [0, 1.5, True])
def test_a_rank_of_a_recipe_is_a_positive_integer(rank):
    with pytest.raises(InvalidInput, match="rank: expected an integer >= 1"):
        recipe({"method": "linear", "models": {"a": "a"}, "out": "out", "rank": rank})


def test_paths_of_a_recipe_start_at_its_folder(tmp_path):
    models = {"a": {"path": "a", "curvature": "a.fisher.safetensors"}}
    found = recipe({"method": "fisher", "models": models, "out": "out"}, tmp_path)
    assert found.models["a"].path == tmp_path / "a"
    assert found.models["a"].curvature == tmp_path / "a.fisher.safetensors"
    assert found.out == tmp_path / "out"
