"""Three commands at once over one run: `python tests/runs/overwriting.py FOLDER ROUNDS`, flowers.csv in the folder.

Each round forks three processes that run `posterity fit --overwrite` at the same moment, or some tenths of a second
apart. A command either
ends well or is refused with a sentence; the run is one of those that ended well, and whole.
"""

import contextlib
import io
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import torch

from posterity.cli import main as posterity
from posterity.runs import RunFolder

COMMAND = "fit flowers.csv --target species --out run --overwrite --model linear --epochs 3 --folds 0 --lr 0.5"
COUNT = 3
REFUSED = "a process that is writing"


def fit(seed, log):
    """The command, once the others are ready; what it said goes to a file, its exit status to the parent."""
    signal.sigwait([signal.SIGUSR1])
    time.sleep(random.Random(seed).choice((0.0, 0.1, 0.4)))  # so that one may end while another begins
    said, status = io.StringIO(), 70
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        sys.argv = ["posterity", *COMMAND.split(), "--hess-init", "1", "--seed", str(seed)]
        try:
            posterity()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
    log.write_text(said.getvalue())
    os._exit(status)


def at_once(folder, number):
    """Exit status and output of each of three commands."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # so that one that comes early waits
    logs = [folder / f"{number}-{k}.txt" for k in range(COUNT)]
    children = []
    for k, log in enumerate(logs):
        child = os.fork()
        if child == 0:
            fit(COUNT * number + k, log)
        children.append(child)
    for child in children:
        os.kill(child, signal.SIGUSR1)
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return [(end, log.read_text()) for end, log in zip(ends, logs, strict=True)]


def main():
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
    os.chdir(folder)
    torch.set_num_threads(1)
    ends = Counter()
    for number in range(rounds):
        found = at_once(folder, number)
        good = [COUNT * number + k for k, (end, _) in enumerate(found) if end == 0]
        for end, said in found:
            assert end == 0 or (end == 2 and REFUSED in said), (end, said)
            ends["finished" if end == 0 else "refused"] += 1
        run = RunFolder.open("run")
        run.verify()
        assert run.content["config"]["seed"] in good, (run.content["config"]["seed"], good)
    print(f"{rounds} rounds: {ends['finished']} finished, {ends['refused']} refused, whole every time")


if __name__ == "__main__":
    main()
