"""Merging checkpoints on disk: the same numbers as in memory, in little memory, whole or not at all."""

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from collections import namedtuple
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from merging.checkpoints import curvature_of, random_tree, save_plain
from posterity import merging
from posterity.checkpoints import open_checkpoint
from posterity.errors import InvalidInput, RefusedFile
from posterity.merging import METHODS, merge_state_dicts, stream
from posterity.merging import job as job_module
from posterity.merging.job import Job, MergeSource
from posterity.merging.methods import method_of
from posterity.merging.recipes import recipe
from posterity.merging.stream import merge_checkpoints


def job_for(files, method="task_arithmetic", **options):
    chosen = method_of(method, options)

    def source(name, path, **more):
        fisher = files / f"{name}.fisher.safetensors" if chosen.needs_curvature else None
        return MergeSource(files / path, curvature=fisher, **more)

    models = {"a": source("a", "a", weight=0.5, n=10), "b": source("b", "b.pt", weight=0.8, n=30)}
    return Job(models, chosen, source("base", "base", n=20) if chosen.needs_base else None)


def in_memory(method, **options):
    needs_base = METHODS[method].needs_base
    return merge_state_dicts(
        {"a": random_tree(1), "b": random_tree(2)},
        random_tree(0) if needs_base else None,
        method=method,
        weights={"a": 0.5, "b": 0.8},
        curvatures={m: {n: k * t for n, t in curvature_of(s).items()} for m, k, s in (("a", 10, 11), ("b", 30, 12))},
        base_precision={n: 20 * t + 1e-12 for n, t in curvature_of(10).items()},
        **options,
    )


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("linear", {}),
        ("task_arithmetic", {}),
        ("fisher", {}),
        ("gradient_matching", {}),
        ("slerp", {}),
        ("ties", {"convention": "paper"}),
        ("ties", {"convention": "mergekit"}),
        ("dare", {"rescale": "paper"}),
        ("dare", {"rescale": "l1", "convention": "mergekit"}),
    ],
)
@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_streaming_equals_memory(files, monkeypatch, method, options, chunk):
    monkeypatch.setattr(job_module, "CHUNK", chunk)
    monkeypatch.setattr(stream, "CHUNK", chunk)
    out = merge_checkpoints(job_for(files, method, **options), files / "out")
    merged, wanted = load_file(out / "model.safetensors"), in_memory(method, **options)
    assert merged.keys() == wanted.keys()
    for name, t in wanted.items():
        torch.testing.assert_close(merged[name], t)


def test_regmean_from_files(files):
    tree = {"w": torch.randn(3, 4), "b": torch.randn(3)}
    other = {"w": torch.randn(3, 4), "b": torch.randn(3)}
    for name, t in (("c", tree), ("d", other)):
        save_plain(files / name, t)
        x = torch.randn(20, 4)
        save_file({"w": x.mT @ x / 20}, files / f"{name}.gram.safetensors")
    grams = {name: {"w": 20 * load_file(files / f"{name}.gram.safetensors")["w"]} for name in "cd"}
    sources = {n: MergeSource(files / n, curvature=files / f"{n}.gram.safetensors", n=20) for n in "cd"}
    out = merge_checkpoints(Job(sources, method_of("regmean")), files / "out")
    wanted = merge_state_dicts({"c": tree, "d": other}, method="regmean", curvatures=grams)
    for name, t in load_file(out / "model.safetensors").items():
        torch.testing.assert_close(t, wanted[name])


def test_output_is_sharded_and_complete(files):
    job = job_for(files)
    out = merge_checkpoints(Job(job.models, job.method, job.base, shard_size=1000), files / "deep" / "out")
    shards = sorted(p.name for p in out.glob("*.safetensors"))
    assert len(shards) > 1
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    reopened, wanted = open_checkpoint(out), in_memory("task_arithmetic")
    for name, t in wanted.items():
        torch.testing.assert_close(reopened.read(name, 0, t.numel()).reshape(t.shape), t)
    assert json.loads((out / "config.json").read_text()) == {"model_type": "any"}
    card = (out / "README.md").read_text()
    for word in ("`task_arithmetic`", "| base | base |", "| a | a | 0.5 |", "| b | b.pt | 0.8 |"):
        assert word in card
    assert {p.suffix for p in out.iterdir()} == {".safetensors", ".json", ".md"}


