"""Films of message passing: EM, VMP and SVI in mixtures and chains, sites of Gaussian processes."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from posterity.app.rule.film import Film, Frame, describe, grid, thetas
from posterity.families import Dirichlet, Gamma, Gaussian, NormalWishart
from posterity.gradients import LinearLoss, Quadrature
from posterity.graph import (
    Chain,
    DenseGaussian,
    LinearFactor,
    MixtureFactor,
    Model,
    Shrinkage,
    SiteFactor,
    SparseGaussian,
    Topics,
    cvi,
    em,
    gaussian,
    svi_step,
    vmp,
)
from posterity.likelihoods import GaussianLikelihood
from posterity.linalg import inverse_psd
from posterity.rule import robbins_monro

PLANE = ((-3.2, 5.2), (-2.8, 5.8))


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _clouds() -> Tensor:
    """Three clouds that touch."""
    centres = torch.tensor([[0.0, 0.0], [3.0, 1.0], [-1.0, 4.0]], dtype=torch.float64)
    return (0.8 * _normal(3, 30, 2, seed=0) + centres[:, None]).reshape(-1, 2)


def _start(weights: list[float], means: Tensor) -> dict[str, Any]:
    unit = torch.eye(2, dtype=torch.float64)
    components = NormalWishart(means, torch.ones(len(means)), torch.full((len(means),), 3.0), unit)
    return {"weights": Dirichlet(1.0 + torch.tensor(weights, dtype=torch.float64)), "components": components}


def _components(weights: Tensor, components: Any, note: str, energy: float | None = None) -> Frame:
    """The components of the data, as ellipses; those of a point estimate or of the expected precision."""
    family = getattr(components, "family", components)
    spreads = inverse_psd(components.expectation[1])
    flat = [[float(v[0, 0]), float(v[0, 1]), float(v[1, 1])] for v in spreads]
    return Frame(weights.tolist(), family.location.tolist(), flat, note, energy)


def _cloud_film(frames: list[Frame], data: Tensor, measure: str) -> Film:
    return Film(PLANE, ("x₁", "x₂"), frames, None, data.tolist(), "cloud", measure=measure)


def em_mixture() -> Film:
    """EM in a mixture of three, from a poor start."""
    X = _clouds()
    start = _start([0.3, 0.3, 0.4], torch.tensor([[0.5, 1.5], [1.0, 1.0], [0.0, 1.0]], dtype=torch.float64))
    model = Model({"weights": None, "components": None}, [MixtureFactor("weights", "components", gaussian(X))])
    frames = []
    for sweep in range(1, 26):
        fit = em(model, start, steps=1, tolerance=0.0)
        weights = fit.q["weights"].expectation[0].exp()
        frames.append(_components(weights, fit.q["components"], f"sweep {sweep}", -fit.bounds[-1]))
        start = {name: point.family for name, point in fit.q.items()}
    return _cloud_film(frames, X, "−log-likelihood")


def vmp_mixture() -> Film:
    """Variational message passing with five components for three clouds: two lose their weight."""
    X = _clouds()
    means = torch.tensor([[0.5, 1.5], [2.0, 0.0], [-1.0, 2.0], [1.0, 3.0], [3.5, 2.0]], dtype=torch.float64)
    prior = {
        "weights": Dirichlet(torch.full((5,), 0.05, dtype=torch.float64)),
        "components": NormalWishart(torch.zeros(5, 2).double(), 0.1, 3.0, 0.5 * torch.eye(2).double()),
    }
    model = Model(prior, [MixtureFactor("weights", "components", gaussian(X))])
    q: Any = _start([18.0] * 5, means)
    frames = []
    for sweep in range(41):
        if sweep:
            fit = vmp(model, q, steps=1, tolerance=0.0)
            q, bound = fit.q, -fit.bounds[-1]
        share = q["weights"].concentration / q["weights"].concentration.sum()
        frames.append(_components(share, q["components"], f"sweep {sweep}", bound if sweep else None))
    return _cloud_film(frames, X, "−evidence bound")


def em_chain() -> Film:
    """Baum-Welch: a hidden Markov model of two states."""
    x = 0.7 * _normal(60, 2, seed=5)
    where = torch.tensor([[0.0, 0.0], [2.4, 2.6]], dtype=torch.float64)
    x = x + where[(torch.arange(60) // 10) % 2]
    start = {
        "initial": Dirichlet(torch.tensor([1.5, 1.5]).double()),
        "moves": Dirichlet(torch.full((2, 2), 1.5).double()),
        "components": _start([0.5, 0.5], torch.tensor([[0.4, 1.6], [2.2, 1.2]]).double())["components"],
    }
    model = Model(dict.fromkeys(start, None), [Chain("initial", "moves", "components", gaussian(x))])
    frames = []
    for _ in range(20):
        fit = em(model, start, steps=1, tolerance=0.0)
        stay = fit.q["moves"].expectation[0].exp().diagonal()
        note = f"stays {stay[0]:.2f}, {stay[1]:.2f}"
        frames.append(_components(torch.full((2,), 0.5), fit.q["components"], note, -fit.bounds[-1]))
        start = {name: point.family for name, point in fit.q.items()}
    return Film(((-3.0, 5.5), (-3.0, 5.5)), ("x₁", "x₂"), frames, None, x.tolist(), "cloud", measure="−log-likelihood")


def vmp_regression() -> Film:
    """q(w) q(α) q(τ): weights, their precision and that of the noise find each other."""
    x = 1.6 * _normal(20, seed=0)
    rows = torch.stack((torch.ones_like(x), x), 1)
    y = rows @ torch.tensor([0.4, 0.8], dtype=torch.float64) + 0.5 * _normal(20, seed=1)
    prior = {"w": None, "alpha": Gamma(1.0, 1.0), "noise": Gamma(1.0, 1.0)}
    model = Model(prior, [LinearFactor("w", "noise", rows, y), Shrinkage("w", "alpha")])
    return _weights(model, x, y, 1.0, 12, lambda line: line)


def nonconjugate_poisson() -> Film:
    """Counts with log-rates w₁ + w₂x: messages of the likelihood by quadrature."""
    x = 1.2 * _normal(25, seed=2)
    rows = torch.stack((torch.ones_like(x), x), 1)
    rate = (rows @ torch.tensor([0.3, 0.5], dtype=torch.float64)).exp()
    y = torch.poisson(rate, generator=torch.Generator().manual_seed(3))
    site = SiteFactor("w", LinearLoss(inputs=rows, targets=y, likelihood="poisson"), Quadrature(40))
    model = Model({"w": None, "alpha": Gamma(2.0, 1.5)}, [site, Shrinkage("w", "alpha")])
    return _weights(model, x, y, 0.5, 16, torch.exp)


def _weights(model: Model, x: Tensor, y: Tensor, lr: float, sweeps: int, response: Any) -> Film:
    """q(w) after each sweep, and lines over the data."""
    q: Any = {"w": Gaussian(torch.zeros(2).double(), 4.0 * torch.eye(2).double())}
    wide = torch.linspace(-3.0, 3.0, 61, dtype=torch.float64)
    frames = []
    for sweep in range(sweeps + 1):
        bound = None
        if sweep:
            fit = vmp(model, q, lr=lr, steps=1, tolerance=0.0)
            q, bound = fit.q, -fit.bounds[-1]
        lines = [torch.stack((wide, response(w[0] + w[1] * wide)), -1).tolist() for w in thetas(q["w"])]
        frames.append(describe(q["w"], note=f"sweep {sweep}", energy=bound, lines=lines))
    top = float(y.max()) + 1.0
    span = ((-3.0, 3.0), (min(-0.5, float(y.min()) - 0.5), top))
    data = torch.stack((x, y), -1).tolist()
    return Film(
        ((-0.9, 1.3), (-0.5, 1.5)), ("w₁", "w₂"), frames, None, data, "line", span, ("x", "y"), "−evidence bound"
    )


def svi_topics() -> Film:
    """Two topics over three words, one minibatch of documents after another."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.tensor([[0.75, 0.15, 0.1], [0.1, 0.25, 0.65]], dtype=torch.float64)
    shares = torch.distributions.Dirichlet(torch.tensor([0.3, 0.3], dtype=torch.float64))
    torch.manual_seed(11)
    mixes = shares.sample((120,))
    words = torch.poisson(40.0 * mixes @ truth, generator=generator) + 1e-9
    prior, local = {"topics": Dirichlet(torch.full((2, 3), 0.6).double())}, Dirichlet(torch.full((2,), 0.4).double())
    q: Any = {"topics": Dirichlet(torch.tensor([[12.0, 10.0, 9.0], [9.0, 10.0, 12.0]]).double())}
    domain, schedule = ((0.001, 1.0), (0.001, 1.0)), robbins_monro(1.0, 0.7)
    points = grid(domain)
    rest = 1.0 - points.sum(-1, keepdim=True)
    inside = (rest > 1e-6).squeeze(-1)
    theta = torch.cat((points, rest), -1).clamp(min=1e-9)
    theta = theta / theta.sum(-1, keepdim=True)
    order = torch.randperm(120, generator=generator).repeat(3)
    frames = []
    for step in range(31):
        if step:
            batch = words[order[12 * (step - 1) : 12 * step]]
            model = Model(prior, [Topics("proportions", "topics", batch)], local={"proportions": local})
            q, _, _ = svi_step(model, q, schedule(step), n=120)
        topics = q["topics"]
        each = topics.log_prob(theta[:, None, :]).exp()  # (points, topics)
        density = torch.where(inside, (each / each.amax(0)).sum(-1), 0.0)
        centres = topics.concentration / topics.concentration.sum(-1, keepdim=True)
        means = [[float(c[0]), float(c[1])] for c in centres]
        frames.append(Frame([0.5, 0.5], means, note=f"minibatch {step}", density=density.tolist()))
    documents = (words / words.sum(-1, keepdim=True))[:, :2].tolist()
    return Film(domain, ("share of word 1", "share of word 2"), frames, None, documents, "cloud")


