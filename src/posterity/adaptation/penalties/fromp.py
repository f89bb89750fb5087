"""FROMP: functional regularisation of the memorable past, by a Gaussian process on the probabilities of a memory.

½ Σ_s Σ_c (p_c − p*_c)ᵀ K_{s,c}⁻¹ (p_c − p*_c),    K_{s,c} = J_{p_c} Σ J_{p_c}ᵀ + εI,    J_{p_c} = (∂p_c/∂f) J

p_c are the probabilities of class c at the memory of task s and J the Jacobian at the old weights. Kernel and old
probabilities of all tasks are made anew, with the newest weights and covariance, before each task.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from posterity.adaptation.penalties.penalty import Penalty
from posterity.curvature import Covariance, kernel
from posterity.curvature.covariance import fitted
from posterity.errors import expected, require
from posterity.inputs import Inputs, call, concatenate, move, over_tensors
from posterity.likelihoods import Likelihood
from posterity.posterior import Memory, Posterior
from posterity.trees import evaluating


@dataclass(frozen=True, eq=False)
class FROMP(Penalty):
    """The functional prior over the memories of all tasks so far.

    Args:
        inputs: The memories, one after the other.
        old: Old predictions h(f*) at them (ΣM, C).
        roots: W with W Wᵀ = K⁻¹ of each task, those of neighbours with equally many examples as one stack (T, C, M, M);
            None for the identity.
        likelihood: What the outputs mean.
    """

    inputs: Inputs
    old: Tensor
    roots: tuple[Tensor, ...] | None
    likelihood: Likelihood

    def total(self, model: nn.Module) -> Tensor:
        with evaluating(model), _full_precision(self.old.device):
            moved = self.likelihood.mean(call(model, self.inputs)) - self.old
            if self.roots is None:
                return 0.5 * moved.square().sum()
            terms = []
            for part, w in zip(moved.split([len(w) * w.shape[2] for w in self.roots]), self.roots):
                columns = part.view(len(w), w.shape[2], -1).mT  # (T, C, M)
                terms.append((columns.unsqueeze(2) @ w).square().sum())
            return 0.5 * torch.stack(terms).sum()


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Neither autocast nor TF32: K⁻¹ multiplies what they round off by up to 1/ε."""
    settings = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)  # type: ignore[attr-defined]
    before = [s.fp32_precision for s in settings]
    try:
        for s in settings:
            s.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for s, precision in zip(settings, before, strict=True):
            s.fp32_precision = precision


def fromp(
    model: nn.Module,
    memories: Sequence[Memory],
    posterior: Posterior,
    *,
    jitter: float = 1e-5,
    kernels: str = "posterior",
) -> FROMP:
    """The functional prior of a model that is about to learn another task.

    The published objective, mean cross-entropy / τ plus this total, is `(τ · n) * fromp(...)` beside a mean over n.
    With memories chosen at random it is known as FRORP.

    Args:
        model: The model at the posterior mean.
        memories: A memory for each task so far; their weights play no part, the kernel weighs them.
        posterior: The posterior after all tasks so far; its covariance counts untempered.
        jitter: ε; with 0 a singular kernel is inverted on its range. An example whose probabilities saturate has
            hardly any kernel and weighs up to 1/ε: where a network fits all it has seen, choose a larger one.
        kernels: "posterior", or "identity" for the L2 variants.

    References:
        Pan et al., "Continual deep learning by functional regularisation of memorable past", 2020.
    """
    require(jitter >= 0, "jitter", "a number >= 0", jitter)
    require(not isinstance(memories, Memory), "memories", "a list, one for each task so far", "a Memory")
    require(len(memories) > 0, "memories", "one for each task so far", "none")
    if kernels not in ("posterior", "identity"):
        raise expected("kernels", "'posterior' or 'identity'", kernels)
    posterior.check(model)
    likelihood, p = posterior.likelihood, next(model.parameters())
    inputs = [move(memory.inputs, p.device) for memory in memories]
    # Variances span ten orders of magnitude: in single precision the small eigenvalues of K would be rounding.
    exact = copy.deepcopy(model).double().eval()
    covariance = None
    if kernels == "posterior":
        covariance = fitted(posterior.covariance(untempered=True), dict(exact.named_parameters()))
    found = [_remembered(exact, x, likelihood, covariance, jitter) for x in inputs]
    old = torch.cat([h for h, _ in found]).to(p.dtype)
    alike = groupby((w.to(p.dtype) for _, w in found if w is not None), key=Tensor.size)
    roots = None if covariance is None else tuple(torch.stack(list(run)) for _, run in alike)
    return FROMP(concatenate(inputs), old, roots, likelihood)


def _remembered(
    model: nn.Module, inputs: Inputs, likelihood: Likelihood, covariance: Covariance | None, jitter: float
) -> tuple[Tensor, Tensor | None]:
    """Predictions (M, C) at the memory of one task, and the roots of its kernels (C, M, M)."""
    x = over_tensors(lambda t: t.double() if t.is_floating_point() else t, inputs)
    with torch.no_grad():
        f = call(model, x)
    if covariance is None:
        return likelihood.mean(f), None
    slope = _mean_slope(likelihood, f)
    k = torch.einsum("nck,nmkl,mcl->cnm", slope, kernel(model, x, x, covariance), slope)
    return likelihood.mean(f), _inverse_roots(k + jitter * torch.eye(len(f)).to(k))


def _mean_slope(likelihood: Likelihood, f: Tensor) -> Tensor:
    """∂h/∂f (M, C, K): the curvature of the loss, in units where the noise of a regression is one."""
    return likelihood.curvature(f) / (likelihood.noise_precision or 1.0)


def _inverse_roots(k: Tensor) -> Tensor:
    """W (C, M, M) with W Wᵀ = K⁻¹ on the range of K."""
    values, vectors = torch.linalg.eigh(k)
    cutoff = values[:, -1:] * k.shape[-1] * torch.finfo(k.dtype).eps
    scale = torch.where(values > cutoff, values.clamp_min(1e-300).rsqrt(), 0.0)
    return vectors * scale.unsqueeze(1)
