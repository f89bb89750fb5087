"""What a run survives: kills, full disks, damage, malice; and whether a resumed run is the same run.

python benchmarks/reliability.py --out docs/benchmarks
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import report
import torch
from torch import nn

from posterity import fit
from posterity.errors import PosterityError
from posterity.learning import Callback, Moment
from posterity.posterior import Diagonal, Posterior
from posterity.runs import RunFolder
from posterity.runs.readers import read_rows
from posterity.runs.record import RowCounts, RunRecord
from posterity.runs.store import read_list
from posterity.trees import snapshot, trainable

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from kills import OPERATIONS, kills

WRITING = {
    "save": "a posterior is saved over another",
    "run": "a run folder is written over another",
    "fit": "`fit` trains over a run",
    "adapt": "`adapt` writes over a run",
    "merge": "models are merged again",
}
LONGEST = 0.3  # seconds before a writer is killed


def network(weights: int, value: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(weights // 2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(value)
    return model


def save(folder: str | Path, number: int, weights: int) -> None:
    """A run whose every part says the same number."""
    model = network(weights, number)
    mean = snapshot(trainable(model))
    prior = Diagonal.isotropic(mean, 1.0)
    posterior = Posterior.of(
        model, Diagonal(mean, prior.precision), prior=prior, n=10, ess=10, likelihood="categorical"
    )
    table = pd.DataFrame({"id": range(50), "number": number})
    record = RunRecord(
        {"number": number}, data={}, preprocessing={}, status="finished", rows=RowCounts(10, 0), metrics={}
    )
    rows = [{"epoch": 1.0, "number": float(number)}]
    tables = {"predictions": table}
    RunFolder.create(
        folder, model=model, posterior=posterior, record=record, history=rows, tables=tables, overwrite=True
    )


def whole(folder: Path) -> int:
    """The number that all parts of a run agree on; an error if they do not."""
    run = RunFolder.open(folder)
    run.verify()
    number = run.config["number"]
    assert run.history[0]["number"] == number
    assert (run.predictions["number"] == number).all()
    assert all((t == number).all() for t in run.posterior.mean.values())
    return int(number)


def killed(count: int, weights: int) -> Iterator[report.Line]:
    """Writers killed with SIGKILL at random moments, of a run and, for contrast, of torch.save onto one file."""
    chance = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        save(folder, 0, weights)
        bad = during = 0
        for _ in range(count):
            before = _number_or_none(folder) or 0
            _kill(lambda number: save(folder, number, weights), before + 1, chance.uniform(0.0, LONGEST))
            after = _number_or_none(folder)
            bad += after is None or after < before
            during += any(path.name.endswith(".tmp") for path in folder.rglob(".*")) or _unlisted(folder)
        yield _line("kill -9 while a run is saved", count, bad, f"{during} of them left an unfinished save beside it")
        plain, broken = Path(place) / "plain.pt", 0
        for _ in range(count):
            torch.save(torch.zeros(weights), plain)  # whole at the start of every trial
            _kill(
                lambda number: torch.save(torch.full((weights,), float(number)), plain), 1, chance.uniform(0, LONGEST)
            )
            try:
                torch.load(plain, weights_only=True)
            except Exception:
                broken += 1
        yield _line("contrast: the same with torch.save onto one file", count, broken, "either saves without a pause")


def _unlisted(folder: Path) -> bool:
    listed = {Path(entry.path).parts[0] for entry in read_list(folder).files.values()}
    return any(path.name not in {*listed, "run.json", ".lock"} for path in folder.iterdir())


def _kill(write: Callable[[int], None], number: int, moment: float) -> None:
    """Write again and again in a process of its own, and kill it."""
    child = os.fork()
    if child == 0:
        while True:
            write(number)
            number += 1
    time.sleep(moment)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def killed_while_overwriting(count: int) -> Iterator[report.Line]:
    """Writers of each kind killed over an older version, half of the times inside the switch, as `tests/kills.py`."""
    for name, operation in OPERATIONS.items():
        with tempfile.TemporaryDirectory() as place:
            inside, done = 0, 0
            try:
                for was_inside in kills(operation, Path(place) / name, count, random.Random(0)):
                    inside, done = inside + was_inside, done + 1
            except (PosterityError, OSError, AssertionError):
                done += 1  # what is left is no longer whole, and no further writer starts from it
                yield _line(f"kill -9 while {WRITING[name]}", done, 1, f"{inside} of them inside the switch")
            else:
                yield _line(f"kill -9 while {WRITING[name]}", done, 0, f"{inside} of them inside the switch")


def refused_by_the_system(count: int) -> Iterator[report.Line]:
    """Full disks and missing permission, at the k-th write of a save, for every k."""
    for name, number in (("ENOSPC", 28), ("EACCES", 13), ("EIO", 5)):
        silent = lost = trials = 0
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            save(folder, 1, 1000)
            for call in range(count):
                with failing(number, call) as failed:
                    try:
                        save(folder, 2, 1000)
                        silent += failed[0]
                    except OSError as error:
                        silent += error.errno != number
                if not failed[0]:
                    break
                trials += 1
                lost += _number_or_none(folder) not in (1, 2)
                save(folder, 1, 1000)
        yield _line(f"{name} at every sync and every rename of a save", trials, lost + silent, "an error is raised")


@contextmanager
def failing(number: int, call: int) -> Iterator[list[bool]]:
    """The k-th call of fsync or replace, one of which every file goes through, fails; says whether it came to that."""
    real, seen, failed = {name: getattr(os, name) for name in ("fsync", "replace")}, [0], [False]

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def perhaps(*arguments: Any, **options: Any) -> Any:
            seen[0] += 1
            if seen[0] == call + 1:
                failed[0] = True
                raise OSError(number, os.strerror(number))
            return function(*arguments, **options)

        return perhaps

    try:
        for name, function in real.items():
            setattr(os, name, wrapped(function))
        yield failed
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def real_full_disk() -> Iterator[report.Line]:
    """A file system of 1 MB, where one can be mounted."""
    with tempfile.TemporaryDirectory() as place:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True)
        if mounted.returncode:
            return
        try:
            folder, lost = Path(place) / "run", 0
            save(folder, 1, 1000)
            for weights in (200_000, 400_000, 10**6):
                try:
                    save(folder, 2, weights)
                except OSError as error:
                    lost += error.errno != 28
                lost += _number_or_none(folder) != 1
            yield _line("a file system that is full", 3, lost, "an error is raised")
        finally:
            subprocess.run(["umount", place], check=True)


def _number_or_none(folder: Path) -> int | None:
    try:
        return whole(folder)
    except (PosterityError, OSError, AssertionError):
        return None


def mutated(count: int) -> Iterator[report.Line]:
    """Files of a run with bits flipped, bytes replaced, cut, grown, or with headers that promise the moon."""
    chance = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        save(folder, 3, 1000)
        originals = {
            path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size
        }
        paths, other, silent, slowest, same = list(originals), 0, 0, 0.0, 0
        for number in range(count):
            path = paths[number % len(paths)]
            data = _damaged(originals[path], number // len(paths) % 5, chance)
            path.write_bytes(data)
            started = time.perf_counter()
            try:
                silent += whole(folder) != 3 or data != originals[path]
                same += data == originals[path]
            except PosterityError:
                pass
            except Exception:
                other += 1
            slowest = max(slowest, time.perf_counter() - started)
            path.write_bytes(originals[path])
        note = f"{same} were identical; other exceptions: {other}; slowest answer {slowest:.2f} s"
        yield _line("mutated files of a run: refused, or identical", count, silent + other, note)


def _damaged(data: bytes, how: int, chance: np.random.Generator) -> bytes:
    place = int(chance.integers(len(data)))
    if how == 0:
        return data[:place] + bytes([data[place] ^ 1 << int(chance.integers(8))]) + data[place + 1 :]
    if how == 1:
        return data[:place]
    if how == 2:
        return data[:place] + chance.bytes(int(chance.integers(1, 64))) + data[place:]
    if how == 3:
        return (2**63 - 1).to_bytes(8, "little") + data[8:]
    return data[:place] + b"[" * 100_000 + data[place:]


def malicious() -> Iterator[report.Line]:
    """Pickles in every place where a file of a run, or of data, is read."""
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        flag = here / "executed"
        trap = pickle.dumps(_Trap(str(flag)))
        save(here / "run", 1, 1000)
        tried = 0
        for path in [path for path in sorted((here / "run").rglob("*")) if path.is_file()]:
            shutil.copytree(here / "run", here / "copy")
            (here / "copy" / path.relative_to(here / "run")).write_bytes(trap)
            tried += 1
            _number_or_none(here / "copy")
            shutil.rmtree(here / "copy")
        np.savez(here / "trap.npz", x=np.array([_Trap(str(flag))], dtype=object))
        names = ("trap.csv", "trap.parquet", "trap.jsonl", "trap-idx3-ubyte", "trap.pkl", "trap.tsv")
        for name in names:
            (here / name).write_bytes(trap)
        for name in (*names, "trap.npz"):
            tried += 1
            with suppress(PosterityError):
                read_rows(here / name)
        yield _line("malicious pickles as files of a run and as data: executed", tried, int(flag.exists()), "")


class _Trap:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, (f"touch {self.path}",))


class _Stop(Callback):
    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, moment: Moment) -> None:
        if moment.step == self.at:
            raise KeyboardInterrupt


def resumed() -> Iterator[report.Line]:
    """A run of 50 steps, interrupted after every one of them and resumed."""
    for method in ("ivon", "adamw"):
        warnings.simplefilter("ignore")  # that 50 steps are few
        wanted, worst = _trained(method), 0.0
        for step in range(1, 50):
            with tempfile.TemporaryDirectory() as folder:
                _trained(method, checkpoint=folder, callbacks=[_Stop(step)])
                found = _trained(method, checkpoint=folder, resume=True)
            worst = max(worst, *(float((found[name] - value).abs().max()) for name, value in wanted.items()))
        note = f"largest difference {worst:g}"
        yield _line(f"stopped and resumed at every step of 50, {method}: other bits", 49, int(worst > 0), note)


def _trained(method: str, **options: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    x = torch.randn(160, 6)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
    settings: dict[str, Any] = {"epochs": 5, "batch_size": 16, "lr": 0.05, "progress": False}
    run = fit(model, (x, (x[:, 0] > 0).long()), method=method, **settings, **options)
    return run.posterior.structure.tensors()


def _line(what: str, trials: int, failures: int, note: str) -> report.Line:
    return {"what": what, "trials": trials, "failures": failures, "note": note}


def results(options: argparse.Namespace) -> Iterator[report.Line]:
    yield from killed(options.kills, options.weights)
    yield from killed_while_overwriting(options.overwritten)
    yield from refused_by_the_system(options.calls)
    yield from real_full_disk()
    yield from mutated(options.mutations)
    yield from malicious()
    yield from resumed()


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--overwritten", type=int, default=200, help="kills over an older version, of each operation")
    parser.add_argument("--weights", type=int, default=400_000, help="weights of the run that is saved while killed")
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--calls", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = report.gather(options, results)
    if options.raw:
        return
    rows = [(line["what"], line["trials"], line["failures"], line["note"]) for line in lines]
    text = report.header("What a run survives", lines) + "\n" + report.table(("what", "trials", "failures", ""), rows)
    report.publish("reliability", text, options.out)


if __name__ == "__main__":
    main()
