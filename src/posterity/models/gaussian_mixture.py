"""Gaussian mixtures by EM, variational message passing or stochastic variational inference."""

from __future__ import annotations

import warnings
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from posterity.errors import require, require_whole
from posterity.families import Dirichlet, Family, NormalWishart, StudentT
from posterity.families.gamma import UnitGamma
from posterity.graph import Fit, MixtureFactor, Model, PointMass, em, gaussian, svi, svi_step, vmp
from posterity.linalg import cholesky, inverse_psd
from posterity.models._base import BayesianEstimator, enough, moved
from posterity.rule import robbins_monro

_EMPTY = 1e-6  # of an observation


class GaussianMixture(DensityMixin, BayesianEstimator):  # type: ignore[misc]
    """A mixture of K Gaussians with full covariances: π ~ Dir, (m_k, Λ_k) ~ Normal-Wishart.

    By default the prior is centred on the data: m around their mean with the strength of one observation,
    Λ⁻¹ around their covariance with as many degrees of freedom as dimensions, π with 1/K observations in each.

    Args:
        n_components: K. A single component has no weights to learn.
        method: "em" (maximum likelihood), "vmp" (all data in each sweep) or "svi" (minibatches).
        weight_concentration: Prior observations of each component; 1/K unless given.
        mean_strength: How many observations the prior mean is worth.
        degrees: Prior degrees of freedom of the precisions, above d − 1; d unless given.
        covariance_prior: (d, d), the inverse of the Wishart's scale; the data's covariance unless given.
        reg_covar: Variance by which observations are smeared, so that no component shrinks to a point.
        max_iter: Sweeps (or minibatches), at most.
        tol: Stop when no natural parameter moves by more than this, relative to the largest of its kind.
        batch_size: Rows of a minibatch, for "svi".
        random_state: Of the start and of the order of minibatches.

    Attributes:
        posterior_: {"weights": Dirichlet, "components": NormalWishart}, without weights for K = 1.
        weights_, means_, covariances_: Of each component: expected, or of maximum likelihood after EM.
        lower_bounds_: The evidence bound (log-likelihood for EM) before the first sweep and after each.
        n_iter_, converged_: Sweeps taken; whether λ came to rest.
        empty_: Which components hold no observation.

    Examples:
        >>> X = np.random.default_rng(0).normal(size=(100, 2)) + np.repeat([[0, 0], [9, 9]], 50, axis=0)
        >>> mixture = GaussianMixture(2, random_state=0).fit(X)
        >>> labels = mixture.predict([[0, 0], [9, 9]])
        >>> bool(labels[0] != labels[1]), mixture.posterior_["weights"].mean.numpy().round(1)
        (True, array([0.5, 0.5]))
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        method: Literal["em", "vmp", "svi"] = "vmp",
        weight_concentration: float | None = None,
        mean_strength: float = 1.0,
        degrees: float | None = None,
        covariance_prior: Any = None,
        reg_covar: float = 1e-6,
        max_iter: int = 500,
        tol: float = 1e-4,
        batch_size: int = 256,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.weight_concentration = weight_concentration
        self.mean_strength = mean_strength
        self.degrees = degrees
        self.covariance_prior = covariance_prior
        self.reg_covar = reg_covar
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the mixture from rows X (n, d)."""
        X = self._begin(X)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "λ still moves", RuntimeWarning)
            return self._keep(self._infer(Model(self._priors, self._factors(X)), self._first(X)))

    @available_if(lambda self: self.method != "em")  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, *, total_samples: int | None = None) -> Self:
        """Learn from more rows.

        Args:
            X: New rows (n, d).
            y: Ignored.
            total_samples: The size of the whole data set, where rows are a minibatch of it: one step of stochastic
                variational inference. Unless given, rows are news: yesterday's posterior is today's prior.
        """
        known = hasattr(self, "posterior_")
        X = self._tensor(X) - self._shift if known else self._begin(X)
        q: dict[str, Any] = moved(self.posterior_, -self._shift) if known else self._first(X)
        model = Model(self._priors, self._factors(X))
        if total_samples is not None:
            self.n_batches_ += 1
            q, bound, change = svi_step(model, q, robbins_monro()(self.n_batches_), n=total_samples)
            return self._keep(Fit(q, [bound], 1, change <= self.tol))
        if known:
            model = model.given(q)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "λ still moves", RuntimeWarning)
            return self._keep(vmp(model, q, steps=self.max_iter, tolerance=self.tol))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Responsibilities r (n, K)."""
        return self._mixture(X).responsibilities(self._beliefs())[0].numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The component with the largest responsibility."""
        return self.predict_proba(X).argmax(-1)

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:
        """Learn, then assign the same rows."""
        return self.fit(X, y).predict(X)

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-density of rows: of the posterior predictive, a mixture of Student-t; after EM, at the parameters."""
        check_is_fitted(self)
        if self.method == "em":
            return self._mixture(X).responsibilities(self._beliefs())[1].numpy()
        logits = self._predictive().log_prob((self._tensor(X) - self._shift).unsqueeze(1))
        return (logits + torch.as_tensor(self.weights_).log()).logsumexp(-1).numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """The average of `score_samples`."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Rows drawn from the predictive, and the components they come from."""
        check_is_fitted(self)
        require_whole("n_samples", n_samples)
        generator = self._generator()
        labels = torch.multinomial(torch.as_tensor(self.weights_), n_samples, replacement=True, generator=generator)
        noise = torch.randn(n_samples, self.n_features_in_, dtype=torch.float64, generator=generator)
        covariances = torch.as_tensor(self.covariances_)
        if self.method != "em":
            t = self._predictive()
            scales, covariances = UnitGamma(t.mixing.shape[labels]).sample(1, generator)[0], t.conditional.covariance
            noise = noise / scales.sqrt().unsqueeze(-1)
        roots = cholesky(covariances)[labels]
        rows = torch.as_tensor(self.means_)[labels] + (roots @ noise.unsqueeze(-1)).squeeze(-1)
        return rows.numpy(), labels.numpy()

    def _begin(self, X: Any) -> Tensor:
        """The rows, moved to where their mean is zero: far from it, second moments would lose digits."""
        X = self._tensor(X, reset=True)
        require(self.method in ("em", "vmp", "svi"), "method", '"em", "vmp" or "svi"', self.method)
        require_whole("n_components", self.n_components)
        enough(X, self.n_components, "components")
        self._shift, self.n_batches_ = X.mean(0), 0
        self._priors = self._prior(X - self._shift)
        return X - self._shift

    @property
    def _weights(self) -> str | None:
        return "weights" if self.n_components > 1 else None

    def _factors(self, X: Tensor) -> list[MixtureFactor]:
        return [MixtureFactor(self._weights, "components", gaussian(X, jitter=self.reg_covar))]

    def _with_weights(self, components: Family | None, concentration: Tensor | None) -> dict[str, Any]:
        weights = None if concentration is None else Dirichlet(concentration)
        return {"components": components} | ({} if self._weights is None else {self._weights: weights})

    def _prior(self, X: Tensor) -> dict[str, Any]:
        if self.method == "em":
            return self._with_weights(None, None)
        K, d = self.n_components, X.shape[-1]
        concentration = 1.0 / K if self.weight_concentration is None else self.weight_concentration
        degrees = float(d) if self.degrees is None else self.degrees
        given = X.mT @ X / len(X) if self.covariance_prior is None else self.covariance_prior
        spread = torch.as_tensor(given, dtype=torch.float64)
        require(tuple(spread.shape) == (d, d), "covariance_prior", f"shape ({d}, {d})", tuple(spread.shape))
        scale = inverse_psd(spread + self.reg_covar * torch.eye(d, dtype=torch.float64), "covariance_prior")
        components = NormalWishart(X.new_zeros(K, d), self.mean_strength, degrees, scale)
        return self._with_weights(components, X.new_full((K,), concentration) if K > 1 else None)

    def _first(self, X: Tensor) -> dict[str, Any]:
        """Where to begin: the M-step of the labels that k-means gives."""
        seed = check_random_state(self.random_state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than components
            labels = KMeans(self.n_components, n_init=1, random_state=seed).fit(X.numpy()).labels_
        chosen = torch.nn.functional.one_hot(torch.as_tensor(labels).long(), self.n_components).double()
        chosen = chosen + 1e-3  # a component of few points begins with a trace of all others
        natural, prior = gaussian(X, jitter=self.reg_covar).message(chosen), self._priors["components"]
        if prior is not None:
            natural = tuple(a + b for a, b in zip(prior.natural, natural, strict=True))
        return self._with_weights(NormalWishart.from_natural(natural), 1.0 + chosen.sum(0) if self._weights else None)

    def _infer(self, model: Model, start: dict[str, Family]) -> Fit:
        if self.method == "em":
            return em(model, start, steps=self.max_iter, tolerance=self.tol)
        if self.method == "vmp":
            return vmp(model, start, steps=self.max_iter, tolerance=self.tol)
        seed = self._seed()
        options = {"batch_size": self.batch_size, "steps": self.max_iter, "tolerance": self.tol}
        return svi(model, start, seed=seed, **options)  # type: ignore[arg-type]

    def _keep(self, fit: Fit) -> Self:
        """Write the posterior and what follows from it, in the coordinates of the data."""
        families = {name: q.family if isinstance(q, PointMass) else q for name, q in fit.q.items()}
        components: Any = families["components"]
        self.posterior_ = moved(families, self._shift)
        if self.method == "em":
            precisions = fit.q["components"].expectation[1]
        else:
            precisions = components.degrees[..., None, None] * components.scale
        self.weights_ = np.ones(1)
        if self._weights is not None:
            q = fit.q[self._weights]
            self.weights_ = (q.expectation[0].exp() if self.method == "em" else q.mean).numpy()
        self.means_ = self.posterior_["components"].location.numpy()
        self.covariances_ = inverse_psd(precisions).numpy()
        self.lower_bounds_, self.n_iter_, self.converged_ = fit.bounds, fit.steps, fit.converged
        held = components.strength - (0.0 if self.method == "em" else self.mean_strength)
        self.empty_ = (held < _EMPTY).numpy()
        if self.empty_.any():
            which = np.flatnonzero(self.empty_).tolist()
            warnings.warn(f"components {which} hold no observation", ConvergenceWarning, stacklevel=3)
        return self

    def _mixture(self, X: Any) -> MixtureFactor:
        check_is_fitted(self)
        return MixtureFactor(self._weights, "components", gaussian(self._tensor(X) - self._shift))

    def _beliefs(self) -> dict[str, Any]:
        centred = moved(self.posterior_, -self._shift)
        return {name: PointMass(q) for name, q in centred.items()} if self.method == "em" else centred

    def _predictive(self) -> StudentT:
        """Of each component, t with ν = n − d + 1 degrees of freedom around m, and the precision νκ/(κ + 1) W."""
        q = moved(self.posterior_, -self._shift)["components"]
        degrees = q.degrees - q.location.shape[-1] + 1.0
        weight = degrees * q.strength / (q.strength + 1.0)
        return StudentT.of(degrees, q.location, weight[..., None, None] * q.scale)
