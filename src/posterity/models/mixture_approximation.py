"""Any log-density, approximated by a mixture of Gaussians."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from posterity.algorithms import mixture_vi
from posterity.errors import require, require_positive, require_whole
from posterity.families import MixtureOfGaussians
from posterity.gradients import MonteCarlo, Quadrature
from posterity.models._base import BayesianEstimator


class MixtureApproximation(BayesianEstimator):
    """q = Σ_k π_k N(m_k, S_k⁻¹) nearest to a density p in KL(q ‖ p), for a p known up to a constant.

    Args:
        n_components: K, at least 2.
        nodes: Quadrature nodes in each dimension; 0 takes samples instead, in any dimension.
        samples: Samples of each step, where there is no quadrature.
        lr: ρ.
        max_iter: Steps, at most.
        tol: Stop when no natural parameter moves by more than this, relative to the largest (quadrature alone).
        spread: Standard deviation of the first means around zero.
        random_state: Of the first means and of the samples.

    Attributes:
        posterior_: The `MixtureOfGaussians`.
        weights_, means_, covariances_: Of its components.
        lower_bounds_: The bound E_q[log p] + H(q) after each step, as estimated.
        n_iter_: Steps taken.

    Examples:
        >>> def two_peaks(theta):
        ...     return -0.25 * ((theta**2 - 4) ** 2).sum()
        >>> approximation = MixtureApproximation(2, lr=0.5, max_iter=50).fit(two_peaks, start=[[-1.0], [1.0]])
        >>> approximation.means_.ravel().round(), approximation.weights_.round(1)
        (array([-2.,  2.]), array([0.5, 0.5]))
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        nodes: int = 20,
        samples: int = 100,
        lr: float = 0.1,
        max_iter: int = 500,
        tol: float = 1e-6,
        spread: float = 1.0,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.nodes = nodes
        self.samples = samples
        self.lr = lr
        self.max_iter = max_iter
        self.tol = tol
        self.spread = spread
        self.random_state = random_state

    def fit(self, log_density: Callable[[Tensor], Tensor], start: Any = None, *, dim: int | None = None) -> Self:
        """Approximate a density.

        Args:
            log_density: log p(θ) + const of one θ (d,), made of torch operations.
            start: First means (K, d); drawn around zero unless given.
            dim: d, where no start is given.
        """
        require(callable(log_density), "log_density", "a function of θ", type(log_density).__name__)
        require_whole("n_components", self.n_components, 2)
        require_positive("spread", self.spread)
        generator = self._generator()
        if start is None:
            require(dim is not None and dim >= 1, "dim", "the dimension of θ, where no start is given", dim)
            start = self.spread * torch.randn(self.n_components, dim or 1, dtype=torch.float64, generator=generator)
        means = torch.as_tensor(start, dtype=torch.float64)
        shape = tuple(means.shape)
        require(len(shape) == 2 and shape[0] == self.n_components, "start", f"means ({self.n_components}, d)", shape)
        estimator = Quadrature(self.nodes) if self.nodes else MonteCarlo(self.samples, generator=generator)
        algorithm = mixture_vi(self.lr).but(gradient=estimator)
        bounds: list[float] = []

        def loss(theta: Tensor) -> Tensor:
            return -log_density(theta)

        def look(seen: Any) -> bool:
            bounds.append(-float(algorithm.rule.free_energy(seen.q, loss)))
            return bool(self.nodes) and seen.change <= self.tol

        self.posterior_: MixtureOfGaussians = algorithm.run(means, loss, self.max_iter, callback=look)
        self.weights_, self.means_ = self.posterior_.weights.numpy(), self.posterior_.conditional.mean.numpy()
        self.covariances_ = torch.linalg.inv(self.posterior_.conditional.precision).numpy()
        self.lower_bounds_, self.n_iter_ = bounds, len(bounds)
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """log q of rows (n, d)."""
        check_is_fitted(self)
        return self.posterior_.log_prob(torch.as_tensor(X, dtype=torch.float64)).numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """The average of `score_samples`."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1) -> np.ndarray:
        """Rows drawn from q, (n, d)."""
        check_is_fitted(self)
        return self.posterior_.sample(n_samples, self._generator()).numpy()
