"""The learners of the optimizer family: each names its optimizer, how it is started, and what it needs of the loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from posterity.batches import Batch, Batches
from posterity.errors import Undefined, expected, require, require_positive, require_whole
from posterity.inputs import Inputs, call
from posterity.learning.learners._base import Learner, Prior, TrainingPlan, as_prior
from posterity.learning.starts import reinitialised, require_no_statistics
from posterity.likelihoods import Likelihood
from posterity.optim import (
    EVON,
    IVON,
    OGN,
    SAM,
    SOBA,
    STE,
    VOGN,
    BayesBiNN,
    BayesianSAM,
    MixtureIVON,
    Vadam,
    VariationalNewton,
    VariationalOptimizer,
)
from posterity.optim.ivon import usual_start
from posterity.posterior import Posterior
from posterity.trees import Tree, trainable

# What the loop decides itself: it draws, counts steps and places models on devices.
_OURS = {"params", "lr", "seed", "mc_samples", "prior", "weight_decay", "total_steps", "batch_size", "hess_approx"}
_OURS |= {"fused", "noise", "process_group", "torch_options"}


class OptimizerLearner(Learner):
    """One optimizer of `posterity.optim` in the loop; its class there explains the options it takes.

    Args:
        model: The model.
        plan: N, steps, learning rate, seed.
        prior: Precision of N(0, 1/prior); where the optimizer takes one, also a Diagonal or an earlier Posterior.
        ess: Effective sample size, N unless given; larger is colder.
        draws: Draws of the weights for each batch.
        **options: Of the optimizer.
    """

    kind: ClassVar[type[VariationalOptimizer]]
    without: ClassVar[set[str]] = set()  # arguments of the optimizer or of the loop that make no sense here
    optimizer: VariationalOptimizer

    def __init__(
        self,
        model: nn.Module,
        plan: TrainingPlan,
        *,
        prior: Prior = 1.0,
        ess: float | None = None,
        draws: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(model, plan)
        require_whole("draws", draws)
        self.draws = draws
        known, given = self.known(), {"lr": plan.lr, **self.start(plan), **options}
        size = float(plan.n if ess is None else ess)
        require_positive("ess", size)
        given |= {name: value for name, value in (("ess", size), ("seed", plan.seed)) if name in known}
        if "prior" in known:
            given["prior"] = as_prior(model, prior)
        elif "weight_decay" in known:
            if not isinstance(prior, (int, float)):
                raise expected("prior", "a precision, the same for all weights", type(prior).__name__)
            require(0 <= prior < float("inf"), "prior", "a precision >= 0", prior)
            given["weight_decay"] = prior / size
        self.optimizer = self.make(given)

    def make(self, given: dict[str, Any]) -> VariationalOptimizer:
        """The optimizer."""
        make: Callable[..., VariationalOptimizer] = self.kind
        return make(trainable(self.model).items(), **given)

    def start(self, plan: TrainingPlan) -> dict[str, Any]:
        """Options for users who do not choose them."""
        return {}

    @classmethod
    def known(cls) -> list[str]:
        """Arguments of the optimizer that make sense here."""
        return [name for name in inspect.signature(cls.kind).parameters if name not in cls.without]

    @classmethod
    def options(cls) -> list[str]:
        """Those of the loop that the optimizer has a use for, and the optimizer's own."""
        known, uses = cls.known(), {"ess": {"ess"}, "prior": {"prior", "weight_decay"}}
        unused = cls.without | {name for name, any_of in uses.items() if any_of.isdisjoint(known)}
        loop = [p.name for p in inspect.signature(OptimizerLearner).parameters.values() if p.kind is p.KEYWORD_ONLY]
        names = dict.fromkeys([*super().options(), *loop, *(name for name in known if name not in _OURS)])
        return [name for name in names if name not in unused]

    def draw(self, step: int, sample: int) -> AbstractContextManager[object]:
        return self.optimizer.sampled_params(train=True)

    def figures(self) -> dict[str, float]:
        try:
            return {"sigma": self.optimizer.diagnostics().sigma[1]}
        except Undefined:
            return {}

    def posterior(self, likelihood: Likelihood, data: Batches) -> Posterior:
        found = self.optimizer.posterior(self.model, likelihood=likelihood, n=self.plan.n)
        self.prior = found.prior
        return self.hand_over(found.structure, likelihood, found.ess)


class IVONLikeLearner(OptimizerLearner):
    """Optimizers whose Hessian starts and is averaged as IVON's is: see `IVONLearner`."""

    default_lr = 0.2
    default_clip = 10.0

    def start(self, plan: TrainingPlan) -> dict[str, Any]:
        return usual_start(plan.n, plan.steps)


class EVONLearner(IVONLikeLearner):
    """`EVON`."""

    kind = EVON


class ImprovedRuleLearner(OptimizerLearner):
    """Optimizers that are the improved rule itself, in Newton steps of length `lr`."""

    default_lr = 0.5
    default_clip = 10.0

    def start(self, plan: TrainingPlan) -> dict[str, Any]:
        return {"hess_init": 1.0, "rho": 2 / max(plan.steps, 4)}


class SOBALearner(ImprovedRuleLearner):
    """`SOBA`."""

    kind = SOBA


