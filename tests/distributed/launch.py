"""Starting several gloo processes, what each of them runs first and last, and a look at what they wrote."""

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

HERE = Path(__file__).parent
PATIENCE = 240  # seconds; a busy machine takes its time to import torch several times over


def environment():
    paths = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}


def started(script, *arguments):
    """Run a script of this folder, which must succeed."""
    command = [sys.executable, str(HERE / f"{script}.py"), *map(str, arguments)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


def join(rank, world, meeting):
    """What a process does first: meet the others."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)


def finish(found, rank, world, path):
    """Write what a process has found, after all of them agree on it to the last bit, and leave."""
    for name, t in found.items():
        parts = [torch.empty_like(t) for _ in range(world)]
        dist.all_gather(parts, t)
        assert all(torch.equal(part, t) for part in parts), name
    if rank == 0:
        save_file(found, path)
    leave()


def case(found, name):
    """The entries of one case among those that `finish` wrote."""
    entries = {key.partition(": ")[2]: t for key, t in found.items() if key.partition(": ")[0] == name}
    assert entries, name
    return entries


def assert_same(found, expected, name, rtol=1e-9, atol=1e-11):
    assert found.keys() == expected.keys(), name
    for key, t in expected.items():
        torch.testing.assert_close(found[key], t, rtol=rtol, atol=atol, msg=lambda text: f"{name}, {key}: {text}")


def leave():
    """What a process does last, its results written: gloo does not always survive the end of an interpreter."""
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
