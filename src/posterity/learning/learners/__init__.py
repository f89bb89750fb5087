"""The methods that `fit` knows, by name."""

from posterity.learning.learners import family
from posterity.learning.learners._base import Learner, Plan, Prior, as_prior
from posterity.learning.learners.bayes_by_backprop import BayesByBackprop
from posterity.learning.learners.dropout import DropoutLearner
from posterity.learning.learners.laplace import LaplaceLearner
from posterity.learning.learners.point import AdamWPoint, SGDPoint
from posterity.learning.learners.swag import Swag
from posterity.learning.learners.variational import Variational

METHODS: dict[str, type[Learner]] = {
    "ivon": Variational,
    "adamw": AdamWPoint,
    "sgd": SGDPoint,
    "laplace": LaplaceLearner,
    "dropout": DropoutLearner,
    "swag": Swag,
    "bayes_by_backprop": BayesByBackprop,
    "evon": family.Evon,
    "soba": family.Soba,
    "vadam": family.VadamLearner,
    "vogn": family.PerExample,
    "ogn": family.PerExampleAtTheMean,
    "variational_newton": family.Dense,
    "mixture_ivon": family.Mixed,
    "bsam": family.SharpnessAware,
    "sam": family.SharpnessAwarePoint,
    "bayesbinn": family.Binary,
    "ste": family.BinaryPoint,
}

POINTS = ("adamw", "sgd", "sam", "ste")  # methods that leave one set of weights, an ensemble of one

__all__ = ["METHODS", "POINTS", "Learner", "Plan", "Prior", "as_prior"]
