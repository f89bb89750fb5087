"""The marginal likelihood of a Laplace approximation, and its maximum over prior and noise precisions.

    log Z = log p(D | θ*) + log p(θ*) + (P/2) log 2π − ½ log det(βH + δ)  =  log p(D | θ*) + log p(θ*) − log q(θ*)

With the eigenvalues λ of the curvature H, noise precision β (1 unless the likelihood is Gaussian) and one prior
precision δ_g for each group g of weights, it is a sum over directions,

    log Z(β, δ) = log p_β(D | θ*) − ½ Σ_g [ Σ_i log(1 + βλ_gi/δ_g) + δ_g ‖θ*_g − m_g‖² ],

which is concave in (log β, log δ): det(βH + δ) is a polynomial in β and δ without negative coefficients, so that its
logarithm is a log-sum-exp of linear functions, which is convex. Newton's method therefore finds the one maximum, and
the curvature is computed only once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from posterity.batches import Batches, OwnPart, batches
from posterity.distributed import total
from posterity.errors import InvalidInput, require
from posterity.inputs import call
from posterity.likelihoods import Likelihood
from posterity.posterior import Diagonal, Posterior
from posterity.progress import track
from posterity.trees import evaluating

Curvature = Mapping[str, Tensor] | Mapping[str, tuple[Tensor, ...]] | Tensor


def eigenvalues(curvature: Curvature) -> dict[str, Tensor]:
    """Eigenvalues of each block of a diagonal, Kronecker or full curvature, in float64 (a full one is one block).

    Examples:
        >>> eigenvalues({"w": (torch.diag(torch.tensor([1.0, 2.0])), torch.diag(torch.tensor([3.0, 5.0])))})
        {'w': tensor([ 3.,  5.,  6., 10.], dtype=torch.float64)}
    """
    if isinstance(curvature, Tensor):
        return {"all": _spectrum(curvature)}
    return {name: _block_spectrum(block) for name, block in curvature.items()}


def _block_spectrum(block: Tensor | tuple[Tensor, ...]) -> Tensor:
    if isinstance(block, Tensor):
        return block.reshape(-1).double().cpu()
    values = _spectrum(block[0])
    for factor in block[1:]:
        values = torch.outer(values, _spectrum(factor)).reshape(-1)
    return values


def _spectrum(matrix: Tensor) -> Tensor:
    finite = bool(matrix.isfinite().all())
    require(finite, "curvature", "finite numbers (bring the inputs to a scale of about 1)", "NaN or infinity")
    return torch.linalg.eigvalsh(matrix.double()).clamp_min(0.0).cpu()  # rounding makes the zero ones negative


@dataclass(frozen=True)
class Evidence:
    """log Z as a function of log β and log δ, at fixed weights and curvature.

    Args:
        names: For each group of weights that shares a prior precision, the names of its parameters.
        spectra: For each group, the eigenvalues of its curvature at β = 1.
        distances: For each group, ‖θ*_g − m_g‖², its squared distance from the prior mean.
        loss: −log p(D | θ*) at β = 1.
        observations: How many numbers are observed with noise β; 0 where the likelihood has none.
    """

    names: tuple[tuple[str, ...], ...]
    spectra: tuple[Tensor, ...]
    distances: tuple[float, ...]
    loss: float
    observations: float = 0.0

    @classmethod
    def of(
        cls,
        curvature: Curvature,
        weights: Mapping[str, Tensor],
        *,
        loss: float,
        observations: float = 0.0,
        scale: float = 1.0,
        layerwise: bool = False,
    ) -> Evidence:
        """The evidence under a prior of mean zero, with one precision for all weights or one for each parameter.

        `scale` is N over the number of examples that loss and curvature were summed over.
        """
        spectra = {name: scale * values for name, values in eigenvalues(curvature).items()}
        distances = {name: w.double().square().sum().item() for name, w in weights.items()}
        if not layerwise:
            groups: tuple[tuple[str, ...], ...] = (tuple(weights),)
            spectra = {"all": torch.cat(list(spectra.values()))}
            distances = {"all": sum(distances.values())}
        elif isinstance(curvature, Tensor):
            raise InvalidInput(
                "prior precision: expected one for all weights of a full matrix, got one for each parameter"
            )
        else:
            groups = tuple((name,) for name in weights)
        in_order = tuple(spectra[name] for name in distances)
        return cls(groups, in_order, tuple(distances.values()), scale * loss, scale * observations)

    @property
    def energy(self) -> float:
        """What β multiplies in −log p(D | θ*): half the squared error of a regression."""
        return self.loss - 0.5 * self.observations * math.log(2 * math.pi)

    def __call__(self, log_noise: Tensor, log_prior: Tensor) -> Tensor:
        """log Z, differentiable in log β (a number) and log δ (one for each group)."""
        noise = log_noise.exp()
        value = 0.5 * self.observations * (log_noise - math.log(2 * math.pi)) - noise * self.energy
        for spectrum, distance, delta in zip(self.spectra, self.distances, log_prior.exp(), strict=True):
            value = value - 0.5 * (torch.log1p(noise * spectrum / delta).sum() + delta * distance)
        return value

    def derivatives(self, log_noise: Tensor, log_prior: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient and Hessian of log Z in (log β, log δ).

        With γ_i = βλ_i / (βλ_i + δ), how far the data rather than the prior determine direction i, and M numbers
        observed with energy E,

            ∂/∂log δ_g = ½(Σγ_g − δ_g‖θ*_g − m_g‖²),    ∂/∂log β = ½M − βE − ½Σγ.
        """
        noise, prior = log_noise.exp(), log_prior.exp()
        determined = [noise * s / (noise * s + d) for s, d in zip(self.spectra, prior, strict=True)]
        gamma = torch.stack([g.sum() for g in determined])
        spread = torch.stack([(g * (1 - g)).sum() for g in determined])
        pull = prior * prior.new_tensor(self.distances)
        in_noise = 0.5 * self.observations - noise * self.energy - 0.5 * gamma.sum()
        gradient = torch.cat([in_noise.reshape(1), 0.5 * (gamma - pull)])
        hessian = torch.diag(-0.5 * torch.cat([(2 * noise * self.energy + spread.sum()).reshape(1), spread + pull]))
        hessian[0, 1:] = hessian[1:, 0] = 0.5 * spread
        return gradient, hessian

    def maximise(self, noise: float | None, prior: Mapping[str, float] | None) -> tuple[float, dict[str, float]]:
        """The β and δ of the largest evidence, by Newton's method with step halving.

        Args:
            noise: β to hold fixed, or None to learn it.
            prior: δ of each parameter to hold fixed, or None to learn them.

        Returns:
            β and the δ of each parameter, those held fixed included.
        """
        self._require_maximum(noise is None, prior is None)
        free = torch.tensor([noise is None] + [prior is None] * len(self.names))
        if noise is None:
            noise = 0.5 * self.observations / self.energy
        # γ never exceeds the number of weights, so that the search for δ = γ/‖θ − m‖² starts from above.
        deltas = (
            [len(s) / d for s, d in zip(self.spectra, self.distances, strict=True)]
            if prior is None
            else [prior[group[0]] for group in self.names]
        )
        x = torch.tensor([noise, *deltas], dtype=torch.float64).log()
        for _ in range(200):
            gradient, hessian = self.derivatives(x[0], x[1:])
            step = torch.zeros_like(x)
            step[free] = torch.linalg.solve(-hessian[free][:, free], gradient[free])
            step = step / max(1.0, step.abs().max().item() / 3.0)
            x = self._ascend(x, step)
            if step.abs().max() < 1e-9:
                beta, *found = x.exp().tolist()
                return beta, {name: d for group, d in zip(self.names, found, strict=True) for name in group}
        raise InvalidInput("marginal likelihood: expected a maximum within 200 Newton steps, got none")

    def _ascend(self, x: Tensor, step: Tensor) -> Tensor:
        """The point reached by the step, halved until the evidence does not fall by more than rounding."""
        here = self(x[0], x[1:])
        for _ in range(40):
            reached = x + step
            if self(reached[0], reached[1:]) >= here - 1e-12 * here.abs():
                return reached
            step = 0.5 * step
        return x

    def _require_maximum(self, noise: bool, prior: bool) -> None:
        """Raise where the evidence grows for ever: a perfect fit, weights at the prior mean, no curvature at all."""
        if noise and not self.energy > 0:
            raise InvalidInput("noise precision: expected residuals to learn it from, got a perfect fit")
        for group, spectrum, distance in zip(self.names, self.spectra, self.distances, strict=True) if prior else ():
            if not (distance > 0 and spectrum.max() > 0):
                got = "weights at the prior mean" if not distance > 0 else "no curvature at all"
                raise InvalidInput(f"prior precision of {group}: expected weights that the data determine, got {got}")


