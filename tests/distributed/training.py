"""One process of many that trains in every way; rank 0 writes what came out. Without others it is the reference."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from distributed.launch import finish, join
from distributed.problem import examples, ivon, loss, network
from posterity.errors import InvalidInput
from posterity.optim.kernels import _native
from posterity.posterior import Diagonal

STEPS = 3


def exact_average(group, bucket):
    """A communication hook: average in another way than the default (one message to and fro)."""
    parts = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, bucket.buffer())
    future = torch.futures.Future()
    future.set_result(torch.stack(parts).mean(0))
    return future


def whole(model, optimizer=None):
    """Weights, and Hessians where an optimizer is given, collected from all processes."""
    found = {name: p.detach() for name, p in model.named_parameters()}
    if optimizer is not None:
        found |= {f"hessian.{name}": optimizer.state[p]["hessian"] for name, p in model.named_parameters()}
    return {name: (t.full_tensor() if hasattr(t, "full_tensor") else t).clone() for name, t in found.items()}


def replicated(rank, world, **options):
    model = network()
    return model, DistributedDataParallel(model, **options) if world > 1 else model


def contexts(rank, world):
    """One sample a step in a context, with clipping."""
    model, parallel = replicated(rank, world)
    optimizer = ivon(model)
    for step in range(STEPS):
        with optimizer.sampled_params(train=True):
            loss(parallel, examples(step, rank, world)).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return whole(model, optimizer)


def accumulation(rank, world, hook=False, **options):
    """Attached, two micro-batches a step: the first without communication, clipping after both."""
    model, parallel = replicated(rank, world, **options)
    if hook and world > 1:
        parallel.register_comm_hook(None, exact_average)
    optimizer = ivon(model)
    optimizer.attach(model)
    for step in range(STEPS):
        with parallel.no_sync() if world > 1 else nullcontext():
            (loss(parallel, examples(2 * step, rank, world)) / 2).backward()
        (loss(parallel, examples(2 * step + 1, rank, world)) / 2).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return whole(model, optimizer)


def closures(rank, world):
    """Two samples for each step(closure)."""
    model, parallel = replicated(rank, world)
    optimizer = ivon(model, mc_samples=2)
    for step in range(STEPS):

        def closure():
            optimizer.zero_grad()
            value = loss(parallel, examples(step, rank, world))
            value.backward()
            return value

        optimizer.step(closure)
    return whole(model, optimizer)


def samples_per_rank(rank, world, hook=False, attach=False, silent=False):
    """A sample on each process; `silent` accumulates a first micro-batch without communication."""
    model, parallel = replicated(rank, world)
    if hook:
        parallel.register_comm_hook(None, exact_average)
    optimizer = ivon(model, noise="per_rank")
    handle = optimizer.attach(model) if attach else None
    for step in range(STEPS):
        for micro in range(2 if silent else 1):
            quiet = parallel.no_sync() if silent and micro == 0 else nullcontext()
            with quiet, nullcontext() if attach else optimizer.sampled_params(train=True):
                (loss(parallel, examples(2 * step + micro, rank, world)) / (2 if silent else 1)).backward()
        clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
    if handle is not None:
        handle.remove()
    return whole(model, optimizer)


def closures_per_rank(rank, world):
    """Two samples on each process for each step(closure), each with a micro-batch of its own."""
    model, parallel = replicated(rank, world)
    optimizer = ivon(model, noise="per_rank", mc_samples=2)
    for step in range(STEPS):
        numbers = iter((2 * step, 2 * step + 1))

        def closure():
            optimizer.zero_grad()
            loss(parallel, examples(next(numbers), rank, world)).backward()

        optimizer.step(closure)
    return whole(model, optimizer)


def shards(rank, world, dtype=torch.float64, **settings):
    model = network().to(dtype)
    if world > 1:
        fully_shard(model[0])
        fully_shard(model)
    return model, ivon(model, **settings)


def sharded(rank, world, attach=False, **settings):
    """`fully_shard`, one sample a step, with clipping."""
    model, optimizer = shards(rank, world, **settings)
    if attach:
        optimizer.attach(model)
    for step in range(STEPS):
        sharded_step(model, optimizer, step, rank, world, attach)
    found = whole(model, optimizer)
    posterior = optimizer.posterior(model, likelihood="categorical", n=100)
    found |= {f"precision.{name}": t for name, t in posterior.structure.precision.items()}
    told = optimizer.diagnostics()
    found["diagnostics"] = torch.tensor([told.kl, told.hessian_bias, *told.sigma, told.clip_rate], dtype=torch.float64)
    return found


def prior():
    """One that differs from weight to weight."""
    weights = {name: p.detach() for name, p in network().named_parameters()}
    return Diagonal({name: 0.5 * t for name, t in weights.items()}, {name: 2 + t for name, t in weights.items()})


def sharded_step(model, optimizer, step, rank, world, attach=False):
    with nullcontext() if attach else optimizer.sampled_params(train=True):
        loss(model, examples(step, rank, world)).backward()
    clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()


def deferred(rank, world):
    """Shards that accumulate two micro-batches and communicate once: both see the same sample."""
    model, optimizer = shards(rank, world)
    for step in range(STEPS):
        if world == 1:
            with optimizer.sampled_params(train=True):
                for micro in range(2):
                    (loss(model, examples(2 * step + micro)) / 2).backward()
        for micro in range(2 if world > 1 else 0):
            model.set_requires_gradient_sync(micro == 1)
            with optimizer.sampled_params(train=True):
                (loss(model, examples(2 * step + micro, rank, world)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return whole(model, optimizer)


def noise(rank, world):
    """With zero weights and unit width a sample is the noise itself; its bits are added up as integers."""
    found, unit = {}, {"ess": 1.0, "hess_init": 1.0, "weight_decay": 0.0}
    for kind, (model, optimizer) in {
        "shards": shards(rank, world, **unit),
        "shards, single": shards(rank, world, torch.float32, **unit),
        "replicas": ((m := network()), ivon(m, **unit)),
    }.items():
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()
        with optimizer.sampled_params(train=True):
            for name, t in whole(model).items():
                found[f"{kind}.{name}"] = t.float().view(torch.int32).sum(dtype=torch.int64)
    return found


def one_bad_rank(rank, world):
    """A gradient that is infinite on one shard alone: everybody skips the step."""
    model, optimizer = shards(rank, world)
    for step in range(2):
        with optimizer.sampled_params(train=True):
            loss(model, examples(step, rank, world)).backward()
        if step == 1 and rank == world - 1:
            gradient = model[0].weight.grad
            (gradient.to_local() if world > 1 else gradient).fill_(float("inf"))
        optimizer.step()
        optimizer.zero_grad()
    return whole(model) | {"skipped": torch.tensor(optimizer.diagnostics().skipped)}


AUTO = {"betas": (0.9, "auto"), "total_steps": STEPS}


def saved(rank, world, folder):
    """Half of the steps of "sharded, auto", and a distributed checkpoint."""
    model, optimizer = shards(rank, world, **AUTO)
    for step in range(STEPS // 2):
        sharded_step(model, optimizer, step, rank, world)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder / f"checkpoint-{world}")


def resumed(rank, world, folder, saved_by):
    """The other half, from a checkpoint that another number of processes may have saved."""
    model, optimizer = shards(rank, world, **AUTO)
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder / f"checkpoint-{saved_by}")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    for step in range(STEPS // 2, STEPS):
        sharded_step(model, optimizer, step, rank, world)
    return whole(model, optimizer)


def refusals(rank, world):
    """Models that nobody averages, and samples for each rank on shards."""
    model = network()
    optimizer = ivon(model)
    for micro in range(2):
        with optimizer.sampled_params(train=True):
            loss(model, examples(micro, rank, world)).backward()
    with pytest.raises(InvalidInput, match="the same on all processes"):
        optimizer.step()
    apart = ivon(model, process_group=[dist.new_group([r]) for r in range(world)][rank])
    for micro in range(2):
        with apart.sampled_params(train=True):
            loss(model, examples(micro, rank, world)).backward()
    apart.step()
    _, optimizer = shards(rank, world, noise="per_rank")
    with pytest.raises(InvalidInput, match="whole parameters on each process"), optimizer.sampled_params(train=True):
        pass


def single(rank, world, case, **settings):
    """Two samples a step in float32, for which there are kernels: on shards, or on replicas with either noise."""
    if case == "shards":
        model, optimizer = shards(rank, world, torch.float32, **settings)
    else:
        model = network().float()
        optimizer = ivon(model, noise="per_rank" if case == "per rank" else "shared", **settings)
    parallel = DistributedDataParallel(model) if world > 1 and case != "shards" else model
    for step in range(STEPS):
        for micro in range(2):
            inputs, targets = examples(2 * step + micro, rank, world)
            with optimizer.sampled_params(train=True):
                (loss(parallel, (inputs.float(), targets)) / 2).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    plain = "fused" in settings or isinstance(_native.library(), str)
    assert (optimizer._fused._launcher is None) == plain, "what kernels can do is left to them, on empty shards too"
    return whole(model, optimizer)


def everything(rank, world, folder):
    saved(rank, world, folder)
    found = {
        "contexts": contexts(rank, world),
        "accumulation": accumulation(rank, world),
        "accumulation, bucket views": accumulation(rank, world, gradient_as_bucket_view=True),
        "accumulation, hook": accumulation(rank, world, hook=True),
        "closures": closures(rank, world),
        "sharded": sharded(rank, world),
        "sharded, attached": sharded(rank, world, attach=True),
        "sharded, auto": sharded(rank, world, **AUTO),
        "sharded, prior": sharded(rank, world, prior=prior()),
        "deferred": deferred(rank, world),
        "noise": noise(rank, world),
        "one bad rank": one_bad_rank(rank, world),
    }
    for case in ("shards", "replicas", "per rank"):
        found[f"{case}, single"] = single(rank, world, case)
        found[f"{case}, single, plain"] = single(rank, world, case, fused=False)
    if world > 1:
        found |= {
            "per rank": samples_per_rank(rank, world),
            "per rank, hook": samples_per_rank(rank, world, hook=True),
            "per rank, attached": samples_per_rank(rank, world, attach=True),
            "per rank, silent": samples_per_rank(rank, world, silent=True),
            "per rank, silent, attached": samples_per_rank(rank, world, silent=True, attach=True),
            "per rank, closures": closures_per_rank(rank, world),
            "resumed": resumed(rank, world, folder, saved_by=world),
            "resumed from one": resumed(rank, world, folder, saved_by=1),
        }
        refusals(rank, world)
    return {f"{case}: {name}": t.contiguous() for case, entry in found.items() for name, t in entry.items()}


def main(rank, world, meeting, folder):
    join(rank, world, meeting)
    finish(everything(rank, world, Path(folder)), rank, world, f"{folder}/training-{world}.safetensors")
