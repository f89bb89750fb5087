"""How good predictions are: torch or numpy in, one float out, averaged over examples.

Probabilities have their classes last, (..., K), beside integer labels (...); binary probabilities p(y = 1) are shaped
as their labels. Segmentation maps and token sequences are such examples too, one for each pixel or position.
"""

from posterity.metrics.calibration import CalibrationBins as CalibrationBins
from posterity.metrics.calibration import adaptive_ece as adaptive_ece
from posterity.metrics.calibration import calibration_bins as calibration_bins
from posterity.metrics.calibration import ece as ece
from posterity.metrics.classification import accuracy as accuracy
from posterity.metrics.classification import balanced_accuracy as balanced_accuracy
from posterity.metrics.classification import brier as brier
from posterity.metrics.classification import mean_iou as mean_iou
from posterity.metrics.classification import nll as nll
from posterity.metrics.classification import top_k_accuracy as top_k_accuracy
from posterity.metrics.detection import auroc as auroc
from posterity.metrics.detection import error_auroc as error_auroc
from posterity.metrics.detection import error_fpr95 as error_fpr95
from posterity.metrics.detection import fpr95 as fpr95
from posterity.metrics.detection import ood_auroc as ood_auroc
from posterity.metrics.detection import ood_fpr95 as ood_fpr95
from posterity.metrics.regression import coverage as coverage
from posterity.metrics.regression import crps_gaussian as crps_gaussian
from posterity.metrics.regression import crps_samples as crps_samples
from posterity.metrics.regression import gaussian_nll as gaussian_nll
from posterity.metrics.regression import rmse as rmse
from posterity.metrics.selection import aurc as aurc
from posterity.metrics.selection import risk_coverage as risk_coverage
from posterity.metrics.selection import selective_risk as selective_risk