def test_dtypes_are_kept(files):
    save_plain(files / "half", random_tree(3, torch.bfloat16))
    save_plain(files / "tuned", random_tree(4, torch.float16))
    job = Job({"a": MergeSource(files / "tuned", 0.5)}, method_of("task_arithmetic"), MergeSource(files / "half"))
    merged = load_file(merge_checkpoints(job, files / "out") / "model.safetensors")
    wanted = merge_state_dicts({"a": random_tree(4, torch.float16)}, random_tree(3, torch.bfloat16), weights={"a": 0.5})
    assert merged["layer.weight"].dtype == torch.bfloat16
    assert torch.equal(merged["layer.weight"], wanted["layer.weight"])


def test_tied_tensors_stay_tied(files):
    def tied(seed):
        weight = random_tree(seed)["embed.weight"]
        return {"embed": weight, "head": weight}

    torch.save(tied(0), files / "base.pt")
    torch.save(tied(1), files / "tuned.bin")
    save_file({"head": tied(2)["head"]}, files / "other.safetensors", metadata={"embed": "head"})
    models = {"a": MergeSource(files / "tuned.bin"), "b": MergeSource(files / "other.safetensors")}
    job = Job(models, method_of("dare", {"density": 0.5}), MergeSource(files / "base.pt"))
    out = merge_checkpoints(job, files / "out")
    with safe_open(out / "model.safetensors", "pt") as file:
        assert list(file.keys()) == ["embed"]
        assert file.metadata()["head"] == "embed"
    reopened = open_checkpoint(out)
    assert torch.equal(reopened.read("head", 0, 400), reopened.read("embed", 0, 400))


def test_a_model_whose_tensors_are_no_longer_tied_is_refused(files):
    weight = random_tree(0)["embed.weight"]
    torch.save({"embed": weight, "head": weight}, files / "base.pt")
    for name, head in {"apart": weight + 1, "alike": weight.clone()}.items():
        save_file({"embed": weight, "head": head}, files / f"{name}.safetensors")
    base, method = MergeSource(files / "base.pt"), method_of("task_arithmetic")
    with pytest.raises(InvalidInput, match="a: head is not tied to embed"):
        merge_checkpoints(Job({"a": MergeSource(files / "apart.safetensors")}, method, base), files / "out")
    out = merge_checkpoints(Job({"a": MergeSource(files / "alike.safetensors")}, method, base), files / "out")
    assert torch.equal(open_checkpoint(out).read("head", 0, weight.numel()), weight.reshape(-1))


def test_memory_is_bounded_by_chunks(tmp_path, monkeypatch):
    size, chunk = 1 << 20, 1 << 12
    largest = 0
    empty = torch.empty

    def watched(*shape, **options):
        nonlocal largest
        t = empty(*shape, **options)
        largest = max(largest, t.numel())
        return t

    for seed, name in enumerate(("base", "a", "b")):
        tree = {"w": torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)}
        save_plain(tmp_path / name, tree)
    monkeypatch.setattr(job_module, "CHUNK", chunk)
    monkeypatch.setattr(torch, "empty", watched)
    models = {"a": MergeSource(tmp_path / "a"), "b": MergeSource(tmp_path / "b")}
    tracemalloc.start()
    merge_checkpoints(Job(models, method_of("ties"), MergeSource(tmp_path / "base")), tmp_path / "out")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert largest == chunk
    assert peak < 2**22  # mostly the counts of TIES; the changes of both models in float32 would be 2²³ bytes


class Interrupted(Exception):
    pass


def test_an_interrupted_merge_is_resumed(files, monkeypatch):
    job = job_for(files)
    job = Job(job.models, job.method, job.base, shard_size=300)
    pieces, last = stream._pieces, max(in_memory("task_arithmetic"))

    def interrupted(opened, name, shared):
        if name == last:
            raise Interrupted
        return pieces(opened, name, shared)

    monkeypatch.setattr(stream, "_pieces", interrupted)
    with pytest.raises(Interrupted):
        merge_checkpoints(job, files / "out")
    assert not (files / "out").exists()
    written = {file.name: file.stat().st_mtime_ns for file in (files / "out.partial").glob("*.safetensors")}
    assert written
    assert not list((files / "out.partial").glob(".*.tmp"))
    (files / "out.partial" / ".model.0123456789ab.tmp").write_bytes(b"half")

    monkeypatch.setattr(stream, "_pieces", pieces)
    out = merge_checkpoints(job, files / "out")
    assert {name: (out / name).stat().st_mtime_ns for name in written} == written
    assert not (files / "out.partial").exists()
    assert not list(out.glob(".*"))
    for name, t in in_memory("task_arithmetic").items():
        torch.testing.assert_close(open_checkpoint(out).read(name, 0, t.numel()).reshape(t.shape), t)


