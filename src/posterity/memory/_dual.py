"""The Bayes-dual of a trained model: residual, curvature and prediction variance of every example."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from posterity.batches import Batch
from posterity.curvature import prediction_covariance, pushforward
from posterity.distributed import gather
from posterity.likelihoods import Likelihood
from posterity.memory.dual_models import DualGaussianProcess, DualLinearModel, gaussian_process, linear_model
from posterity.memory.ids import unique
from posterity.memory.reliability import largest_leverage
from posterity.posterior import FittedModel, Posterior


@dataclass(frozen=True, eq=False, repr=False)
class Dual:
    """A posterior in terms of the examples that made it.

    For example i with outputs f_i, J_i = ∂f_i/∂θ at the posterior mean θ* and the untempered covariance Σ:

        e_i = ∂ℓ_i/∂f,    Λ_i = ∂²ℓ_i/∂f²,    V_i = J_i Σ J_iᵀ

    Args:
        trained: Model, posterior and data.
        ids: Stable ids (N,).
        targets: Targets, one row for each example.
        outputs: f (N, K), in float64.
        variance: V (N, K, K), in float64.
    """

    trained: FittedModel
    ids: Tensor
    targets: Tensor
    outputs: Tensor
    variance: Tensor

    @classmethod
    def of(cls, trained: FittedModel, batch: Batch) -> Dual:
        """The dual of one batch, with the model already at the posterior mean."""
        f = trained.outputs(batch.inputs)
        y = trained.targets(f, batch.targets)
        variance = prediction_covariance(trained.model, batch.inputs, trained.covariance)
        y = y.double() if y.is_floating_point() else y
        return cls(trained, batch.ids.cpu(), y, f.double(), variance.double())

    def __repr__(self) -> str:
        return f"Dual({len(self)} examples, {self.outputs.shape[1]} outputs, {self.trained.posterior.structure})"

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def likelihood(self) -> Likelihood:
        """What the outputs mean."""
        return self.trained.likelihood

    @cached_property
    def residual(self) -> Tensor:
        """e (N, K), the first derivative of each loss in the outputs: prediction error."""
        return self.likelihood.residual(self.outputs, self.targets)

    @cached_property
    def curvature(self) -> Tensor:
        """Λ (N, K, K), the second derivative of each loss in the outputs."""
        return self.likelihood.curvature(self.outputs)

    @cached_property
    def leverage(self) -> Tensor:
        """sqrt(Σ_k max((VΛ)_kk, 0)²), (N,): how much an example decides about its own outputs."""
        return (self.variance @ self.curvature).diagonal(dim1=-2, dim2=-1).clamp_min(0).norm(dim=-1)

    @cached_property
    def max_leverage(self) -> Tensor:
        """The largest eigenvalue of VΛ, (N,); below one wherever the covariance contains the example."""
        return largest_leverage(self.variance, self.likelihood.curvature_root(self.outputs))

    @cached_property
    def effective_parameters(self) -> Tensor:
        """tr(VΛ), (N,): each example's share of the effective number of parameters."""
        return (self.variance * self.curvature).sum((-2, -1))

    @cached_property
    def self_influence(self) -> Tensor:
        """eᵀVe, (N,): to first order, how much an example's own loss would rise without it."""
        return torch.einsum("nk,nkl,nl->n", self.residual, self.variance, self.residual)

    @cached_property
    def tangent(self) -> Tensor:
        """J θ* (N, K): the outputs of the dual's linear model at the mean (f itself for linear models)."""
        trained = self.trained
        mean = {name: trained.posterior.mean[name].to(trained.device) for name in trained.covariance.names}
        with trained.at_mean():
            return torch.cat([pushforward(trained.model, b.inputs, mean) for b in trained.batches("dual")]).double()

    @cached_property
    def noise(self) -> Tensor:
        """Λ⁻¹ (N, K, K), the noise of the pseudo-outputs (a pseudo-inverse for classes, whose Λ is singular)."""
        return torch.linalg.pinv(self.curvature, hermitian=True)

    @cached_property
    def pseudo_outputs(self) -> Tensor:
        """ŷ = J θ* − Λ⁻¹e (N, K): regression on them, with noise Λ⁻¹, has the same posterior as the model."""
        return self.tangent - (self.noise @ self.residual.unsqueeze(-1)).squeeze(-1)

    def as_linear_model(self) -> DualLinearModel:
        """Bayesian linear regression on the features J, with the model's own posterior."""
        return linear_model(self.trained, self.tangent, self.residual, self.curvature)

    def as_gp(self) -> DualGaussianProcess:
        """The same as a Gaussian process with kernel J Σ₀ Jᵀ, Σ₀ the covariance of the prior."""
        return gaussian_process(self.trained, self.tangent, self.residual, self.curvature)


def dual(model: nn.Module, posterior: Posterior, data: Any, *, batch_size: int = 256) -> Dual:
    """The dual of a posterior: what each example contributed to it.

    Args:
        model: The network that the posterior belongs to. It is not changed.
        posterior: A Gaussian posterior (diagonal, Kronecker, full or last-layer), from any learner.
        data: The training data, with ids or in a fixed order.
        batch_size: Examples at a time, where `data` is not a loader.

    Returns:
        Residual, curvature, variance, leverage and pseudo-outputs of all examples; `as_linear_model`, `as_gp`.

    Examples:
        >>> from posterity import laplace
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
        >>> model = nn.Linear(1, 1)
        >>> posterior = laplace(model, (x, x), structure="full", prior_precision=1.0, noise_precision=1.0)
        >>> d = dual(model, posterior, (x, x))
        >>> bool(torch.allclose(d.residual.float(), model(x) - x))
        True

    References:
        Khan, Immer, Abedi and Korzepa, "Approximate inference turns deep networks into Gaussian processes", 2019.
    """
    trained = FittedModel.of(model, posterior, data, batch_size)
    with trained.at_mean():
        parts = [Dual.of(trained, batch) for batch in trained.own_batches("dual")]
    names = ("ids", "targets", "outputs", "variance")
    ids, *columns = (gather(torch.cat([getattr(part, name) for part in parts])) for name in names)
    return Dual(trained, unique(ids), *columns)
