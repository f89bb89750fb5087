"""One small case of every factor: the factor, and a member of a family for each of its neighbours."""

import torch

from posterity.families import Beta, Dirichlet, Gamma, Gaussian, NormalGamma, NormalWishart
from posterity.graph import (
    Chain,
    LinearFactor,
    MixtureFactor,
    Observed,
    Shrinkage,
    Topics,
    bernoulli,
    categorical,
    diagonal_gaussian,
    gaussian,
    poisson,
)

DOUBLE = torch.float64
GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(shape, dtype=DOUBLE, generator=GENERATOR)


def positive(*shape):
    return 0.5 + torch.rand(*shape, dtype=DOUBLE, generator=GENERATOR)


X = normal(7, 2)
ENTRIES = torch.rand(7, 2, generator=GENERATOR) > 0.3
ROWS = torch.tensor([True, True, False, True, True, True, True])
COUNTS = torch.poisson(3.0 * torch.rand(7, 2, dtype=DOUBLE, generator=GENERATOR), generator=GENERATOR)
BITS = (X > 0).to(DOUBLE)
LABELS = torch.tensor([0, 3, 1, 1, 2, 0, 3])
WORDS = torch.poisson(torch.ones(4, 5, dtype=DOUBLE), generator=GENERATOR)

WISHARTS = NormalWishart(
    normal(3, 2), positive(3), 2.0 + positive(3), torch.eye(2, dtype=DOUBLE) + 0.1 * torch.ones(3, 2, 2)
)
GAMMAS = NormalGamma(normal(3, 2), positive(3, 2), positive(3, 2), positive(3, 2))
WEIGHTS = Dirichlet(positive(3))
MOVES = Dirichlet(positive(3, 3))
W = Gaussian(normal(2), torch.eye(2, dtype=DOUBLE) + 0.2)


def mixture(emission, components):
    return MixtureFactor("weights", "components", emission), {"weights": WEIGHTS, "components": components}


CASES = {
    "gaussian mixture": mixture(gaussian(X), WISHARTS),
    "gaussian mixture, smeared, rows missing": mixture(gaussian(X, jitter=0.1, mask=ROWS), WISHARTS),
    "diagonal mixture": mixture(diagonal_gaussian(X), GAMMAS),
    "diagonal mixture, entries missing": mixture(diagonal_gaussian(X, mask=ENTRIES), GAMMAS),
    "bernoulli mixture": mixture(bernoulli(BITS), Beta(positive(3, 2), positive(3, 2))),
    "poisson mixture": mixture(poisson(COUNTS, mask=ENTRIES), Gamma(positive(3, 2), positive(3, 2))),
    "categorical mixture": mixture(categorical(LABELS, 4, mask=ROWS), Dirichlet(positive(3, 4))),
    "observed": (Observed("rate", poisson(COUNTS, mask=ENTRIES)), {"rate": Gamma(positive(2), positive(2))}),
    "topics": (Topics("theta", "beta", WORDS), {"theta": Dirichlet(positive(4, 3)), "beta": Dirichlet(positive(3, 5))}),
    "linear": (LinearFactor("w", "noise", X, normal(7)), {"w": W, "noise": Gamma(2.0, 3.0)}),
    "shrinkage": (Shrinkage("w", "alpha"), {"w": W, "alpha": Gamma(2.0, 3.0)}),
    "relevance": (Shrinkage("w", "alpha"), {"w": W, "alpha": Gamma(positive(2), positive(2))}),
    "chain": (
        Chain("initial", "moves", "components", gaussian(X, mask=ROWS)),
        {"initial": WEIGHTS, "moves": MOVES, "components": WISHARTS},
    ),
    "two chains": (
        Chain("initial", "moves", "components", diagonal_gaussian(X), lengths=(3, 4)),
        {"initial": WEIGHTS, "moves": MOVES, "components": GAMMAS},
    ),
}
