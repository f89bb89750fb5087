"""The two models that the dual turns a network into: a linear one on its Jacobian features, and a Gaussian process.

Both are regressions on the pseudo-outputs ŷ = Jθ* − Λ⁻¹e with noise Λ⁻¹. They are written with Λ and Λŷ = ΛJθ* − e,
which exist where Λ has no inverse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.curvature import Covariance, kernel, prediction_covariance, pushforward
from posterity.curvature.covariance import fitted
from posterity.curvature.passes import Pass
from posterity.curvature.prediction import every_output, watch
from posterity.inputs import Inputs, move
from posterity.linalg import cholesky, log_det_psd, solve_psd, symmetrise
from posterity.posterior import Diagonal, FittedModel, Full
from posterity.trees import to_vector


@dataclass(frozen=True, eq=False)
class DualLinearModel:
    """ŷ_i = J_i θ + noise, noise ~ N(0, Λ_i⁻¹), θ ~ prior.

    Args:
        features: J (N, K, P), written out.
        weighted_outputs: Λŷ (N, K).
        noise_precision: Λ (N, K, K).
        prior: The prior at temperature 1.
    """

    features: Tensor
    weighted_outputs: Tensor
    noise_precision: Tensor
    prior: Diagonal

    def posterior(self) -> Full:
        """N(m, P⁻¹) with P = P₀ + Σ JᵀΛJ and P m = P₀m₀ + Σ JᵀΛŷ: the model's own, where training had converged."""
        precision = torch.einsum("nkp,nkl,nlq->pq", self.features, self.noise_precision, self.features)
        linear = torch.einsum("nkp,nk->p", self.features, self.weighted_outputs)
        start, width = _flat(self.prior)
        precision = symmetrise(precision + width.diag())
        mean = solve_psd(cholesky(precision, "precision"), linear + width * start)
        shapes = self.prior.mean
        pieces = mean.split([t.numel() for t in shapes.values()])
        return Full({name: p.reshape(t.shape) for p, (name, t) in zip(pieces, shapes.items())}, precision)

    def log_evidence(self) -> float:
        """log p(ŷ), of regressions with invertible Λ: ½ (log|P₀| − log|P| + Σ log|Λ/2π| − quadratic terms)."""
        posterior = self.posterior()
        start, width = _flat(self.prior)
        mean = to_vector(posterior.mean)
        noise = torch.linalg.cholesky(self.noise_precision)
        outputs = torch.cholesky_solve(self.weighted_outputs.unsqueeze(-1), noise).squeeze(-1)
        error = outputs - self.features @ mean
        quadratic = torch.einsum("nk,nkl,nl->", error, self.noise_precision, error)
        quadratic = quadratic + (width * (mean - start) ** 2).sum()
        determinants = width.log().sum() - posterior.log_det_precision() + log_det_psd(noise).sum()
        return 0.5 * (determinants - quadratic - error.numel() * math.log(2 * math.pi)).item()


@dataclass(frozen=True, eq=False)
class DualGaussianProcess:
    """f ~ GP(J m₀, J Σ₀ Jᵀ), observed as ŷ with noise Λ⁻¹; m₀ and Σ₀ are mean and covariance of the prior.

    Args:
        trained: Model, posterior and data.
        inputs: The training inputs, in batches.
        weights: (I + Λ K)⁻¹ (Λŷ − Λ J m₀), (N·K,): the dual coefficients of the posterior mean.
        noise_precision: Λ (N, K, K).
        gram: The kernel between training examples, (N·K, N·K).
        prior: The prior's covariance at temperature 1.
    """

    trained: FittedModel
    inputs: list[Inputs]
    weights: Tensor
    noise_precision: Tensor
    gram: Tensor
    prior: Covariance

    def mean(self, inputs: Inputs) -> Tensor:
        """Posterior mean at new inputs, (B, K): the linear model's J(x) θ*."""
        with self.trained.at_mean():
            x = move(inputs, self.trained.device)
            start = pushforward(self.trained.model, x, _prior_mean(self.trained)).double()
            return start + (self._cross(x) @ self.weights).view_as(start)

    def covariance(self, inputs: Inputs) -> Tensor:
        """Posterior covariance at each new input, (B, K, K): K(x,x) − K(x,X) (I + ΛK)⁻¹ Λ K(X,x)."""
        with self.trained.at_mean():
            x = move(inputs, self.trained.device)
            own = prediction_covariance(self.trained.model, x, self.prior).double()
            cross = self._cross(x)
        explained = torch.linalg.solve(*_system(self.gram, self.noise_precision, cross.mT))
        blocks = cross.unflatten(0, own.shape[:2]) @ explained.unflatten(1, own.shape[:2]).permute(1, 0, 2)
        return symmetrise(own - blocks)

    def _cross(self, x: Inputs) -> Tensor:
        return torch.cat([_flattened(kernel(self.trained.model, x, z, self.prior)) for z in self.inputs], dim=1)


