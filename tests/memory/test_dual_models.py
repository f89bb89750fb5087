"""Dual models of several outputs against Jacobians written out: prior, evidence and process."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

from posterity.likelihoods import GaussianLikelihood
from posterity.memory import dual
from posterity.posterior import Diagonal, Full, Posterior
from posterity.trees import snapshot, to_vector, trainable

N, INPUTS, OUTPUTS = 12, 3, 2


def problem(likelihood, prior_precision=0.7, ess=2 * N):
    """A linear model at random weights, its Jacobians (N, K, P), and a posterior of some temperature."""
    torch.manual_seed(0)
    model = nn.Linear(INPUTS, OUTPUTS, bias=False).double()
    x = torch.randn(N, INPUTS, dtype=torch.float64)
    jacobian = torch.einsum("kl,nd->nkld", torch.eye(OUTPUTS, dtype=torch.float64), x).flatten(2)
    mean = snapshot(trainable(model))
    prior = Diagonal(
        {"weight": torch.full_like(mean["weight"], 0.3)}, {"weight": torch.tensor(prior_precision, dtype=torch.float64)}
    )
    structure = Full(mean, torch.eye(OUTPUTS * INPUTS, dtype=torch.float64) * 5)
    return model, x, jacobian, Posterior.of(model, structure, prior=prior, n=N, ess=ess, likelihood=likelihood)


def test_the_linear_model_and_the_process_of_a_tempered_classifier_are_the_same_regression():
    model, x, jacobian, posterior = problem("categorical")
    d = dual(model, posterior, (x, torch.arange(N) % OUTPUTS))
    p = model(x).detach().softmax(-1)
    noise = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    width = 0.7 * N / (2 * N)  # the prior at temperature 1
    precision = torch.einsum("nkp,nkl,nlq->pq", jacobian, noise, jacobian) + width * torch.eye(OUTPUTS * INPUTS)
    pushed = (noise @ model(x).detach().unsqueeze(-1)).squeeze(-1) - (p - torch.eye(2)[torch.arange(N) % OUTPUTS])
    mean = torch.linalg.solve(precision, torch.einsum("nkp,nk->p", jacobian, pushed) + width * 0.3)
    found = d.as_linear_model().posterior()
    torch.testing.assert_close(found.precision, precision)
    torch.testing.assert_close(to_vector(found.mean), mean)
    process = d.as_gp()
    torch.testing.assert_close(process.mean(x), jacobian @ mean)
    wanted = jacobian @ torch.linalg.inv(precision) @ jacobian.mT
    torch.testing.assert_close(process.covariance(x), wanted)
    v = jacobian @ jacobian.mT / 5 * (2 * N) / N  # the covariance at temperature 1
    shares = (v @ noise).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(d.effective_parameters, shares.sum(1))
    torch.testing.assert_close(d.leverage, shares.clamp_min(0).square().sum(1).sqrt())
    torch.testing.assert_close(d.max_leverage, torch.linalg.eigvals(v @ noise).real.max(1).values)


@pytest.mark.parametrize("prior_precision", [0.7, 4.0])
def test_the_evidence_of_several_outputs_is_that_of_the_joint_gaussian(prior_precision):
    model, x, jacobian, posterior = problem(GaussianLikelihood(precision=2.5), prior_precision, ess=N)
    y = torch.randn(N, OUTPUTS, dtype=torch.float64)
    rows = jacobian.flatten(0, 1)
    covariance = rows @ rows.mT / prior_precision + torch.eye(N * OUTPUTS, dtype=torch.float64) / 2.5
    law = MultivariateNormal(rows @ torch.full((OUTPUTS * INPUTS,), 0.3, dtype=torch.float64), covariance)
    found = dual(model, posterior, (x, y)).as_linear_model().log_evidence()
    assert found == pytest.approx(law.log_prob(y.flatten()).item(), rel=1e-10)
