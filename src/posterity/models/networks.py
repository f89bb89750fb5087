"""Multi-layer perceptrons with a posterior, trained by IVON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from posterity.adaptation import adapt
from posterity.errors import require
from posterity.learning import fit
from posterity.models._base import BayesianEstimator, seed_of
from posterity.prediction import Prediction, predict


class _Network(BayesianEstimator):
    """Standardised inputs, hidden layers with ReLU, and the training loop."""

    _likelihood: str

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] | int = (50,),
        *,
        epochs: int | None = None,
        batch_size: int = 64,
        samples: int = 64,
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.epochs = epochs
        self.batch_size = batch_size
        self.samples = samples
        self.random_state = random_state

    def _train(self, X: Tensor, targets: Tensor, outputs: int) -> Self:
        self._centre, self._scale = X.mean(0), _spread(X)
        seed = self._seed()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            hidden = np.atleast_1d(self.hidden_layer_sizes).astype(int).tolist()
            self.network_: nn.Module = _perceptron([X.shape[1], *hidden, outputs])
        self._data = self._scaled(X), targets
        run = fit(
            self.network_, self._data, method="ivon", likelihood=self._likelihood, epochs=self.epochs,
            batch_size=self.batch_size, seed=seed, progress=False,
        )  # fmt: skip
        q = self.posterior_ = run.posterior
        self.lower_bounds_, self.n_iter_ = [-q.n * run.history[-1]["loss"] - float(q.kl(q.prior))], len(run.history)
        return self

    def _add(self, X: Tensor, targets: Tensor) -> Self:
        """Learn from more rows without a second look at the old ones in full: a K-prior keeps what they taught."""
        new = self._scaled(X), targets
        result = adapt(self.network_, self.posterior_, data=self._data, add=new)
        self.network_, self.posterior_ = result.model, result.posterior
        self._data = tuple(torch.cat(pair) for pair in zip(self._data, new, strict=True))  # type: ignore[assignment]
        return self

    def _predictive(self, X: Any) -> Prediction:
        check_is_fitted(self)
        return predict(self.network_, self.posterior_, self._scaled(self._tensor(X)), samples=self.samples)

    def _draw(self, X: Any, n_samples: int, seed: int) -> Tensor:
        """Targets of the network, one set from each of so many drawn networks."""
        check_is_fitted(self)
        inputs = self._scaled(self._tensor(X))
        outputs = predict(self.network_, self.posterior_, inputs, n_samples, seed=seed, keep_samples=True).outputs
        assert outputs is not None
        return self.posterior_.likelihood.sample(outputs, torch.Generator().manual_seed(seed))

    def _scaled(self, X: Tensor) -> Tensor:
        return ((X - self._centre) / self._scale).float()


class BayesianMLPClassifier(ClassifierMixin, _Network):  # type: ignore[misc]
    """Classes by a multi-layer perceptron with a Gaussian posterior over its weights.

    Args:
        hidden_layer_sizes: Units of each hidden layer, or of the only one.
        epochs: Passes over the data; as many as make about 2000 steps unless given.
        batch_size: Rows of a minibatch.
        samples: Networks drawn for a prediction.
        random_state: Of the first weights and of the training.

    Attributes:
        posterior_: The `Posterior` of the weights.
        network_: The network, at the mean.
        lower_bounds_: The evidence bound −E_q[loss] − KL(q ‖ prior) after the training, estimated on the last epoch.
        n_iter_: Epochs of the first training.
        classes_: The classes.

    Examples:
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> model = BayesianMLPClassifier((16,), epochs=30, random_state=0).fit(X, X[:, 0] * X[:, 1] > 0)
        >>> model.predict([[2.0, 2.0], [2.0, -2.0]]), model.posterior_.n
        (array([ True, False]), 200)
    """

    _likelihood = "categorical"

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from inputs X (n, d) and classes y (n,)."""
        return self._begin(X, y, y)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn from more rows of the same classes; the first call may name them all."""
        if not hasattr(self, "posterior_"):
            return self._begin(X, y, y if classes is None else classes)
        inputs, labels = self._tensors(X, y)
        return self._add(inputs, self._numbers(labels))

    def _begin(self, X: Any, y: Any, classes: Any) -> Self:
        inputs, labels = self._tensors(X, y, reset=True)
        check_classification_targets(labels)
        self.classes_ = np.unique(np.asarray(classes))
        require(len(self.classes_) > 1, "y", "at least 2 classes", f"1 class: {self.classes_.tolist()}")
        return self._train(inputs, self._numbers(labels), len(self.classes_))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, averaged over drawn networks, (n, K)."""
        return self._predictive(X).probs.double().numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        chances = self.predict_proba(X)
        return self.classes_[chances.argmax(-1)]

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Classes drawn from the posterior predictive, (n_samples, n)."""
        return self.classes_[self._draw(X, n_samples, seed_of(random_state)).numpy()]

    def _numbers(self, labels: np.ndarray) -> Tensor:
        require(bool(np.isin(labels, self.classes_).all()), "y", f"classes among {self.classes_.tolist()}", "others")
        return torch.as_tensor(np.searchsorted(self.classes_, labels))


class BayesianMLPRegressor(RegressorMixin, _Network):  # type: ignore[misc]
    """Numbers by a multi-layer perceptron with a Gaussian posterior over its weights.

    Args:
        hidden_layer_sizes: Units of each hidden layer, or of the only one.
        epochs: Passes over the data; as many as make about 2000 steps unless given.
        batch_size: Rows of a minibatch.
        samples: Networks drawn for a prediction.
        random_state: Of the first weights and of the training.

    Attributes:
        posterior_: The `Posterior` of the weights.
        network_: The network, at the mean.
        lower_bounds_: The evidence bound −E_q[loss] − KL(q ‖ prior) after the training, estimated on the last epoch,
            for targets in units of their standard deviation.
        n_iter_: Epochs of the first training.

    Examples:
        >>> X = np.linspace(-2, 2, 200).reshape(-1, 1)
        >>> model = BayesianMLPRegressor((16,), epochs=60, random_state=0).fit(X, np.sin(2 * X[:, 0]))
        >>> mean, std = model.predict([[0.0], [6.0]], return_std=True)
        >>> bool(abs(mean[0]) < 0.3), bool(std[1] > std[0])
        (True, True)
    """

    _likelihood = "gaussian"

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from inputs X (n, d) and targets y (n,)."""
        inputs, targets = self._tensors(X, y, reset=True, y_numeric=True)
        self._level, self._unit = float(np.mean(targets)), float(_spread(torch.as_tensor(targets).double()))
        return self._train(inputs, self._standard(targets), 1)

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn from more rows."""
        if not hasattr(self, "posterior_"):
            return self.fit(X, y)
        inputs, targets = self._tensors(X, y, y_numeric=True)
        return self._add(inputs, self._standard(targets))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Expected targets, and the standard deviation of the predictive, noise included, where asked for."""
        prediction = self._predictive(X)
        mean = self._level + self._unit * prediction.mean.squeeze(-1).double().numpy()
        return (mean, self._unit * prediction.std.squeeze(-1).double().numpy()) if return_std else mean

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Targets drawn from the posterior predictive, noise included, (n_samples, n)."""
        return self._level + self._unit * self._draw(X, n_samples, seed_of(random_state)).squeeze(-1).double().numpy()

    def _standard(self, targets: np.ndarray) -> Tensor:
        return torch.as_tensor((targets - self._level) / self._unit, dtype=torch.float32).unsqueeze(-1)


def _spread(values: Tensor) -> Tensor:
    """Standard deviations over the rows, in any unit of measurement; one where all rows are alike but for rounding."""
    found = values.std(0, correction=0)
    return torch.where(found > 1e-12 * values.abs().amax(0), found, 1.0)


def _perceptron(sizes: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
