"""Tables of the benchmarks: Markdown with the command, versions, seeds and machine that made them."""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import posterity

Line = dict[str, Any]


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options every study has: where the data are, where tables go, and splitting a study over processes."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--data", help="data folder (or POSTERITY_DATA)")
    arguments.add_argument("--out", help="folder for the finished table")
    arguments.add_argument("--raw", help="append one JSON line per result to this file, and print no table")
    arguments.add_argument("--collect", nargs="+", help="make the table from these raw files, and run nothing")
    return arguments


def features_parser(description: str | None) -> argparse.ArgumentParser:
    """Of a study on frozen features: `parser`, and where those features are, or are to be written."""
    arguments = parser(description)
    arguments.add_argument("--prepare", metavar="PATH", help="write the features there, and stop")
    arguments.add_argument("--encoder", help="folder of MiniLM, to prepare")
    arguments.add_argument("--features", help="what --prepare wrote")
    return arguments


Runs = Callable[[argparse.Namespace], Iterable[Line]]


def study(options: argparse.Namespace, runs: Runs, publish: Callable[[list[Line], argparse.Namespace], None]) -> None:
    """Gather the results of a study, and publish them unless they go to a raw file."""
    lines = gather(options, runs)
    if not options.raw:
        publish(lines, options)


def features_study(
    options: argparse.Namespace,
    prepare: Callable[[argparse.Namespace], None],
    runs: Runs,
    tables: Callable[[list[Line], str | None], None],
) -> None:
    """A study on frozen features: it prepares them, or gathers its results and makes tables of them."""
    if options.prepare:
        prepare(options)
    else:
        study(options, runs, lambda lines, options: tables(lines, options.out))


def gather(options: argparse.Namespace, runs: Runs) -> list[Line]:
    """The results of a study: computed now, or collected from earlier raw files."""
    if options.collect:
        return [line for path in options.collect for line in read(path)]
    lines = []
    for line in runs(options):
        line["machine"] = machine()
        lines.append(line)
        if options.raw:
            with Path(options.raw).open("a") as file:
                file.write(json.dumps(line) + "\n")
    return lines


def read(path: str) -> list[Line]:
    """The lines of a raw file."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def earlier(path: str | None) -> list[Line]:
    """The lines of a raw file that a study goes on with; none where there is no such file yet."""
    return read(path) if path is not None and Path(path).exists() else []


def drawing() -> Any:
    """Pyplot without a window, with letters that are read from the back of a hall."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams.update({"font.size": 13, "axes.titlesize": 14, "legend.fontsize": 12, "figure.titlesize": 17})
    return plt


def machine() -> str:
    """Versions and hardware, as a line of results carries them."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    versions = f"posterity {posterity.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    return f"{versions}, {device}"


def header(title: str, lines: Iterable[Line] = (), **facts: object) -> str:
    """Title, command, the machine that made the lines (this one unless they say), and what else decides the figures."""
    lines = list(lines)
    stored = sorted({line["pictures"] for line in lines if "pictures" in line})
    facts |= {"pictures": ", ".join(stored)} if stored else {}
    command = "python " + shlex.join([f"benchmarks/{Path(sys.argv[0]).name}", *_public(sys.argv[1:])])
    machines = list(dict.fromkeys(line["machine"] for line in lines if "machine" in line)) or [machine()]
    made = "; ".join([*machines, *(f"{name.replace('_', ' ')}: {value}" for name, value in facts.items())])
    return f"## {title}\n\n`{command}`\n\n{made}\n"


_PRIVATE = (
    "--data",
    "--pytabkit",
    "--out",
    "--raw",
    "--chosen",
    "--picture",
    "--pictures",
    "--state",
    "--mergekit",
    "--bayespy",
    "--river",
    "--cleanlab",
    "--results",
)


def _public(arguments: Sequence[str]) -> list[str]:
    """The arguments without the places of data and peers, which are the machine's own affair."""
    shown, skip = [], False
    for argument in arguments:
        if skip or argument in _PRIVATE:
            skip = not skip
            continue
        if argument == "--collect":
            break
        shown.append(argument)
    return shown


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; numbers arrive already formatted."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def earlier_rows(name: str, out: str | None) -> list[list[str]]:
    """The rows of a table that was published before, so that a study can run a part of it again."""
    path = Path(out or "") / f"{name}.md"
    lines = path.read_text(encoding="utf-8").splitlines() if out and path.exists() else []
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return cells[1:]  # without the heads


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation over seeds."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def publish(name: str, text: str, out: str | None) -> None:
    """Print a table and, with an output folder, keep it as `name`.md there."""
    print(text)
    if out:
        Path(out).mkdir(parents=True, exist_ok=True)
        (Path(out) / f"{name}.md").write_text(text, encoding="utf-8")
