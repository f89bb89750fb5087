"""Linear regressions with Gaussian posteriors: Gaussian noise by message passing, counts and classes by sites."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from posterity.errors import InvalidInput, Undefined, require, require_positive
from posterity.families import Gamma, Gaussian
from posterity.gradients import LinearLoss, Quadrature
from posterity.gradients.quadrature import gauss_hermite
from posterity.graph import Fit, Linear, Model, Shrinkage, Site, svi_step, vmp
from posterity.models._base import Estimator
from posterity.rule import robbins_monro

_VAGUE = 1e-6  # the prior precision of an intercept, and the shape and rate of vague gamma priors


class _LinearModel(Estimator):
    """Weights w with a Gaussian posterior; where there is an intercept, inputs are centred and end in a column of ones.

    Columns that stand far from zero look like columns of ones: uncentred, their weights would be lost in the intercept.
    """

    fit_intercept: bool
    max_iter: int
    tol: float
    n_batches_: int
    _beliefs: dict[str, Any]  # about w, the last of which is the output at the centre, less the level
    _centre: Tensor
    _level: float = 0.0

    @property
    def posterior_(self) -> dict[str, Any]:
        """Beliefs about the weights and, last, the intercept: the output at zero instead of that at the centre."""
        beliefs = self._beliefs
        if not self.fit_intercept:
            return dict(beliefs)
        w = beliefs["w"]
        to_centre = torch.eye(len(w.mean), dtype=w.mean.dtype)
        to_centre[-1, :-1] = self._centre
        mean = torch.cat((w.mean[:-1], w.mean[-1:] - self._centre @ w.mean[:-1] + self._level))
        reason = "weights and intercept so far from zero are one to the last digit; predict and sample know them apart"
        try:
            at_zero = Gaussian(mean, to_centre.mT @ w.precision @ to_centre)
        except InvalidInput as error:
            raise Undefined(reason) from error
        if not torch.allclose(at_zero.variance[:-1], w.variance[:-1], rtol=1e-3, atol=0.0):
            raise Undefined(reason)
        return {**beliefs, "w": at_zero}

    def _begin(self, X: Tensor) -> None:
        """Centre on the first rows; later ones speak of the same weights."""
        self._centre = X.mean(0)

    def _design(self, X: Tensor) -> Tensor:
        return torch.cat((X - self._centre, torch.ones_like(X[:, :1])), -1) if self.fit_intercept else X

    def _outputs(self, X: Any) -> tuple[Tensor, Tensor]:
        """Mean and variance of f = xᵀw for each row."""
        check_is_fitted(self)
        design, w = self._design(self._tensor(X)), self._beliefs["w"]
        return design @ w.mean + self._level, torch.einsum("bi,ij,bj->b", design, w.covariance, design)

    def _draw(self, X: Any, n_samples: int, generator: torch.Generator) -> Tensor:
        """Outputs f of weights drawn from the posterior, (n_samples, n)."""
        check_is_fitted(self)
        return self._beliefs["w"].sample(n_samples, generator) @ self._design(self._tensor(X)).mT + self._level

    def _learn(self, model: Model, start: dict[str, Any], backtracking: bool = False) -> Fit:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "λ still moves", RuntimeWarning)
            return vmp(model, start, steps=self.max_iter, tolerance=self.tol, backtracking=backtracking)

    def _step(self, model: Model, first: dict[str, Any] | None, total: int) -> None:
        """A step of stochastic variational inference, on rows that stand for `total`."""
        self.n_batches_ = 1 if first is not None else getattr(self, "n_batches_", 0) + 1
        q, bound, change = svi_step(model, first or self._beliefs, robbins_monro()(self.n_batches_), n=total)
        self._keep(Fit(q, [bound], 1, change <= self.tol))

    def _keep(self, fit: Fit) -> None:
        self._beliefs = dict(fit.q)
        self.coef_, self.intercept_ = fit.q["w"].mean.numpy(), 0.0
        if self.fit_intercept:
            self.coef_, at_centre = self.coef_[:-1], self.coef_[-1] + self._level
            self.intercept_ = float(at_centre - self.coef_ @ self._centre.numpy())
        self.lower_bounds_, self.n_iter_, self.converged_ = fit.bounds, fit.steps, fit.converged


class BayesianRidge(RegressorMixin, _LinearModel):  # type: ignore[misc]
    """y ~ N(xᵀw, 1/τ), w ~ N(0, 1/α), with gamma priors on τ and α: q(w) q(α) q(τ) by variational message passing.

    Args:
        fit_intercept: Whether to learn an intercept, which is not shrunk.
        relevance: A precision α_j for each weight (automatic relevance determination) instead of one for all.
        max_iter: Sweeps, at most.
        tol: Stop when no natural parameter moves by more than this, relative to the largest of its kind.

    Attributes:
        posterior_: {"w": Gaussian, "alpha": Gamma, "noise": Gamma}; the intercept is the last of w. Inputs so far from
            zero that double precision cannot tell weights from intercept have predictions, but no such Gaussian.
        coef_, intercept_: The posterior mean of w.
        lower_bounds_, n_iter_, converged_: The evidence bound before the first sweep and after each; how many.
    """

    def __init__(
        self, *, fit_intercept: bool = True, relevance: bool = False, max_iter: int = 1000, tol: float = 1e-6
    ) -> None:
        self.fit_intercept = fit_intercept
        self.relevance = relevance
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from inputs X (n, d) and targets y (n,)."""
        inputs, targets = self._tensors(X, y, reset=True, y_numeric=True)
        y = self._started(inputs, targets)
        self._keep(self._learn(self._model(inputs, y), self._first(inputs, y)))
        return self

    def _started(self, inputs: Tensor, targets: np.ndarray) -> Tensor:
        """The first targets, less their level: from here on level, centre and what is vague are known."""
        self._begin(inputs)
        self._level = float(targets.mean()) if self.fit_intercept else 0.0
        y = torch.as_tensor(targets, dtype=torch.float64) - self._level
        self._sizes = self._typical(inputs, y)
        return y

    def _typical(self, inputs: Tensor, y: Tensor) -> Tensor:
        """1/w_j² of weights that would make outputs as large as the targets: what is vague depends on the units."""
        squares = self._design(inputs if self.fit_intercept else inputs - inputs.mean(0)).square().mean(0)
        return torch.where(squares > 0.0, squares, 1.0) / (y.square().mean().item() or 1.0)

    def _model(self, inputs: Tensor, y: Tensor) -> Model:
        d, design = inputs.shape[-1], self._design(inputs)
        vague = Gamma(_VAGUE, _VAGUE)
        alpha = Gamma(inputs.new_full((d,), _VAGUE), inputs.new_full((d,), _VAGUE)) if self.relevance else vague
        prior = {"w": _around(torch.zeros_like(self._sizes), _VAGUE * self._sizes), "alpha": alpha, "noise": vague}
        return Model(prior, [Linear("w", "noise", design, y), Shrinkage("w", "alpha", d)])

    def _first(self, inputs: Tensor, y: Tensor) -> dict[str, Any]:
        shrunk = self._sizes[: inputs.shape[-1]]
        return {
            "w": _around(torch.zeros_like(self._sizes), self._sizes),
            "alpha": Gamma(1.0, 1.0 / (shrunk if self.relevance else shrunk.mean())),
            "noise": Gamma(1.0, y.var(correction=0) + _VAGUE),
        }

    def _minibatch(self, X: Any, y: Any, total: int) -> None:
        known = hasattr(self, "_beliefs")
        inputs, targets = self._tensors(X, y, reset=not known, y_numeric=True)
        y = torch.as_tensor(targets, dtype=torch.float64) - self._level if known else self._started(inputs, targets)
        self._step(self._model(inputs, y), None if known else self._first(inputs, y), total)

    def partial_fit(self, X: Any, y: Any, *, total_samples: int | None = None) -> Self:
        """Learn from more rows: yesterday's posterior is today's prior (and has the shrinkage in it already).

        Args:
            X: New rows (n, d).
            y: Their targets (n,).
            total_samples: The size of the whole data set, where rows are a minibatch of it: one step of stochastic
                variational inference. Unless given, rows are news.
        """
        if total_samples is not None:
            self._minibatch(X, y, total_samples)
            return self
        if not hasattr(self, "_beliefs"):
            return self.fit(X, y)
        inputs, targets = self._tensors(X, y, y_numeric=True)
        y = torch.as_tensor(targets, dtype=torch.float64) - self._level
        factor = Linear("w", "noise", self._design(inputs), y)
        fit = self._learn(Model({name: self._beliefs[name] for name in ("w", "noise")}, [factor]), {})
        self._keep(replace(fit, q={**self._beliefs, **fit.q}))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The expected target of each row, and the standard deviation of the predictive where asked for."""
        mean, variance = self._outputs(X)
        if not return_std:
            return mean.numpy()
        noise = self._beliefs["noise"]
        return mean.numpy(), (variance + noise.rate / (noise.shape - 1.0).clamp(min=_VAGUE)).sqrt().numpy()

    def sample(self, X: Any, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Targets drawn from the posterior predictive, (n_samples, n)."""
        generator = torch.Generator().manual_seed(random_state)
        f = self._draw(X, n_samples, generator)
        noise = torch.randn(f.shape, dtype=torch.float64, generator=generator)
        return (f + noise / self._beliefs["noise"].sample(n_samples, generator).sqrt().unsqueeze(-1)).numpy()


