"""Message passing in hierarchies: regressions beside scipy's maximum of the same bound, topics beside scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity.families import Dirichlet, Gamma, Gaussian
from posterity.gradients import LinearLoss, Quadrature
from posterity.graph import LinearFactor, Model, Shrinkage, SiteFactor, Topics, svi_step, vmp
from posterity.rule import robbins_monro
from posterity.table.comparisons._data import counts, furthest, normal
from posterity.table.comparisons._minimum import minimum

A, B = 2.0, 1.5  # the priors of all precisions


def vmp_regression() -> float:
    """y ~ N(Xw, 1/τ), w ~ N(0, 1/α): all parameters of q(w) q(α) q(τ)."""
    X = normal(30, 3, seed=0)
    y = X @ torch.tensor([1.0, -0.5, 0.0], dtype=torch.float64) + 0.5 * normal(30, seed=1)

    def expected_loss(m: Tensor, L: Tensor, noise: Tensor) -> Tensor:
        a, b = noise.exp()
        error = ((y - X @ m) ** 2).sum() + ((X @ L) ** 2).sum()
        return 0.5 * a / b * error - 15.0 * (torch.digamma(a) - b.log() - math.log(2.0 * math.pi)) + _gamma_kl(a, b)

    prior = {"w": None, "alpha": Gamma(A, B), "noise": Gamma(A, B)}
    model = Model(prior, [LinearFactor("w", "noise", X, y), Shrinkage("w", "alpha")])
    q = vmp(model, {"w": Gaussian.standard(3)}, tolerance=1e-14).q
    m, L, alpha, noise = _scipy(expected_loss, 3, extra=2)
    pairs = [(q["w"].mean, m), (q["w"].covariance, L @ L.T), _gamma_pair(q["alpha"], alpha)]
    return furthest(*pairs, _gamma_pair(q["noise"], noise))


def nonconjugate_poisson() -> float:
    """Counts with log-rates Xw, w ~ N(0, 1/α): all parameters of q(w) q(α)."""
    X, y = counts()

    def expected_loss(m: Tensor, L: Tensor, _: Tensor) -> Tensor:
        return ((X @ m + 0.5 * ((X @ L) ** 2).sum(-1)).exp() - y * (X @ m)).sum()

    site = SiteFactor("w", LinearLoss(inputs=X, targets=y, likelihood="poisson"), Quadrature(60))
    model = Model({"w": None, "alpha": Gamma(A, B)}, [site, Shrinkage("w", "alpha")])
    q = vmp(model, {"w": Gaussian.standard(3)}, lr=0.5, tolerance=1e-14).q
    m, L, alpha, _ = _scipy(expected_loss, 3, extra=0)
    return furthest((q["w"].mean, m), (q["w"].covariance, L @ L.T), _gamma_pair(q["alpha"], alpha))


def svi_topics() -> float:
    """Latent Dirichlet allocation, two minibatches; relative to the largest concentration."""
    from sklearn.decomposition import LatentDirichletAllocation

    generator = torch.Generator().manual_seed(0)
    words = torch.poisson(2.0 * torch.rand(60, 15, dtype=torch.float64, generator=generator), generator=generator)
    first, *rest = words.split(20)
    theirs = LatentDirichletAllocation(
        4, doc_topic_prior=0.9, topic_word_prior=0.2, learning_offset=5.0, learning_decay=0.7, total_samples=600,
        max_doc_update_iter=10_000, mean_change_tol=1e-13, random_state=0,
    ).partial_fit(first.numpy())  # fmt: skip
    q: dict[str, Any] = {"topics": Dirichlet(theirs.components_.copy())}  # they go on in place
    prior, local = {"topics": Dirichlet(np.full((4, 15), 0.2))}, Dirichlet(np.full(4, 0.9))
    schedule = robbins_monro(5.0, 0.7)
    for step, batch in enumerate(rest, start=2):
        theirs.partial_fit(batch.numpy())
        model = Model(prior, [Topics("proportions", "topics", batch)], local={"proportions": local})
        q, _, _ = svi_step(model, q, schedule(step), n=600, local_steps=10_000, local_tolerance=1e-13)
    return furthest((q["topics"].concentration, theirs.components_)) / float(theirs.components_.max())


def _scipy(expected_loss: Callable[[Tensor, Tensor, Tensor], Tensor], d: int, extra: int) -> tuple[Tensor, ...]:
    """m, L (V = LLᵀ), and the logarithms of (a, b) of α and of what else there is, where the bound is highest."""
    lower = torch.tril_indices(d, d)

    def unpack(flat: Tensor) -> tuple[Tensor, ...]:
        m, triangle, alpha, rest = flat.split([d, len(lower[0]), 2, extra])
        return m, flat.new_zeros(d, d).index_put((lower[0], lower[1]), triangle), alpha, rest

    def negative_bound(flat: Tensor) -> Tensor:
        m, L, alpha, rest = unpack(flat)
        a, b = alpha.exp()
        shrinkage = 0.5 * a / b * (m @ m + (L**2).sum()) - 0.5 * d * (torch.digamma(a) - b.log())
        return expected_loss(m, L, rest) + shrinkage - L.diagonal().abs().log().sum() + _gamma_kl(a, b)

    start = torch.cat((torch.zeros(d), torch.eye(d)[lower[0], lower[1]], torch.zeros(2 + extra))).double()
    return unpack(minimum(negative_bound, start))


def _gamma_kl(a: Tensor, b: Tensor) -> Tensor:
    """KL(Gamma(a, b) ‖ Gamma(A, B))."""
    rates = A * (b.log() - math.log(B)) + a * (B - b) / b
    return (a - A) * torch.digamma(a) - torch.lgamma(a) + math.lgamma(A) + rates


def _gamma_pair(ours: Gamma, theirs: Tensor) -> tuple[Tensor, Tensor]:
    return torch.stack((ours.shape, ours.rate)), theirs.exp()
