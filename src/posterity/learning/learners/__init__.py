"""The methods that `fit` knows, by name."""

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
}

__all__ = ["METHODS", "Learner", "Plan", "Prior", "as_prior"]
