"""One process of many that trains by `Variational`; rank 0 writes what came out. Without others it is the reference."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from distributed.launch import finish, join
from distributed.problem import N, examples, loss, network
from posterity.optim import Variational, _meter
from posterity.optim._meter import COLD
from posterity.optim.kernels import _native

REFRESH = 4  # steps between two looks at all widths, here
STEPS = COLD + 2 * REFRESH + 1  # the noise begins after the first of them, and all widths are looked at again
LENGTH = 2 * (COLD + REFRESH) + REFRESH  # of which the first of these two looks is in the first half, the second is not


def over(model, **options):
    base = torch.optim.AdamW(model.parameters(), lr=0.02)
    return Variational(base, n=100, batch_size=N, total_steps=LENGTH, **options)


def outcome(model, optimizer):
    """Weights, and λ and all that it depends on."""
    found = {name: p.detach() for name, p in model.named_parameters()}
    weights = {name: (t.full_tensor() if hasattr(t, "full_tensor") else t).clone() for name, t in found.items()}
    numbers = {name: float(value) for name, value in optimizer.state_dict()["meter"].items()}
    return weights | {f"meter.{name}": torch.tensor(value).double() for name, value in numbers.items()}


def parallel_of(model, world):
    return DistributedDataParallel(model) if world > 1 else model


def contexts(rank, world, dtype=torch.float64, **options):
    """One sample a step, with clipping."""
    model = network().to(dtype)
    parallel, optimizer = parallel_of(model, world), over(model, **options)
    for step in range(STEPS):
        inputs, targets = examples(step, rank, world)
        with optimizer.sampled_params(train=True):
            loss(parallel, (inputs.to(dtype), targets)).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    kernels = dtype is torch.float32 and "fused" not in options and not isinstance(_native.library(), str)
    assert (optimizer._fused._launcher is not None) == kernels
    return outcome(model, optimizer)


def accumulation(rank, world):
    """Attached, two micro-batches a step: the first without communication, clipping after both."""
    model = network()
    parallel, optimizer = parallel_of(model, world), over(model)
    optimizer.attach(model)
    for step in range(STEPS):
        with parallel.no_sync() if world > 1 else nullcontext():
            (loss(parallel, examples(2 * step, rank, world)) / 2).backward()
        (loss(parallel, examples(2 * step + 1, rank, world)) / 2).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return outcome(model, optimizer)


def sharded(rank, world):
    """`fully_shard`, one sample a step, with clipping."""
    model = network()
    if world > 1:
        fully_shard(model[0])
        fully_shard(model)
    optimizer = over(model)
    for step in range(STEPS):
        with optimizer.sampled_params(train=True):
            loss(model, examples(step, rank, world)).backward()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return outcome(model, optimizer)


def add_product(products, noise, gradient):
    products.add_((noise * gradient).sum())


def samples_per_rank(rank, world):
    """A sample on each process: the price is the mean of theirs, each with the gradient of its own examples."""
    model = network()
    parallel, optimizer = parallel_of(model, world), over(model, noise="per_rank")
    prices = []
    for step in range(STEPS):
        means = [p.detach().clone() for p in model.parameters()]
        products = torch.zeros((), dtype=torch.float64)
        with optimizer.sampled_params(train=True):
            hooks = [
                p.register_hook(partial(add_product, products, p.detach() - mean))
                for p, mean in zip(model.parameters(), means, strict=True)
            ]
            loss(parallel, examples(step, rank, world)).backward()
        for hook in hooks:
            hook.remove()
        clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(products)
        if step >= COLD:
            prices.append(torch.stack([optimizer.meter.price.last, 0.5 * products / world]))
    return outcome(model, optimizer) | {"prices": torch.stack(prices)}


def everything(rank, world):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_meter, "REFRESH", REFRESH)
        return _everything(rank, world)


def _everything(rank, world):
    found = {
        "contexts": contexts(rank, world),
        "contexts, kernels": contexts(rank, world, torch.float32),
        "contexts, no kernels": contexts(rank, world, torch.float32, fused=False),
        "accumulation": accumulation(rank, world),
        "sharded": sharded(rank, world),
    }
    if world > 1:
        found["per rank"] = samples_per_rank(rank, world)
    return {f"{case}: {name}": t.contiguous() for case, entry in found.items() for name, t in entry.items()}


def main(rank, world, meeting, folder):
    join(rank, world, meeting)
    finish(everything(rank, world), rank, world, f"{folder}/variational-{world}.safetensors")
