"""The engine: monotone bounds, exact evidence where it is known, minibatches, streams, damping, clear errors."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from graph.cases import COUNTS, DOUBLE, X, normal
from posterity.errors import InvalidInput
from posterity.families import Beta, Dirichlet, Gamma, Gaussian, NormalGamma, NormalWishart
from posterity.gradients import Conjugate, ConjugateLoss, LinearLoss, MonteCarlo, Quadrature
from posterity.graph import (
    Chain,
    DenseGaussian,
    LinearFactor,
    MixtureFactor,
    Model,
    Observed,
    Shrinkage,
    SiteFactor,
    Sites,
    Topics,
    categorical,
    cvi,
    diagonal_gaussian,
    em,
    gaussian,
    poisson,
    svi,
    svi_step,
    vmp,
)
from posterity.graph.sweeps import moved
from posterity.rule import BayesianLearningRule

CLOUDS = torch.cat([normal(30, 2), normal(30, 2) + 4.0, normal(30, 2) - torch.tensor([4.0, 0.0])])
EYE = torch.eye(2, dtype=DOUBLE)


def clouds_model(data=CLOUDS):
    prior = {
        "weights": Dirichlet(torch.ones(3, dtype=DOUBLE)),
        "components": NormalWishart(torch.zeros(3, 2, dtype=DOUBLE), 0.1, 3.0, EYE),
    }
    return Model(prior, [MixtureFactor("weights", "components", gaussian(data))])


CLOUDS_START = {"components": NormalWishart(CLOUDS[[0, 40, 89]], 1.0, 3.0, EYE)}
WORDS = torch.poisson(2.0 * torch.rand(20, 12, dtype=DOUBLE, generator=torch.Generator().manual_seed(0)))


def topics_model():
    return Model(
        {"beta": Dirichlet(torch.full((3, 12), 0.3, dtype=DOUBLE))},
        [Topics("theta", "beta", WORDS)],
        local={"theta": Dirichlet(torch.full((3,), 0.3, dtype=DOUBLE))},
    )


TOPICS_START = {"beta": Dirichlet(0.5 + torch.rand(3, 12, dtype=DOUBLE, generator=torch.Generator().manual_seed(1)))}


def regression_model(X=X, y=None):
    y = X @ torch.tensor([1.0, -2.0], dtype=DOUBLE) + 0.3 * normal(len(X)) if y is None else y
    factors = [LinearFactor("w", "noise", X, y), Shrinkage("w", "alpha")]
    return Model({"w": None, "alpha": Gamma(1e-3, 1e-3), "noise": Gamma(1e-3, 1e-3)}, factors)


REGRESSION_START = {"w": Gaussian.standard(2), "alpha": Gamma(1.0, 1.0), "noise": Gamma(1.0, 1.0)}


def chain_model():
    uniform = Dirichlet(torch.ones(3, dtype=DOUBLE))
    prior = {
        "initial": uniform,
        "moves": Dirichlet(torch.ones(3, 3, dtype=DOUBLE)),
        "components": NormalGamma(torch.zeros(3, 2, dtype=DOUBLE), 0.1, 1.0, 1.0),
    }
    return Model(prior, [Chain("initial", "moves", "components", diagonal_gaussian(CLOUDS), lengths=(40, 50))])


CHAIN_START = {"components": NormalGamma(CLOUDS[[0, 40, 80]], 1.0, 1.0, 1.0)}


@pytest.mark.parametrize(
    ("model", "start"),
    [
        (clouds_model(), CLOUDS_START),
        (topics_model(), TOPICS_START),
        (regression_model(), REGRESSION_START),
        (chain_model(), CHAIN_START),
    ],
    ids=["mixture", "topics", "regression", "chain"],
)
def test_the_bound_never_falls(model, start):
    fit = vmp(model, start, tolerance=1e-8)
    steps = np.diff(fit.bounds)
    assert fit.converged
    assert len(fit.bounds) == fit.steps + 1
    assert fit.steps > 2
    assert (steps >= -1e-12 * np.abs(fit.bounds[1:])).all()
    assert steps[0] > 1e-3


def test_the_likelihood_never_falls_under_em():
    flat = Model({"weights": None, "components": None}, clouds_model().factors)
    start = CLOUDS_START | {"weights": Dirichlet([2.0, 2.0, 2.0])}
    fit = em(flat, start, tolerance=1e-8)
    assert (np.diff(fit.bounds) >= -1e-9).all()
    component = fit.q["components"]
    densities = [
        stats.multivariate_normal(m, np.linalg.inv(p)).logpdf(CLOUDS.numpy())
        for m, p in zip(component.family.location.numpy(), component.expectation[1].numpy(), strict=True)
    ]
    joint = np.stack(densities, -1) + fit.q["weights"].expectation[0].numpy()
    assert fit.bounds[-1] == pytest.approx(np.logaddexp.reduce(joint, -1).sum(), rel=1e-12)


def test_the_bound_of_a_conjugate_model_is_its_evidence():
    counts = COUNTS[:, :1]
    fit = vmp(Model({"rate": Gamma([2.0], [3.0])}, [Observed("rate", poisson(counts))]))

    def joint(rate):
        return math.exp(stats.poisson(rate).logpmf(counts.numpy()).sum() + stats.gamma(2.0, scale=1 / 3.0).logpdf(rate))

    assert fit.bounds[-1] == pytest.approx(math.log(integrate.quad(joint, 0, 20, epsabs=0, epsrel=1e-11)[0]), abs=1e-9)
    assert fit.steps == 2  # the second sweep finds nothing to do


def test_a_step_is_the_rule():
    q, message = Gamma(2.0, 3.0), (torch.tensor(4.0).double(), torch.tensor(-5.0).double())
    for lr in (1.0, 0.3):
        rule = BayesianLearningRule(Conjugate(), lr=lr).step(q, ConjugateLoss(message))
        for a, b in zip(moved(q, message, lr).natural, rule.natural, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-14, atol=0.0)


def test_svi_on_all_rows_with_step_one_is_vmp():
    whole = svi(clouds_model(), CLOUDS_START, batch_size=90, steps=5, schedule=lambda t: 1.0)
    with pytest.warns(RuntimeWarning, match="still moves"):
        sweeps = vmp(clouds_model(), CLOUDS_START, steps=5, tolerance=1e-12)
    for name in whole.q:
        for a, b in zip(whole.q[name].natural, sweeps.q[name].natural, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-10)
    assert whole.bounds == pytest.approx(sweeps.bounds[:5], rel=1e-12)


def test_svi_counts_each_row_for_all_it_stands_for_and_the_prior_once():
    model, rows = clouds_model(), torch.arange(10)
    q, _, _ = svi_step(model.take(rows), model.start(CLOUDS_START), 1.0, n=90)
    assert q["weights"].concentration.sum() == pytest.approx(3.0 + 90.0)


def test_svi_comes_near_vmp():
    fit = svi(clouds_model(), CLOUDS_START, batch_size=30, steps=300)
    exact = vmp(clouds_model(), CLOUDS_START)
    assert torch.allclose(fit.q["components"].location, exact.q["components"].location, atol=0.2)


def test_yesterdays_posterior_is_todays_prior():
    """Conjugate streams lose nothing."""
    first, second = CLOUDS[:40], CLOUDS[40:]
    model = Model({"theta": NormalWishart([0.0, 0.0], 0.1, 3.0, EYE)}, [Observed("theta", gaussian(CLOUDS))])
    yesterday = Model(model.priors, [Observed("theta", gaussian(first))])
    tomorrow = Model(model.priors, [Observed("theta", gaussian(second))]).given(vmp(yesterday).q)
    for a, b in zip(vmp(tomorrow).q["theta"].natural, vmp(model).q["theta"].natural, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("gradient", [Quadrature(40), MonteCarlo(2000, generator=torch.Generator().manual_seed(0))])
def test_any_estimator_makes_a_site(gradient):
    X = 0.5 * normal(40, 2)
    y = torch.poisson((X @ torch.tensor([1.0, -1.0]).double()).exp(), generator=torch.Generator().manual_seed(0))
    loss = LinearLoss(inputs=X, targets=y, likelihood="poisson")
    model = Model({"w": Gaussian.standard(2)}, [SiteFactor("w", loss, gradient)])
    tolerance = 1e-10 if isinstance(gradient, Quadrature) else 0.0
    fit = vmp(model, lr=0.5, steps=40 if tolerance == 0.0 else 400, tolerance=tolerance)
    exact = vmp(Model({"w": Gaussian.standard(2)}, [SiteFactor("w", loss, Quadrature(60))]), lr=0.5, tolerance=1e-10)
    atol = 1e-9 if tolerance else 0.05
    torch.testing.assert_close(fit.q["w"].mean, exact.q["w"].mean, rtol=0.0, atol=atol)


def test_bad_models_are_refused_with_reasons():
    weights, emission = Dirichlet(torch.ones(3, dtype=DOUBLE)), gaussian(X)
    wishart = NormalWishart(torch.zeros(3, 2, dtype=DOUBLE), 1.0, 3.0, EYE)
    factor = MixtureFactor("weights", "components", emission)
    with pytest.raises(
        InvalidInput,
        match=r"no message is known from MixtureFactor to 'components': expected NormalWishart, got NormalGamma",
    ):
        vmp(Model({"weights": weights, "components": NormalGamma(torch.zeros(3, 2).double(), 1.0, 1.0, 1.0)}, [factor]))
    with pytest.raises(
        InvalidInput, match=r"no message is known from MixtureFactor to 'weights': expected Dirichlet, got Beta"
    ):
        vmp(Model({"weights": Beta(1.0, 1.0), "components": wishart}, [factor]))
    small = NormalWishart(torch.zeros(2, 2, dtype=DOUBLE), 1.0, 3.0, EYE)
    with pytest.raises(InvalidInput, match=r"plates of 'components': expected \(3, ...\), got \(2,\)"):
        vmp(Model({"weights": weights, "components": small}, [factor]))
    with pytest.raises(InvalidInput, match="one of the variables"):
        vmp(Model({"weights": weights}, [factor]))
    with pytest.raises(InvalidInput, match="variable 'stray': expected a factor that touches it"):
        Model({"weights": weights, "components": wishart, "stray": weights}, [factor])
    with pytest.raises(InvalidInput, match="as it has no prior"):
        vmp(Model({"weights": None, "components": wishart}, [factor]))
    with pytest.raises(InvalidInput, match="start"):
        vmp(Model({"weights": weights, "components": wishart}, [factor]), {"weigths": weights})
    with pytest.raises(InvalidInput, match="same rows"):
        Model(
            {"weights": weights, "components": wishart},
            [factor, MixtureFactor("weights", "components", gaussian(X[:3]))],
        )
    with pytest.raises(InvalidInput, match="a distribution"):
        em(Model({"w": None}, [SiteFactor("w", lambda w: w @ w)]), {"w": Gaussian.standard(2)})
    with pytest.raises(InvalidInput, match="factors: expected factors that know their messages, got 'function'"):
        Model({"w": None}, [lambda w: w @ w])


def test_missing_numbers_need_a_mask():
    holes = X.clone()
    holes[2, 0] = math.nan
    with pytest.raises(InvalidInput, match="say with a mask which are missing"):
        gaussian(holes)
    assert torch.isfinite(
        gaussian(holes, mask=~holes.isnan().any(-1)).energies(CLOUDS_START["components"].expectation)
    ).all()
    with pytest.raises(InvalidInput, match=r"mask: expected shape \(7,\)"):
        gaussian(X, mask=torch.ones(6, dtype=torch.bool))
    with pytest.raises(InvalidInput, match="targets: expected finite numbers"):
        LinearFactor("w", "noise", X, torch.full((len(X),), math.nan, dtype=torch.float64))


def test_single_precision_is_widened():
    y = X @ torch.tensor([1.0, -2.0], dtype=DOUBLE) + 0.3 * normal(len(X))
    narrow, wide = (vmp(regression_model(X.to(t), y.to(t)), REGRESSION_START) for t in (torch.float32, DOUBLE))
    torch.testing.assert_close(narrow.q["w"].mean, wide.q["w"].mean, rtol=1e-5, atol=1e-5)
    K = torch.exp(-0.5 * torch.cdist(X, X) ** 2)
    narrow, wide = (cvi(DenseGaussian(K.to(t)), y.to(t), "gaussian") for t in (torch.float32, DOUBLE))
    torch.testing.assert_close(narrow.marginals.mean, wide.marginals.mean, rtol=1e-5, atol=1e-5)
    with pytest.raises(InvalidInput, match="covariance: expected a symmetric matrix"):
        DenseGaussian(K.triu())


def test_moves_almost_never_made_need_not_be():
    """The limit of few prior counts: a chain of its own for each state, and the bound rises all the way."""
    sparse = Dirichlet(torch.full((3, 3), 1e-4, dtype=DOUBLE))
    model = chain_model()
    fit = vmp(replace(model, priors={**model.priors, "moves": sparse}), CHAIN_START, tolerance=1e-8)
    assert fit.converged
    assert (np.diff(fit.bounds) >= -1e-9).all()
    assert fit.q["moves"].concentration.sum() == pytest.approx(39 + 49 + 9e-4)


def test_parameters_that_do_not_fit_the_data_are_refused():
    one = torch.ones(4, dtype=DOUBLE)
    for family, factor, message in (
        (Gamma(one[:1], one[:1]), Observed("q", poisson(COUNTS)), "parameters of Gamma: expected"),
        (
            Gamma(one[:2, None], one[:2, None]),
            Observed("q", poisson(COUNTS[:, :1])),
            "parameters of Gamma: expected 2 ",
        ),
        (NormalWishart(one[:1], 1.0, 2.0, EYE[:1, :1]), Observed("q", gaussian(X)), "NormalWishart: expected 2, as"),
    ):
        with pytest.raises(InvalidInput, match=message):
            vmp(Model({"q": family}, [factor]))
    with pytest.raises(InvalidInput, match=r"mask: expected shape \(3,\), got 'shape \(3, 1\)'"):
        categorical(torch.arange(3), 3, mask=torch.ones(3, 1, dtype=torch.bool))
    with pytest.raises(InvalidInput, match="steps: expected a whole number"):
        vmp(clouds_model(), CLOUDS_START, steps=1.5)
    with pytest.raises(InvalidInput, match="start: expected 2 sites, one for each point, got 3"):
        cvi(DenseGaussian(EYE), one[:2], "gaussian", start=Sites.none(3))


def test_plates_that_a_factor_does_not_know_are_refused():
    several, one = Gaussian(torch.zeros(3, 2, dtype=DOUBLE), EYE), Gaussian.standard(2)
    linear, shrinkage = LinearFactor("w", "tau", X, X[:, 0]), Shrinkage("w", "tau")
    for prior, factor in (
        ({"w": several, "tau": Gamma(1.0, 1.0)}, linear),
        ({"w": one, "tau": Gamma([1.0, 1.0], 1.0)}, linear),
        ({"w": several, "tau": Gamma(1.0, 1.0)}, shrinkage),
    ):
        with pytest.raises(InvalidInput, match=r"plates of '\w+': expected \(\), a single member, got"):
            vmp(Model(prior, [factor]))
    moves = Dirichlet(torch.ones(3, 2, dtype=DOUBLE))
    model = chain_model()
    with pytest.raises(InvalidInput, match=r"shape of 'moves': expected \(3, 3\), got \(3, 2\)"):
        vmp(replace(model, priors={**model.priors, "moves": moves}), CHAIN_START)
    with pytest.raises(InvalidInput, match=r"inputs: expected rows \(N, d\), got \(2,\)"):
        LinearFactor("w", "tau", X[0], X[0])
    with pytest.raises(InvalidInput, match=r"targets: expected 2, one for each point, got \(2, 1\)"):
        cvi(DenseGaussian(EYE), EYE[:, :1], "gaussian")
    with pytest.raises(InvalidInput, match="jitter: expected a variance >= 0"):
        gaussian(X, jitter=-1.0)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_data_and_beliefs_of_any_type_say_the_same():
    labels, flat = torch.tensor([0, 2, 1, 2]), Dirichlet(torch.ones(3))
    for same in (labels.to(torch.uint8), labels.int(), labels.numpy(), labels.tolist()):
        fit = vmp(Model({"p": flat}, [Observed("p", categorical(same, 3))]))
        assert fit.q["p"].concentration.tolist() == [2.0, 2.0, 3.0]
    counts = torch.eye(4) + 1.0
    narrow = Model(
        {"b": Dirichlet(torch.rand(2, 4))}, [Topics("t", "b", counts)], local={"t": Dirichlet(torch.ones(2))}
    )
    wide = vmp(narrow, steps=5, tolerance=0.0).q["b"].concentration
    for same in (counts.numpy(), counts.int(), counts.to_sparse_csr()):
        model = replace(narrow, factors=[Topics("t", "b", same)])
        torch.testing.assert_close(vmp(model, steps=5, tolerance=0.0).q["b"].concentration, wide)
    svi(replace(narrow, factors=[Topics("t", "b", counts.to_sparse_csr())]), batch_size=2, steps=2)
    weights = {"w": Gaussian.standard(2), "tau": Gamma(1.0, 1.0)}
    both = (vmp(Model(weights, [LinearFactor("w", "tau", x, x[:, 0])])).q["w"].mean for x in (X, X.numpy()))
    torch.testing.assert_close(*both)


def test_masks_of_numpy_are_masks():
    mask = torch.arange(len(X)) % 2 == 0
    for emission in (gaussian, diagonal_gaussian):
        assert torch.equal(emission(X, mask=mask.numpy()).present, mask)
        assert torch.equal(emission(X.tolist(), mask=mask.tolist()).present, mask)


def test_lists_keep_their_digits():
    factor = LinearFactor("w", "tau", [[0.1]], [0.3])
    assert (factor.inputs.item(), factor.targets.item()) == (0.1, 0.3)
    assert DenseGaussian([[0.7]]).covariance.item() == 0.7
    fit = cvi(DenseGaussian([[0.7]]), [0.3], "gaussian")
    assert fit.marginals.mean.item() == pytest.approx(0.7 * 0.3 / 1.7, rel=1e-12)
