"""Adaptation: add, remove and change without retraining; learn one task after another without forgetting."""

from posterity.adaptation._adapt import Adaptation, adapt
from posterity.adaptation._measure import Measured, measure
from posterity.adaptation.penalties.combined import reconstruction_error, weights_functions_labels
from posterity.adaptation.penalties.fromp import FROMP, fromp
from posterity.adaptation.penalties.kprior import FunctionDivergence, k_prior, remember
from posterity.adaptation.penalties.penalty import Penalty
from posterity.adaptation.penalties.quadratic import Quadratic, accumulate, ewc
from posterity.adaptation.penalties.replay import Replay, ResidualReplay
from posterity.adaptation.penalties.synaptic import SynapticIntelligence
from posterity.adaptation.report import Report
from posterity.adaptation.selection import select
from posterity.adaptation.solve.drift import Drift
from posterity.adaptation.streams._stream import Stream
from posterity.adaptation.streams.sequence import learn_stream
from posterity.adaptation.streams.strategies import (
    EWC,
    SI,
    Combined,
    FineTuning,
    FunctionalPrior,
    Joint,
    KPrior,
    ReplayMemory,
    Strategy,
)
from posterity.adaptation.streams.tasks import MultiHead, Scores, Task, permuted, split, toy
from posterity.adaptation.streams.vcl import VCL

__all__ = [
    "EWC",
    "FROMP",
    "SI",
    "VCL",
    "Adaptation",
    "Combined",
    "Drift",
    "FineTuning",
    "FunctionDivergence",
    "FunctionalPrior",
    "Joint",
    "KPrior",
    "Measured",
    "MultiHead",
    "Penalty",
    "Quadratic",
    "Replay",
    "ReplayMemory",
    "Report",
    "ResidualReplay",
    "Scores",
    "Strategy",
    "Stream",
    "SynapticIntelligence",
    "Task",
    "accumulate",
    "adapt",
    "ewc",
    "fromp",
    "k_prior",
    "learn_stream",
    "measure",
    "permuted",
    "reconstruction_error",
    "remember",
    "select",
    "split",
    "toy",
    "weights_functions_labels",
]
