"""Quadratic penalties on the weights: EWC, online EWC and every Gaussian that becomes a prior.

½ (θ − θ*)ᵀ P (θ − θ*),   P = δI + Σ_s H_s

H is the Fisher information or Gauss-Newton matrix, summed over examples each squared on its own; it does not depend on
batch sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor, nn

from posterity.adaptation.penalties.penalty import Penalty, Sum
from posterity.batches import batches
from posterity.curvature import diagonal_fisher, full_ggn
from posterity.errors import require
from posterity.likelihoods import Likelihood
from posterity.posterior import Diagonal, Full, GaussianStructure, Posterior, Structure
from posterity.trees import Tree, evaluating, snapshot


@dataclass(frozen=True, eq=False)
class Quadratic(Penalty):
    """½ (θ − θ*)ᵀ P (θ − θ*), minus the log-density of a Gaussian up to a constant.

    Args:
        gaussian: N(θ*, P⁻¹) over some or all parameters.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> anchor = Diagonal({"weight": model.weight + 1.0}, {"weight": torch.tensor(4.0)})
        >>> round(Quadratic(anchor).total(model).item(), 4)  # ½ · 4 · (1 + 1)
        4.0
    """

    gaussian: GaussianStructure

    def total(self, model: nn.Module) -> Tensor:
        there = dict(model.named_parameters())
        moved = {name: there[name] - m.to(there[name]) for name, m in self.gaussian.mean.items()}
        return 0.5 * self.gaussian.quadratic(moved)


@dataclass(frozen=True, eq=False)
class Slope(Penalty):
    """The linear penalty ⟨b, θ⟩.

    Args:
        slope: b, a tensor for some or all parameters.
    """

    slope: Tree

    def total(self, model: nn.Module) -> Tensor:
        there = dict(model.named_parameters())
        terms = [(b.to(there[name]) * there[name]).double().sum() for name, b in self.slope.items()]
        return torch.stack(terms).sum() if terms else next(model.parameters()).new_zeros(())


@dataclass(frozen=True, eq=False)
class TiltedQuadratic(Penalty):
    """½ (θ − c)ᵀ A (θ − c) + ⟨b, θ − c⟩ with a diagonal A: quadratics and slopes in one pass over the weights.

    Args:
        centre: c, for some or all parameters.
        curvature: A, a tensor or a number for each of them.
        slope: b, a tensor for each of them.
    """

    centre: Tree
    curvature: Tree
    slope: Tree

    @classmethod
    def of(cls, rest: Diagonal, pull: Tree, prior: Diagonal, scale: float, like: Mapping[str, Tensor]) -> Self:
        """R around θ*, the pull g of the data there, and the prior: A = R + τP₀, c = θ*, b = g + τP₀(θ* − m₀).

        Where θ* lacks a parameter, c = m₀. A constant is left out.
        """
        known = rest.precision_diagonal()
        centre, curvature, slope = {}, {}, {}
        for name, m in prior.mean.items():
            p = like[name].detach()
            width = scale * prior.precision[name].to(p)
            centre[name] = (rest.mean[name] if name in known else m).to(p)
            curvature[name] = width + known[name].to(p) if name in known else width
            slope[name] = width * (centre[name] - m.to(p))
            if name in pull:
                slope[name] = slope[name] + pull[name].to(p)
        return cls(centre, curvature, slope)

    def total(self, model: nn.Module) -> Tensor:
        there = dict(model.named_parameters())
        terms = []
        for name, c in self.centre.items():
            d = there[name] - c
            terms.append(((0.5 * self.curvature[name] * d + self.slope[name]) * d).sum())
        return torch.stack(terms).sum()


def ewc(posteriors: Posterior | Iterable[Posterior]) -> Sum:
    """Elastic weight consolidation: the posterior of each old task as a quadratic around its own weights.

    For one posterior, which has met all earlier data, this is the online form with a single anchor. Posteriors count
    untempered, P · n/ess.

    Args:
        posteriors: Gaussian posteriors, of `po.laplace`, of IVON, or from `accumulate`.

    References:
        Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", 2017.
    """
    each = list(posteriors) if isinstance(posteriors, Iterable) else [posteriors]
    for p in each:
        require(isinstance(p, Posterior), "posteriors", "a Posterior, or several", type(p).__name__)
    return Sum(tuple((p.temperature, Quadratic(gaussian_of(p.structure))) for p in each))


def accumulate(
    prior: Diagonal | Full,
    model: nn.Module,
    data: Any,
    likelihood: str | Likelihood,
    *,
    decay: float = 1.0,
    kind: str = "true",
) -> Diagonal | Full:
    """Online EWC, which is sequential Laplace: the next anchor, with the curvature of one more task.

        θ* ← θ,    P ← γ P + H(θ)

    Args:
        prior: The anchor so far: the prior before the first task, then what this function returned.
        model: The model after training on the task.
        data: The task's data.
        likelihood: What the outputs mean.
        decay: γ; with 1 nothing is forgotten.
        kind: "true", "sampled" or "empirical" Fisher for a diagonal P; a full P uses the Gauss-Newton matrix.

    Returns:
        A Gaussian of the structure of `prior`, around the model's weights.

    References:
        Schwarz et al., "Progress and compress: a scalable framework for continual learning", 2018.
    """
    require(isinstance(prior, Diagonal | Full), "prior", "a Diagonal or a Full", type(prior).__name__)
    require(isinstance(decay, Real) and 0 <= decay <= 1, "decay", "a number in [0, 1]", decay)
    there = dict(model.named_parameters())
    mean = snapshot({name: there[name] for name in prior.names})
    with evaluating(model):
        if isinstance(prior, Full):
            curvature = full_ggn(model, batches(data), likelihood, list(prior.names))
            return Full(mean, decay * prior.precision + curvature.to(prior.precision))
        fisher = diagonal_fisher(model, batches(data), likelihood, kind)
    return Diagonal(mean, {name: decay * p + fisher[name] for name, p in prior.precision_diagonal().items()})


def gaussian_of(structure: Structure) -> GaussianStructure:
    """The Gaussian over what is uncertain: the structure itself, or that of its last layer."""
    return structure.gaussian


def product(gaussian: GaussianStructure, tree: Tree) -> Tree:
    """P x for a tree x shaped as the mean."""
    return gaussian.precision_times(tree)