class _GeneralisedLinearModel(_LinearModel):
    """Weights with a Gaussian prior and a likelihood that is not Gaussian, by the rule with exact quadrature."""

    _likelihood: str

    def __init__(
        self,
        *,
        prior_precision: float = 1.0,
        fit_intercept: bool = True,
        nodes: int = 40,
        max_iter: int = 200,
        tol: float = 1e-8,
    ) -> None:
        self.prior_precision = prior_precision
        self.fit_intercept = fit_intercept
        self.nodes = nodes
        self.max_iter = max_iter
        self.tol = tol

    def _update(
        self, inputs: Tensor, targets: Tensor, prior: Gaussian | None, level: float, total: int | None = None
    ) -> None:
        """Learn from rows; `level` is the constant output that fits them best, where the first q is centred.

        Where `total` is given, rows are a minibatch of so many, and the prior stays what it was at first.
        """
        if prior is None:
            self._begin(inputs)
        design = self._design(inputs)
        require_positive("prior_precision", self.prior_precision)
        precision = design.new_full((design.shape[-1],), self.prior_precision)
        centre = torch.zeros_like(precision)
        if self.fit_intercept:
            precision[-1], centre[-1] = _VAGUE, level
        vague = _around(torch.zeros_like(precision), precision)
        # Begin narrow: under a wide q, expected rates overflow before the data have spoken.
        narrow = Gaussian(centre, vague.precision + design.mT @ design + torch.eye(len(centre), dtype=torch.float64))
        loss = LinearLoss(inputs=design, targets=targets, likelihood=self._likelihood)
        site = Site("w", loss, Quadrature(self.nodes))
        if total is not None:
            self._step(Model({"w": vague}, [site]), {"w": narrow} if prior is None else None, total)
            return
        self._keep(self._learn(Model({"w": prior or vague}, [site]), {"w": prior or narrow}, backtracking=True))

    def _expected(self, X: Any, function: Callable[[Tensor], Tensor]) -> Tensor:
        """E[function(f)] under the posterior of each row's output f, by quadrature."""
        mean, variance = self._outputs(X)
        nodes, weights = gauss_hermite(self.nodes, mean)
        return weights @ function(mean + variance.sqrt() * nodes.unsqueeze(-1))


