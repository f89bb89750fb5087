"""Topics, chains, state spaces, factors, mixtures for any density: beside scikit-learn, scipy and enumeration."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, stats
from sklearn.decomposition import FactorAnalysis as TheirFactors

from posterity.algorithms import LinearStateSpace
from posterity.errors import InvalidInput
from posterity.models import (
    FactorAnalysis,
    HiddenMarkovModel,
    LatentDirichletAllocation,
    LinearGaussianStateSpace,
    MixtureApproximation,
)

RNG = np.random.default_rng(0)
SIGNAL = np.concatenate([RNG.normal(size=(40, 2)), RNG.normal(size=(40, 2)) + 4, RNG.normal(size=(40, 2))])


@pytest.mark.parametrize("method", ["svi", "vmp"])
def test_topics_are_found(method):
    """Documents of two kinds of words; each topic keeps to one."""
    kinds = RNG.integers(2, size=80)
    chances = np.where(kinds[:, None] == 0, np.repeat([0.19, 0.01], 5), np.repeat([0.01, 0.19], 5))
    words = np.stack([RNG.multinomial(50, p) for p in chances])
    model = LatentDirichletAllocation(2, method=method, batch_size=40, max_iter=40, random_state=0).fit(words)
    found = model.transform(words).argmax(-1)
    assert max((found == kinds).mean(), (found != kinds).mean()) == 1.0
    assert model.perplexity(words) < 8.0  # five words of ten would do, and half a document's share of its own
    assert (model.sample(3, words=20).sum(-1) == 20).all()
    stream = LatentDirichletAllocation(2, random_state=0)
    for batch in np.split(words, 4):
        stream.partial_fit(batch)
    assert stream.posterior_["topics"].concentration.sum() == pytest.approx(words.sum() + 10 * 2 * 0.5)


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_states_are_found_and_the_path_is_the_best_of_all(method):
    model = HiddenMarkovModel(2, method=method, random_state=0).fit(SIGNAL, lengths=(60, 60))
    states = model.predict(SIGNAL)
    assert len(set(states[:40])) == len(set(states[40:80])) == 1
    assert states[0] != states[50]
    assert (np.diff(model.lower_bounds_) >= -1e-8).all()
    short = SIGNAL[36:44]
    q = model._beliefs()
    energies = model._chain(short, None).emission.energies(q["components"].expectation).numpy()
    first, moves = q["initial"].expectation[0].numpy(), q["transitions"].expectation[0].numpy()
    paths = np.array(list(itertools.product(range(2), repeat=8)))
    score = first[paths[:, 0]] + moves[paths[:, :-1], paths[:, 1:]].sum(-1) + energies[np.arange(8), paths].sum(-1)
    assert (model.predict(short) == paths[score.argmax()]).all()
    assert model.score(short) == pytest.approx(np.logaddexp.reduce(score))


@pytest.mark.parametrize("method", ["em", "vmp"])
def test_states_do_not_depend_on_where_zero_is(method):
    """Below zero, far from it, and with the lengths of sequences in an array."""
    here = HiddenMarkovModel(2, method=method, random_state=0).fit(SIGNAL, lengths=np.array([60, 60]))
    for shift in (-10.0, 1e7):
        there = HiddenMarkovModel(2, method=method, random_state=0).fit(SIGNAL + shift, lengths=np.array([60, 60]))
        assert (there.predict(SIGNAL + shift, [60, 60]) == here.predict(SIGNAL, np.array([60, 60]))).all()
        assert there.score(SIGNAL + shift) == pytest.approx(here.score(SIGNAL), rel=1e-6)
        locations = there.posterior_["components"].location - shift
        torch.testing.assert_close(locations, here.posterior_["components"].location, rtol=0.0, atol=1e-5)


def test_sequences_are_drawn_at_the_parameters_of_em():
    low, high = SIGNAL[36:40], SIGNAL[40:44]  # so few that degrees of freedom matter
    rows = np.stack((low, high), 1).reshape(8, 2)
    model = HiddenMarkovModel(2, method="em", random_state=0).fit(rows)
    drawn, states = model.sample(6000)
    for part, state in zip((low, high), model.predict(rows), strict=False):
        np.testing.assert_allclose(np.cov(drawn[states == state].T), np.cov(part.T, bias=True), atol=0.15)
    with pytest.raises(InvalidInput, match="n_samples: expected a whole number >= 1"):
        model.sample(0)


def test_symbols_and_missing_rows():
    symbols = np.r_[np.tile([0, 1], 20), np.tile([2, 3], 20)].astype(float)[:, None]
    symbols[[5, 50]] = np.nan
    model = HiddenMarkovModel(2, emission="categorical", random_state=0).fit(symbols)
    states = model.predict(symbols)
    assert states[5] == states[4]
    assert states[0] != states[-1]
    rows, drawn = model.sample(50)
    assert rows.shape == (50, 1)
    assert set(drawn) <= {0, 1}
    with pytest.raises(InvalidInput, match="lengths"):
        model.fit(symbols, lengths=(3, 4))
    with pytest.raises(InvalidInput, match="X: expected symbols 0, 1, …, got 'fractions'"):
        model.fit(symbols + 0.5)
    with pytest.raises(InvalidInput, match="n_samples=0: expected at least 2, as many as states"):
        model.fit(np.full((10, 1), np.nan))


def test_chains_learn_from_the_next_sequence():
    """Counts of first states and of moves add up, and tell what both sequences at once would have told."""
    model = HiddenMarkovModel(2, random_state=0).partial_fit(SIGNAL[:60]).partial_fit(SIGNAL[60:])
    whole = HiddenMarkovModel(2, random_state=0).fit(SIGNAL, lengths=(60, 60))
    assert model.posterior_["initial"].concentration.sum() == pytest.approx(2 + 2)
    assert model.posterior_["transitions"].concentration.sum() == pytest.approx(4 + 59 + 59)
    order = model.posterior_["components"].location[:, 0].argsort()
    theirs = whole.posterior_["components"].location[:, 0].argsort()
    torch.testing.assert_close(
        model.posterior_["components"].location[order], whole.posterior_["components"].location[theirs],
        rtol=0.0, atol=0.1,
    )  # fmt: skip
    with pytest.raises(InvalidInput, match='method: expected "vmp"'):
        HiddenMarkovModel(2, method="em").partial_fit(SIGNAL)


def test_state_space_by_em():
    chain = LinearGaussianStateSpace(1, random_state=0, max_iter=0)
    walk = np.cumsum(0.5 * RNG.normal(size=300))
    seen = (walk + RNG.normal(size=300))[:, None]
    seen[[10, 11, 200]] = np.nan
    model = LinearGaussianStateSpace(1, random_state=0, max_iter=200, tol=1e-6).fit(seen)
    assert (np.diff(model.lower_bounds_) >= -1e-7).all()
    assert model.n_iter_ > 3
    assert abs(model.model_.transition.item()) == pytest.approx(1.0, abs=0.06)
    assert model.model_.observation_noise.item() == pytest.approx(1.0, abs=0.3)
    smooth = model.smooth(seen).mean @ model.model_.observation.mT
    assert np.corrcoef(smooth[:, 0], walk)[0, 1] > 0.97
    mean, std = model.predict(seen, steps=5, return_std=True)
    assert mean.shape == (5, 1)
    with pytest.raises(InvalidInput, match="steps: expected a whole number >= 1"):
        model.predict(seen, steps=0)
    assert (np.diff(std[:, 0]) > 0).all()
    observations, states = model.sample(50)
    assert observations.shape == states.shape == (50, 1)
    fixed = LinearGaussianStateSpace(1, model=model.model_, max_iter=0).fit(seen)
    assert fixed.score(seen) == pytest.approx(model.lower_bounds_[-1])
    holes = np.where(RNG.random((30, 2)) < 0.2, np.nan, RNG.normal(size=(30, 2)))
    with pytest.raises(InvalidInput, match="missing as a whole"):
        chain.set_params(max_iter=5).fit(holes)
    for bad in (seen[:1], np.full((9, 1), np.nan), np.ones((9, 1))):
        with pytest.raises(InvalidInput, match="at least 2 rows observed, and columns that vary"):
            chain.fit(bad)


def test_sequences_are_drawn_where_moves_are_partly_certain():
    """An autoregression of order 2: the second state is the first of the step before."""
    autoregression = np.array([[0.5, 0.3], [1.0, 0.0]]), np.diag([1.0, 0.0])
    seen = np.array([[1.0, 0.0]]), np.array([[0.01]])
    chain = LinearStateSpace(*autoregression, *seen, np.zeros(2), np.eye(2))
    model = LinearGaussianStateSpace(2, model=chain, max_iter=0, random_state=0).fit(SIGNAL[:, :1])
    _, states = model.sample(20_000)
    np.testing.assert_allclose(states[1:, 1], states[:-1, 0], atol=1e-12)
    surprise = states[1:, 0] - states[:-1] @ [0.5, 0.3]
    assert surprise.std() == pytest.approx(1.0, abs=0.02)


def test_state_spaces_do_not_depend_on_units():
    walk = np.cumsum(RNG.normal(size=(150, 2)), 0) + RNG.normal(size=(150, 2))
    units = np.array([1e-9, 1e6])
    plain, scaled = (LinearGaussianStateSpace(2, random_state=0).fit(unit * walk) for unit in (1.0, units))
    np.testing.assert_allclose(scaled.predict(units * walk, 3) / units, plain.predict(walk, 3), rtol=1e-6)
    assert scaled.score(units * walk) == pytest.approx(plain.score(walk) - 150 * np.log(units).sum())


def test_factors_are_those_of_scikit_learn():
    rows = RNG.normal(size=(200, 2)) @ RNG.normal(size=(2, 6)) + 0.5 * RNG.normal(size=(200, 6)) + 3.0
    ours = FactorAnalysis(2, tol=1e-10, max_iter=5000, random_state=0).fit(rows)
    theirs = TheirFactors(2, tol=1e-8, max_iter=20_000, svd_method="lapack").fit(rows)
    assert ours.score(rows) == pytest.approx(theirs.score(rows), abs=1e-6)
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-3)
    density = stats.multivariate_normal(ours.mean_, ours.get_covariance()).logpdf(rows)
    np.testing.assert_allclose(ours.score_samples(rows), density, rtol=1e-10)
    assert (np.diff(ours.lower_bounds_) >= -1e-8).all()
    assert np.abs(np.cov(ours.sample(50_000).T) - ours.get_covariance()).max() < 0.3


def test_factors_do_not_depend_on_where_zero_is():
    rows = RNG.normal(size=(200, 2)) @ RNG.normal(size=(2, 6)) + 0.5 * RNG.normal(size=(200, 6))
    here, there = (FactorAnalysis(2, random_state=0).fit(rows + shift) for shift in (0.0, 1e7))
    np.testing.assert_allclose(there.get_covariance(), here.get_covariance(), atol=1e-5)
    np.testing.assert_allclose(there.mean_ - 1e7, here.mean_, atol=1e-5)
    assert (np.diff(there.lower_bounds_) >= -1e-8).all()


def test_factors_do_not_depend_on_units():
    rows = RNG.normal(size=(200, 2)) @ RNG.normal(size=(2, 6)) + 0.5 * RNG.normal(size=(200, 6))
    units = np.array([1e-12, 1e-6, 1e-3, 1.0, 1e3, 1e9])
    plain, scaled = (FactorAnalysis(2, random_state=0).fit(unit * rows) for unit in (1.0, units))
    np.testing.assert_allclose(scaled.get_covariance() / np.outer(units, units), plain.get_covariance(), rtol=1e-9)
    assert scaled.score(units * rows) == pytest.approx(plain.score(rows) - np.log(units).sum())


def test_factors_and_topics_name_their_columns():
    counts = pd.DataFrame(RNG.poisson(3.0, size=(20, 4)), columns=list("abcd"))
    for model in (FactorAnalysis(2), LatentDirichletAllocation(2, max_iter=1)):
        named = model.set_output(transform="pandas").fit_transform(counts)
        assert list(named) == [f"{type(model).__name__.lower()}{k}" for k in range(2)]


def test_factors_with_holes_keep_the_covariance():
    rows = RNG.normal(size=(500, 1)) @ RNG.normal(size=(1, 4)) + 0.3 * RNG.normal(size=(500, 4))
    holes = np.where(RNG.random(rows.shape) < 0.2, np.nan, rows)
    whole, parts = FactorAnalysis(1).fit(rows), FactorAnalysis(1).fit(holes)
    np.testing.assert_allclose(parts.get_covariance(), whole.get_covariance(), atol=0.25)
    seen = ~np.isnan(holes[0])
    marginal = stats.multivariate_normal(parts.mean_[seen], parts.get_covariance()[np.ix_(seen, seen)])
    assert parts.score_samples(holes)[0] == pytest.approx(marginal.logpdf(holes[0][seen]))


def test_a_mixture_for_any_density():
    def log_density(theta):
        return torch.logaddexp(-0.5 * ((theta - 2.0) ** 2).sum() / 0.5, -0.5 * ((theta + 2.0) ** 2).sum())

    model = MixtureApproximation(2, random_state=0).fit(log_density, start=[[-1.0], [1.0]])
    np.testing.assert_allclose(np.sort(model.means_[:, 0]), [-2.0, 2.0], atol=0.01)
    evidence = np.log(integrate.quad(lambda t: np.exp(float(log_density(torch.tensor([t])))), -12, 12)[0])
    assert model.lower_bounds_[-1] == pytest.approx(evidence, abs=1e-3)
    assert model.sample(10).shape == (10, 1)
    drawn = MixtureApproximation(2, nodes=0, samples=50, lr=0.05, max_iter=200, random_state=0)
    np.testing.assert_allclose(np.sort(drawn.fit(log_density, start=[[-1.0], [1.0]]).means_[:, 0]), [-2, 2], atol=0.2)
    with pytest.raises(InvalidInput, match="dim"):
        MixtureApproximation(2).fit(log_density)
