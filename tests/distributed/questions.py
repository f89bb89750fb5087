"""One process of several that put questions to a posterior together; rank 0 writes the answers."""

import pytest
import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset

from distributed.launch import join, leave
from networks import perceptron
from posterity.batches import batches
from posterity.curvature import diagonal_fisher
from posterity.distributed import sharded
from posterity.errors import InvalidInput
from posterity.learning import laplace, log_marginal_likelihood
from posterity.memory import dual, memory_map
from posterity.memory.leave_one_out import leave_one_out
from posterity.prediction import predict

N, BATCH = 50, 8  # seven batches, the last one small


def problem():
    torch.manual_seed(0)
    model = perceptron(3, 6, 3).double()
    x = torch.randn(N, 3).double()
    return model, x, (x.argmax(1) + torch.randint(2, (N,))) % 3, torch.randperm(N) + 100


def answers():
    model, x, y, ids = problem()
    data = batches((x, y), batch_size=BATCH)
    size = {"batch_size": BATCH}
    found = {}
    for structure in ("diag", "kron", "full", "last_layer"):
        posterior = laplace(model, (x, y), structure=structure, prior_precision=1.0, **size)
        found |= {f"variance, {structure}, {name}": t for name, t in posterior.variance.items()}
    learnt = laplace(model, DataLoader(TensorDataset(x, y), batch_size=BATCH))
    found["learnt prior"] = torch.stack(list(learnt.prior.precision.values()))
    found["evidence"] = torch.tensor(log_marginal_likelihood(model, learnt, (x, y), **size))
    for kind in ("true", "sampled", "empirical"):
        fisher = diagonal_fisher(model, data, "categorical", kind)
        found |= {f"fisher, {kind}, {name}": t for name, t in fisher.items()}
    posterior = laplace(model, (x, y), prior_precision=1.0, **size)
    for kind, inputs in {"tensor": x, "columns": (x, y), "loader": DataLoader(x, batch_size=BATCH)}.items():
        p = predict(model, posterior, inputs, samples=8, keep_samples=True, **size)
        found |= {f"prediction, {kind}": p.probs, f"outputs, {kind}": p.outputs, f"entropy, {kind}": p.aleatoric}
    found["linearised"] = predict(model, posterior, x, samples=8, method="linearised", **size).probs
    m = memory_map(model, posterior, (x, y, ids), scores=("margin",), **size)
    found |= {f"map, {name}": torch.as_tensor(m.columns[name].to_numpy(copy=True)) for name in m.columns}
    found["reliability"] = torch.tensor([m.reliability.max_leverage, m.reliability.effective_dimension])
    without = leave_one_out(model, posterior, DataLoader(list(zip(x, y, ids, strict=True)), batch_size=BATCH))
    found |= {"loo, ids": without.ids, "loo, nll": without.nll}
    found["dual"] = dual(model, posterior, (x, y, ids), **size).leverage
    return {name: t.detach().contiguous() for name, t in found.items()}


def refusals(world):
    model, x, y, _ = problem()
    posterior = laplace(model, (x, y), prior_precision=1.0, batch_size=BATCH)
    with pytest.raises(InvalidInput, match=f"at least one for each of {world} processes, got 1"):
        predict(model, posterior, x, samples=2)
    with pytest.raises(InvalidInput, match="a fixed order"):
        predict(model, posterior, DataLoader(x, batch_size=BATCH, shuffle=True), samples=2)
    with pytest.raises(InvalidInput, match="a known number of batches"):
        predict(model, posterior, iter(x.split(BATCH)), samples=2)


def main(rank, world, meeting, folder):
    join(rank, world, meeting)
    with sharded():
        found = answers()
        refusals(world)
    if rank == world - 1:
        save_file(found, f"{folder}/answers.safetensors")
    leave()