class VariationalNewtonLearner(ImprovedRuleLearner):
    """`VariationalNewton`: a matrix over all weights, of which there may be a few thousand."""

    kind = VariationalNewton


class VadamLearner(OptimizerLearner):
    """`Vadam`."""

    kind = Vadam
    default_lr = 1e-2

    def start(self, plan: TrainingPlan) -> dict[str, Any]:
        return {"hess_init": 1.0, "betas": (0.9, 1 - 2 / max(plan.steps, 4))}


class VOGNLearner(OptimizerLearner):
    """`VOGN`, whose squared gradients of single examples come from its own backward pass over the plain loss."""

    kind = VOGN
    default_lr = 0.05
    without: ClassVar[set[str]] = {"draws"}
    refused = ("accumulate", "amp", "class_weights", "label_smoothing", "ignore_index", "penalty")

    def start(self, plan: TrainingPlan) -> dict[str, Any]:
        return {"hess_init": 0.1, "betas": (0.9, 1 - 5 / max(plan.steps, 10)), "damping": 1e-3}

    def backward(self, loss: Tensor, batch: Batch, likelihood: Likelihood) -> None:
        assert isinstance(self.optimizer, VOGN)
        self.optimizer.backward(self.model, batch.inputs, batch.targets, likelihood)


class OGNLearner(VOGNLearner):
    """`OGN`."""

    kind = OGN


class BayesianSAMLearner(OptimizerLearner):
    """`BayesianSAM`: two passes for each batch, the second uphill of the mean."""

    kind: ClassVar[type[VariationalOptimizer]] = BayesianSAM
    default_lr = 0.3
    averages = True

    def start(self, plan: TrainingPlan) -> dict[str, Any]:
        return {"betas": (0.9, 1 - 5 / max(plan.steps, 10))}

    def passes(self, step: int, sample: int, scaler: GradScaler) -> Iterator[AbstractContextManager[object]]:
        assert isinstance(self.optimizer, BayesianSAM | SAM)
        yield self.optimizer.sampled_params(train=True)
        yield self.optimizer.perturbed_params(scaler if scaler.is_enabled() else None)


class SAMLearner(BayesianSAMLearner):
    """`SAM`, which leaves a point; its learning rate is divided by the noise precision of a regression, as SGD's is."""

    kind = SAM
    default_lr = 0.05
    noise_from_folds = False  # its steps follow the noise as it is learnt
    without: ClassVar[set[str]] = {"draws"}

    def start(self, plan: TrainingPlan) -> dict[str, Any]:
        return {}

    def scale(self, likelihood: Likelihood) -> float:
        return 1 / likelihood.noise_precision if self.plan.learns_noise and likelihood.noise_precision else 1.0


class BayesBiNNLearner(OptimizerLearner):
    """`BayesBiNN`: every weight is a sign, so biases and scales of normalisation layers have no place."""

    kind: ClassVar[type[VariationalOptimizer]] = BayesBiNN
    default_lr = 1e-2
    without: ClassVar[set[str]] = {"prior"}
    mixes = False

    def __init__(self, model: nn.Module, plan: TrainingPlan, **options: Any) -> None:
        vectors = [name for name, p in trainable(model).items() if p.ndim < 2]
        if vectors:
            raise expected("model", "weight matrices alone, for weights of ±1: no biases or scales", vectors[0])
        super().__init__(model, plan, **options)


class STELearner(BayesBiNNLearner):
    """`STE`, which leaves a point of signs."""

    kind = STE
    default_lr = 1e-3
    without: ClassVar[set[str]] = {"draws"}
    mixes = True


class MixtureIVONLearner(IVONLikeLearner):
    """`MixtureIVON`: copies of the model with weights of their own, trained jointly as one mixture.

    Args:
        model: The first member.
        plan: N, steps, learning rate, seed.
        members: How many.
        **options: As for IVON.
    """

    kind = MixtureIVON
    mixes = False
    refused = ("penalty",)  # a function of one model, where there are several

    def __init__(self, model: nn.Module, plan: TrainingPlan, *, members: int = 3, **options: Any) -> None:
        require_whole("members", members)
        require_no_statistics(model)
        self.members = [model, *(reinitialised(model, plan.seed, k) for k in range(1, members))]
        super().__init__(model, plan, **options)

    @classmethod
    def known(cls) -> list[str]:
        return [name for name in inspect.signature(IVON).parameters if name != "prior"]

    def make(self, given: dict[str, Any]) -> VariationalOptimizer:
        return MixtureIVON(self.members, **given)

    def forwards(self) -> Sequence[Callable[[Inputs], Tensor]]:
        return [partial(call, member.train(self.model.training)) for member in self.members]

    def penalty(self) -> Tensor:
        assert isinstance(self.optimizer, MixtureIVON)
        return self.optimizer.repulsion()

    def state(self) -> Tree:
        return {f"{k}.{n}": p for k, member in enumerate(self.members[1:]) for n, p in trainable(member).items()}

    @torch.no_grad()
    def load(self, state: Tree) -> None:
        for name, p in self.state().items():
            p.copy_(state[name])

    def leave(self, posterior: Posterior) -> None:
        """The first member is where it is: the average of all would be the weights of none."""
