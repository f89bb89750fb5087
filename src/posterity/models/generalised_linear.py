"""Linear regressions of counts and of two classes: Gaussian posteriors by sites."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from posterity.errors import InvalidInput, require, require_positive
from posterity.families import Gaussian
from posterity.gradients import LinearLoss, Quadrature
from posterity.gradients.quadrature import logistic_moments
from posterity.graph import Model, SiteFactor
from posterity.models._base import seed_of
from posterity.models._linear import VAGUE, LinearModel, around


class _GeneralisedLinearModel(LinearModel):
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
            precision[-1], centre[-1] = VAGUE, level
        vague = around(torch.zeros_like(precision), precision)
        # Begin narrow: under a wide q, expected rates overflow before the data have spoken.
        narrow = Gaussian(centre, vague.precision + design.mT @ design + torch.eye(len(centre), dtype=torch.float64))
        loss = LinearLoss(inputs=design, targets=targets, likelihood=self._likelihood)
        site = SiteFactor("w", loss, Quadrature(self.nodes))
        if total is not None:
            self._step(Model({"w": vague}, [site]), {"w": narrow} if prior is None else None, total)
            return
        self._keep(self._learn(Model({"w": prior or vague}, [site]), {"w": prior or narrow}, backtracking=True))


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

    Examples:
        >>> X = np.linspace(-1, 1, 50).reshape(-1, 1)
        >>> model = BayesianPoissonRegression().fit(X, np.exp(1 + X[:, 0]).round())
        >>> model.coef_.round(1), round(float(model.intercept_), 1)
        (array([1.]), 1.0)
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

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Counts drawn from the posterior predictive, (n_samples, n)."""
        generator = torch.Generator().manual_seed(seed_of(random_state))
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

    Examples:
        >>> X = np.linspace(-2, 2, 50).reshape(-1, 1)
        >>> model = BayesianLogisticRegression().fit(X, np.where(X[:, 0] > 0, "yes", "no"))
        >>> model.predict([[1.0], [-1.0]]), model.predict_proba([[0.0]]).round(1)
        (array(['yes', 'no'], dtype='<U3'), array([[0.5, 0.5]]))
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
        _, p, slope = logistic_moments(*self._outputs(X), self.nodes)
        both = torch.stack((1.0 - p, p), -1).numpy()
        if not return_std:
            return both
        return both, (p - slope - p**2).clamp(min=0.0).sqrt().numpy()  # σ² = σ − σ'

    def decision_function(self, X: Any) -> np.ndarray:
        """The expected output f of each row."""
        return self._outputs(X)[0].numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class of each row."""
        above = self.decision_function(X) > 0.0
        return self.classes_[above.astype(int)]

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Classes drawn from the posterior predictive, (n_samples, n)."""
        generator = torch.Generator().manual_seed(seed_of(random_state))
        chance = torch.sigmoid(self._draw(X, n_samples, generator))
        return self.classes_[torch.bernoulli(chance, generator=generator).numpy().astype(int)]

    def _bits(self, labels: np.ndarray) -> Tensor:
        require(bool(np.isin(labels, self.classes_).all()), "y", f"classes among {self.classes_.tolist()}", "others")
        return torch.as_tensor((labels == self.classes_[1]).astype(np.float64))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def two_classes(estimator: Any, labels: np.ndarray) -> np.ndarray:
    """The two classes that occur; an error for one, or for more."""
    check_classification_targets(labels)
    classes = np.unique(labels)
    name = type(estimator).__name__
    if len(classes) > 2:
        raise InvalidInput(f"Only binary classification is supported by {name}: expected 2 classes, got {len(classes)}")
    require(len(classes) == 2, f"{name}: y", "2 classes", f"1 class: {classes.tolist()}")
    return classes
