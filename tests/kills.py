"""Processes that are killed while they write: `python tests/kills.py FOLDER --kills 50 save run`.

A child overwrites what is there, again and again, and is killed: half of the times at a random moment, half of the
times inside the switch, between the call that puts a new list in place and the end of the cleaning up after it. What is
left must be whole: the old version or the new one, and never older than what the child had finished.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))

from posterity.merging.recipes import recipe
from posterity.posterior import Diagonal, Posterior
from posterity.runs import RunFolder, fitting
from posterity.runs.adapting import adapt_run
from posterity.runs.decisions import RowDecisions
from posterity.runs.store import check_file, generation, read_list
from runs.problems import flowers, plan, trained

SWITCHES = ("posterior.json", "run.json", "merged")  # what a new version is put in place under


class Operation(NamedTuple):
    """Something that writes over what is there."""

    prepare: Callable[[Path], None]
    act: Callable[[Path, int], None]  # the number of the version to write
    read: Callable[[Path], int]  # the version that is there, once all of it is known to be whole


def _posterior(number: int) -> Posterior:
    mean = {"w": torch.full((20_000,), float(number)), "b": torch.full((3,), float(number))}
    structure = Diagonal(mean, {name: torch.ones_like(t) for name, t in mean.items()})
    return Posterior(
        structure, prior=Diagonal.isotropic(mean, 1.0), n=number + 1, ess=number + 1, likelihood="gaussian"
    )


def _saved(folder: Path) -> int:
    found = Posterior.load(folder / "posterior")
    assert all((t == found.n - 1).all() for t in found.structure.mean.values())
    return found.n - 1


def _listed(folder: Path, number: int) -> None:
    with generation(folder / "run", None) as new:
        new.content["number"] = number
        for name in ("history.jsonl", "model.safetensors"):
            new.write(name, (str(number) * 20_000).encode())
        place = new.place("posterior")
        _posterior(number).save(place)
        new.add("posterior", place)


def _read_listed(folder: Path) -> int:
    listing = read_list(folder / "run")
    for entry in listing.files.values():
        check_file(folder / "run", entry)
    return int(listing.content["number"])


def _whole_run(folder: Path) -> int:
    run = RunFolder.open(folder / "run")
    run.verify()
    assert run.posterior.n > 0
    return int(run.content["config"]["seed"])


def _adapt(folder: Path, number: int) -> None:
    run = RunFolder.open(folder / "start")
    gone = tuple(run.data("train").ids[: number + 1].tolist())
    adapt_run(run, folder / "run", decisions=RowDecisions((), gone, {}), overwrite=True)


def _adapted(folder: Path) -> int:
    run = RunFolder.open(folder / "run")
    run.verify()
    return RunFolder.open(folder / "start").posterior.n - run.posterior.n - 1


def _models(folder: Path) -> None:
    for number, name in enumerate(("base", "a", "b")):
        save_file({f"w{i}": torch.full((200, 200), float(number)) for i in range(6)}, folder / f"{name}.safetensors")
    _merge(folder, 0)


def _merge(folder: Path, number: int) -> None:
    """Merge with another weight each time, after putting aside what is there: a merge writes over nothing."""
    if (folder / "merged").exists():
        shutil.rmtree(folder / "before", ignore_errors=True)
        (folder / "merged").rename(folder / "before")
    models = {"a": {"path": "a.safetensors", "weight": number + 1}, "b": {"path": "b.safetensors", "weight": 1}}
    content = {"method": "task_arithmetic", "base": "base.safetensors", "models": models, "out": "merged"}
    recipe({**content, "shard_size": "200KB"}, folder).cook()


def _merged(folder: Path) -> int:
    """0 + weight · (1 − 0) + 1 · (2 − 0) everywhere: no piece of a merge with another weight, which was killed."""
    out = folder / "merged" if (folder / "merged").exists() else folder / "before"
    tensors = {name: t for shard in sorted(out.glob("*.safetensors")) for name, t in load_file(shard).items()}
    assert len(tensors) == 6, sorted(tensors)
    value = tensors["w0"][0, 0]
    assert all((t == value).all() for t in tensors.values())
    return int(value) - 3


def _first_run(folder: Path) -> None:
    flowers(folder / "flowers.csv", rows=60)
    trained(folder / "run", folder / "flowers.csv", epochs=1)


def _first_adapted(folder: Path) -> None:
    flowers(folder / "flowers.csv", rows=60)
    trained(folder / "start", folder / "flowers.csv", epochs=1)
    _adapt(folder, 0)


def _fit(folder: Path, number: int) -> None:
    fitting.train(plan(folder / "run", folder / "flowers.csv", epochs=1, seed=number), anew=True)


OPERATIONS = {
    "save": Operation(
        lambda f: _posterior(0).save(f / "posterior"), lambda f, n: _posterior(n).save(f / "posterior"), _saved
    ),
    "run": Operation(lambda f: _listed(f, 0), _listed, _read_listed),
    "fit": Operation(_first_run, _fit, _whole_run),
    "adapt": Operation(_first_adapted, _adapt, _adapted),
    "merge": Operation(_models, _merge, _merged),
}


def main() -> None:
    """Kill as often as asked, and print how often that was, and how often inside the switch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("operations", nargs="+", choices=OPERATIONS)
    parser.add_argument("--kills", type=int, default=50, help="of each operation")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chance = random.Random(given.seed)
    for name in given.operations:
        inside = sum(kills(OPERATIONS[name], given.folder / name, given.kills, chance))
        print(f"{name}: {given.kills} kills, {inside} inside the switch, whole every time", flush=True)


def kills(operation: Operation, folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Kill writers of an operation one after the other; whether each was inside the switch."""
    folder.mkdir(parents=True)
    operation.prepare(folder)
    began = time.monotonic()
    operation.act(folder, 1)
    length = time.monotonic() - began
    for attempt in range(count):
        yield kill(operation, folder, length, chance, in_switch=attempt % 2 == 1)


def kill(operation: Operation, folder: Path, length: float, chance: random.Random, in_switch: bool) -> bool:
    """Start a writer, kill it, and look at what it left; whether it was inside the switch then."""
    before = operation.read(folder)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _write_on(operation, folder, before, writer)
        finally:
            os._exit(1)
    os.close(writer)
    heard, finished = b"", 0
    wanted = b"s" if in_switch else b"w"
    until = time.monotonic() + 120
    while wanted not in heard and time.monotonic() < until:
        some = os.read(reader, 1)
        assert some, "the writer stopped by itself"
        heard += some
    time.sleep(chance.uniform(0, 0.004 if in_switch else 2 * length))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while some := os.read(reader, 4096):
        heard += some
    os.close(reader)
    finished = before + heard.count(b"e")
    after = operation.read(folder)
    assert after >= finished, (before, finished, after)
    return heard.rstrip(b"r").endswith(b"s")


def _write_on(operation: Operation, folder: Path, number: int, writer: int) -> None:
    """Write version after version; tell when one begins (w), when the switch begins (s), and when it has ended (e)."""
    replace = os.replace

    def told(old: os.PathLike[str], new: os.PathLike[str]) -> None:
        if Path(new).name in SWITCHES:
            os.write(writer, b"s")
            time.sleep(random.Random(number).uniform(0, 0.002))
        replace(old, new)

    os.replace = told  # type: ignore[assignment]
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    while True:
        number += 1
        os.write(writer, b"w")
        operation.act(folder, number)
        os.write(writer, b"e")


if __name__ == "__main__":
    main()
