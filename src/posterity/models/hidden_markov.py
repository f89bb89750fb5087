"""Hidden Markov models by EM (Baum-Welch) or variational message passing."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from posterity.errors import require, require_whole
from posterity.families import Dirichlet, NormalWishart
from posterity.graph import Chain, Emission, Model, PointMass, categorical, em, gaussian, vmp
from posterity.linalg import cholesky, inverse_psd
from posterity.models._base import BayesianEstimator, enough, moved


class HiddenMarkovModel(BayesianEstimator):
    """States z_t that follow a Markov chain, observations x_t that depend on the state; conventions of hmmlearn.

    Several sequences are one array, one after the other, with their `lengths`. Rows of NaN are missing observations.

    Args:
        n_components: Number of states K, at least 2.
        emission: "gaussian" (rows of numbers) or "categorical" (a column of symbols 0, 1, …).
        method: "em" or "vmp".
        concentration: Prior count of each first state and of each move, for "vmp".
        n_symbols: Number of symbols; the largest that occurs plus one unless given.
        reg_covar: Variance by which observations are smeared, so that no state shrinks to a point.
        max_iter: Sweeps, at most.
        tol: Stop when no natural parameter moves by more than this, relative to the largest of its kind.
        random_state: Of the start.

    Attributes:
        posterior_: {"initial": Dirichlet, "transitions": Dirichlet, "components": NormalWishart or Dirichlet}.
        startprob_, transmat_: Chances of first states (K,) and of moves (K, K).
        lower_bounds_, n_iter_, converged_: The bound (log-likelihood for EM) before the first sweep and after each.

    Examples:
        >>> X = np.random.default_rng(0).normal(size=(100, 1)) + np.repeat([[-5.0], [5.0]], 50, axis=0)
        >>> model = HiddenMarkovModel(2, random_state=0).fit(X)
        >>> states = model.predict(X)
        >>> np.flatnonzero(np.diff(states)), bool(model.transmat_.diagonal().min() > 0.9)
        (array([49]), True)
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        emission: Literal["gaussian", "categorical"] = "gaussian",
        method: Literal["em", "vmp"] = "vmp",
        concentration: float = 1.0,
        n_symbols: int | None = None,
        reg_covar: float = 1e-6,
        max_iter: int = 200,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.emission = emission
        self.method = method
        self.concentration = concentration
        self.n_symbols = n_symbols
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, lengths: Sequence[int] | None = None) -> Self:
        """Learn from sequences X (T, d)."""
        require_whole("n_components", self.n_components, 2)
        require(self.method in ("em", "vmp"), "method", '"em" or "vmp"', self.method)
        require(self.emission in ("gaussian", "categorical"), "emission", '"gaussian" or "categorical"', self.emission)
        rows = self._begin(X)
        enough(rows[~rows.isnan().any(-1)], self.n_components, "states")
        self._symbols = int(rows.nan_to_num(0.0).amax()) + 1 if self.n_symbols is None else self.n_symbols
        start = self._first(rows, self._emission(rows))
        prior = dict.fromkeys(start, None) if self.method == "em" else self._prior(rows)
        return self._learn(rows, lengths, prior, start)

    def partial_fit(self, X: Any, y: Any = None, *, lengths: Sequence[int] | None = None) -> Self:
        """Learn from more sequences: yesterday's posterior is today's prior; EM leaves a point, which cannot be one."""
        require(self.method == "vmp", "method", '"vmp", which leaves a posterior', self.method)
        if not hasattr(self, "posterior_"):
            return self.fit(X, lengths=lengths)
        centred = moved(self.posterior_, -self._shift)
        return self._learn(self._rows(X), lengths, centred, centred)

    def _learn(self, rows: Tensor, lengths: Sequence[int] | None, prior: dict[str, Any], start: dict[str, Any]) -> Self:
        model = Model(prior, [Chain("initial", "transitions", "components", self._emission(rows), lengths)])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "λ still moves", RuntimeWarning)
            fit = (em if self.method == "em" else vmp)(model, start, steps=self.max_iter, tolerance=self.tol)
        families = {name: q.family if isinstance(q, PointMass) else q for name, q in fit.q.items()}
        self.posterior_ = moved(families, self._shift)
        chances = {n: q.expectation[0].exp() if isinstance(q, PointMass) else q.mean for n, q in fit.q.items()}
        self.startprob_, self.transmat_ = chances["initial"].numpy(), chances["transitions"].numpy()
        self.lower_bounds_, self.n_iter_, self.converged_ = fit.bounds, fit.steps, fit.converged
        return self

    def predict_proba(self, X: Any, lengths: Sequence[int] | None = None) -> np.ndarray:
        """q(z_t = k) of each row, given its whole sequence, (T, K)."""
        return self._chain(X, lengths).paths(self._beliefs())[0].numpy()

    def predict(self, X: Any, lengths: Sequence[int] | None = None) -> np.ndarray:
        """The most probable path of states (Viterbi)."""
        chain, q = self._chain(X, lengths), self._beliefs()
        energies = chain.emission.energies(q["components"].expectation)
        first, moves = q["initial"].expectation[0], q["transitions"].expectation[0]
        parts = energies.split(chain.sizes)
        return np.concatenate([_viterbi(part.numpy(), first.numpy(), moves.numpy()) for part in parts])

    def score(self, X: Any, y: Any = None, lengths: Sequence[int] | None = None) -> float:
        """Log-likelihood of sequences: at the parameters after EM, expected under q (paths summed out) after VMP."""
        return float(self._chain(X, lengths).evaluate(self._beliefs()).value)

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """A sequence drawn at the expected parameters: rows (n, d) and states (n,)."""
        check_is_fitted(self)
        generator = self._generator()
        require_whole("n_samples", n_samples)
        states = [int(torch.multinomial(torch.as_tensor(self.startprob_), 1, generator=generator))]
        for _ in range(n_samples - 1):
            states.append(int(torch.multinomial(torch.as_tensor(self.transmat_[states[-1]]), 1, generator=generator)))
        q, point = self.posterior_["components"], self.method == "em"
        if self.emission == "categorical":
            chances = PointMass(q).expectation[0].exp() if point else q.mean
            return torch.multinomial(chances[states], 1, generator=generator).numpy(), np.array(states)
        precision = PointMass(q).expectation[1] if point else q.degrees[..., None, None] * q.scale
        roots = cholesky(inverse_psd(precision))[states]
        noise = torch.randn(n_samples, q.location.shape[-1], 1, dtype=torch.float64, generator=generator)
        return (q.location[states] + (roots @ noise).squeeze(-1)).numpy(), np.array(states)

    def _begin(self, X: Any) -> Tensor:
        """The rows, moved to where their mean is zero: far from it, second moments would lose digits."""
        self._shift = torch.zeros((), dtype=torch.float64)
        rows = self._rows(X, reset=True)
        if self.emission == "gaussian":
            self._shift = rows.nanmean(0)
        return rows - self._shift

    def _rows(self, X: Any, reset: bool = False) -> Tensor:
        rows = self._tensor(X, reset=reset, ensure_all_finite="allow-nan") - self._shift
        if self.emission == "categorical":
            require(rows.shape[1] == 1, "X", "one column of symbols", f"{rows.shape[1]} columns")
            symbols = rows.nan_to_num(0.0)
            require(bool((symbols == symbols.round()).all()), "X", "symbols 0, 1, …", "fractions")
        return rows

    def _emission(self, rows: Tensor) -> Emission:
        there = ~rows.isnan().any(-1)
        if self.emission == "gaussian":
            return gaussian(rows, jitter=self.reg_covar, mask=there)
        return categorical(rows[:, 0].nan_to_num(0.0).long(), self._symbols, mask=there)

    def _prior(self, rows: Tensor) -> dict[str, Any]:
        K, d = self.n_components, rows.shape[1]
        counts = rows.new_full((K, K), self.concentration)
        if self.emission == "categorical":
            components: Any = Dirichlet(rows.new_ones(K, self._symbols))
        else:
            seen = rows[~rows.isnan().any(-1)]
            spread = torch.cov(seen.mT).reshape(d, d) + self.reg_covar * torch.eye(d, dtype=torch.float64)
            components = NormalWishart(seen.mean(0).expand(K, d), 1.0, float(d), inverse_psd(spread))
        return {"initial": Dirichlet(counts[0]), "transitions": Dirichlet(counts), "components": components}

    def _first(self, rows: Tensor, emission: Emission) -> dict[str, Any]:
        """Where to begin: emissions from the labels of k-means (or from chance), moves that tend to stay."""
        K, seed = self.n_components, check_random_state(self.random_state)
        if self.emission == "gaussian":
            there = ~rows.isnan().any(-1)
            chosen = rows.new_full((len(rows), K), 1e-3)
            labels = KMeans(K, n_init=1, random_state=seed).fit(rows[there].numpy()).labels_
            chosen[there] += torch.nn.functional.one_hot(torch.as_tensor(labels).long(), K)
            components: Any = NormalWishart.from_natural(emission.message(chosen))
        else:
            components = Dirichlet(1.0 + torch.as_tensor(seed.dirichlet(np.ones(self._symbols), K)) * len(rows) / K)
        stay = 1.0 + rows.new_full((K, K), 1.0) + 8.0 * torch.eye(K, dtype=torch.float64)
        return {
            "initial": Dirichlet(rows.new_full((K,), 2.0)),
            "transitions": Dirichlet(stay),
            "components": components,
        }

    def _chain(self, X: Any, lengths: Sequence[int] | None) -> Chain:
        check_is_fitted(self)
        return Chain("initial", "transitions", "components", self._emission(self._rows(X)), lengths)

    def _beliefs(self) -> dict[str, Any]:
        centred = moved(self.posterior_, -self._shift)
        return {n: PointMass(q) for n, q in centred.items()} if self.method == "em" else centred


def _viterbi(energies: np.ndarray, first: np.ndarray, moves: np.ndarray) -> np.ndarray:
    best, came_from = first + energies[0], np.empty(energies.shape, dtype=int)
    for t in range(1, len(energies)):
        arrivals = best[:, None] + moves
        came_from[t] = arrivals.argmax(0)
        best = arrivals.max(0) + energies[t]
    path = np.empty(len(energies), dtype=int)
    path[-1] = best.argmax()
    for t in range(len(energies) - 1, 0, -1):
        path[t - 1] = came_from[t, path[t]]
    return path
