"""Adaptation: add, remove and change without retraining; learn one task after another without forgetting."""

from posterity.adaptation._adapt import Adaptation, adapt
from posterity.adaptation.combined import reconstruction_error, weights_functions_labels
from posterity.adaptation.fromp import FROMP, fromp
from posterity.adaptation.kprior import FunctionDivergence, k_prior, remember
from posterity.adaptation.penalty import Penalty
from posterity.adaptation.quadratic import Quadratic, accumulate, ewc
from posterity.adaptation.replay import Replay, ResidualReplay
from posterity.adaptation.report import Report
from posterity.adaptation.selection import select
from posterity.adaptation.synaptic import SynapticIntelligence

__all__ = [
    "FROMP",
    "Adaptation",
    "FunctionDivergence",
    "Penalty",
    "Quadratic",
    "Replay",
    "Report",
    "ResidualReplay",
    "SynapticIntelligence",
    "accumulate",
    "adapt",
    "ewc",
    "fromp",
    "k_prior",
    "reconstruction_error",
    "remember",
    "select",
    "weights_functions_labels",
]