def linear_model(trained: FittedModel, tangent: Tensor, residual: Tensor, curvature: Tensor) -> DualLinearModel:
    """The dual linear model; features are written out, so this is for small models."""
    features = []
    with trained.at_mean():
        for batch in trained.batches("features"):
            with watch(trained.model, trained.covariance, None) as tape:
                features += [_features(step) for _, step in tape.passes(batch.inputs)]
    weighted = (curvature @ tangent.unsqueeze(-1)).squeeze(-1) - residual
    return DualLinearModel(torch.cat(features), weighted, curvature, _untempered_prior(trained))


def gaussian_process(trained: FittedModel, tangent: Tensor, residual: Tensor, curvature: Tensor) -> DualGaussianProcess:
    """The dual Gaussian process; the kernel of all examples is written out, so this is for small data."""
    prior = fitted(_untempered_prior(trained).covariance(), dict(trained.model.named_parameters()))
    with trained.at_mean():
        inputs = [batch.inputs for batch in trained.batches("inputs")]
        start = torch.cat([pushforward(trained.model, x, _prior_mean(trained)) for x in inputs]).double()
        rows = [torch.cat([_flattened(kernel(trained.model, x, z, prior)) for z in inputs], dim=1) for x in inputs]
    gram = torch.cat(rows)
    observed = (curvature @ (tangent - start).unsqueeze(-1)).squeeze(-1) - residual  # Λ(ŷ − J m₀)
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    weights = torch.linalg.solve(identity + _times(curvature, gram), observed.reshape(-1))
    return DualGaussianProcess(trained, inputs, weights, curvature, gram, prior)


def _features(step: Pass) -> Tensor:
    """Jacobians (n, K, P) of one pass."""
    return torch.cat([rows.transpose(0, 1) for _, rows in step.jacobians(every_output(step.outputs))]).double()


def _flattened(blocks: Tensor) -> Tensor:
    """A kernel (B, B', K, K) as one matrix (B·K, B'·K)."""
    return blocks.double().transpose(1, 2).flatten(2).flatten(0, 1)


def _times(curvature: Tensor, right: Tensor) -> Tensor:
    """Λ M for the block-diagonal Λ and a matrix (N·K, C)."""
    return (curvature @ right.unflatten(0, curvature.shape[:2])).flatten(0, 1)


def _system(gram: Tensor, curvature: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return identity + _times(curvature, gram), _times(curvature, right)


def _untempered_prior(trained: FittedModel) -> Diagonal:
    """The prior of the uncertain parameters, at temperature 1: precision times n/ess."""
    posterior = trained.posterior
    return posterior.prior.restrict(tuple(trained.covariance.names)).times(posterior.temperature)


def _prior_mean(trained: FittedModel) -> dict[str, Tensor]:
    mean = _untempered_prior(trained).mean
    return {name: t.to(trained.device) for name, t in mean.items()}


def _flat(prior: Diagonal) -> tuple[Tensor, Tensor]:
    return to_vector(prior.mean).double(), to_vector(prior.precision_diagonal()).double()
