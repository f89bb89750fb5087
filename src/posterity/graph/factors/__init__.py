"""The kinds of factors, each with its messages in the file of its name."""

from posterity.graph.factors.chain import Chain
from posterity.graph.factors.linear import LinearFactor
from posterity.graph.factors.mixture import MixtureFactor
from posterity.graph.factors.observed import Observed
from posterity.graph.factors.shrinkage import Shrinkage
from posterity.graph.factors.site import SiteFactor
from posterity.graph.factors.topics import Topics

__all__ = ["Chain", "LinearFactor", "MixtureFactor", "Observed", "Shrinkage", "SiteFactor", "Topics"]
