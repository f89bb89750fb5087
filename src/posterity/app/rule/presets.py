"""The presets of the page: the rows of Table 1, SAM, and comparisons to begin a lecture with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from posterity import algorithms, graph
from posterity.app.rule import messages, sequences
from posterity.app.rule.choice import Choice
from posterity.app.rule.film import Film
from posterity.app.rule.running import film
from posterity.app.rule.words import code, docstring_equations, equations
from posterity.errors import expected
from posterity.table.comparisons import continual


@dataclass(frozen=True)
class Preset:
    """A panel ready to play.

    Args:
        title: Its name in the menu.
        group: The heading that it is listed under.
        algorithm: Whose docstring has the equation; where there is none, the choice is put into words.
        rows: The rows of Table 1 that it shows.
        posterior: The family, in words.
        choice: The settings, where the rule runs on one of the page's losses.
        code: A line that does the same; made from the choice where it is empty.
        make: The film, where it is another kind of model; its data cannot be dragged.
    """

    title: str
    group: str
    algorithm: Callable[..., Any] | None
    rows: tuple[str, ...]
    posterior: str
    choice: Choice | None = None
    code: str = ""
    make: Callable[[], Film] | None = None

    def film(self) -> Film:
        """The film."""
        if self.make is not None:
            return self.make()
        assert self.choice is not None
        return film(self.choice)

    def public(self) -> dict[str, Any]:
        """What the page shows besides the film."""
        choice = self.choice
        found = docstring_equations(self.algorithm) if self.algorithm else equations(self.choice or Choice())
        return {
            "title": self.title,
            "group": self.group,
            "rows": self.rows,
            "posterior": self.posterior,
            "equations": found,
            "code": self.code or (code(choice) if choice else ""),
            "choice": choice.public() if choice else None,
        }


_OPTIMISERS, _GAUSSIAN, _SIGNS = "Optimizers", "Variational inference", "Mixtures, dropout and signs"
_EXACT, _GRAPH = "Exact Bayes", "Message passing"
_POINT, _DIAGONAL, _FULL = "Gaussian, fixed covariance", "diagonal Gaussian", "full Gaussian"
_SCALE = {"family": "diagonal", "curvature": "squared", "slow_scale": 0.9, "square_root": True}
_STEIN = {"estimator": "monte-carlo", "curvature": "stein", "samples": 8, "lr": 0.1, "retracted": True, "steps": 80}
_LOGISTIC = {"loss": "logistic"}


def _rule(**settings: Any) -> Choice:
    return Choice(**settings)


PRESETS: dict[str, Preset] = {
    "gradient-descent": Preset(
        "Gradient descent", _OPTIMISERS, algorithms.gradient_descent, ("gradient-descent",), _POINT,
        _rule(family="point", lr=0.1, steps=60), "q = gradient_descent(lr=0.1).run(theta, loss, steps=60)",
    ),
    "sgd": Preset(
        "SGD", _OPTIMISERS, algorithms.sgd, ("sgd",), _POINT,
        _rule(family="point", lr=0.12, steps=60, minibatch=3, **_LOGISTIC),
        "q = sgd(lr=0.12).run(theta, loss.minibatches(3, seed=0), steps=60)",
    ),
    "momentum": Preset(
        "Momentum", _OPTIMISERS, algorithms.momentum, ("momentum",), _POINT,
        _rule(family="point", lr=0.05, momentum=0.85, steps=60),
        "q = momentum(lr=0.05, beta=0.85).run(theta, loss, steps=60)",
    ),
    "newton": Preset(
        "Newton's method", _OPTIMISERS, algorithms.newton, ("newton",), _FULL,
        _rule(family="full", lr=1.0, steps=10), "q = newton().run(theta, loss, steps=10)",
    ),
    "rmsprop": Preset(
        "RMSprop", _OPTIMISERS, algorithms.rmsprop, ("rmsprop",), _DIAGONAL,
        _rule(lr=0.08, steps=60, **_SCALE), "q = rmsprop(lr=0.08, beta=0.9).run(theta, loss, steps=60)",
    ),
    "adam": Preset(
        "Adam", _OPTIMISERS, algorithms.adam, ("adam",), _DIAGONAL,
        _rule(lr=0.1, momentum=0.9, debias=True, steps=60, **(_SCALE | {"slow_scale": 0.99})),
        "q = adam(lr=0.1, betas=(0.9, 0.99)).run(theta, loss, steps=60)",
    ),
    "adamw": Preset(
        "AdamW", _OPTIMISERS, algorithms.adamw, ("adamw",), _DIAGONAL,
        _rule(lr=0.1, momentum=0.9, debias=True, decay=0.5, steps=60, **(_SCALE | {"slow_scale": 0.99})),
        "q = adamw(lr=0.1, betas=(0.9, 0.99), weight_decay=0.5).run(theta, loss, steps=60)",
    ),
    "ogn": Preset(
        "OGN", _OPTIMISERS, algorithms.ogn, ("ogn", "optim.OGN"), _DIAGONAL,
        _rule(family="diagonal", curvature="per-example", lr=0.2, precision=1.0, steps=40, **_LOGISTIC),
        "q = ogn(lr=0.2).run(theta, loss, steps=40)",
    ),
    "sam": Preset(
        "SAM", _OPTIMISERS, None, (), "a point",
        _rule(loss="valleys", family="point", estimator="sam", lr=0.03, radius=0.6, steps=60),
    ),
    "ivon": Preset(
        "IVON", _OPTIMISERS, None, ("optim.IVON",), _DIAGONAL,
        _rule(loss="valleys", family="diagonal", estimator="ivon", lr=0.1, slow_scale=0.9, samples=8, steps=100),
    ),
    "evon": Preset(
        "EVON", _OPTIMISERS, None, ("optim.EVON",), "Gaussian, diagonal in an eigenbasis",
        _rule(family="full", estimator="evon", lr=0.2, slow_scale=0.9, samples=8, steps=100),
    ),
    "ivon-quadratic": Preset(
        "IVON, quadratic", _OPTIMISERS, None, (), _DIAGONAL,
        _rule(family="diagonal", estimator="ivon", lr=0.2, slow_scale=0.9, samples=8, steps=100),
    ),
    "vadam": Preset(
        "Vadam", _OPTIMISERS, None, ("optim.Vadam",), _DIAGONAL,
        _rule(family="diagonal", estimator="vadam", lr=0.1, momentum=0.9, slow_scale=0.95, samples=4, steps=80,
              **_LOGISTIC),
    ),
    "bsam": Preset(
        "bSAM", _OPTIMISERS, None, ("optim.BayesianSAM",), _DIAGONAL,
        _rule(loss="valleys", family="diagonal", estimator="bsam", lr=0.1, radius=0.3, steps=100),
    ),
    "variational": Preset(
        "Variational", _OPTIMISERS, None, ("optim.Variational",), _DIAGONAL,
        _rule(family="diagonal", estimator="variational", lr=0.1, momentum=0.9, slow_scale=0.95, steps=120,
              **_LOGISTIC),
    ),
    "soba": Preset(
        "SOBA", _OPTIMISERS, None, ("optim.SOBA",), _DIAGONAL,
        _rule(loss="valleys", family="diagonal", **_STEIN),
    ),
    "variational-newton": Preset(
        "Variational Newton", _OPTIMISERS, None, ("optim.VariationalNewton",), _FULL,
        _rule(loss="banana", family="full", **_STEIN),
    ),
    "laplace": Preset(
        "Laplace", _GAUSSIAN, algorithms.laplace, ("laplace",), _FULL,
        _rule(family="full", lr=1.0, steps=8, **_LOGISTIC), "q = laplace(theta, loss)",
    ),
    "vi-logistic": Preset(
        "Gaussian VI, logistic", _GAUSSIAN, None, ("vi-logistic",), _FULL,
        _rule(family="full", estimator="quadrature", lr=0.3, steps=30, **_LOGISTIC),
    ),
    "vi-poisson": Preset(
        "Gaussian VI, counts", _GAUSSIAN, None, ("vi-poisson",), _FULL,
        _rule(loss="counts", family="full", estimator="quadrature", lr=0.3, steps=30),
    ),
    "vi-banana": Preset(
        "Gaussian VI, banana", _GAUSSIAN, None, (), _FULL,
        _rule(loss="banana", family="full", estimator="quadrature", lr=0.2, retracted=True, steps=50),
    ),
    "vogn": Preset(
        "VOGN", _GAUSSIAN, algorithms.vogn, ("vogn", "optim.VOGN"), _DIAGONAL,
        _rule(family="diagonal", estimator="monte-carlo", curvature="per-example", samples=4, lr=0.2, precision=1.0,
              steps=60, **_LOGISTIC),
    ),
    "descent-ridge": Preset(
        "Gradient descent, ripples", _OPTIMISERS, algorithms.gradient_descent, (), _POINT,
        _rule(loss="noisy-ridge", family="point", lr=0.08, steps=60),
        "q = gradient_descent(lr=0.08).run(theta, loss, steps=60)",
    ),
    "bayes-ridge": Preset(
        "Gaussian VI, ripples", _GAUSSIAN, None, (), _FULL,
        _rule(loss="noisy-ridge", family="full", estimator="quadrature", lr=0.15, retracted=True, steps=60),
    ),
    "bayes-valleys": Preset(
        "Bayes: the expected loss", _GAUSSIAN, None, (), "Gaussian",
        _rule(loss="valleys", family="full", estimator="quadrature", lr=0.15, retracted=True, steps=60),
    ),
    "multimodal": Preset(
        "Multimodal optimisation", _SIGNS, algorithms.multimodal, ("multimodal",), "mixture of Gaussians",
        _rule(loss="two-modes", family="mixture", lr=0.1, retracted=True, steps=60),
    ),
    "mixture-vi": Preset(
        "Mixture VI", _SIGNS, algorithms.mixture_vi, ("mixture-vi", "mixture-vi-optimum"), "mixture of Gaussians",
        _rule(loss="two-modes", family="mixture", estimator="quadrature", lr=0.1, retracted=True, steps=80),
    ),
    "mixture-1d": Preset(
        "Mixture VI, double well", _SIGNS, algorithms.mixture_vi, (), "mixture of Gaussians",
        _rule(loss="double-well", family="mixture", estimator="quadrature", lr=0.1, retracted=True, start=(0.3,),
              precision=4.0, steps=80),
    ),
    "dropout": Preset(
        "Dropout", _SIGNS, algorithms.dropout, ("dropout", "dropout-exact"), "spike and slab",
        _rule(loss="line", family="point", estimator="dropout", lr=0.01, keep=0.5, steps=80),
    ),
    "straight-through": Preset(
        "Straight-through", _SIGNS, algorithms.straight_through, ("straight-through",), "Bernoulli, ±1",
        _rule(loss="signs", family="signs", estimator="delta-mode", lr=0.12, start=(-0.6, -0.9), steps=30),
        "q = straight_through(lr=0.12).run(theta, loss, steps=30)",
    ),
    "bernoulli-rule": Preset(
        "Random signs, exactly", _SIGNS, algorithms.bernoulli_rule, ("bernoulli-rule",), "Bernoulli, ±1",
        _rule(loss="signs", family="signs", estimator="enumeration", lr=0.1, start=(-0.6, -0.9), steps=40),
        "q = bernoulli_rule(lr=0.1).run(theta, loss, steps=40)",
    ),
    "bayesbinn": Preset(
        "BayesBiNN", _SIGNS, algorithms.bayesbinn, ("bayesbinn", "optim.BayesBiNN"), "Bernoulli, ±1",
        _rule(loss="signs", family="signs", estimator="relaxed", samples=4, lr=0.1, start=(-0.6, -0.9), steps=60),
    ),
    "linear-regression": Preset(
        "Linear regression, one step", _EXACT, algorithms.linear_regression, ("linear-regression",), _FULL,
        _rule(loss="line", family="full", lr=1.0, precision=0.5, steps=3),
    ),
    "polynomial-regression": Preset(
        "Polynomial of degree 15", _EXACT, algorithms.linear_regression, ("polynomial-regression",), _FULL,
        code="q = linear_regression(powers(x), y, noise_precision=40.0)", make=sequences.polynomial,
    ),
    "ewc-kprior-fromp": Preset(
        "EWC = K-prior = FROMP", _EXACT, continual.ewc_kprior_fromp, ("ewc-kprior-fromp",), _FULL,
        code="loss = new_data(theta) + k_prior(model, posterior, memory).total(model)", make=sequences.keeping,
    ),
    "beta-bernoulli": Preset(
        "Beta-Bernoulli", _EXACT, algorithms.beta_bernoulli, ("beta-bernoulli",), "beta",
        code="q = beta_bernoulli(q, outcome)", make=sequences.beta,
    ),
    "gamma-poisson": Preset(
        "Gamma-Poisson", _EXACT, algorithms.gamma_poisson, ("gamma-poisson",), "gamma",
        code="q = gamma_poisson(q, count)", make=sequences.gamma,
    ),
    "dirichlet-categorical": Preset(
        "Dirichlet-categorical", _EXACT, algorithms.dirichlet_categorical, ("dirichlet-categorical",), "Dirichlet",
        code="q = dirichlet_categorical(q, label)", make=sequences.dirichlet,
    ),
    "normal-gamma": Preset(
        "Normal-gamma", _EXACT, algorithms.normal_gamma, ("normal-gamma",), "normal-gamma",
        code="q = normal_gamma(q, number)", make=sequences.normal,
    ),
    "kalman-filter": Preset(
        "Kalman filter", _EXACT, algorithms.kalman_filter, ("kalman-filter",), "chain of Gaussians",
        code="states = kalman_filter(model, observations).states", make=sequences.filtering,
    ),
    "kalman-filter-missing": Preset(
        "Kalman filter, gap", _EXACT, graph.filter_states, ("kalman-filter-missing",), "chain of Gaussians",
        code="states = filter_states(model, observations)", make=partial(sequences.filtering, missing=True),
    ),
    "kalman-smoother": Preset(
        "Kalman smoother", _EXACT, algorithms.kalman_smoother, ("kalman-smoother", "kalman-likelihood"),
        "joint Gaussian", code="states = kalman_smoother(model, observations).states", make=sequences.smoothing,
    ),
    "kalman-smoother-missing": Preset(
        "Kalman smoother, gap", _EXACT, graph.smooth_states, ("kalman-smoother-missing",), "chain of Gaussians",
        code="states = smooth_states(model, observations)", make=partial(sequences.smoothing, missing=True),
    ),
    "em-mixture": Preset(
        "EM in a mixture", _GRAPH, graph.em, ("em-mixture",), "labels exact, parameters a point",
        code='fit = em(Model(priors, [MixtureFactor("weights", "components", gaussian(x))]))',
        make=messages.em_mixture,
    ),
    "em-chain": Preset(
        "Baum-Welch (EM)", _GRAPH, graph.em, ("em-chain", "em-chain-recorded"),
        "paths exact, parameters a point",
        code='fit = em(Model(priors, [Chain("initial", "moves", "components", gaussian(x))]))', make=messages.em_chain,
    ),
    "vmp-mixture": Preset(
        "VMP in a mixture", _GRAPH, graph.vmp, ("vmp-mixture",), "mean field",
        code='fit = vmp(Model(priors, [MixtureFactor("weights", "components", gaussian(x))]))',
        make=messages.vmp_mixture,
    ),
    "vmp-regression": Preset(
        "VMP in a regression", _GRAPH, graph.vmp, ("vmp-regression", "vmp-regression-recorded"), "mean field",
        code='fit = vmp(Model(priors, [LinearFactor("w", "noise", x, y), Shrinkage("w", "alpha")]))',
        make=messages.vmp_regression,
    ),
    "nonconjugate-vmp": Preset(
        "Non-conjugate VMP, counts", _GRAPH, graph.vmp, ("nonconjugate-vmp",), "mean field",
        code='fit = vmp(Model(priors, [SiteFactor("w", loss, Quadrature(40)), Shrinkage("w", "alpha")]), lr=0.5)',
        make=messages.nonconjugate_poisson,
    ),
    "svi-topics": Preset(
        "SVI of topics", _GRAPH, graph.svi, ("svi-topics",), "mean field",
        code='fit = svi(Model(priors, [Topics("proportions", "topics", words)], local=local))',
        make=messages.svi_topics,
    ),
    "cvi-regression": Preset(
        "CVI, regression", _GRAPH, graph.cvi, ("cvi-regression",), "Gaussian process",
        code="fit = cvi(DenseGaussian(kernel), y, GaussianLikelihood(10.0), lr=0.4)",
        make=partial(messages.process, "regression"),
    ),
    "cvi-classification": Preset(
        "CVI, classes", _GRAPH, graph.cvi, ("cvi-classification",), "Gaussian process",
        code='fit = cvi(DenseGaussian(kernel), y, "bernoulli", lr=0.4)',
        make=partial(messages.process, "classification"),
    ),
    "cvi-sparse": Preset(
        "CVI, inducing points", _GRAPH, graph.cvi, ("cvi-sparse",), "Gaussian process",
        code="fit = cvi(SparseGaussian(projection, variances), y, GaussianLikelihood(10.0), lr=0.4)",
        make=partial(messages.process, "sparse"),
    ),
}  # fmt: skip

# Comparisons to begin with: a title, and what to look for.
TOURS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "One rule, three optimizers",
        ("gradient-descent", "newton", "adam"),
        "The same loss and the same rule. Newton keeps a full Gaussian, Adam a diagonal one, gradient descent a point.",
    ),
    (
        "SAM beside Bayes",
        ("sam", "bayes-valleys"),
        "Both start in the narrow valley. SAM sees the worst loss nearby, Bayes the expected one (dashed).",
    ),
    ("Point, Laplace, VI", ("sgd", "laplace", "vi-logistic"), "Drag the points: the boundaries drawn from q follow."),
    (
        "A mixture finds both modes",
        ("multimodal", "mixture-vi"),
        "log q keeps the components apart; each takes the steps of Newton's method.",
    ),
    (
        "Averaging over ripples",
        ("descent-ridge", "bayes-ridge"),
        "At a point the ripples hide the valley. Averaged over q, only the valley is left.",
    ),
    ("Dropout", ("dropout", "linear-regression"), "Spike-and-slab weights: a random mask in every step."),
    (
        "Random signs",
        ("straight-through", "bayesbinn", "bernoulli-rule"),
        "The straight-through estimator is the rule at the most probable signs, without entropy.",
    ),
    ("Exact Bayes is one step", ("linear-regression", "beta-bernoulli"), "With ρ = 1 one step is exact."),
    ("Tracking", ("kalman-filter", "kalman-smoother"), "Each observation is one exact step; smoothing walks back."),
    ("EM and VMP", ("em-mixture", "vmp-mixture"), "Five components for three clouds: VMP empties two of them."),
    (
        "A diagonal, and a turned one",
        ("ivon-quadratic", "evon"),
        "IVON keeps a width for each weight. EVON learns a basis as well, and finds the correlation.",
    ),
)


def preset(name: Any) -> Preset:
    """The preset of this name."""
    if not isinstance(name, str) or name not in PRESETS:
        raise expected("preset", f"one of {', '.join(PRESETS)}", name)
    return PRESETS[name]
