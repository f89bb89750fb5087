"""The optimizers are steps of the Bayesian learning rule: with the same draws, the rule takes the same ones."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from posterity import BayesianLearningRule
from posterity.families import DiagonalGaussian, Gaussian
from posterity.gradients import DataLoss, SquaredGradients, Stein
from posterity.gradients._points import PointEstimator
from posterity.optim import IVON, OGN, SOBA, VOGN, VariationalNewton

N, D, DELTA = 12, 3, 0.3
X = torch.randn(N, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = (torch.rand(N, generator=torch.Generator().manual_seed(1)) < 0.5).double()
TOTAL = DataLoss(inputs=X, targets=Y[:, None], likelihood="bernoulli", model=lambda theta, x: (x @ theta)[:, None])


@dataclass(frozen=True)
class At(PointEstimator):
    """The loss at the draw of an optimizer."""

    theta: torch.Tensor
    curvature: Any

    def points(self, q):
        return self.theta[None], torch.ones(1, dtype=torch.float64)


def walk(kind, family, curvature, steps=8, *, lr=0.2, rate=0.1, retracted=True, **options):
    """The mean and precision of an optimizer after each step, and those of the rule from the same draws."""
    model = nn.Linear(D, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.4, -0.2, 0.1]]))
    optimizer = kind(model.parameters(), lr=lr, ess=N, hess_init=1.5, weight_decay=DELTA, **options)
    unit = torch.ones(D, dtype=torch.float64)
    matrix = (lambda v: v) if family is DiagonalGaussian else torch.diag
    q, prior = family(model.weight.detach()[0].clone(), matrix(N * (1.5 + DELTA) * unit)), matrix(N * DELTA * unit)
    for _ in range(steps):
        optimizer.zero_grad()
        with optimizer.sampled_params(train=True):
            theta = model.weight.detach()[0].clone()
            if issubclass(kind, VOGN):
                optimizer.backward(model, X, Y[:, None], "bernoulli")
            else:
                nn.functional.binary_cross_entropy_with_logits(model(X)[:, 0], Y).backward()
        optimizer.step()
        rule = BayesianLearningRule(
            At(theta, curvature),
            lr=lr,
            prior=family(torch.zeros_like(unit), prior),
            retracted=retracted,
            slow_scale=1 - rate,
        )
        before, q = q, rule.step(q, TOTAL)
        structure = optimizer.structure({"weight": model.weight})
        found = structure.precision_matrix() if family is Gaussian else structure.precision_diagonal()["weight"][0]
        yield (model.weight.detach()[0], found), q, before
        q = family(model.weight.detach()[0].clone(), found)


CASES = {
    "SOBA": (SOBA, DiagonalGaussian, Stein(), {"rho": 0.1}),
    "VariationalNewton": (VariationalNewton, Gaussian, Stein(), {"rho": 0.1, "beta1": 0.0}),
    "VOGN": (VOGN, DiagonalGaussian, SquaredGradients(per_example=True), {"betas": (0.0, 0.9), "retracted": False}),
    "OGN": (OGN, DiagonalGaussian, SquaredGradients(per_example=True), {"betas": (0.0, 0.9), "retracted": False}),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_rule(name):
    kind, family, curvature, options = CASES[name]
    for (mean, precision), q, _ in walk(kind, family, curvature, **options):
        torch.testing.assert_close(mean, q.mean, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(precision, q.precision, rtol=1e-10, atol=1e-12)


def test_ivon_divides_by_the_new_precision():
    """IVON moves the precision as SOBA does; its mean step divides by the new one, that of the rule by the old."""
    options = {"betas": (0.0, 0.9), "rescale_lr": False, "fused": False}
    for (mean, precision), q, before in walk(IVON, DiagonalGaussian, Stein(), **options):
        torch.testing.assert_close(precision, q.precision, rtol=1e-10, atol=1e-12)
        expected = before.mean + (q.mean - before.mean) * before.precision / q.precision
        torch.testing.assert_close(mean, expected, rtol=1e-10, atol=1e-12)