class Total(NamedTuple):
    """−log p(D | θ), with the numbers of outputs and of examples that it was summed over."""

    loss: float
    outputs: int
    examples: int


@torch.no_grad()
def total_loss(model: Callable[..., Any], data: Batches, likelihood: Likelihood, device: torch.device) -> Total:
    """The loss of all data; outputs and targets that cannot be right raise."""
    loss, outputs, examples = 0.0, 0, 0
    for batch in track(OwnPart(data), "likelihood"):
        batch = batch.to(device)
        f = call(model, batch.inputs).double()
        require(bool(torch.isfinite(f).all()), "model outputs", "finite numbers", "NaN or infinity")
        likelihood.check(f, batch.targets)
        loss += likelihood.loss(f, batch.targets).sum().item()
        outputs += f.numel()
        examples += len(batch)
    loss, outputs, examples = total(torch.tensor([loss, outputs, examples], dtype=torch.float64)).tolist()
    return Total(loss, int(outputs), int(examples))


def log_marginal_likelihood(model: nn.Module, posterior: Posterior, data: Any, *, batch_size: int = 256) -> float:
    """The Laplace estimate of log p(D), from a Gaussian posterior at a mode and the data it was trained on.

        log Z = log p(D | θ*) + log p(θ*) − log q(θ*)

    Prior and posterior are those at temperature 1, whatever the temperature of the posterior is.

    Args:
        model: The model; the weights are the posterior's mean, not the model's present ones.
        posterior: A Gaussian posterior with a proper prior, as `laplace` gives it.
        data: The training data, or a sample of them, for which the posterior's n makes up.
        batch_size: Examples at a time, where `data` is not a loader.

    Returns:
        log Z in nats.

    Examples:
        >>> from posterity.learning._laplace import laplace
        >>> x = torch.linspace(-1, 1, 8).unsqueeze(-1)
        >>> model = nn.Linear(1, 1, bias=False)
        >>> model.weight.data.fill_(1.0)
        tensor([[1.]])
        >>> fits = {d: laplace(model, (x, x), prior_precision=d, noise_precision=4.0) for d in (0.01, 1.0, 100.0)}
        >>> max(fits, key=lambda d: log_marginal_likelihood(model, fits[d], (x, x)))
        1.0
    """
    posterior.check(model)
    stream = batches(data, batch_size=batch_size)
    device = next(model.parameters()).device
    state = {name: t.to(device) for name, t in (posterior.mean | posterior.buffers).items()}

    def at_mean(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(model, state, args, kwargs)

    with evaluating(model):
        total = total_loss(at_mean, stream, posterior.likelihood, device)
    theta = {name: posterior.mean[name] for name in posterior.prior.names}
    t, prior = posterior.temperature, posterior.prior
    plain = Diagonal(prior.mean, {name: t * p for name, p in prior.precision.items()})
    log_q = posterior.log_prob(posterior.mean) + 0.5 * math.log(t) * sum(m.numel() for m in theta.values())
    log_ratio = plain.log_prob(theta) - log_q
    return log_ratio.item() - total.loss * posterior.n / total.examples
