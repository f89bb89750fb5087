"""Studies of many independent runs: processes share one list of jobs and append to one file of results.

A study that was stopped goes on where it was: jobs whose results the file already holds are passed over.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from report import read

Job = tuple[Any, ...]


def options(arguments: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The options of such a study."""
    arguments.add_argument("--workers", type=int, default=1, help="processes at once")
    arguments.add_argument("--limit", type=float, default=1e9, help="seconds after which no run is begun")
    arguments.add_argument("--toy", type=int, help="steps of every run, to try the script")
    return arguments


def results(paths: Sequence[str]) -> list[dict[str, Any]]:
    """The results of raw files, without runs that failed."""
    return [line for path in paths if Path(path).exists() for line in read(path) if "error" not in line]


def share(jobs: Sequence[Job], run: Callable[..., dict[str, Any]], given: argparse.Namespace) -> None:
    """Run the jobs that are left, in as many processes as asked for.

    Args:
        jobs: The arguments of each run, the most wanted first.
        run: Returns the result of one.
        given: The options of the study.
    """
    done = {json.dumps(line["job"]) for line in results([given.raw])}
    left = [job for job in jobs if json.dumps(job) not in done]
    if given.workers <= 1:
        _work(left, run, Path(given.raw), float(os.environ.get("WORK_UNTIL", time.time() + given.limit)))
        return
    Path(given.raw).with_suffix(".next").unlink(missing_ok=True)
    environment = dict(os.environ, OMP_NUM_THREADS="1", WORK_UNTIL=str(time.time() + given.limit))
    command = [sys.executable, *sys.argv, "--workers", "1"]
    for process in [subprocess.Popen(command, env=environment) for _ in range(given.workers)]:
        process.wait()


def _work(jobs: Sequence[Job], run: Callable[..., dict[str, Any]], raw: Path, until: float) -> None:
    """Take jobs from the list until it is empty or time is up."""
    while time.time() < until and (number := _taken(raw.with_suffix(".next"))) < len(jobs):
        try:
            line = run(*jobs[number])
        except (RuntimeError, ValueError):
            line = {"error": traceback.format_exc()[-500:]}
        with raw.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps({"job": jobs[number], **line}) + "\n")


def _taken(counter: Path) -> int:
    """The number of the next job, which no other worker gets."""
    with counter.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = int(file.read() or 0)
        file.truncate(0)
        file.write(str(number + 1))
    return number
