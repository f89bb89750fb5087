"""Format version 1 stays readable: files written by the first release, against what they were made of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posterity.likelihoods import GaussianLikelihood
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
    Structure,
)

FIXTURES = Path(__file__).parent / "fixtures" / "version1"

MEAN = {"w": torch.arange(4.0).reshape(2, 2), "b": torch.tensor([-1.0, 0.5])}
ONE = {"w": torch.tensor(2.0), "b": torch.tensor([1.0, 3.0])}
ROWS = {"w": torch.arange(8.0).reshape(2, 2, 2), "b": torch.arange(4.0).reshape(2, 2)}
FACTORS = {"w": (2 * torch.eye(2), 3 * torch.eye(2)), "b": (4 * torch.eye(2),)}
HEAD = Diagonal({"b": MEAN["b"]}, {"b": ONE["b"]})

STRUCTURES: dict[str, Structure] = {
    "diagonal": Diagonal(MEAN, ONE),
    "full": Full(MEAN, torch.diag(torch.arange(1.0, 7.0))),
    "kronecker": Kronecker(MEAN, FACTORS, {"w": torch.tensor(0.5), "b": torch.tensor(0.25)}),
    "last_layer": LastLayer(HEAD, {"w": MEAN["w"]}),
    "low_rank": LowRank(MEAN, {name: torch.ones_like(t) for name, t in MEAN.items()}, ROWS),
    "mixture": Mixture(torch.tensor([1.0, 3.0]), [Diagonal(MEAN, ONE), Diagonal(MEAN, ONE)]),
    "ensemble": Ensemble([MEAN, {name: t + 1 for name, t in MEAN.items()}]),
    "dropout": Dropout(MEAN, {"hidden.drop": 0.25}),
}


def posterior(kind: str) -> Posterior:
    memory = Memory({"x": torch.ones(1, 2)}, torch.tensor([1]), torch.tensor([42]), predictions=torch.zeros(1, 2))
    return Posterior(
        STRUCTURES[kind],
        prior=Diagonal.isotropic(MEAN, 0.5),
        n=12,
        ess=24.5,
        likelihood=GaussianLikelihood(4.0),
        buffers={"bn.count": torch.tensor(7)},
        class_names=("no", "yes"),
        architecture="0123456789abcdef",
        memory=memory,
    )


@pytest.mark.parametrize("kind", list(STRUCTURES))
def test_version_1_is_read_as_it_was_written(kind: str) -> None:
    found, made = Posterior.load(FIXTURES / kind), posterior(kind)
    assert found.structure.kind == kind
    assert found.names == made.names
    assert found.structure.settings() == made.structure.settings()
    for before, after in (
        (made.structure.tensors(), found.structure.tensors()),
        (made.prior.tensors(), found.prior.tensors()),
        (made.buffers, found.buffers),
        (made.memory.tensors() if made.memory else {}, found.memory.tensors() if found.memory else {}),
    ):
        assert before.keys() == after.keys()
        assert all(torch.equal(after[name], t) for name, t in before.items())
    for field in ("n", "ess", "likelihood", "class_names", "architecture"):
        assert getattr(found, field) == getattr(made, field)
