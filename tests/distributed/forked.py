"""Scripts as several processes each, forked from one that has imported all that they need: that is what takes the time.

Arguments: a folder, and the scripts, each with its number of processes, as in training:2.
"""

import importlib
import os
import signal
import sys
import traceback

import torch._dynamo  # noqa: F401  which every process that shards its parameters would import


def run(module, *arguments):
    """The main function of a module in a process of its own; returns the number of the process."""
    child = os.fork()
    if child:
        return child
    try:
        module.main(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def together(name, world, folder):
    """Start all processes of a script, and wait; when one fails, the others end too."""
    module = importlib.import_module(f"distributed.{name}")
    meeting = f"{folder}/{name}-{world}.meeting"
    running = {run(module, rank, world, meeting, folder) for rank in range(world)}
    failed = False
    while running:
        child, status = os.wait()
        running.discard(child)
        if status and not failed:
            failed = True
            for other in running:
                os.kill(other, signal.SIGKILL)
    if failed:
        sys.exit(f"{name} failed with {world} processes")


def main():
    """Every script after the other."""
    folder, *jobs = sys.argv[1:]
    for job in jobs:
        name, _, world = job.partition(":")
        together(name, int(world), folder)


if __name__ == "__main__":
    main()
