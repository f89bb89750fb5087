"""Curvature of networks from each layer's activations and back-propagated signals."""

from posterity.curvature.covariance import Covariance, DiagonalCovariance, FullCovariance, KroneckerCovariance
from posterity.curvature.ggn import diagonal_ggn, full_ggn, kronecker_ggn

__all__ = [
    "Covariance",
    "DiagonalCovariance",
    "FullCovariance",
    "KroneckerCovariance",
    "diagonal_ggn",
    "full_ggn",
    "kronecker_ggn",
]
