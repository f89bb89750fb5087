"""A script as several processes, forked from one that has imported all that it needs: that is what takes the time.

Arguments: the script, the number of processes, and what each of them gets after its rank and that number.
"""

import importlib
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path


def run(script, rank, world, arguments):
    """The script from its beginning, in a process of its own; returns the number of the process."""
    child = os.fork()
    if child:
        return child
    try:
        sys.argv = [script, str(rank), world, *arguments]
        runpy.run_path(str(Path(__file__).with_name(f"{script}.py")), run_name="__main__")
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def main():
    """Start all, and wait; when one fails, the others end too."""
    script, world, *arguments = sys.argv[1:]
    importlib.import_module(f"distributed.{script}")
    running = {run(script, rank, world, arguments) for rank in range(int(world))}
    failed = False
    while running:
        child, status = os.wait()
        running.discard(child)
        if status and not failed:
            failed = True
            for other in running:
                os.kill(other, signal.SIGKILL)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
