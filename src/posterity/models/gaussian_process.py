"""Gaussian processes with any likelihood, by conjugate-computation variational inference."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from typing import Any, Literal, Self

import numpy as np
import torch
from scipy import optimize
from sklearn.cluster import KMeans
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from posterity.errors import require, require_positive, require_whole
from posterity.gradients import Quadrature
from posterity.gradients.quadrature import logistic_moments
from posterity.graph import DenseGaussian, LatentGaussian, SiteFit, Sites, SparseGaussian, cvi
from posterity.likelihoods import GaussianLikelihood, Likelihood, likelihood
from posterity.linalg import cholesky
from posterity.models._base import BayesianEstimator, seed_of
from posterity.models.generalised_linear import two_classes

_JITTER = 1e-8  # of the prior variance, where a kernel matrix is factored


class _Process(BayesianEstimator):
    """What dense and sparse processes share: targets, hyperparameters, sites, predictions."""

    kernel: Any
    likelihood: str
    noise_variance: float
    optimize: bool
    nodes: int
    max_iter: int
    tol: float
    random_state: Any
    _prior: Any

    @abstractmethod
    def _place(self, X: Tensor) -> None:
        """Choose what depends on the inputs alone (inducing points)."""

    @abstractmethod
    def _latent(self, kernel: Any, X: Tensor) -> LatentGaussian:
        """The prior of the function at the observed inputs."""

    @abstractmethod
    def _function(self, X: Tensor, joint: bool = False) -> tuple[Tensor, Tensor]:
        """Mean and variance (or covariance) of the function at new inputs."""

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from inputs X (n, d) and targets y (n,)."""
        return self._begin(*self._checked(X, y, reset=True))

    def _begin(self, inputs: Tensor, targets: Tensor) -> Self:
        self._place(inputs)
        self.kernel_ = ConstantKernel(1.0) * RBF(1.0) if self.kernel is None else self.kernel
        self.noise_variance_ = self.noise_variance
        if self.optimize:
            self._learn_kernel(inputs, targets)
        return self._condition(inputs, targets, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn from more rows with the same kernel: old sites stay and new ones join them.

        Args:
            X: New rows (n, d).
            y: Their targets (n,).
            classes: Both classes; the first call may need them where its rows are all of one.
        """
        if not hasattr(self, "sites_"):
            return self._begin(*self._checked(X, y, reset=True, classes=classes))
        inputs, targets = self._checked(X, y)
        more = Sites.none(len(inputs))
        start = Sites(torch.cat((self.sites_.linear, more.linear)), torch.cat((self.sites_.precision, more.precision)))
        return self._condition(torch.cat((self.X_, inputs)), torch.cat((self.y_, targets)), start)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Expected targets, with the standard deviation of the predictive where asked for; classes for "bernoulli"."""
        mean, variance = self._outputs(X)
        if self.likelihood == "bernoulli":
            require(not return_std, "return_std", "False for classes; predict_proba has the probabilities", True)
            return self.classes_[(mean > 0.0).numpy().astype(int)]
        if self.likelihood == "gaussian":
            spread = variance + self.noise_variance_
        elif self.likelihood == "student_t":
            spread = variance + 2.0 * self.noise_variance_  # four degrees of freedom double a scale's variance
        else:
            mean = (mean + 0.5 * variance).exp()
            spread = mean + mean**2 * torch.expm1(variance)
        return (mean.numpy(), spread.sqrt().numpy()) if return_std else mean.numpy()

    @available_if(lambda self: self.likelihood == "bernoulli")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities E[σ(f)] of both classes, (n, 2)."""
        _, p, _ = logistic_moments(*self._outputs(X), self.nodes)
        return torch.stack((1.0 - p, p), -1).numpy()

    def score(self, X: Any, y: Any) -> float:
        """R², or the accuracy for classes."""
        return float((accuracy_score if self.likelihood == "bernoulli" else r2_score)(y, self.predict(X)))

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Targets drawn from the joint predictive at all rows, (n_samples, n)."""
        check_is_fitted(self)
        mean, covariance = self._function(self._tensor(X), joint=True)
        ridge = _JITTER * covariance.diagonal().amax() * torch.eye(len(mean), dtype=torch.float64)
        generator = torch.Generator().manual_seed(seed_of(random_state))
        noise = torch.randn(n_samples, len(mean), dtype=torch.float64, generator=generator)
        f = mean + noise @ cholesky(covariance + ridge, "covariance of the function").mT
        targets = self._noise().sample(f.unsqueeze(-1), generator).squeeze(-1).numpy()
        return self.classes_[targets.astype(int)] if self.likelihood == "bernoulli" else targets

    def _checked(self, X: Any, y: Any, reset: bool = False, classes: Any = None) -> tuple[Tensor, Tensor]:
        known = ("gaussian", "bernoulli", "poisson", "student_t")
        require(self.likelihood in known, "likelihood", f"one of {known}", self.likelihood)
        require_positive("noise_variance", self.noise_variance)
        inputs, targets = self._tensors(X, y, reset=reset, y_numeric=self.likelihood != "bernoulli")
        if self.likelihood == "bernoulli":
            if reset:
                self.classes_ = two_classes(self, targets if classes is None else np.asarray(classes))
            require(bool(np.isin(targets, self.classes_).all()), "y", f"classes {self.classes_.tolist()}", "others")
            targets = targets == self.classes_[1]
        return inputs, torch.as_tensor(targets.astype(np.float64))

    def _noise(self) -> Likelihood:
        if self.likelihood == "gaussian":
            return GaussianLikelihood(1.0 / self.noise_variance_)
        if self.likelihood == "student_t":
            return likelihood("student_t", scale=math.sqrt(self.noise_variance_))
        return likelihood(self.likelihood)

    def _sites(self, prior: LatentGaussian, targets: Tensor, start: Sites | None = None) -> SiteFit:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "sites still move", RuntimeWarning)
            return cvi(
                prior, targets, self._noise(), gradient=Quadrature(self.nodes), start=start,
                steps=self.max_iter, tolerance=self.tol,
            )  # fmt: skip

    def _learn_kernel(self, inputs: Tensor, targets: Tensor) -> None:
        """Maximise the evidence bound over the logarithms of the kernel's parameters and of the noise."""
        kernel, noisy = self.kernel_, self.likelihood in ("gaussian", "student_t")

        def unpack(theta: np.ndarray) -> Any:
            if noisy:
                self.noise_variance_ = math.exp(theta[-1])
            return kernel.clone_with_theta(theta[: kernel.n_dims])

        def negative_bound(theta: np.ndarray) -> float:
            return -self._sites(self._latent(unpack(theta), inputs), targets).bounds[-1]

        start, bounds = kernel.theta, kernel.bounds.reshape(-1, 2)  # a kernel with nothing to learn has (0,)
        if noisy:
            start = np.append(start, math.log(self.noise_variance))
            bounds = np.vstack((bounds, np.log([[1e-8, 1e8]])))
        if len(start) == 0:
            return
        best = optimize.minimize(negative_bound, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": 50})
        self.kernel_ = unpack(best.x)

    def _condition(self, inputs: Tensor, targets: Tensor, start: Sites | None) -> Self:
        self.X_, self.y_ = inputs, targets
        self._prior = self._latent(self.kernel_, inputs)
        fit = self._sites(self._prior, targets, start)
        self.sites_ = self.posterior_ = fit.sites
        self.lower_bounds_, self.n_iter_, self.converged_ = fit.bounds, fit.steps, fit.converged
        return self

    def _outputs(self, X: Any) -> tuple[Tensor, Tensor]:
        check_is_fitted(self)
        mean, variance = self._function(self._tensor(X))
        return mean, variance.clamp(min=0.0)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        if self.likelihood == "bernoulli":
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(multi_class=False)
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        return tags


class GaussianProcess(_Process):
    """y ~ p(y | f(x)), f a Gaussian process: regression, counts or two classes; one Gaussian site for each row.

    Args:
        kernel: A kernel of scikit-learn; a constant times RBF unless given.
        likelihood: "gaussian", "student_t" (four degrees of freedom: outliers), "bernoulli" (two classes) or "poisson".
        noise_variance: Of Gaussian noise; the squared scale of a Student-t's.
        optimize: Whether to learn kernel and noise by maximising the evidence bound.
        nodes: Quadrature nodes.
        max_iter: Steps, at most.
        tol: Stop when no site moves by more than this, relative to the largest.
        random_state: Not used: nothing here is random.

    Attributes:
        posterior_: The sites, which with kernel_ and X_ are the posterior.
        kernel_, noise_variance_: As learnt.
        lower_bounds_, n_iter_, converged_: The evidence bound before the first step and after each; how many.

    Examples:
        >>> X = np.linspace(-3, 3, 30).reshape(-1, 1)
        >>> process = GaussianProcess().fit(X, np.sin(X[:, 0]))
        >>> mean, std = process.predict([[0.0], [20.0]], return_std=True)
        >>> np.abs(mean).round(2), bool(std[1] > 10 * std[0])
        (array([0., 0.]), True)
    """

    def __init__(
        self,
        kernel: Any = None,
        *,
        likelihood: Literal["gaussian", "student_t", "bernoulli", "poisson"] = "gaussian",
        noise_variance: float = 0.1,
        optimize: bool = True,
        nodes: int = 20,
        max_iter: int = 100,
        tol: float = 1e-6,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.likelihood = likelihood
        self.noise_variance = noise_variance
        self.optimize = optimize
        self.nodes = nodes
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _place(self, X: Tensor) -> None:
        pass

    def _latent(self, kernel: Any, X: Tensor) -> DenseGaussian:
        return DenseGaussian(torch.as_tensor(kernel(X.numpy())))

    def _function(self, X: Tensor, joint: bool = False) -> tuple[Tensor, Tensor]:
        kernel, new = self.kernel_, X.numpy()
        prior = torch.as_tensor(kernel(new) if joint else kernel.diag(new))
        return self._prior.predict(self.sites_, torch.as_tensor(kernel(new, self.X_.numpy())), prior)


class SparseGaussianProcess(_Process):
    """A Gaussian process through M inducing points: the sites of all rows are tied at the points.

    Args:
        kernel: A kernel of scikit-learn; a constant times RBF unless given.
        n_inducing: M; the points are the centres that k-means finds.
        likelihood: "gaussian", "student_t" (four degrees of freedom: outliers), "bernoulli" (two classes) or "poisson".
        noise_variance: Of Gaussian noise; the squared scale of a Student-t's.
        optimize: Whether to learn kernel and noise by maximising the evidence bound.
        nodes: Quadrature nodes.
        max_iter: Steps, at most.
        tol: Stop when no site moves by more than this, relative to the largest.
        random_state: Of k-means.

    Attributes:
        posterior_: The sites, which with kernel_, inducing_ and X_ are the posterior.
        inducing_: The inducing points (M, d).
        kernel_, noise_variance_: As learnt.
        lower_bounds_, n_iter_, converged_: The evidence bound before the first step and after each; how many.

    Examples:
        >>> X = np.linspace(-3, 3, 100).reshape(-1, 1)
        >>> process = SparseGaussianProcess(n_inducing=8, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> process.inducing_.shape, bool(np.abs(process.predict(X) - np.sin(X[:, 0])).max() < 0.05)
        ((8, 1), True)
    """

    def __init__(
        self,
        kernel: Any = None,
        *,
        n_inducing: int = 50,
        likelihood: Literal["gaussian", "student_t", "bernoulli", "poisson"] = "gaussian",
        noise_variance: float = 0.1,
        optimize: bool = True,
        nodes: int = 20,
        max_iter: int = 100,
        tol: float = 1e-6,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.n_inducing = n_inducing
        self.likelihood = likelihood
        self.noise_variance = noise_variance
        self.optimize = optimize
        self.nodes = nodes
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _place(self, X: Tensor) -> None:
        require_whole("n_inducing", self.n_inducing)
        distinct = np.unique(X.numpy(), axis=0)
        self.inducing_ = distinct
        if len(distinct) > self.n_inducing:
            seed = check_random_state(self.random_state)
            self.inducing_ = KMeans(self.n_inducing, n_init=1, random_state=seed).fit(distinct).cluster_centers_

    def _project(self, kernel: Any, X: Tensor) -> Tensor:
        """A = K_nz L⁻ᵀ."""
        among = torch.as_tensor(kernel(self.inducing_))
        ridge = _JITTER * among.diagonal().amax() * torch.eye(len(among), dtype=torch.float64)
        root = cholesky(among + ridge, "kernel of the inducing points")
        return torch.linalg.solve_triangular(root, torch.as_tensor(kernel(self.inducing_, X.numpy())), upper=False).mT

    def _latent(self, kernel: Any, X: Tensor) -> SparseGaussian:
        return SparseGaussian(self._project(kernel, X), torch.as_tensor(kernel.diag(X.numpy())))

    def _function(self, X: Tensor, joint: bool = False) -> tuple[Tensor, Tensor]:
        A = self._project(self.kernel_, X)
        if joint:
            return self._prior.predict(self.sites_, A, torch.as_tensor(self.kernel_(X.numpy())) - A @ A.mT)
        return self._prior.predict(self.sites_, A, torch.as_tensor(self.kernel_.diag(X.numpy())) - A.square().sum(-1))
