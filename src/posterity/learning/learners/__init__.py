"""The methods of `fit`, by name."""

from posterity.learning.learners import optimizers
from posterity.learning.learners._base import Learner, Prior, TrainingPlan, as_prior
from posterity.learning.learners.bayes_by_backprop import BayesByBackpropLearner
from posterity.learning.learners.dropout import DropoutLearner
from posterity.learning.learners.ivon import IVONLearner
from posterity.learning.learners.laplace import LaplaceLearner
from posterity.learning.learners.point import AdamWLearner, SGDLearner
from posterity.learning.learners.swag import SWAGLearner
from posterity.learning.learners.variational import VariationalLearner

METHODS: dict[str, type[Learner]] = {
    "ivon": IVONLearner,
    "variational": VariationalLearner,
    "adamw": AdamWLearner,
    "sgd": SGDLearner,
    "laplace": LaplaceLearner,
    "dropout": DropoutLearner,
    "swag": SWAGLearner,
    "bayes_by_backprop": BayesByBackpropLearner,
    "evon": optimizers.EVONLearner,
    "soba": optimizers.SOBALearner,
    "vadam": optimizers.VadamLearner,
    "vogn": optimizers.VOGNLearner,
    "ogn": optimizers.OGNLearner,
    "variational_newton": optimizers.VariationalNewtonLearner,
    "mixture_ivon": optimizers.MixtureIVONLearner,
    "bsam": optimizers.BayesianSAMLearner,
    "sam": optimizers.SAMLearner,
    "bayesbinn": optimizers.BayesBiNNLearner,
    "ste": optimizers.STELearner,
}

POINTS = ("adamw", "sgd", "sam", "ste")  # methods that leave one set of weights, an ensemble of one

__all__ = ["METHODS", "POINTS", "Learner", "Prior", "TrainingPlan", "as_prior"]
