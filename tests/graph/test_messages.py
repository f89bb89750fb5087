"""Every factor: its messages are the gradients of its value in μ, and its value is what enumeration gives."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from graph.cases import BITS, CASES, COUNTS, DOUBLE, LABELS, MOVES, ROWS, WEIGHTS, WISHARTS, WORDS, X, normal
from posterity.errors import InvalidInput
from posterity.families import Beta, Dirichlet, Gamma, Gaussian, NormalGamma, NormalWishart
from posterity.graph import (
    Chain,
    MixtureFactor,
    Model,
    Topics,
    bernoulli,
    categorical,
    diagonal_gaussian,
    gaussian,
    poisson,
    vmp,
)
from posterity.graph.modes import mode_statistics


@pytest.mark.parametrize("name", CASES)
def test_messages_are_gradients_in_the_expectation_parameters(name):
    factor, q = CASES[name]
    factor.check(q)
    messages = factor.evaluate(q).messages
    assert set(messages) == set(factor.neighbours) == set(q)
    for variable, belief in q.items():
        directions = [normal(*block.shape) for block in belief.expectation]
        directions = [
            0.5 * (d + d.mT) if dims == 2 else d for d, dims in zip(directions, belief.event_dims, strict=True)
        ]

        def value(step, variable=variable, belief=belief, directions=directions):
            moved = tuple(mu + step * d for mu, d in zip(belief.expectation, directions, strict=True))
            return factor.evaluate(q | {variable: SimpleNamespace(expectation=moved)}).value

        slope = (value(1e-6) - value(-1e-6)) / 2e-6
        message = messages[variable]()
        assert [m.shape for m in message] == [mu.shape for mu in belief.expectation]
        expected = sum((m * d).sum() for m, d in zip(message, directions, strict=True))
        torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-7)


def points(**families):
    """Beliefs that are sure of the parameters: T at given values."""
    return {name: SimpleNamespace(expectation=statistics) for name, statistics in families.items()}


LOG_WEIGHTS = WEIGHTS.mean.log()
D = torch.distributions


@pytest.mark.parametrize(
    ("emission", "statistics", "log_prob"),
    [
        (
            gaussian(X),
            WISHARTS.statistics(WISHARTS.mean),
            D.MultivariateNormal(WISHARTS.location, precision_matrix=WISHARTS.mean[..., 1:, :]).log_prob(X[:, None]),
        ),
        (
            diagonal_gaussian(X),
            (torch.full((3, 2), 2.0, dtype=DOUBLE).log(), torch.full((3, 2), 2.0, dtype=DOUBLE),
             2.0 * WISHARTS.location, 2.0 * WISHARTS.location**2),
            D.Normal(WISHARTS.location, 0.5**0.5).log_prob(X[:, None]).sum(-1),
        ),
        (
            bernoulli(BITS),
            (torch.tensor([[0.2, 0.7]] * 3, dtype=DOUBLE).log(), torch.tensor([[0.8, 0.3]] * 3, dtype=DOUBLE).log()),
            D.Bernoulli(torch.tensor([[0.2, 0.7]] * 3, dtype=DOUBLE)).log_prob(BITS[:, None]).sum(-1),
        ),
        (
            poisson(COUNTS),
            (torch.tensor([[2.0, 3.0]] * 3, dtype=DOUBLE).log(), torch.tensor([[2.0, 3.0]] * 3, dtype=DOUBLE)),
            D.Poisson(torch.tensor([[2.0, 3.0]] * 3, dtype=DOUBLE)).log_prob(COUNTS[:, None]).sum(-1),
        ),
        (
            categorical(LABELS, 4),
            (torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 3, dtype=DOUBLE).log(),),
            D.Categorical(torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 3, dtype=DOUBLE)).log_prob(LABELS[:, None]),
        ),
    ],
    ids=["gaussian", "diagonal", "bernoulli", "poisson", "categorical"],
)  # fmt: skip
def test_mixtures_have_the_density_that_torch_gives(emission, statistics, log_prob):
    factor = MixtureFactor("weights", "components", emission)
    value = factor.evaluate(points(weights=(LOG_WEIGHTS,), components=statistics)).value
    torch.testing.assert_close(value, (LOG_WEIGHTS + log_prob).logsumexp(-1).sum(), rtol=1e-12, atol=1e-12)


def test_topics_have_the_density_of_their_words():
    theta, beta = Dirichlet(torch.ones(4, 3)).sample(1)[0].double(), Dirichlet(torch.ones(3, 5)).sample(1)[0].double()
    value = Topics("theta", "beta", WORDS).evaluate(points(theta=(theta.log(),), beta=(beta.log(),))).value
    torch.testing.assert_close(value, (WORDS * (theta @ beta).log()).sum(), rtol=1e-6, atol=1e-6)


SPARSE = Dirichlet(10.0 ** -torch.arange(9, dtype=torch.float64).reshape(3, 3))


@pytest.mark.parametrize(
    ("first", "moves"),
    [(WEIGHTS, MOVES), (WEIGHTS, SPARSE), (Dirichlet(SPARSE.concentration[1]), MOVES)],
    ids=["", "moves that underflow", "first states that underflow"],
)
@pytest.mark.parametrize("steps", [1, 7])
def test_chains_sum_over_all_paths(first, moves, steps):
    factor = Chain("initial", "moves", "components", gaussian(3.0 * X[:steps], mask=ROWS[:steps]))
    q = {"initial": first, "moves": moves, "components": WISHARTS}
    energies = factor.emission.energies(WISHARTS.expectation)
    log_moves = moves.expectation[0]
    paths = torch.tensor(list(itertools.product(range(3), repeat=steps)))
    along = energies[torch.arange(steps), paths].sum(-1) + log_moves[paths[:, :-1], paths[:, 1:]].sum(-1)
    weights = first.expectation[0][paths[:, 0]] + along
    torch.testing.assert_close(factor.evaluate(q).value, weights.logsumexp(0), rtol=1e-12, atol=1e-12)
    states, pairs, _ = factor.paths(q)
    chance = weights.softmax(0)
    for j in range(3):
        here = (paths == j).double()
        torch.testing.assert_close(states[:, j], chance @ here, rtol=1e-12, atol=1e-12)
        for k in range(3):
            both = ((paths[:, :-1] == j) & (paths[:, 1:] == k)).sum(-1)
            torch.testing.assert_close(pairs[j, k], chance @ both.double(), rtol=1e-12, atol=1e-12)


def test_chains_whose_moves_are_never_made():
    """States that are only left, and states that nothing leads to."""
    first, moves = torch.tensor([0.0, 1.0, 0.0]).double().log(), MOVES.mean.triu().log()
    factor = Chain("initial", "moves", "components", gaussian(X[:5]))
    q = points(initial=(first,), moves=(moves,), components=WISHARTS.expectation)
    energies = factor.emission.energies(WISHARTS.expectation)
    paths = torch.tensor([[1] * stay + [2] * (5 - stay) for stay in range(1, 6)])
    weights = energies[torch.arange(5), paths].sum(-1) + moves[paths[:, :-1], paths[:, 1:]].sum(-1)
    states, _, value = factor.paths(q)
    torch.testing.assert_close(value, weights.logsumexp(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(states[:, 2], weights.softmax(0) @ (paths == 2).double(), rtol=1e-12, atol=1e-12)
    assert not states[:, 0].any()
    nowhere = points(
        initial=(first,), moves=(torch.full((3, 3), -torch.inf).double(),), components=WISHARTS.expectation
    )
    with pytest.raises(InvalidInput, match="step 1 of a chain: expected a state that moves lead to, got 'none'"):
        factor.paths(nowhere)


@pytest.mark.parametrize(
    "q",
    [WISHARTS.with_natural(tuple(4.0 * block for block in WISHARTS.natural)), NormalGamma([0.3], [2.0], [3.0], [1.5]),
     Gamma([2.5], [2.0]), Dirichlet([[2.0, 3.5, 1.2]]), Gaussian([[1.0, 2.0]], torch.eye(2))],
    ids=lambda q: type(q).__name__,
)  # fmt: skip
def test_modes_are_the_highest_points(q):
    """No θ near the mode, nor any drawn from q, has a larger ⟨λ, T(θ)⟩."""
    best = q.pair(q.natural, mode_statistics(q))
    drawn = q.pair(q.natural, q.statistics(q.sample(2000, torch.Generator().manual_seed(0))))
    assert (drawn <= best + 1e-12).all()
    assert (best - drawn.amax(0) < 0.5).all()


def test_a_family_without_a_mode_is_named():
    with pytest.raises(InvalidInput, match="no mode is known for Beta"):
        mode_statistics(Beta(2.0, 2.0))


def test_chunks_change_nothing(monkeypatch):
    whole = CASES["gaussian mixture"][0].evaluate(CASES["gaussian mixture"][1])
    monkeypatch.setattr("posterity.graph.emissions._KEPT", 0)
    monkeypatch.setattr("posterity.graph.emissions._CHUNK", 14)
    pieces = MixtureFactor("weights", "components", gaussian(X)).evaluate(CASES["gaussian mixture"][1])
    torch.testing.assert_close(pieces.value, whole.value)
    for a, b in zip(pieces.messages["components"](), whole.messages["components"](), strict=True):
        torch.testing.assert_close(a, b)


def test_missing_entries_say_nothing():
    """Two columns that are never seen leave their parameters at the prior."""
    X = normal(30, 3)
    mask = torch.ones(30, 3, dtype=torch.bool)
    mask[:, 2] = False
    prior = {
        "weights": Dirichlet(torch.ones(2).double()),
        "components": NormalGamma(torch.zeros(2, 3).double(), 1.0, 1.0, 1.0),
    }
    start = {"components": NormalGamma(normal(2, 3), 1.0, 1.0, 1.0)}
    fit = vmp(Model(prior, [MixtureFactor("weights", "components", diagonal_gaussian(X, mask=mask))]), start)
    fewer = {"weights": prior["weights"], "components": NormalGamma(torch.zeros(2, 2).double(), 1.0, 1.0, 1.0)}
    begin = NormalGamma(start["components"].location[:, :2], 1.0, 1.0, 1.0)
    alone = vmp(
        Model(fewer, [MixtureFactor("weights", "components", diagonal_gaussian(X[:, :2]))]), {"components": begin}
    )
    torch.testing.assert_close(
        fit.q["components"].location[:, :2], alone.q["components"].location, rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(fit.q["components"].location[:, 2], torch.zeros(2).double())
    torch.testing.assert_close(fit.q["components"].rate[:, 2], torch.ones(2).double())


def test_rows_that_are_missing_are_as_if_not_there():
    factor, q = CASES["gaussian mixture, smeared, rows missing"]
    kept = MixtureFactor("weights", "components", gaussian(X[factor.emission.present], jitter=0.1)).evaluate(q)
    masked = factor.evaluate(q)
    torch.testing.assert_close(masked.value, kept.value)
    for name in q:
        for a, b in zip(masked.messages[name](), kept.messages[name](), strict=True):
            torch.testing.assert_close(a, b)


def test_an_empty_component_stays_finite():
    far = NormalWishart(torch.tensor([[0.0, 0.0], [1e6, 1e6], [0.0, 1.0]]).double(), 1.0, 3.0, torch.eye(2).double())
    message = (
        MixtureFactor("weights", "components", gaussian(X)).evaluate({"weights": WEIGHTS, "components": far}).messages
    )
    q = NormalWishart.from_natural(message["components"]())
    torch.testing.assert_close(q.location[1], X.mean(0))
    assert q.strength[1] == pytest.approx(1e-8)
