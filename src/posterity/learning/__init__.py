"""Learners: the training loop, and methods that return a posterior."""

from posterity.learning._dropout import dropout
from posterity.learning._fit import fit
from posterity.learning._laplace import laplace
from posterity.learning._shortcuts import bayes_by_backprop, ensemble, swag
from posterity.learning._train import Run
from posterity.learning.callbacks import Callback, JSONLines, Moment, TensorBoard, WandB
from posterity.learning.dropout_layers import insert_dropout
from posterity.learning.marginal_likelihood import log_marginal_likelihood

__all__ = [
    "Callback",
    "JSONLines",
    "Moment",
    "Run",
    "TensorBoard",
    "WandB",
    "bayes_by_backprop",
    "dropout",
    "ensemble",
    "fit",
    "insert_dropout",
    "laplace",
    "log_marginal_likelihood",
    "swag",
]
