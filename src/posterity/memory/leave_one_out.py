"""Leave-one-out: every example predicted by the model that never saw it, without retraining."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posterity import metrics
from posterity.distributed import gather, largest, total
from posterity.errors import Undefined
from posterity.likelihoods import Likelihood
from posterity.memory._dual import Dual
from posterity.memory.ids import unique
from posterity.memory.perturbation import Deflate, change_of_outputs, change_of_variance, whether_to_deflate
from posterity.memory.reliability import Reliability
from posterity.posterior import FittedModel, Posterior


@dataclass(frozen=True, eq=False, repr=False)
class LeaveOneOut:
    """The prediction of each example by a model trained without it.

    Args:
        ids: Stable ids (N,).
        targets: Targets, one row for each example.
        outputs: f without the example, (N, K).
        variance: V without the example, (N, K, K).
        likelihood: What the outputs mean.
        reliability: How far to trust the numbers.
    """

    ids: Tensor
    targets: Tensor
    outputs: Tensor
    variance: Tensor
    likelihood: Likelihood
    reliability: Reliability

    def __repr__(self) -> str:
        return f"LeaveOneOut({len(self.ids)} examples, nll={self.nll.mean().item():.4g}, {self.reliability})"

    @property
    def nll(self) -> Tensor:
        """Negative log-likelihood of each target at the outputs without its example, (N,).

        Its mean predicts the NLL on test data, without a validation set.
        """
        return self.likelihood.loss(self.outputs, self.targets)

    @property
    def predictive_nll(self) -> Tensor:
        """The same under the whole posterior of a regression, N(f, 1/precision + V) without the example, (N,)."""
        if self.likelihood.noise_precision is None:
            raise Undefined(f"predictive_nll: not defined in closed form for a {self.likelihood.name} likelihood")
        k = self.outputs.shape[1]
        total = self.variance + torch.eye(k).to(self.variance) / self.likelihood.noise_precision
        factor = torch.linalg.cholesky(total)
        white = torch.linalg.solve_triangular(factor, (self.targets - self.outputs).unsqueeze(-1), upper=False)
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return 0.5 * white.square().sum((-2, -1)) + log_det + 0.5 * k * math.log(2 * math.pi)

    @property
    def predictions(self) -> Tensor:
        """Expected targets without the example: probabilities, means or rates, (N, K)."""
        return self.likelihood.mean(self.outputs)

    @property
    def error(self) -> Tensor:
        """1 where the predicted class is not the label; ‖mean − y‖₂ of other targets, (N,)."""
        return wrongness(self.likelihood, self.outputs, self.targets)

    @property
    def calibration(self) -> float:
        """Expected calibration error of the leave-one-out class probabilities."""
        if not self.likelihood.is_classification:
            raise self.likelihood.undefined("calibration")
        return metrics.ece(self.predictions, self.likelihood.labels(self.targets))


def leave_one_out(
    model: nn.Module, posterior: Posterior, data: Any, *, deflate: Deflate = "auto", batch_size: int = 256
) -> LeaveOneOut:
    """Leave-one-out predictions of all training examples, in about the time of an epoch.

    Args:
        model: The network that the posterior belongs to. It is not changed.
        posterior: A Gaussian posterior, from any learner.
        data: The training data, with ids or in a fixed order.
        deflate: Take each example's curvature out of the covariance (exact for linear models); "auto" does so only
            where the covariance contains it.
        batch_size: Examples at a time, where `data` is not a loader.

    Returns:
        NLL, error and calibration without each example.

    Examples:
        >>> from posterity import laplace
        >>> x, y = torch.randn(30, 2), torch.randint(0, 2, (30,))
        >>> model = nn.Linear(2, 2)
        >>> leave_one_out(model, laplace(model, (x, y), prior_precision=1.0), (x, y)).nll.shape
        torch.Size([30])
    """
    trained = FittedModel.of(model, posterior, data, batch_size)
    with trained.at_mean():
        parts = [without_itself(Dual.of(trained, batch), deflate) for batch in trained.own_batches("leave one out")]
    joined = _joined(trained, parts)
    unique(joined.ids)
    return joined


def without_itself(dual: Dual, deflate: Deflate = "auto") -> LeaveOneOut:
    """Leave-one-out from a given dual."""
    posterior = dual.trained.posterior
    deflating = whether_to_deflate(deflate, posterior)
    v, curvature = dual.variance, dual.curvature
    outputs = dual.outputs + change_of_outputs(v, curvature, dual.residual, deflate=deflating)
    variance = change_of_variance(v, curvature, deflate=deflating)
    leverage, dimension = dual.max_leverage.max().item(), dual.effective_parameters.sum().item()
    verdict = Reliability.of(posterior, leverage, dimension, deflating)
    return LeaveOneOut(dual.ids, dual.targets, outputs, variance, dual.likelihood, verdict)


def wrongness(likelihood: Likelihood, f: Tensor, y: Tensor) -> Tensor:
    """1 where a class is wrong, ‖mean − y‖₂ of other targets, (N,)."""
    if likelihood.has_class_axis:
        return (likelihood.predicted(f) != likelihood.labels(y)).double()
    return (likelihood.mean(f) - y).norm(dim=-1)


def _joined(trained: FittedModel, parts: list[LeaveOneOut]) -> LeaveOneOut:
    columns = zip(*((p.ids, p.targets, p.outputs, p.variance) for p in parts))
    ids, y, f, v = (gather(torch.cat(column)) for column in columns)
    leverage = largest(max(p.reliability.max_leverage for p in parts))
    dimensions = torch.tensor([p.reliability.effective_dimension for p in parts], dtype=torch.float64)
    dimension = total(dimensions.sum()).item()
    verdict = Reliability.of(trained.posterior, leverage, dimension, parts[0].reliability.deflated)
    return LeaveOneOut(ids, y, f, v, trained.likelihood, verdict)
