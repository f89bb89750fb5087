"""Hamiltonian Monte Carlo for a regression by one hidden layer of tanh units, many chains at once.

Weights have posterior scales from 10⁻³ to 1 and strong correlations, so every chain moves in coordinates of its own,
θ = θ₀ + L⁻ᵀ z with L Lᵀ the Gauss-Newton matrix averaged over places the chain has passed during warm-up. Coordinates
and step sizes are fixed after warm-up. Trajectories are followed in float32; energies, which decide what is accepted,
are computed in float64.

The posterior has symmetries (units in any order, with either sign), and chains need not visit all of them: R-hat and
the effective sample size belong to predictions, which no symmetry changes, not to weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Regression:
    """U(θ) = ½ Σ (f(x) − y)²/noise² + ½ ‖θ‖² for C networks at once, θ of shape (C, D)."""

    x: Tensor
    y: Tensor
    hidden: int
    noise: float

    @property
    def dimension(self) -> int:
        return (self.x.shape[1] + 2) * self.hidden + 1

    def to(self, dtype: torch.dtype) -> Regression:
        return Regression(self.x.to(dtype), self.y.to(dtype), self.hidden, self.noise)

    def units(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Outputs (C, N), hidden units (C, N, H), the weights that leave them, and inputs with a column of ones."""
        inputs = torch.cat([x, torch.ones_like(x[:, :1])], 1)
        first, second, offset = theta.split([inputs.shape[1] * self.hidden, self.hidden, 1], -1)
        h = torch.matmul(inputs, first.unflatten(-1, (inputs.shape[1], self.hidden))).tanh_()
        return torch.bmm(h, second[..., None]).squeeze(-1) + offset, h, second, inputs

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        return self.units(theta, x)[0]

    def energy(self, theta: Tensor) -> Tensor:
        return 0.5 * ((self.outputs(theta, self.x) - self.y) / self.noise).square().sum(-1) + 0.5 * theta.square().sum(
            -1
        )

    def gradient(self, theta: Tensor) -> Tensor:
        f, h, second, inputs = self.units(theta, self.x)
        error = (f - self.y) / self.noise**2
        weighted = inputs.T * error[:, None]  # (C, inputs, N)
        leaving = torch.bmm(error[:, None], h)[:, 0]
        first = (weighted.sum(-1, keepdim=True) - torch.bmm(weighted, h.square_())) * second[:, None]
        return torch.cat([first.flatten(1), leaving, error.sum(-1, keepdim=True)], -1) + theta

    def gauss_newton(self, theta: Tensor) -> Tensor:
        """JᵀJ/noise² + I, (C, D, D)."""
        found = []
        for each in theta.split(1):
            _, h, second, inputs = self.units(each, self.x)
            slopes = (1 - h[0].square()) * second
            first = (inputs[:, :, None] * slopes[:, None]).flatten(1)
            jacobian = torch.cat([first, h[0], torch.ones_like(first[:, :1])], 1) / self.noise
            found.append(jacobian.T @ jacobian + torch.eye(self.dimension, dtype=theta.dtype, device=theta.device))
        return torch.stack(found)


