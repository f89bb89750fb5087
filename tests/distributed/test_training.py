"""The same training on one process, two and four: replicas (DDP), shards (FSDP2), accumulation, checkpoints."""

import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from distributed import problem, training
from distributed.launch import assert_same, case
from optim.reference import Reference, array
from posterity.noise import Key, normal

SAME = (
    "contexts",
    "accumulation",
    "closures",
    "sharded",
    "sharded, auto",
    "sharded, prior",
    "deferred",
    "one bad rank",
)
TWINS = {
    "accumulation, bucket views": "accumulation",
    "accumulation, hook": "accumulation",
    "sharded, attached": "sharded",
    "resumed": "sharded, auto",
    "resumed from one": "sharded, auto",
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # the checkpoint of one process
        warnings.filterwarnings("ignore", "IVON. a step was skipped|IVON. only .*of the Hessian")
        return training.everything(0, 1, tmp_path_factory.mktemp("alone"))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("world", [2, 4])
def test_one_process_and_many_take_the_same_steps(world, folder, alone):
    many = load_file(folder / f"training-{world}.safetensors")
    for name in SAME:
        assert_same(case(many, name), case(alone, name), name)
    for name, twin in TWINS.items():
        expected = case(alone, twin)
        assert_same(case(many, name), {key: t for key, t in expected.items() if key in case(many, name)}, name)
    assert_same(training.resumed(0, 1, folder, saved_by=world), case(many, "resumed"), "resumed by one")
    for name, checksum in case(alone, "noise").items():
        assert int(case(many, "noise")[name]) == int(checksum) != 0, name
    assert int(case(many, "one bad rank")["skipped"]) == 1
    for name in ("shards, single", "replicas, single", "per rank, single"):
        assert_same(case(many, name), case(many, f"{name}, plain"), name, rtol=1e-4, atol=1e-5)
        if name != "per rank, single":
            assert_same(case(many, name), case(alone, name), name, rtol=1e-4, atol=1e-5)
    for name in ("per rank", "per rank, hook", "per rank, attached"):
        assert_same(case(many, name), expected_per_rank(world, 1), name)
    for name in ("per rank, silent", "per rank, silent, attached", "per rank, closures"):
        assert_same(case(many, name), expected_per_rank(world, 2), name)


def expected_per_rank(world, micro_batches):
    """IVON's equations with a sample of its own for each part of the data, in NumPy."""
    s = problem.SETTINGS
    model = problem.network()
    weights = dict(model.named_parameters())
    fields = {key: s[key] for key in ("lr", "ess", "hess_init", "betas", "weight_decay")}
    references = {name: Reference(array(p), **fields) for name, p in weights.items()}
    draw = 0
    for step in range(training.STEPS):
        gradients = {name: np.zeros(p.shape) for name, p in weights.items()}
        estimates = {name: np.zeros(p.shape) for name, p in weights.items()}
        for micro in range(micro_batches):
            draw += 1
            for rank in range(world):
                samples = {}
                for index, (name, p) in enumerate(weights.items()):
                    r = references[name]
                    epsilon = normal(Key(s["seed"], draw, rank, index), p.numel()).double().numpy().reshape(p.shape)
                    samples[name] = r.mean + epsilon / np.sqrt(r.ess * (r.hessian + r.weight_decay))
                    p.data = torch.from_numpy(samples[name].copy())
                model.zero_grad()
                (problem.loss(model, problem.examples(2 * step + micro, rank, world)) / micro_batches).backward()
                for name, p in weights.items():
                    gradients[name] += array(p.grad) / world
                    estimates[name] += references[name].estimate(samples[name], array(p.grad)) / world
        for name, r in references.items():
            r.step(gradients[name], estimates[name])
    means = {name: torch.from_numpy(r.mean) for name, r in references.items()}
    return means | {f"hessian.{name}": torch.from_numpy(r.hessian) for name, r in references.items()}
