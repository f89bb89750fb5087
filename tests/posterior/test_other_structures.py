"""Last layers, mixtures, ensembles, dropout and signs; and what goes for every structure."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn
from torch.distributions import Bernoulli, Categorical, MixtureSameFamily, MultivariateNormal, kl_divergence

from posterior import cases
from posterity.errors import InvalidInput, Undefined
from posterity.posterior import Diagonal, Dropout, Ensemble, LastLayer, LowRank, Mixture, Signs, Structure
from posterity.posterior.dropout import require_mask
from posterity.trees import to_vector


@pytest.mark.parametrize("name", cases.STRUCTURES)
def test_nobody_else_can_change_a_structure(name: str) -> None:
    q = cases.STRUCTURES[name]()
    given = {key: t.clone() for key, t in q.tensors().items()}
    built = type(q).from_tensors(given, q.settings())
    for t in given.values():
        t.zero_()
    assert all(torch.equal(t, q.tensors()[key]) for key, t in built.tensors().items())


def head(tree):
    return {name: t for name, t in tree.items() if name.startswith("4.")}


def test_last_layer_is_its_inner_gaussian_and_fixed_elsewhere() -> None:
    q = cases.last_layer()
    draw = q.sample(3)
    assert all(torch.equal(draw[name], t) for name, t in q.rest.items())
    assert all(not torch.equal(draw[name], t) for name, t in q.inner.mean.items())
    assert set(q.names) == set(cases.weights())
    assert all((q.variance[name] == 0).all() for name in q.rest)
    dense = MultivariateNormal(to_vector(q.inner.mean), precision_matrix=q.inner.precision_matrix())
    torch.testing.assert_close(q.log_prob(draw), dense.log_prob(to_vector(head(draw))))
    torch.testing.assert_close(q.entropy(), dense.entropy())
    assert list(q.covariance().shapes) == ["4.weight", "4.bias"]


def test_last_layer_against_a_prior_over_all_parameters() -> None:
    q = cases.last_layer()
    prior = cases.diagonal(1)
    dense = MultivariateNormal(to_vector(q.inner.mean), precision_matrix=q.inner.precision_matrix())
    loc, precision = to_vector(head(prior.mean)), to_vector(head(prior.precision))
    torch.testing.assert_close(q.kl(prior), kl_divergence(dense, MultivariateNormal(loc, torch.diag(1 / precision))))
    torch.testing.assert_close(q.kl(q), torch.zeros((), dtype=torch.float64), atol=1e-9, rtol=0)


def test_a_last_layer_that_overlaps_the_rest_is_refused() -> None:
    q = cases.last_layer()
    with pytest.raises(InvalidInput, match=r"only parameters outside the last layer, got '4\.bias'"):
        LastLayer(q.inner, q.mean)


def test_mixture_against_torch() -> None:
    q = cases.mixture()
    locs = torch.stack([to_vector(c.mean) for c in q.components])
    covariances = torch.stack([c.covariance_matrix() for c in q.components])
    dense = MixtureSameFamily(Categorical(torch.tensor([0.25, 0.75]).double()), MultivariateNormal(locs, covariances))
    point = cases.weights(7)
    torch.testing.assert_close(q.log_prob(point), dense.log_prob(to_vector(point)))
    torch.testing.assert_close(to_vector(q.mean), dense.mean)
    torch.testing.assert_close(to_vector(q.variance), dense.variance)


def test_mixture_draws_each_component_by_its_weight() -> None:
    apart = {"w": torch.tensor([100.0])}
    unit = {"w": torch.ones(1)}
    q = Mixture(torch.tensor([1.0, 3.0]), [Diagonal({"w": torch.zeros(1)}, unit), Diagonal(apart, unit)])
    draws = torch.cat([q.sample(k)["w"] for k in range(2000)])
    assert (draws > 50).float().mean().item() == pytest.approx(0.75, abs=0.05)
    near = draws[draws < 50]
    assert near.std().item() == pytest.approx(1.0, abs=0.1)


def test_ensemble_visits_its_members_in_turn() -> None:
    q = cases.ensemble()
    for k in range(6):
        draw = q.sample(k)
        assert all(torch.equal(draw[name], t) for name, t in q.members[k % 3].items())
    stacked = torch.stack([to_vector(member) for member in q.members])
    torch.testing.assert_close(to_vector(q.mean), stacked.mean(0))
    torch.testing.assert_close(to_vector(q.variance), stacked.var(0, correction=0))


def test_an_ensemble_can_carry_the_batch_norm_statistics_of_each_member() -> None:
    members = []
    for seed in range(2):
        model = cases.network(seed)
        state = {name: t for name, t in model.state_dict().items() if t.is_floating_point()}
        members.append(state)
    posterior = cases.posterior(Ensemble(members))
    target = cases.network(5)
    posterior.apply(target, posterior.sample(1))
    assert torch.equal(target[1].running_mean, cases.network(1)[1].running_mean)


def test_dropout_keeps_its_weights_and_numbers_its_masks() -> None:
    q = cases.dropout()
    assert all(torch.equal(q.sample(4)[name], t) for name, t in q.mean.items())
    seeds = {q.mask_seed(k, seed) for k in range(50) for seed in range(5)}
    assert len(seeds) == 250
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len({seed % 2**32 for seed in seeds}) == len({seed // 2**32 for seed in seeds}) == 250
    assert q.mask_seed(3) == cases.dropout().mask_seed(3, seed=0)


def test_dropout_rates_are_numbers_of_its_own() -> None:
    given = {"2": np.float32(0.25)}
    q = Dropout(cases.weights(), given)
    given["2"] = np.float32(0.5)
    assert json.loads(json.dumps(q.settings()))["rates"] == {"2": 0.25}


def test_masks_that_do_more_than_drop_units_are_refused() -> None:
    for kind in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d):
        require_mask("layer", kind(0.2))
    with pytest.raises(InvalidInput, match=r"module 'layer': expected nn\.Dropout.*got 'AlphaDropout'"):
        require_mask("layer", nn.AlphaDropout(0.2))


@pytest.mark.parametrize(
    ("structure", "reason", "questions"),
    [
        (cases.ensemble(), "a handful of points without a density", ("log_prob", "entropy", "kl", "covariance")),
        (cases.dropout(), "masks on the activations", ("variance", "log_prob", "entropy", "kl", "covariance")),
        (cases.mixture(), "no closed form; average `log_prob`", ("entropy", "kl", "covariance")),
    ],
)
def test_what_is_not_defined_says_why(structure: Structure, reason: str, questions: tuple[str, ...]) -> None:
    posterior = cases.posterior(structure)
    ask = {
        "variance": lambda: posterior.variance,
        "log_prob": lambda: posterior.log_prob(posterior.mean),
        "entropy": posterior.entropy,
        "kl": lambda: posterior.kl(cases.diagonal()),
        "covariance": posterior.covariance,
    }
    for question in questions:
        with pytest.raises(Undefined, match=f"{question}: not defined for .*{reason}"):
            ask[question]()


def test_kl_to_something_without_a_density_says_so() -> None:
    with pytest.raises(Undefined, match="'ensemble'"):
        cases.diagonal().kl(cases.ensemble())


def _wide(size: int) -> Diagonal:
    return Diagonal({"w": torch.ones(size)}, {"w": torch.ones(size)})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Mixture(torch.tensor([1.0]), []), "components: expected at least one"),
        (lambda: Mixture(torch.tensor([1.0]), [cases.full(), cases.full()]), r"weights: expected shape \(2,\)"),
        (lambda: Mixture(torch.tensor([1.0, 0.0]), [cases.full(), cases.full()]), "positive finite numbers"),
        (lambda: Mixture(torch.tensor([1.0]), [cases.ensemble()]), "structures among"),
        (lambda: Mixture(torch.ones(2), [_wide(2), _wide(1)]), r"components of 'w': expected shape \(2,\)"),
        (lambda: Ensemble([]), "members: expected at least one"),
        (lambda: Ensemble([{"w": torch.ones(2)}, {"w": torch.ones(3)}]), r"members of 'w': expected shape \(2,\)"),
        (lambda: Dropout({"w": torch.ones(2)}, {}), "at least one dropout module"),
        (lambda: Dropout({"w": torch.ones(2)}, {"d": 1.0}), r"dropout rate of 'd': expected a probability in \[0, 1\)"),
        (lambda: cases.dropout().mask_seed(-1), "draw number: expected an integer >= 0"),
        (lambda: cases.diagonal().sample(-1), "draw number: expected an integer >= 0"),
    ],
)
def test_what_cannot_be_right_is_refused(build, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build()


def test_members_in_half_precision_have_the_variance_that_they_have() -> None:
    members = [{"w": torch.tensor([300.0, 1.0e-3]).half()}, {"w": torch.tensor([-300.0, 1.2e-3]).half()}]
    wanted = torch.stack([member["w"].float() for member in members]).var(0, correction=0)
    ensemble = Ensemble(members)
    mixture = Mixture(torch.ones(2), [LowRank(m, {"w": torch.zeros(2)}, {"w": torch.zeros(1, 2)}) for m in members])
    for q in (ensemble, mixture):
        assert q.mean["w"].dtype == torch.float16
        torch.testing.assert_close(q.variance["w"], wanted, rtol=1e-3, atol=0)


def test_signs_against_torch() -> None:
    q, other = cases.signs(), cases.signs(1)
    coins, others = (Bernoulli(logits=2 * to_vector(s.natural)) for s in (q, other))
    draw = q.sample(5)
    assert all(torch.equal(t.abs(), torch.ones_like(t)) for t in draw.values())
    torch.testing.assert_close(q.log_prob(draw), coins.log_prob((to_vector(draw) + 1) / 2).sum())
    torch.testing.assert_close(q.entropy(), coins.entropy().sum())
    torch.testing.assert_close(q.kl(other), kl_divergence(coins, others).sum())
    torch.testing.assert_close(to_vector(q.mean), 2 * coins.mean - 1)
    torch.testing.assert_close(to_vector(q.variance), 4 * coins.variance)
    assert torch.equal(to_vector(q.mode), to_vector(q.natural).sign())
    with pytest.raises(Undefined, match="−1 or 1"):
        q.kl(cases.diagonal())
    with pytest.raises(InvalidInput, match="kl"):
        q.kl(Signs({name: t[..., :1] for name, t in q.natural.items()}))
    with pytest.raises(InvalidInput, match="log_prob"):
        q.log_prob({name: t[..., :1] for name, t in q.natural.items()})
    assert Signs({"w": torch.zeros(2)}).mode["w"].tolist() == [1.0, 1.0]  # a sign even where both are as likely


def test_nearly_certain_signs_keep_their_digits() -> None:
    q, other = (Signs({"w": torch.tensor([t, -t])}) for t in (10.0, 9.0))  # in float32
    p, r = special.expit(-20.0), special.expit(-18.0)
    entropy = special.entr(p) + special.entr(1 - p)
    assert q.entropy().item() == pytest.approx(2 * entropy, rel=1e-5)
    divergence = special.rel_entr(p, r) + (1 - p) * (np.log1p(-p) - np.log1p(-r))
    assert q.kl(other).item() == pytest.approx(2 * divergence, rel=1e-5)


def test_signs_come_by_their_probabilities() -> None:
    natural = torch.tensor([-2.0, -0.3, 0.0, 0.3, 40.0], dtype=torch.float64)
    q = Signs({"w": natural.expand(4000, -1)})
    torch.testing.assert_close(q.sample(0)["w"].mean(0), natural.tanh(), atol=0.05, rtol=0)


@pytest.mark.parametrize("name", cases.STRUCTURES)
def test_one_matrix_alone_can_hold_the_curvature_of_each_example(name: str) -> None:
    assert cases.STRUCTURES[name]().is_dense == (name == "full")


@pytest.mark.parametrize("name", cases.STRUCTURES)
def test_what_varies_and_what_is_fixed(name: str) -> None:
    q = cases.STRUCTURES[name]()
    assert {*q.varying.names, *q.fixed} == set(q.names)
    assert all((q.variance[key] == 0).all() for key in q.fixed)
    drawn = [to_vector(q.sample(k)) for k in range(q.distinct_draws or 0)]
    assert all(torch.equal(draw, to_vector(q.sample(k + len(drawn)))) for k, draw in enumerate(drawn))
    try:
        gaussian = q.gaussian
    except InvalidInput:
        assert q.kind in ("mixture", "ensemble", "dropout", "signs")
        return
    x = {key: torch.randn_like(m, dtype=torch.float64) for key, m in gaussian.mean.items()}
    found = to_vector(gaussian.precision_times(x)).double()
    torch.testing.assert_close(found, gaussian.precision_matrix().double() @ to_vector(x), rtol=1e-4, atol=1e-4)


def test_a_mixture_of_one_component_is_that_component() -> None:
    only = cases.STRUCTURES["diagonal"]()
    q = Mixture(torch.tensor([3.0]), (component for component in [only]))
    assert q.components == (only,)
    for name, t in only.mean.items():
        torch.testing.assert_close(q.mean[name], t)
        torch.testing.assert_close(q.variance[name], only.variance[name])
    torch.testing.assert_close(q.log_prob(only.mean), only.log_prob(only.mean))


def test_an_ensemble_of_one_is_a_point() -> None:
    q = Ensemble([cases.weights()])
    assert torch.equal(to_vector(q.mean), to_vector(cases.weights()))
    assert (to_vector(q.variance) == 0).all()