class Chains:
    """Chains of HMC, each with its own coordinates and step size."""

    def __init__(self, target: Regression, chains: int, leapfrogs: int, seed: int) -> None:
        self.target, self.rough, self.leapfrogs = target, target.to(torch.float32), leapfrogs
        self.random = torch.Generator(target.x.device).manual_seed(seed)
        self.theta = 0.5 * self._normal(chains, target.dimension)
        self.size = torch.full_like(self.theta[:, :1], 0.02)
        self.matrix = self.theta.new_zeros(chains, target.dimension, target.dimension)
        self.matrices = 0

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random, dtype=torch.float64, device=self.random.device)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.random, dtype=torch.float64, device=self.random.device)

    def warm_up(self, iterations: int) -> None:
        """Reach the posterior's mass; learn coordinates, four times anew, and step sizes."""
        self.settle(1000)
        renewals = {iterations * share // 100 for share in (10, 25, 50, 75)}
        for i in range(iterations):
            self.step(adapt=0.5 / (1 + i / 10) ** 0.5)
            if i % 5 == 0 or i in renewals:
                self.observe()
            if i in renewals:
                self.adopt()

    def settle(self, steps: int) -> None:
        """Walk downhill by Adam to where the posterior has its mass, and take coordinates there."""
        theta = self.theta.float().requires_grad_()
        adam = torch.optim.Adam([theta], lr=0.02)
        for step in range(steps):
            adam.param_groups[0]["lr"] = 0.02 * (1 - step / steps)
            theta.grad = self.rough.gradient(theta.detach())
            adam.step()
        self.theta = theta.detach().double()
        self.observe()
        self.adopt()

    def observe(self) -> None:
        """Add the Gauss-Newton matrix at the present place to the average."""
        self.matrix += self.target.gauss_newton(self.theta)
        self.matrices += 1

    def adopt(self) -> None:
        """Take coordinates from the average so far, and forget it."""
        root = torch.linalg.cholesky(self.matrix / self.matrices)
        eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device).expand_as(root)
        self.back = torch.linalg.solve_triangular(root, eye, upper=False).mT.contiguous()  # L⁻ᵀ
        self.rough_back = self.back.float()
        self.matrix.zero_()
        self.matrices = 0

    def step(self, adapt: float = 0.0) -> Tensor:
        """One trajectory of every chain; its probability to be accepted. With `adapt` step sizes follow that."""
        momentum = self._normal(*self.theta.shape)
        jitter = 0.6 + 0.8 * self._uniform(len(self.theta), 1)
        moved, final = self._follow(momentum, self.size * jitter)
        proposal = self.theta + _products(self.back, moved)
        kinetic = 0.5 * (momentum.square() - final.square()).sum(-1)
        change = self.target.energy(self.theta) - self.target.energy(proposal) + kinetic
        rate = torch.nan_to_num(change, nan=-torch.inf).exp().clamp(max=1.0)
        accepted = self._uniform(len(rate)) < rate
        self.theta = torch.where(accepted[:, None], proposal, self.theta)
        self.size *= torch.exp(adapt * (rate[:, None] - 0.8))
        return rate

    def _follow(self, momentum: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
        """Leapfrogs from z = 0: where they lead, and the momentum there."""
        theta, p, size = self.theta.float(), momentum.float(), size.float()
        z = torch.zeros_like(p)
        half = 0.5 * size * self._slope(theta)
        for _ in range(self.leapfrogs):
            p = p - half
            z = z + size * p
            half = 0.5 * size * self._slope(theta + _products(self.rough_back, z))
            p = p - half
        return z.double(), p.double()

    def _slope(self, theta: Tensor) -> Tensor:
        return _products(self.rough_back.mT, self.rough.gradient(theta))


def _products(matrices: Tensor, vectors: Tensor) -> Tensor:
    """A matrix times a vector for each chain: on a core one after the other, which is twice as fast as a batch."""
    if matrices.is_cuda:
        return torch.bmm(matrices, vectors[..., None]).squeeze(-1)
    return torch.stack([matrix @ vector for matrix, vector in zip(matrices, vectors, strict=True)])


def split_r_hat(draws: Tensor) -> Tensor:
    """Split R-hat of each quantity, of draws (chains, kept, quantities)."""
    half = draws.shape[1] // 2
    parts = torch.cat([draws[:, :half], draws[:, half : 2 * half]])
    within, between = parts.var(1).mean(0), half * parts.mean(1).var(0)
    return ((((half - 1) * within + between) / half) / within).sqrt()


def effective_size(draws: Tensor) -> Tensor:
    """Effective sample size of each quantity over all chains, by Geyer's initial positive sequence."""
    chains, kept, _ = draws.shape
    centred = draws - draws.mean(1, keepdim=True)
    power = torch.fft.rfft(centred, n=2 * kept, dim=1).abs().square()
    covariance = torch.fft.irfft(power, n=2 * kept, dim=1)[:, :kept].mean(0) / kept
    within = covariance[0] * kept / (kept - 1)
    total = within * (kept - 1) / kept + draws.mean(1).var(0)
    correlation = 1 - (within - covariance) / total
    pairs = correlation[: kept // 2 * 2].unflatten(0, (-1, 2)).sum(1)
    positive = pairs.cummin(0).values.clamp(min=0)
    return chains * kept / (2 * positive.sum(0) - 1)
