"""Hidden Markov chains: each observation comes from a state that depends on the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from posterity.errors import expected, require
from posterity.families import Dirichlet, Family
from posterity.graph._factor import Beliefs, Evaluation, Factor, batch_shape, require_one
from posterity.graph.emissions import Emission

_RARE = -100.0  # log-weight of moves above which no state that underflows can matter: others are reached as well


@dataclass(frozen=True)
class Chain(Factor):
    """log p(x, z | π, A, θ) of sequences, with the paths z summed out by the forward-backward algorithm.

        value = Σ log Σ_z exp E[log π_{z₁} + Σ_t log A_{z_{t−1} z_t} + Σ_t log p(x_t | θ_{z_t})]
        to π: Σ q(z₁ = k),   to A: Σ_t q(z_{t−1} = j, z_t = k),   to θ_k: Σ_t q(z_t = k) t(x_t)

    Args:
        initial: Name of π, a `Dirichlet`.
        transitions: Name of A, a `Dirichlet` with K members, one for each state left.
        components: Name of θ, with plates (K, ...).
        emission: The observations, one sequence after the other; steps may be missing.
        lengths: Lengths of the sequences; one sequence unless given.
    """

    initial: str
    transitions: str
    components: str
    emission: Emission
    lengths: Sequence[int] | None = None
    separable = True

    def __post_init__(self) -> None:
        cut = min(self.sizes, default=0) > 0 and sum(self.sizes) == len(self.emission)
        require(cut, "lengths", f"positive numbers that sum to {len(self.emission)}", self.lengths)

    @property
    def sizes(self) -> list[int]:
        """The lengths of all sequences."""
        return [len(self.emission)] if self.lengths is None else [int(length) for length in self.lengths]

    @property
    def neighbours(self) -> Mapping[str, type[Family]]:
        return {self.initial: Dirichlet, self.transitions: Dirichlet, self.components: self.emission.family}

    def check(self, q: Mapping[str, Family]) -> None:
        super().check(q)
        require_one(q, self.initial)
        states = q[self.initial].event_shapes[0][0]
        moves, plates = tuple(q[self.transitions].natural[0].shape), batch_shape(q[self.components])
        require(moves == (states, states), f"shape of {self.transitions!r}", f"({states}, {states})", moves)
        require(plates[:1] == (states,), f"plates of {self.components!r}", f"({states}, ...)", plates)

    def evaluate(self, q: Beliefs) -> Evaluation:
        states, moves, value = self.paths(q)
        firsts = self._starts()
        return Evaluation(
            lambda: value,
            {
                self.initial: lambda: (states[firsts].sum(0),),
                self.transitions: lambda: (moves,),
                self.components: lambda: self.emission.message(states),
            },
        )

    def paths(self, q: Beliefs) -> tuple[Tensor, Tensor, Tensor]:
        """q(z_t = k), (T, K); Σ_t q(z_{t−1} = j, z_t = k), (K, K); and the value."""
        energies = self.emission.energies(q[self.components].expectation)
        log_initial, log_moves = q[self.initial].expectation[0], q[self.transitions].expectation[0]
        parts = [forward_backward(e, log_initial, log_moves) for e in energies.split(self.sizes)]
        states, moves, values = zip(*parts, strict=True)
        return torch.cat(states), torch.stack(moves).sum(0), torch.stack(values).sum()

    def _starts(self) -> Tensor:
        return torch.as_tensor([0, *self.sizes[:-1]]).cumsum(0)


def forward_backward(energies: Tensor, log_initial: Tensor, log_moves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Marginals of one chain, with messages normalised at every step so that nothing underflows.

        α_t(k) = p(z_t = k | x_≤t),   β_t(k) = p(x_>t | z_t = k) / p(x_>t | x_≤t),   q(z_t = k) = α_t(k) β_t(k)

    Args:
        energies: Log-weights of the states at each step (T, K).
        log_initial: Those of the first state (K,).
        log_moves: Those of the moves (K, K), from row to column.

    Returns:
        q(z_t = k), (T, K); Σ_t q(z_{t−1} = j, z_t = k), (K, K); the logarithm of the sum over all paths.
    """
    # The recursions are long loops over short vectors, for which numpy is several times faster than torch.
    highest = energies.amax(-1, keepdim=True)
    weights, initial, moves = (part.cpu().numpy() for part in (energies - highest, log_initial, log_moves))
    sweep = _sweep_weights if min(initial.min(), moves.min()) > _RARE else _sweep_logarithms
    states, pairs, scale = sweep(weights, initial, moves)
    value = highest.sum() + float(scale.sum())
    return torch.as_tensor(states).to(energies), torch.as_tensor(pairs).to(energies), value


def _sweep_weights(weights: np.ndarray, initial: np.ndarray, moves: np.ndarray) -> tuple[np.ndarray, ...]:
    """Marginals, summed pairs and log p(x_t | x_<t) from log-weights, with messages as they are."""
    likely, initial, moves = np.exp(weights), np.exp(initial), np.exp(moves)
    forward, backward, scale = np.empty_like(likely), np.ones_like(likely), np.empty(len(likely))
    belief = initial * likely[0]
    for t in range(len(likely)):
        if t > 0:
            belief = (forward[t - 1] @ moves) * likely[t]
        scale[t] = belief.sum()
        forward[t] = belief / scale[t]
    for t in range(len(likely) - 2, -1, -1):
        backward[t] = moves @ (likely[t + 1] * backward[t + 1]) / scale[t + 1]
    pairs = moves * (forward[:-1].T @ (likely[1:] * backward[1:] / scale[1:, None]))
    return forward * backward, pairs, np.log(scale)


def _sweep_logarithms(weights: np.ndarray, initial: np.ndarray, moves: np.ndarray) -> tuple[np.ndarray, ...]:
    """The same with logarithms of messages: a state behind a rare move may be all that explains what comes later."""
    forward, backward, scale = np.empty_like(weights), np.zeros_like(weights), np.empty(len(weights))
    pairs, log_sum = np.zeros_like(moves), np.logaddexp.reduce  # which knows moves that are never made, log 0
    for t in range(len(weights)):
        belief = weights[t] + (initial if t == 0 else log_sum(forward[t - 1][:, None] + moves))
        scale[t] = log_sum(belief)
        if scale[t] == -np.inf:
            raise expected(f"step {t} of a chain", "a state that moves lead to", "none")
        forward[t] = belief - scale[t]
    for t in range(len(weights) - 2, -1, -1):
        ahead = moves + (weights[t + 1] + backward[t + 1] - scale[t + 1])
        backward[t] = log_sum(ahead.T)
        pairs += np.exp(forward[t][:, None] + ahead)
    return np.exp(forward + backward), pairs, scale
