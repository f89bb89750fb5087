"""Posterior predictives, their uncertainty, and recalibration."""

from posterity.prediction._module import PredictiveModule as PredictiveModule
from posterity.prediction._predict import predict as predict
from posterity.prediction._prediction import Prediction as Prediction
from posterity.prediction.conformal import ConformalIntervals as ConformalIntervals
from posterity.prediction.conformal import ConformalSets as ConformalSets
from posterity.prediction.recalibration import TemperatureScaling as TemperatureScaling