class BayesianPoissonRegression(RegressorMixin, _GeneralisedLinearModel):  # type: ignore[misc]
    """Counts y ~ Poisson(exp xᵀw), w ~ N(0, 1/prior_precision): the best full Gaussian q(w).

    Args:
        prior_precision: Of each weight; that of the output at the mean of the inputs is 1e-6.
        fit_intercept: Whether to learn an intercept.
        nodes: Quadrature nodes.
        max_iter: Sweeps, at most.
        tol: Stop when no natural parameter moves by more than this, relative to the largest of its kind.

    Attributes:
        posterior_: {"w": Gaussian}; the intercept is the last of w.
        coef_, intercept_: The posterior mean of w.
        lower_bounds_, n_iter_, converged_: The evidence bound before the first sweep and after each; how many.
    """

    _likelihood = "poisson"

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from inputs X (n, d) and counts y (n,)."""
        inputs, targets = self._checked(X, y, reset=True)
        self._update(inputs, targets, None, math.log(max(targets.mean().item(), 0.1)))
        return self

    def partial_fit(self, X: Any, y: Any, *, total_samples: int | None = None) -> Self:
        """Learn from more rows: yesterday's posterior is today's prior.

        Args:
            X: New rows (n, d).
            y: Their targets (n,).
            total_samples: The size of the whole data set, where rows are a minibatch of it: one step of stochastic
                variational inference. Unless given, rows are news.
        """
        known = hasattr(self, "_beliefs")
        inputs, targets = self._checked(X, y, reset=not known)
        level = math.log(max(targets.mean().item(), 0.1))
        self._update(inputs, targets, self._beliefs["w"] if known else None, level, total_samples)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Expected counts E[exp f], and the standard deviation of the predictive where asked for."""
        mean, variance = self._outputs(X)
        rate = (mean + 0.5 * variance).exp()
        return (rate.numpy(), (rate + rate**2 * torch.expm1(variance)).sqrt().numpy()) if return_std else rate.numpy()

    def sample(self, X: Any, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Counts drawn from the posterior predictive, (n_samples, n)."""
        generator = torch.Generator().manual_seed(random_state)
        return torch.poisson(self._draw(X, n_samples, generator).exp(), generator=generator).numpy()

    def _checked(self, X: Any, y: Any, reset: bool = False) -> tuple[Tensor, Tensor]:
        inputs, targets = self._tensors(X, y, reset=reset, y_numeric=True)
        return inputs, torch.as_tensor(targets, dtype=torch.float64)


class BayesianLogisticRegression(ClassifierMixin, _GeneralisedLinearModel):  # type: ignore[misc]
    """Two classes, p(y = 1) = σ(xᵀw), w ~ N(0, 1/prior_precision): the best full Gaussian q(w).

    Args:
        prior_precision: Of each weight; that of the output at the mean of the inputs is 1e-6.
        fit_intercept: Whether to learn an intercept.
        nodes: Quadrature nodes.
        max_iter: Sweeps, at most.
        tol: Stop when no natural parameter moves by more than this, relative to the largest of its kind.

    Attributes:
        posterior_: {"w": Gaussian}; the intercept is the last of w.
        classes_: The two classes.
        coef_, intercept_: The posterior mean of w.
        lower_bounds_, n_iter_, converged_: The evidence bound before the first sweep and after each; how many.
    """

    _likelihood = "bernoulli"

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from inputs X (n, d) and classes y (n,)."""
        inputs, labels = self._tensors(X, y, reset=True)
        self.classes_ = two_classes(self, labels)
        self._update(inputs, self._bits(labels), None, 0.0)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, *, total_samples: int | None = None) -> Self:
        """Learn from more rows: yesterday's posterior is today's prior.

        Args:
            X: New rows (n, d).
            y: Their targets (n,).
            classes: Both classes; the first call may need them where its rows are all of one.
            total_samples: The size of the whole data set, where rows are a minibatch of it: one step of stochastic
                variational inference. Unless given, rows are news.
        """
        known = hasattr(self, "_beliefs")
        inputs, labels = self._tensors(X, y, reset=not known)
        if not known:
            self.classes_ = two_classes(self, labels if classes is None else np.asarray(classes))
        self._update(inputs, self._bits(labels), self._beliefs["w"] if known else None, 0.0, total_samples)
        return self

    def predict_proba(self, X: Any, return_std: bool = False) -> Any:
        """Probabilities E[σ(f)] of both classes, (n, 2); and the standard deviation of σ(f) where asked for."""
        p = self._expected(X, torch.sigmoid)
        both = torch.stack((1.0 - p, p), -1).numpy()
        if not return_std:
            return both
        return both, (self._expected(X, lambda f: torch.sigmoid(f) ** 2) - p**2).clamp(min=0.0).sqrt().numpy()

    def decision_function(self, X: Any) -> np.ndarray:
        """The expected output f of each row."""
        return self._outputs(X)[0].numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class of each row."""
        above = self.decision_function(X) > 0.0
        return self.classes_[above.astype(int)]

    def sample(self, X: Any, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Classes drawn from the posterior predictive, (n_samples, n)."""
        generator = torch.Generator().manual_seed(random_state)
        chance = torch.sigmoid(self._draw(X, n_samples, generator))
        return self.classes_[torch.bernoulli(chance, generator=generator).numpy().astype(int)]

    def _bits(self, labels: np.ndarray) -> Tensor:
        require(bool(np.isin(labels, self.classes_).all()), "y", f"classes among {self.classes_.tolist()}", "others")
        return torch.as_tensor((labels == self.classes_[1]).astype(np.float64))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def _around(mean: Tensor, precision: Tensor) -> Gaussian:
    return Gaussian(mean, torch.diag(precision))


def two_classes(estimator: Any, labels: np.ndarray) -> np.ndarray:
    """The two classes that occur; an error for one, or for more."""
    check_classification_targets(labels)
    classes = np.unique(labels)
    name = type(estimator).__name__
    if len(classes) > 2:
        raise InvalidInput(f"Only binary classification is supported by {name}: expected 2 classes, got {len(classes)}")
    require(len(classes) == 2, f"{name}: y", "2 classes", f"1 class: {classes.tolist()}")
    return classes