def test_a_merge_stopped_just_before_its_folder_appears_is_resumed(files, monkeypatch):
    replace = os.replace

    def interrupted(source, target):
        if target == files / "out":
            raise Interrupted
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", interrupted)
        with pytest.raises(Interrupted):
            merge_checkpoints(job_for(files), files / "out")
    out = merge_checkpoints(job_for(files), files / "out")
    assert sorted(file.name for file in out.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_another_merge_does_not_resume(files, monkeypatch):
    def interrupted(*_):
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(stream, "write_index", interrupted)
        with pytest.raises(Interrupted):
            merge_checkpoints(job_for(files, "ties"), files / "out")
    merged = load_file(merge_checkpoints(job_for(files), files / "out") / "model.safetensors")
    torch.testing.assert_close(merged["layer.weight"], in_memory("task_arithmetic")["layer.weight"])


@pytest.mark.parametrize("left", [(), (".merge-plan.json.0123456789ab.tmp",)], ids=["nothing", "half a plan"])
def test_a_merge_killed_before_its_plan_was_written_starts_again(files, left):
    (files / "out.partial").mkdir()
    for name in left:
        (files / "out.partial" / name).write_text('{"pl')
    assert (merge_checkpoints(job_for(files), files / "out") / "README.md").is_file()
    assert not (files / "out.partial").exists()
    assert [path for path in (files / "out").iterdir() if path.suffix == ".tmp"] == []


def test_folders_above_are_made(files):
    assert (merge_checkpoints(job_for(files), files / "not" / "yet" / "out") / "README.md").is_file()


def test_a_cold_posterior_has_a_positive_temperature(files):
    with pytest.raises(InvalidInput, match="temperature: expected a positive finite number, got 0"):
        replace(job_for(files), temperature=0.0)


def test_foreign_folders_are_left_alone(files):
    (files / "out.partial").mkdir()
    (files / "out.partial" / "thesis.txt").write_text("mine")
    with pytest.raises(RefusedFile, match="expected nothing or an interrupted merge"):
        merge_checkpoints(job_for(files), files / "out")
    assert (files / "out.partial" / "thesis.txt").read_text() == "mine"
    with pytest.raises(RefusedFile, match="expected a folder that does not exist yet"):
        merge_checkpoints(job_for(files), files / "base")


def test_all_mismatches_are_listed_before_any_work(files):
    tree = random_tree(1)
    del tree["layer.bias"]
    tree["embed.weight"] = torch.randn(51, 8)
    tree["extra"] = torch.ones(1)
    tree["scale"] = torch.tensor(1)
    save_plain(files / "odd", tree)
    job = Job({"odd": MergeSource(files / "odd")}, method_of("task_arithmetic"), MergeSource(files / "base"))
    with pytest.raises(InvalidInput) as caught:
        merge_checkpoints(job, files / "out")
    for line in (
        "odd: embed.weight has shape [51, 8] instead of [50, 8]",
        "odd: layer.bias is missing",
        "odd: extra is not in the others",
        "odd: scale holds torch.int64 instead of torch.float32",
    ):
        assert line in str(caught.value)
    assert not (files / "out.partial").exists()


def test_disk_space_is_checked_first(files, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 90, 10))
    with pytest.raises(RefusedFile, match="GB of free disk"):
        merge_checkpoints(job_for(files), files / "out")
    assert not (files / "out.partial").exists()


def test_nan_is_refused_and_nothing_is_left(files):
    tree = random_tree(1)
    tree["layer.bias"][3] = float("nan")
    save_plain(files / "sick", tree)
    job = Job({"sick": MergeSource(files / "sick")}, method_of("task_arithmetic"), MergeSource(files / "base"))
    with pytest.raises(InvalidInput, match=r"layer\.bias: expected finite numbers, got NaN or infinity in a model"):
        merge_checkpoints(job, files / "out")
    with pytest.raises(InvalidInput, match="weights: expected finite numbers, got nan"):
        Job(
            {"a": MergeSource(files / "a", weight=float("nan"))},
            method_of("task_arithmetic"),
            MergeSource(files / "base"),
        )
    assert not list(files.glob("out*"))


@pytest.mark.parametrize(("dtype", "large"), [(torch.float16, 6e4), (torch.float32, 3e38)])
def test_overflow_is_told_apart(files, dtype, large):
    save_plain(files / "large", {"w": torch.full((3,), large, dtype=dtype)})
    save_plain(files / "zero", {"w": torch.zeros(3, dtype=dtype)})
    job = Job({"a": MergeSource(files / "large", 2.0)}, method_of("task_arithmetic"), MergeSource(files / "zero"))
    with pytest.raises(InvalidInput, match=rf"numbers beyond {dtype}"):
        merge_checkpoints(job, files / "out")


