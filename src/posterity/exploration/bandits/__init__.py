"""Contextual bandits: beliefs about rewards that are updated online, and policies that act on them."""

from posterity.exploration.bandits._belief import Belief
from posterity.exploration.bandits.linear import LinearGaussian
from posterity.exploration.bandits.neural_linear import NeuralLinear
from posterity.exploration.bandits.policies import UCB, Decisions, EpsilonGreedy, Greedy, Policy, ThompsonSampler
from posterity.exploration.bandits.variational import VariationalNetwork

__all__ = [
    "UCB",
    "Belief",
    "Decisions",
    "EpsilonGreedy",
    "Greedy",
    "LinearGaussian",
    "NeuralLinear",
    "Policy",
    "ThompsonSampler",
    "VariationalNetwork",
]
