"""A training under torchrun that saves every second step: once rank 1 dies in the middle of a step, once nobody does.

After the second, other hosts train. The agent of torchrun forks its processes here from one that has imported all that
they need, since that is what takes the time. The one argument is a folder.
"""

import os
import signal
import sys
from pathlib import Path

import accelerate  # noqa: F401
import lightning  # noqa: F401
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

from distributed import hosts
from distributed.problem import examples, ivon, loss, network

STEPS = 6


def newest(folder):
    """The newest finished checkpoint and the step after it: a directory counts once its metadata are there."""
    finished = sorted(path.parent for path in folder.glob("step-*/.metadata"))
    return (finished[-1], int(finished[-1].name.removeprefix("step-"))) if finished else (None, 0)


def train(rank, world, folder=None, kill_at=None):
    model = network()
    parallel = DistributedDataParallel(model)
    optimizer = ivon(model, betas=(0.9, "auto"), total_steps=STEPS)
    optimizer.attach(model)
    checkpoint, start = (None, 0) if folder is None else newest(folder)
    if checkpoint is not None:
        weights, state = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=checkpoint)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    for step in range(start, STEPS):
        value = loss(parallel, examples(step, rank, world))
        if step == kill_at and rank == 1:
            model[2].weight.register_hook(lambda _: die(folder))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        if folder is not None and (step + 1) % 2 == 0:
            weights, state = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder / f"step-{step + 1:03}")
    return {name: p.detach().clone() for name, p in model.named_parameters()}, start


def die(folder):
    (folder / "died").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def work(folder, kill_at=None):
    """What one process does."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    resumed, start = train(rank, world, folder, kill_at)
    uninterrupted, _ = train(rank, world)
    assert start == 4, start
    for name, t in uninterrupted.items():
        assert torch.equal(resumed[name], t), name
    if rank == 0:
        save_file(resumed, folder / "resumed.safetensors")
    hosts.train(rank, folder)


def main():
    folder = Path(sys.argv[1])
    config = LaunchConfig(
        1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="fork", max_restarts=0
    )
    with pytest.raises(ChildFailedError):
        elastic_launch(config, work)(folder, 5)
    assert (folder / "died").exists()
    assert not (folder / "resumed.safetensors").exists()
    elastic_launch(config, work)(folder)


if __name__ == "__main__":
    main()
