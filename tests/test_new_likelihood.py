"""A likelihood of a user's own is one class: the whole circle runs on it, and its posterior comes back from disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posterity as po
from posterity.errors import InvalidInput, Undefined, require
from posterity.likelihoods import Likelihood, likelihood


@dataclass(frozen=True)
class NegativeBinomialLikelihood(Likelihood):
    """Counts that scatter more than Poisson's: mean μ = e^f and variance μ + μ²/r."""

    r: float = 2.0
    name = "negative_binomial"

    def loss(self, f: Tensor, y: Tensor) -> Tensor:
        r = torch.tensor(self.r, dtype=f.dtype)
        constant = torch.lgamma(y + 1) + torch.lgamma(r) - torch.lgamma(y + r)
        return (constant + (y + r) * torch.logaddexp(f, r.log()) - y * f - r * r.log()).sum(-1)

    def residual(self, f: Tensor, y: Tensor) -> Tensor:
        return (f.exp() - y) * self.r / (self.r + f.exp())

    def curvature(self, f: Tensor) -> Tensor:
        return torch.diag_embed(self.r * f.exp() / (self.r + f.exp()))

    def curvature_root(self, f: Tensor) -> Tensor:
        return self.curvature(f).sqrt()

    def mean(self, f: Tensor) -> Tensor:
        return f.exp()

    def noise_std(self, mean: Tensor) -> Tensor:
        return (mean + mean**2 / self.r).sqrt()

    def sample(self, f: Tensor, generator: torch.Generator | None = None) -> Tensor:
        rate = torch._standard_gamma(torch.full_like(f, self.r), generator=generator) * f.exp() / self.r
        return torch.poisson(rate, generator=generator)

    def check(self, f: Tensor, y: Tensor) -> None:
        require(f.shape == y.shape, "counts", f"shape {tuple(f.shape)} like the outputs", tuple(y.shape))

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "r": self.r}


LAW = NegativeBinomialLikelihood(3.0)


def test_the_derivatives_are_those_of_the_loss():
    f, y = torch.randn(5, 2, dtype=torch.float64, requires_grad=True), torch.arange(10.0).double().reshape(5, 2)
    (gradient,) = torch.autograd.grad(LAW.loss(f, y).sum(), f)
    torch.testing.assert_close(LAW.residual(f, y), gradient)
    nb = torch.distributions.NegativeBinomial(3.0, logits=f.detach() - torch.tensor(3.0).double().log())
    torch.testing.assert_close(LAW.loss(f, y).detach(), -nb.log_prob(y).sum(-1))
    torch.testing.assert_close(LAW.noise_std(LAW.mean(f.detach())), nb.stddev)


def test_the_whole_circle(tmp_path: Path):
    """fit → save and load → predict → memory map → adapt."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 2, generator=generator)
    y = LAW.sample(x @ torch.tensor([[0.8], [-0.4]]) + 0.5, generator)
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    run = po.fit(model, (x, y), method="laplace", likelihood=LAW, epochs=40, progress=False)
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    run.posterior.save(tmp_path / "counts")
    posterior = po.Posterior.load(tmp_path / "counts")
    assert posterior.likelihood == LAW == likelihood("negative_binomial", r=3.0)

    predicted = po.predict(model, posterior, x[:5], samples=16)
    assert (predicted.std > predicted.mean.sqrt()).all()
    with pytest.raises(Undefined, match="quantiles: not defined for a negative_binomial likelihood"):
        predicted.quantiles(0.5)
    with pytest.raises(Undefined, match="probs"):
        _ = predicted.probs

    m = po.memory_map(model, posterior, (x, y))
    loss = LAW.loss(model(x).detach().double(), y.double())
    torch.testing.assert_close(torch.tensor(m.columns["loss"].to_numpy()), loss)
    result = po.adapt(model, posterior, data=(x, y), remove=[int(i) for i in m.top(5)["id"]])
    assert result.posterior.n == 115
    assert result.posterior.likelihood == LAW


def test_two_likelihoods_do_not_share_a_name():
    with pytest.raises(InvalidInput, match="another than that of GaussianLikelihood"):
        type("Mine", (Likelihood,), {"name": "gaussian"})
