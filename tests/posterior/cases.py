"""One small network and one posterior of every structure over it: what the tests run over."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posterity.posterior import (
    Diagonal,
    Dropout,
    Ensemble,
    Full,
    Kronecker,
    LastLayer,
    LowRank,
    Memory,
    Mixture,
    Posterior,
    Rotated,
    Signs,
    Structure,
)
from posterity.trees import Tree, snapshot, trainable


def network(seed: int = 0, hidden: int = 4, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = (nn.Linear(3, hidden), nn.BatchNorm1d(hidden), nn.Dropout(0.3), nn.Tanh(), nn.Linear(hidden, 2))
    model = nn.Sequential(*layers).to(dtype)
    model(torch.randn(16, 3, dtype=dtype))  # gives the batch norm statistics worth keeping
    return model.eval()


def weights(seed: int = 0, dtype: torch.dtype = torch.float64) -> Tree:
    tree = snapshot(trainable(network(seed, dtype=dtype)))
    return {name: t + 0.1 * torch.randn_like(t) for name, t in tree.items()}


def spread(tree: Tree, seed: int) -> Tree:
    """Positive tensors shaped as a tree."""
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.5 + torch.rand(t.shape, generator=generator, dtype=t.dtype) for name, t in tree.items()}


def positive_definite(size: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=dtype) / size**0.5
    return root @ root.mT + 0.5 * torch.eye(size, dtype=dtype)


def diagonal(seed: int = 0, dtype: torch.dtype = torch.float64) -> Diagonal:
    return Diagonal(weights(seed, dtype), spread(weights(seed, dtype), seed + 1))


def full(seed: int = 0) -> Full:
    tree = weights(seed)
    return Full(tree, positive_definite(sum(t.numel() for t in tree.values()), seed + 2))


def kronecker(seed: int = 0) -> Kronecker:
    tree = weights(seed)
    factors = {name: tuple(positive_definite(size, seed + size) for size in t.shape) for name, t in tree.items()}
    return Kronecker(tree, factors, {name: torch.tensor(0.3 + seed, dtype=torch.float64) for name in tree})


def rotated(seed: int = 0) -> Rotated:
    q = kronecker(seed)
    bases = {name: tuple(torch.linalg.qr(factor).Q for factor in block) for name, block in q.factors.items()}
    del bases["4.bias"]  # not turned
    return Rotated(q.mean, bases, spread(q.mean, seed + 3))


def low_rank(seed: int = 0) -> LowRank:
    tree = weights(seed)
    generator = torch.Generator().manual_seed(seed)
    rows = {name: torch.randn(3, *t.shape, generator=generator, dtype=t.dtype) for name, t in tree.items()}
    return LowRank(tree, spread(tree, seed), rows)


def last_layer(seed: int = 0) -> LastLayer:
    tree = weights(seed)
    head = {name: t for name, t in tree.items() if name.startswith("4.")}
    return LastLayer(Full(head, positive_definite(10, seed)), {n: t for n, t in tree.items() if n not in head})


def mixture(seed: int = 0) -> Mixture:
    return Mixture(torch.tensor([1.0, 3.0]), [diagonal(seed), full(seed + 1)])


def ensemble(seed: int = 0) -> Ensemble:
    return Ensemble([weights(seed), weights(seed + 1), weights(seed + 2)])


def dropout(seed: int = 0) -> Dropout:
    return Dropout(weights(seed), {"2": 0.3})


def signs(seed: int = 0) -> Signs:
    return Signs(weights(seed))


GAUSSIANS = {"diagonal": diagonal, "full": full, "kronecker": kronecker, "rotated": rotated, "low_rank": low_rank}
STRUCTURES = {
    **GAUSSIANS,
    "last_layer": last_layer,
    "mixture": mixture,
    "ensemble": ensemble,
    "dropout": dropout,
    "signs": signs,
}


def posterior(
    structure: Structure | None = None, *, memory: bool = False, n: int = 50, ess: float = 200.0
) -> Posterior:
    structure = structure or diagonal()
    remembered = None
    if memory:
        ids = torch.tensor([3, 7])
        remembered = Memory(torch.randn(2, 3), torch.tensor([0, 1]), ids, torch.tensor([1.5, 2.0]), torch.randn(2, 2))
    return Posterior.of(
        network(),
        structure,
        prior=Diagonal.isotropic(structure.mean, 0.2),
        n=n,
        ess=ess,
        likelihood="categorical",
        class_names=["cat", "dög"],
        memory=remembered,
    )
