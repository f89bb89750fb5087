"""Classical models with real posteriors, as scikit-learn estimators."""

from posterity.models.gaussian_mixture import GaussianMixture

__all__ = ["GaussianMixture"]