def process(kind: str) -> Film:
    """A Gaussian process by sites: regression, classes, or through eight inducing points."""
    x = torch.linspace(-3.0, 3.0, {"sparse": 40}.get(kind, 14), dtype=torch.float64)
    y = torch.sin(1.7 * x) + 0.25 * _normal(len(x), seed=0)
    wide = torch.linspace(-4.0, 4.0, 81, dtype=torch.float64)
    likelihood: Any = GaussianLikelihood(10.0)
    if kind == "classification":
        y, likelihood = (y > 0.2).double(), "bernoulli"
    if kind == "sparse":
        z = torch.linspace(-3.0, 3.0, 8, dtype=torch.float64)
        root = torch.linalg.cholesky(_kernel(z, z))
        here, there = (torch.linalg.solve_triangular(root, _kernel(z, p), upper=False).mT for p in (x, wide))
        prior: Any = SparseGaussian(here, torch.ones_like(x))
        left = 1.0 - there.square().sum(-1)
    else:
        prior = DenseGaussian(_kernel(x, x) + 1e-6 * torch.eye(len(x), dtype=torch.float64))
        there, left = _kernel(wide, x), torch.ones_like(wide)
    frames, fit = [_band(wide, torch.zeros_like(wide), torch.ones_like(wide), "the prior", None)], None
    for step in range(1, 11):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one step at a time does not come to rest
            fit = cvi(prior, y, likelihood, start=fit.sites if fit else None, lr=0.4, steps=1, tolerance=math.inf)
        mean, variance = prior.predict(fit.sites, there, left)
        frames.append(_band(wide, mean, variance, f"step {step}", -fit.bounds[-1]))
    shown = torch.where(y > 0, 1.0, -1.0) if kind == "classification" else y
    data = torch.stack((x, shown), -1).tolist()
    return Film(
        (), (), frames, None, data, "line", ((-4.0, 4.0), (-3.2, 3.2)), ("x", "f(x)"), "−evidence bound", "band"
    )  # fmt: skip


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    return (-0.5 * (a[:, None] - b[None, :]) ** 2).exp()


def _band(x: Tensor, mean: Tensor, variance: Tensor, note: str, energy: float | None) -> Frame:
    spread = 2.0 * variance.clamp(min=0.0).sqrt()
    lines = [torch.stack((x, mean + k * spread), -1).tolist() for k in (0, -1, 1)]
    return Frame(note=note, energy=energy, lines=lines)
