"""Pictures of posteriors and predictions: functions that return matplotlib figures (extra `posterity[plots]`)."""

from posterity.plots.calibration import entropy_in_out as entropy_in_out
from posterity.plots.calibration import interval_coverage as interval_coverage
from posterity.plots.calibration import reliability as reliability
from posterity.plots.calibration import risk_coverage as risk_coverage
from posterity.plots.effects import effects as effects
from posterity.plots.maps import segmentation as segmentation
from posterity.plots.memory import examples as examples
from posterity.plots.memory import memory_map as memory_map
from posterity.plots.merging import trade_off as trade_off
from posterity.plots.predictive import band_1d as band_1d
from posterity.plots.predictive import predictive_map_2d as predictive_map_2d
from posterity.plots.weights import filter_distributions as filter_distributions
from posterity.plots.weights import weight_distributions as weight_distributions
