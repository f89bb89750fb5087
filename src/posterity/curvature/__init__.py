"""Curvature of networks from each layer's activations and back-propagated signals."""

from posterity.curvature.covariance import Covariance, DiagonalCovariance, FullCovariance, KroneckerCovariance

__all__ = ["Covariance", "DiagonalCovariance", "FullCovariance", "KroneckerCovariance"]
