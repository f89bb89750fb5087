"""The Kalman filter and smoother: chains of Gaussians, one exact step of the rule for each link or for all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from posterity.algorithms._base import unit
from posterity.batches import one_tensor
from posterity.errors import require
from posterity.families import Gaussian
from posterity.families.checks import parameters, symmetric
from posterity.gradients import Delta, Loss
from posterity.linalg import inverse_psd
from posterity.rule import BayesianLearningRule


@dataclass(frozen=True)
class LinearStateSpace:
    """A linear Gaussian state-space model.

        x₁ ~ N(m₁, P₁),   x_t ~ N(A x_{t−1}, Q),   y_t ~ N(C x_t, R)

    The rule works with precisions: to `kalman_filter` and `kalman_smoother` Q, R and P₁ must be positive definite, and
    digits are lost as one of them comes close to singular.

    Args:
        transition: A (d, d).
        transition_noise: Q (d, d).
        observation: C (k, d).
        observation_noise: R (k, k).
        initial_mean: m₁ (d,).
        initial_covariance: P₁ (d, d).
    """

    transition: Tensor
    transition_noise: Tensor
    observation: Tensor
    observation_noise: Tensor
    initial_mean: Tensor
    initial_covariance: Tensor

    def __post_init__(self) -> None:
        d, k = len(self.initial_mean), len(self.observation)
        shapes: dict[str, tuple[int, ...]] = {"transition": (d, d), "transition_noise": (d, d), "observation": (k, d)}
        shapes |= {"observation_noise": (k, k), "initial_mean": (d,), "initial_covariance": (d, d)}
        for name, shape in shapes.items():
            (part,) = parameters({name: (getattr(self, name), 0)})
            require(tuple(part.shape) == shape, name, f"shape {shape}", tuple(part.shape))
            object.__setattr__(self, name, part)
        for name in ("transition_noise", "observation_noise", "initial_covariance"):
            _require_covariance(name, getattr(self, name))

    @cached_property
    def first(self) -> Gaussian:
        """p(x₁)."""
        return Gaussian(self.initial_mean, inverse_psd(self.initial_covariance, "initial_covariance"))

    def move_loss(self, before: Tensor, after: Tensor) -> Tensor:
        """−log p(x_t | x_{t−1}), for states (..., d)."""
        return -self._move_noise.log_prob(after - before @ self.transition.mT)

    def observation_loss(self, states: Tensor, seen: Tensor) -> Tensor:
        """−log p(y_t | x_t), for states (..., d) and observations (..., k)."""
        return -self._observation_noise.log_prob(seen - states @ self.observation.mT)

    @cached_property
    def _move_noise(self) -> Gaussian:
        return _centred(self.transition_noise, "transition_noise")

    @cached_property
    def _observation_noise(self) -> Gaussian:
        return _centred(self.observation_noise, "observation_noise")


class Beliefs(NamedTuple):
    """What is believed about each state, as a batch of T Gaussians, and the log-likelihood of all observations."""

    states: Gaussian
    log_likelihood: Tensor


def kalman_filter(model: LinearStateSpace, observations: Tensor) -> Beliefs:
    """The Kalman filter: p(x_t | y₁, …, y_t).

    Posterior: for every link of the chain a Gaussian over (x_{t−1}, x_t).

    The belief about x_{t−1} is the prior of the link. Its loss is quadratic, so that the delta method is exact and
    one step with ρ = 1 lands on the posterior; x_{t−1} is then marginalised out:

        S ← ∇²[ −log q(x_{t−1}) − log p(x_t | x_{t−1}) − log p(y_t | x_t) ],   S m = −∇[…] at 0.

    The free energy of the link is −log p(y_t | y₁, …, y_{t−1}).

    Args:
        model: The state-space model.
        observations: y (T, k).
    """
    rule, d = BayesianLearningRule(Delta(), lr=1.0), len(model.initial_mean)
    beliefs: list[Gaussian] = []
    log_likelihood = torch.zeros_like(model.initial_mean[0])
    for seen in _checked(model, observations):
        link = _first_link(model, seen) if not beliefs else _link(model, beliefs[-1], seen)
        q = rule.step(unit(model.initial_mean.new_zeros(d if not beliefs else 2 * d)), link)
        log_likelihood = log_likelihood - rule.free_energy(q, link)
        beliefs.append(Gaussian(q.mean[-d:], inverse_psd(q.covariance[-d:, -d:])))
    states = Gaussian(torch.stack([q.mean for q in beliefs]), torch.stack([q.precision for q in beliefs]))
    return Beliefs(states, log_likelihood)


def kalman_smoother(model: LinearStateSpace, observations: Tensor) -> Beliefs:
    """The Kalman (Rauch-Tung-Striebel) smoother: p(x_t | y₁, …, y_T).

    Posterior: one Gaussian over all states x₁, …, x_T.

    The joint loss is quadratic, so that the delta method is exact and one step with ρ = 1 gives the posterior of the
    whole chain, with a block-tridiagonal precision; the beliefs are its marginals:

        S = ∇²[ −log p(x, y) ],   S m = ∇_x log p(x, y) at 0.

    The free energy is −log p(y₁, …, y_T).

    Args:
        model: The state-space model.
        observations: y (T, k).
    """
    seen, d = _checked(model, observations), len(model.initial_mean)

    def loss(chain: Tensor) -> Tensor:
        states = chain.reshape(-1, d)
        links = model.move_loss(states[:-1], states[1:]).sum() + model.observation_loss(states, seen).sum()
        return links - model.first.log_prob(states[0])

    rule = BayesianLearningRule(Delta(), lr=1.0)
    q = rule.step(unit(model.initial_mean.new_zeros(len(seen) * d)), loss)
    blocks = q.covariance.reshape(len(seen), d, len(seen), d).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    return Beliefs(Gaussian(q.mean.reshape(-1, d), inverse_psd(blocks)), -rule.free_energy(q, loss))


def _first_link(model: LinearStateSpace, seen: Tensor) -> Loss:
    return lambda x: model.observation_loss(x, seen) - model.first.log_prob(x)


def _link(model: LinearStateSpace, belief: Gaussian, seen: Tensor) -> Loss:
    def loss(pair: Tensor) -> Tensor:
        before, after = pair.chunk(2)
        return model.move_loss(before, after) + model.observation_loss(after, seen) - belief.log_prob(before)

    return loss


def _checked(model: LinearStateSpace, observations: Tensor) -> Tensor:
    observations = one_tensor(observations)
    shape = (len(observations), len(model.observation))
    require(tuple(observations.shape) == shape, "observations", f"shape {shape}", tuple(observations.shape))
    require(len(observations) > 0, "observations", "at least one", "none")
    require(bool(observations.isfinite().all()), "observations", "finite entries", "NaN or infinity")
    return observations


def _require_covariance(name: str, matrix: Tensor) -> None:
    """Raise unless a matrix is symmetric and, but for rounding, has no negative eigenvalue."""
    smallest = torch.linalg.eigvalsh(symmetric(name, matrix.double())).amin().item()
    require(smallest >= -1e-6 * matrix.abs().amax().item(), name, "a covariance", f"smallest eigenvalue {smallest:.3g}")


def _centred(covariance: Tensor, what: str) -> Gaussian:
    return Gaussian(torch.zeros_like(covariance[0]), inverse_psd(covariance, what))
