"""Whether new data follow the old ones, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CLEAR = 3.0  # nats beyond which the new data speak against the old ones


@dataclass(frozen=True)
class Drift:
    """Whether the new data follow the old ones.

    Args:
        forget: The discount γ that was used.
        evidence: Log-evidence of the new data in nats by γ, where it was computed; 0 for the γ that was used.
    """

    forget: float
    evidence: Mapping[float, float]

    @property
    def against_keeping(self) -> float:
        """Nats by which forgetting explains the new data better than keeping everything."""
        return -self.evidence[0.0] if self.evidence else 0.0

    @property
    def found(self) -> bool:
        """Whether that is clear."""
        return self.against_keeping > CLEAR

    def __str__(self) -> str:
        if not self.evidence:
            return f"{self.forget:.0%} of the past is forgotten, as asked for"
        if self.forget == 0:
            return "no change: keeping everything explains the new data best"
        verdict = "the data have changed" if self.found else "no clear change"
        better = f"{self.against_keeping:.1f} nats better than keeping everything"
        return f"{verdict}: {self.forget:.0%} of the past is forgotten, which explains the new data {better}"
