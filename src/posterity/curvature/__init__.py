"""Curvature of networks from each layer's activations and back-propagated signals."""

from posterity.curvature._kernel import kernel
from posterity.curvature._tape import SlowPath
from posterity.curvature.covariance import Covariance, DiagonalCovariance, FullCovariance, KroneckerCovariance
from posterity.curvature.directions import pullback, pushforward
from posterity.curvature.elementwise import elementwise
from posterity.curvature.fisher import (
    diagonal_fisher,
    gradient_moments,
    per_example_gradient_norms,
    per_example_gradients,
    per_example_squared_gradients,
)
from posterity.curvature.ggn import diagonal_ggn, full_ggn, kronecker_ggn
from posterity.curvature.prediction import prediction_covariance, prediction_covariance_product, self_influence

__all__ = [
    "Covariance",
    "DiagonalCovariance",
    "FullCovariance",
    "KroneckerCovariance",
    "SlowPath",
    "diagonal_fisher",
    "diagonal_ggn",
    "elementwise",
    "full_ggn",
    "gradient_moments",
    "kernel",
    "kronecker_ggn",
    "per_example_gradient_norms",
    "per_example_gradients",
    "per_example_squared_gradients",
    "prediction_covariance",
    "prediction_covariance_product",
    "pullback",
    "pushforward",
    "self_influence",
]