def test_missing_pieces_are_named(files):
    with pytest.raises(InvalidInput, match="curvature of 'a': expected a file, for 'fisher'"):
        Job({"a": MergeSource(files / "a")}, method_of("fisher"))
    with pytest.raises(InvalidInput, match="base: expected the model that 'ties' starts from"):
        Job({"a": MergeSource(files / "a")}, method_of("ties"))
    with pytest.raises(InvalidInput, match="base: expected none, 'linear' is an average"):
        Job({"a": MergeSource(files / "a")}, method_of("linear"), MergeSource(files / "base"))
    with pytest.raises(InvalidInput, match=r"models\['a'\]: expected a MergeSource, got 'str'"):
        Job({"a": "folder"}, method_of("linear"))
    with pytest.raises(InvalidInput, match=r"method: expected a Method such as Linear\(\), got 'linear'"):
        Job({"a": MergeSource(files / "a")}, "linear")
    with pytest.raises(InvalidInput, match="base: expected a MergeSource"):
        Job({"a": MergeSource(files / "a")}, method_of("ties"), files / "base")
    with pytest.raises(InvalidInput, match="n of 'a': expected a positive"):
        Job({"a": MergeSource(files / "a", n=0)}, method_of("linear"))
    with pytest.raises(InvalidInput, match="n of 'base': expected a positive"):
        Job({"a": MergeSource(files / "a")}, method_of("ties"), MergeSource(files / "base", n=-1))


def test_curvature_of_another_kind_is_refused_before_any_work(files):
    tree = {"w": torch.randn(3, 4)}
    save_plain(files / "c", tree)
    save_file(tree, files / "c.fisher.safetensors", metadata={"examples": "many"})
    source = MergeSource(files / "c", curvature=files / "c.fisher.safetensors", n=20)
    with pytest.raises(InvalidInput, match=r"curvature of c: w has shape \[3, 4\] instead of \[4, 4\]"):
        merge_checkpoints(Job({"c": source}, method_of("regmean")), files / "out")
    with pytest.raises(RefusedFile, match="expected a number of examples in its header, got 'many'"):
        merge_checkpoints(Job({"c": replace(source, n=None)}, method_of("fisher")), files / "out")
    assert not list(files.glob("out*"))


def test_files_are_merged_without_importing_posteriors():
    code = "import sys, posterity.merging.recipes; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"posterity.posterior", "posterity.curvature"}.isdisjoint(run.stdout.split())


def test_names_resolve_and_unknown_ones_are_refused():
    assert all(hasattr(merging, name) for name in merging.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = merging.nonsense


@pytest.mark.parametrize(
    ("given", "size"), [("700", 700), ("2KB", 2000), ("5 MB", 5_000_000), ("1.5gb", 1_500_000_000)]
)
def test_sizes_of_shards_have_units(tmp_path, given, size):
    content = {"method": "linear", "models": {"a": {"path": "a.safetensors"}, "b": "b.safetensors"}, "out": "o"}
    found = recipe({**content, "shard_size": given}, tmp_path)
    assert found.settings == {"shard_size": size}
    assert [(source.path, source.weight) for source in found.models.values()] == [
        (tmp_path / "a.safetensors", 1.0),
        (tmp_path / "b.safetensors", 1.0),
    ]


def test_the_name_of_a_merge_lasts_before_its_plan_is_gone(files, tmp_path, monkeypatch):
    synced, real = [], stream.sync_folder

    def noted(folder):
        synced.append((folder, sorted(path.name for path in (tmp_path / "out").glob("*.json"))))
        real(folder)

    monkeypatch.setattr(stream, "sync_folder", noted)
    merge_checkpoints(job_for(files), tmp_path / "out")
    assert synced[-1] == (tmp_path, sorted({*os.listdir(tmp_path / "out")} & {"config.json"} | {stream.PLAN}))


def test_the_more_files_the_smaller_the_chunks(files, monkeypatch):
    monkeypatch.setattr(job_module, "CHUNK", 1000)
    for room, size in ((40_000, 1000), (300, 300 // (3 + METHODS["ties"].beside))):
        monkeypatch.setattr(job_module, "ROOM", room)
        assert job_module.open_job(job_for(files, "ties")).chunk_size == size


def test_curvature_of_the_base_is_checked_too(files):
    job = job_for(files, "gradient_matching")
    save_file({"w": torch.ones(2)}, files / "base.fisher.safetensors")
    with pytest.raises(InvalidInput, match="curvature of the base: "):
        merge_checkpoints(job, files / "out")
