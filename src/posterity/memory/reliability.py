"""How far an estimate about memory can be trusted, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posterity.memory.perturbation import contains_examples
from posterity.posterior import Kronecker, Posterior, Rotated

DEFLATED_LIMIT = 0.8  # leverage beyond which one Newton step is no longer close to retraining
FIRST_ORDER_LIMIT = 0.2  # the relative error of the first order is the leverage itself
# A step holds the curvature fixed, which leverage does not see: new labels lose none of it, and yet outputs move. With
# softmax regression on digits the step is 14 % short of retraining at 2 % of the labels, and a third at 10 %.
SHARE_LIMIT = 0.02
# Where the step was checked on the data: shares of the gradient that may be left for sizes, and for directions.
REST_LIMIT, DIRECTION_LIMIT = 1e-5, 1e-3
# Where outputs do not follow the change of the weights linearly, the checked step may have led to another optimum than
# retraining finds. Changes that are this many standard errors of their mean, over the examples asked about, are the
# same in both. Chosen on digits and MNIST.
BEND_LIMIT, CLEAR = 0.3, 1.5
NO_RANKS = "a diagonal covariance cannot estimate the effect of a group of examples"


@dataclass(frozen=True)
class Reliability:
    """What decides how good an estimate is.

    Args:
        max_leverage: Largest eigenvalue of V Λ over the examples (or of the group that is perturbed): the share of an
            example's own output that the example itself decides. At one, the model has memorised it.
        effective_dimension: Σ tr(V Λ), the effective number of parameters that the data determine.
        posterior: Kind of the covariance.
        deflated: Whether examples were taken out of the covariance.
        warning: Why numbers should be taken with care; empty if they need not be.
        rest: The share of the gradient that the change of the weights leaves, where that was checked on the data.
        clear: Whether the change that was asked about is larger than the chance of its examples.
    """

    max_leverage: float
    effective_dimension: float
    posterior: str
    deflated: bool
    warning: str
    rest: float | None = None
    clear: bool = True

    @property
    def reliable(self) -> bool:
        """Whether sizes can be trusted, not only rankings."""
        return not self.warning

    @property
    def ranks(self) -> bool:
        """Whether at least directions and rankings can be trusted."""
        known = self.rest < DIRECTION_LIMIT if self.rest is not None else not self.warning.startswith(NO_RANKS)
        return self.clear and known

    def about(self, changes: Tensor, bend: float) -> Reliability:
        """The verdict on the mean of some examples' changes.

        Args:
            changes: Estimated change of the loss of each example.
            bend: ‖Δf − JΔθ‖/‖Δf‖, how far their outputs are from following the change of the weights linearly.
        """
        if bend < BEND_LIMIT or len(changes) < 2:
            return self
        error = changes.std().item() / len(changes) ** 0.5
        if abs(changes.mean().item()) >= CLEAR * error:
            return self
        bent = (
            "outputs are not linear in the change of the weights, and the mean change is within "
            f"{CLEAR:g} standard errors ({error:.2g}) of zero: its direction is unknown, so measure it"
        )
        return replace(self, warning=self.warning or bent, clear=False)

    @classmethod
    def of(
        cls,
        posterior: Posterior,
        max_leverage: float,
        effective_dimension: float,
        deflated: bool,
        share: float = 0.0,
        rest: float | None = None,
    ) -> Reliability:
        """The verdict on estimates from this posterior, where a `share` of its data changes at once.

        Where the estimate was checked, `rest` of the gradient is left, and nothing else counts.
        """
        structure = posterior.structure
        whole = structure.varying is structure
        kind = structure.kind if whole else f"{structure.kind}/{structure.varying.kind}"
        warning = _warning(posterior, max_leverage, deflated, share > 0) or _size(share)
        if share == 0 and not deflated and effective_dimension > posterior.n:
            counted = f"{effective_dimension:.0f} effective parameters, more than the {posterior.n} examples"
            warning = f"{counted}: use only their ranking"
        if rest is not None and not structure.fixed:
            warning = _left(rest)
        return cls(max_leverage, effective_dimension, kind, deflated, warning, rest)


def _warning(posterior: Posterior, leverage: float, deflated: bool, group: bool) -> str:
    structure = posterior.structure
    if deflated and not contains_examples(posterior):
        return "deflated, although the covariance does not contain the examples' own curvature"
    if deflated and not leverage < DEFLATED_LIMIT:
        return f"an example decides its own output (leverage {leverage:.2f}): one Newton step is too short or too long"
    if structure.fixed:
        return "only the last layer moves, and changes of the whole network are larger; use only their ranking"
    if deflated:
        return ""
    if contains_examples(posterior):
        large = f"first order with leverage {leverage:.2f}: too small by about that share"
        return large if not leverage < FIRST_ORDER_LIMIT else ""
    if isinstance(structure, Kronecker | Rotated):
        large = f"first order in a Kronecker covariance with leverage {leverage:.2f}: use only their ranking"
        return large if not leverage < FIRST_ORDER_LIMIT else ""
    if group:
        return f"{NO_RANKS}, nor its direction: measure it (`po.measure`)"
    return "a diagonal posterior misjudges the size of changes; use only their ranking"


def _left(rest: float) -> str:
    if rest < REST_LIMIT:
        return ""
    trust = (
        "trust its direction, not its size" if rest < DIRECTION_LIMIT else "its direction is unknown too, so measure it"
    )
    return f"the estimate has not converged (residual {rest:.2g}, expected below {REST_LIMIT:g}); {trust}"


def _size(share: float) -> str:
    large = f"{share:.0%} of the data changes, and one Newton step is exact for linear regression alone"
    return f"{large}: use only its direction" if share > SHARE_LIMIT else ""


def largest_leverage(variance: Tensor, root: Tensor) -> Tensor:
    """The largest eigenvalue of VΛ = V R Rᵀ of each example: that of RᵀVR, which is symmetric."""
    return torch.linalg.eigvalsh(root.mT @ variance @ root)[..., -1]
