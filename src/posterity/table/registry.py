"""Table 1: one line for each algorithm, with the reference it runs against."""

from __future__ import annotations

from posterity import algorithms, graph
from posterity.errors import expected
from posterity.table._row import Row
from posterity.table.comparisons import (
    binary,
    chains,
    conjugate,
    hierarchies,
    kalman,
    messages,
    mixtures,
    optimisers,
    peers,
    processes,
    regression,
    variational,
)

_FIXED = "Gaussian, fixed covariance"
_DIAGONAL = "diagonal Gaussian"
_FULL = "full Gaussian"
_MIXTURE = "mixture of Gaussians"
_SIGNS = "Bernoulli, ±1"
_FIELD = "mean field"
_PROCESS = "Gaussian process, a site for each observation"

ROWS: tuple[Row, ...] = (
    Row("gradient-descent", algorithms.gradient_descent, _FIXED, "delta",
        "torch.optim.SGD, 10 steps", 1e-14, optimisers.gradient_descent),
    Row("sgd", algorithms.sgd, _FIXED, "delta, minibatch",
        "torch.optim.SGD, 10 steps", 1e-14, optimisers.sgd),
    Row("momentum", algorithms.momentum, _FIXED, "delta, minibatch, heavy ball",
        "torch.optim.SGD with momentum, 10 steps", 1e-14, optimisers.momentum),
    Row("newton", algorithms.newton, _FULL, "delta, ρ = 1",
        "statsmodels Logit, each of 6 Newton iterates", 1e-12, regression.newton, "statsmodels"),
    Row("rmsprop", algorithms.rmsprop, _DIAGONAL, "delta, minibatch, squared gradient, slow scale, square root",
        "torch.optim.RMSprop, 10 steps", 1e-14, optimisers.rmsprop),
    Row("adam", algorithms.adam, _DIAGONAL, "as RMSprop, heavy ball, debiasing",
        "torch.optim.Adam, 10 steps", 1e-14, optimisers.adam),
    Row("adamw", algorithms.adamw, _DIAGONAL, "as Adam, decoupled decay",
        "torch.optim.AdamW, 10 steps", 1e-14, optimisers.adamw),
    Row("multimodal", algorithms.multimodal, _MIXTURE, "delta",
        "autograd on ℓ + log q, 5 steps", 1e-10, mixtures.multimodal),
    Row("mixture-vi", algorithms.mixture_vi, _MIXTURE, "none (quadrature)",
        "autograd on the integrated free energy, 1 step", 1e-8, mixtures.mixture_vi),
    Row("mixture-vi-optimum", algorithms.mixture_vi, _MIXTURE, "none (quadrature)",
        "scipy's minimum of the integrated free energy", 1e-6, mixtures.mixture_vi_optimum, "scipy"),
    Row("dropout", algorithms.dropout, "spike and slab", "delta in the slab, random masks",
        "gradient of torch.nn.Dropout at the same masks", 1e-12, optimisers.dropout),
    Row("dropout-exact", algorithms.dropout, "spike and slab", "delta in the slab, all masks",
        "adaptive ridge regression in closed form", 1e-12, optimisers.dropout_exact),
    Row("straight-through", algorithms.straight_through, _SIGNS, "delta at the mode, no entropy",
        "sign-forward autograd loop, 10 steps", 1e-14, binary.straight_through),
    Row("bernoulli-rule", algorithms.bernoulli_rule, _SIGNS, "none (enumeration)",
        "sum over all sign vectors, 5 steps", 1e-14, binary.bernoulli_rule),
    Row("bayesbinn", algorithms.bayesbinn, _SIGNS, "Gumbel relaxation",
        "sum over all sign vectors", 5.0, binary.bayesbinn, unit="standard errors"),
    Row("ogn", algorithms.ogn, _DIAGONAL, "delta, per-example squared gradients",
        "torch.func per-example gradients, 10 steps", 1e-12, variational.ogn),
    Row("vogn", algorithms.vogn, _DIAGONAL, "per-example squared gradients, Monte Carlo",
        "exact expectations, the many-sample limit", 5.0, variational.vogn, unit="standard errors"),
    Row("beta-bernoulli", algorithms.beta_bernoulli, "beta", "none (conjugate), ρ = 1",
        "scipy's integral of prior times likelihood", 1e-9, conjugate.beta_bernoulli, "scipy"),
    Row("gamma-poisson", algorithms.gamma_poisson, "gamma", "none (conjugate), ρ = 1",
        "scipy's integral of prior times likelihood", 1e-9, conjugate.gamma_poisson, "scipy"),
    Row("dirichlet-categorical", algorithms.dirichlet_categorical, "Dirichlet", "none (conjugate), ρ = 1",
        "scipy's integral of prior times likelihood", 1e-9, conjugate.dirichlet_categorical, "scipy"),
    Row("normal-gamma", algorithms.normal_gamma, "normal-gamma", "none (conjugate), ρ = 1",
        "scipy's integral of prior times likelihood", 1e-9, conjugate.normal_gamma, "scipy"),
    Row("linear-regression", algorithms.linear_regression, _FULL, "none (quadratic loss), ρ = 1",
        "sklearn Ridge", 1e-12, regression.linear_regression, "sklearn", "relative"),
    Row("polynomial-regression", algorithms.linear_regression, _FULL, "none (quadratic loss), ρ = 1",
        "sklearn Ridge, degree 15", 1e-12, regression.polynomial_regression, "sklearn", "relative to conditioning"),
    Row("kalman-filter", algorithms.kalman_filter, "chain of Gaussians", "none (quadratic loss), ρ = 1",
        "filterpy, all means and covariances", 1e-12, kalman.kalman_filter, "filterpy"),
    Row("kalman-smoother", algorithms.kalman_smoother, "joint Gaussian", "none (quadratic loss), ρ = 1",
        "filterpy, all means and covariances", 1e-12, kalman.kalman_smoother, "filterpy"),
    Row("kalman-likelihood", algorithms.kalman_smoother, "joint Gaussian", "none (quadratic loss), ρ = 1",
        "filterpy, log-likelihood of both", 1e-12, kalman.kalman_likelihood, "filterpy", "relative"),
    Row("kalman-filter-missing", graph.filter_states, "chain of Gaussians", "none (quadratic loss), ρ = 1",
        "statsmodels, rows and entries missing", 1e-12, chains.filter_missing, "statsmodels"),
    Row("kalman-smoother-missing", graph.smooth_states, "chain of Gaussians", "none (quadratic loss), ρ = 1",
        "statsmodels, rows and entries missing", 1e-12, chains.smoother_missing, "statsmodels"),
    Row("laplace", algorithms.laplace, _FULL, "delta, to convergence",
        "sklearn LogisticRegression and its exact Hessian", 1e-10, regression.laplace, "sklearn"),
    Row("vi-logistic", algorithms.gaussian_vi, _FULL, "none (quadrature)",
        "scipy's maximum of the evidence bound", 1e-9, variational.gaussian_vi_logistic, "scipy"),
    Row("vi-poisson", algorithms.gaussian_vi, _FULL, "none (quadrature)",
        "scipy's maximum of the evidence bound", 1e-9, variational.gaussian_vi_poisson, "scipy"),
    Row("em-mixture", graph.em, "labels exact, parameters a point", "delta at the parameters, ρ = 1",
        "sklearn GaussianMixture, 1 and 5 steps", 1e-12, messages.em_mixture, "sklearn"),
    Row("em-chain", graph.em, "paths exact, parameters a point", "delta at the parameters, ρ = 1",
        "sum over all paths of a hidden Markov model, 1 step", 1e-12, chains.em_chain),
    Row("em-chain-recorded", graph.em, "paths exact, parameters a point", "delta at the parameters, ρ = 1",
        "hmmlearn GaussianHMM, 1 step, recorded", 1e-12, peers.hmmlearn_chain),
    Row("vmp-mixture", graph.vmp, _FIELD, "none (conjugate), ρ = 1",
        "sklearn BayesianGaussianMixture, one sweep and at rest", 1e-9, messages.vmp_mixture, "sklearn"),
    Row("vmp-regression", graph.vmp, _FIELD, "none (conjugate), ρ = 1",
        "scipy's maximum of the evidence bound", 1e-9, hierarchies.vmp_regression, "scipy"),
    Row("vmp-regression-recorded", graph.vmp, _FIELD, "none (conjugate), ρ = 1",
        "bayespy, a precision for each weight, at rest, recorded", 1e-9, peers.bayespy_regression),
    Row("nonconjugate-vmp", graph.vmp, _FIELD, "none (quadrature), damped",
        "scipy's maximum of the closed-form bound, Poisson", 1e-9, hierarchies.nonconjugate_poisson, "scipy"),
    Row("svi-topics", graph.svi, _FIELD, "minibatch, local ρ = 1",
        "sklearn LatentDirichletAllocation, two online steps", 1e-6, hierarchies.svi_topics, "sklearn", "relative"),
    Row("cvi-regression", graph.cvi, _PROCESS, "none (quadratic loss), ρ = 1",
        "sklearn GaussianProcessRegressor, one step", 1e-9, processes.cvi_regression, "sklearn"),
    Row("cvi-classification", graph.cvi, _PROCESS, "none (quadrature)",
        "scipy's optimum of Opper and Archambeau's bound", 1e-9, processes.cvi_classification, "scipy"),
    Row("cvi-sparse", graph.cvi, _PROCESS, "inducing points, ρ = 1",
        "Titsias' closed form, one step", 1e-9, processes.cvi_sparse),
)  # fmt: skip


def row(name: str) -> Row:
    """The row of this name."""
    for line in ROWS:
        if line.name == name:
            return line
    raise expected("row", f"one of {', '.join(line.name for line in ROWS)}", name)
