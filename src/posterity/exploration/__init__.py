"""Exploration: what to look at next. Active learning on pools, and bandits."""

from posterity.exploration._acquire import acquire
from posterity.exploration._active_learner import ActiveLearner
from posterity.exploration.bandits import (
    UCB,
    Belief,
    Decisions,
    EpsilonGreedy,
    Greedy,
    LinearGaussian,
    NeuralLinear,
    Policy,
    ThompsonSampler,
    VariationalNetwork,
)
from posterity.exploration.picks import Picks

__all__ = [
    "UCB",
    "ActiveLearner",
    "Belief",
    "Decisions",
    "EpsilonGreedy",
    "Greedy",
    "LinearGaussian",
    "NeuralLinear",
    "Picks",
    "Policy",
    "ThompsonSampler",
    "VariationalNetwork",
    "acquire",
]
