"""`merge` on posteriors: diagonal quadratics, where merging, joint training and removal can be solved exactly."""

from dataclasses import replace

import pytest
import torch

from posterity.errors import InvalidInput
from posterity.merging import merge
from posterity.posterior import Diagonal, Ensemble, Full, Posterior, Training

SHAPES = {"w": (3, 2), "b": (2,)}
EXACT = {"atol": 1e-10, "rtol": 0}


def draw(generator, positive=False):
    tree = {k: torch.randn(s, generator=generator, dtype=torch.float64) for k, s in SHAPES.items()}
    return {k: t**2 + 0.05 for k, t in tree.items()} if positive else tree


class Task:
    """A loss ½ Σ N h (θ − θ*)², with its total curvature N h."""

    def __init__(self, seed, n):
        generator = torch.Generator().manual_seed(seed)
        self.n, self.optimum = n, draw(generator)
        self.curvature = {k: n * h for k, h in draw(generator, positive=True).items()}


def trained(prior, *tasks, n=None, ess_per_n=1.0):
    """The exact posterior of all tasks together, under a diagonal prior."""
    precision = {k: p + sum(t.curvature[k] for t in tasks) for k, p in prior.precision_diagonal().items()}
    mean = {
        k: (prior.precision[k] * prior.mean[k] + sum(t.curvature[k] * t.optimum[k] for t in tasks)) / precision[k]
        for k in precision
    }
    n = n or sum(t.n for t in tasks)
    return Posterior(Diagonal(mean, precision), prior=prior, n=n, ess=n * ess_per_n, likelihood="gaussian")


PRIOR = Diagonal.isotropic({k: torch.zeros(s, dtype=torch.float64) for k, s in SHAPES.items()}, 0.3)
OLD, A, B = Task(0, 50), Task(1, 20), Task(2, 80)
BASE = trained(PRIOR, OLD)


def assert_same(found, wanted):
    for k in SHAPES:
        torch.testing.assert_close(found.mean[k], wanted.mean[k], **EXACT)
        torch.testing.assert_close(found.structure.precision[k], wanted.structure.precision[k], **EXACT)
    assert found.n == wanted.n
    assert found.ess == pytest.approx(wanted.ess)


def test_gradient_matching_is_joint_training():
    fine_tuned = {name: trained(BASE.structure, task) for name, task in {"a": A, "b": B}.items()}
    assert_same(merge(fine_tuned, BASE), trained(PRIOR, OLD, A, B))


@pytest.mark.parametrize("method", ["gradient_matching", "fisher"])
def test_precisions_below_the_prior_count_as_nothing_learnt(method):
    base = None if method == "fisher" else BASE

    def posteriors(least):
        found = {}
        for name, scale in {"a": -0.6, "b": -0.59}.items():
            task = trained(BASE.structure, {"a": A, "b": B}[name])
            precision = task.structure.precision["w"].clone()
            precision[0] = BASE.structure.precision["w"][0] * (1 + max(scale, least))
            structure = Diagonal(task.mean, {**task.structure.precision, "w": precision})
            found[name] = Posterior(structure, prior=task.prior, n=task.n, ess=task.ess, likelihood="gaussian")
        return found

    assert_same(merge(posteriors(-1), base, method=method), merge(posteriors(0), base, method=method))


def test_removal_is_training_without_the_task():
    everything = trained(PRIOR, OLD, A, B)
    again = trained(everything.structure, A)
    assert_same(merge({"a": again}, everything, weights={"a": -1.0}), trained(PRIOR, OLD, B))


def test_gradient_matching_is_a_sum_of_sites():
    fine_tuned = {name: trained(BASE.structure, task) for name, task in {"a": A, "b": B}.items()}
    weights = {"a": 0.4, "b": 1.5}
    wanted = BASE
    for name, posterior in fine_tuned.items():
        wanted = wanted + (posterior - posterior.prior).scaled(weights[name])
    assert_same(merge(fine_tuned, BASE, weights=weights), wanted)


def test_a_share_for_each_task_is_the_geometric_mean_of_the_posteriors():
    fine_tuned = {name: trained(BASE.structure, task) for name, task in {"a": A, "b": B}.items()}
    merged = merge(fine_tuned, BASE, weights=dict.fromkeys(fine_tuned, 0.5))
    for k in SHAPES:
        precisions = [q.structure.precision[k] for q in fine_tuned.values()]
        linear = sum(p * q.mean[k] for p, q in zip(precisions, fine_tuned.values(), strict=True))
        torch.testing.assert_close(merged.structure.precision[k], sum(precisions) / 2, **EXACT)
        torch.testing.assert_close(merged.mean[k], linear / sum(precisions), **EXACT)


def test_networks_that_were_trained_count_one_over_their_number():
    solved = {name: trained(BASE.structure, task) for name, task in {"a": A, "b": B}.items()}
    shares = dict.fromkeys(solved, 0.5)
    wanted = merge(solved, BASE, weights=shares)
    record = Training(epochs=5, batch_size=10, lr=1e-3)
    assert_same(merge({name: replace(q, training=record) for name, q in solved.items()}, BASE), wanted)
    elsewhere = {name: trained(PRIOR, task) for name, task in {"a": A, "b": B}.items()}  # another prior than the base
    assert_same(merge(elsewhere, BASE), merge(elsewhere, BASE, weights=shares))
    plain = merge(elsewhere, BASE, method="task_arithmetic")
    assert_same(plain, merge(elsewhere, BASE, method="task_arithmetic", weights=dict.fromkeys(elsewhere, 1.0)))


def colder(posterior, times):
    """A posterior and its prior, with all precisions so many times as large."""
    scaled = [
        Diagonal(d.mean, {k: times * p for k, p in d.precision.items()}) for d in (posterior.structure, posterior.prior)
    ]
    return Posterior(scaled[0], prior=scaled[1], n=posterior.n, ess=times * posterior.n, likelihood="gaussian")


def test_other_temperatures_are_brought_to_that_of_the_base():
    fine_tuned = trained(BASE.structure, A)
    assert_same(merge({"a": colder(fine_tuned, 5)}, BASE), merge({"a": fine_tuned}, BASE))
    assert_same(merge({"a": fine_tuned}, colder(BASE, 4)), colder(merge({"a": fine_tuned}, BASE), 4))


def test_one_posterior_is_itself():
    fine_tuned = trained(BASE.structure, A)
    merged = merge({"a": fine_tuned}, BASE)
    for k in SHAPES:
        torch.testing.assert_close(merged.mean[k], fine_tuned.mean[k], **EXACT)
        torch.testing.assert_close(merged.structure.precision[k], fine_tuned.structure.precision[k], **EXACT)


def test_averages_start_from_the_prior_and_count_everybody_once():
    merged = merge({"a": trained(PRIOR, A), "b": trained(PRIOR, B)}, method="fisher")
    for k in SHAPES:
        optimum = (A.curvature[k] * trained(PRIOR, A).mean[k] + B.curvature[k] * trained(PRIOR, B).mean[k]) / (
            A.curvature[k] + B.curvature[k]
        )
        torch.testing.assert_close(merged.mean[k], optimum, **EXACT)
    assert merged.n == A.n + B.n
    joint = trained(PRIOR, A, B)
    torch.testing.assert_close(merged.structure.precision["w"], joint.structure.precision["w"], **EXACT)


def test_full_posteriors_are_projected():
    fine_tuned = trained(BASE.structure, A)
    dense = Posterior(
        Full(fine_tuned.mean, fine_tuned.structure.precision_matrix()),
        prior=BASE.structure, n=A.n, ess=A.n, likelihood="gaussian",
    )  # fmt: skip
    assert_same(merge({"a": dense}, BASE), merge({"a": fine_tuned}, BASE))


def test_buffers_are_averaged_over_examples():
    def with_buffers(value, n):
        return Posterior(
            PRIOR, prior=PRIOR, n=n, ess=n, likelihood="gaussian",
            buffers={"running": torch.tensor([value]), "count": torch.tensor(n)},
        )  # fmt: skip

    merged = merge({"a": with_buffers(1.0, 10), "b": with_buffers(4.0, 20)}, method="linear")
    assert merged.buffers["running"].item() == pytest.approx(3.0)
    turned = merge(
        {"a": with_buffers(1.0, 10), "b": with_buffers(4.0, 20)}, method="linear", weights={"a": -1, "b": -1}
    )  # the same average
    assert turned.buffers["running"].item() == pytest.approx(3.0)
    removed = merge({"a": with_buffers(1.0, 10)}, with_buffers(4.0, 20), weights={"a": -1})
    assert removed.buffers["running"].item() == 4.0
    assert removed.n == 10


def test_merged_posteriors_survive_storage(tmp_path):
    merged = merge({"a": trained(BASE.structure, A)}, BASE, method="ties", density=0.5)
    merged.save(tmp_path)
    assert_same(Posterior.load(tmp_path), merged)


@pytest.mark.parametrize(
    ("posteriors", "base", "weights", "message"),
    [
        ([BASE, BASE], BASE, None, "posteriors: expected a mapping from names to Posteriors, got 'list'"),
        (BASE, BASE, None, "posteriors: expected a mapping from names to Posteriors, got 'Posterior'"),
        ({"a": BASE.mean}, BASE, None, r"posteriors\['a'\]: expected a Posterior, got 'dict'"),
        ({"a": BASE}, BASE.structure, None, "base: expected a Posterior, got 'Diagonal'"),
        ({"a": BASE}, BASE, [1.0], "weights: expected a mapping from names to numbers, got 'list'"),
        ({"a": BASE}, BASE, {"a": "much"}, "weight of 'a': expected a number, got 'much'"),
    ],
)
def test_what_has_no_names_is_refused(posteriors, base, weights, message):
    with pytest.raises(InvalidInput, match=message):
        merge(posteriors, base, weights=weights)


def test_bad_input_is_named():
    fine_tuned = trained(BASE.structure, A)
    with pytest.raises(InvalidInput, match="more was removed than was there"):
        merge({"a": fine_tuned}, BASE, weights={"a": -100.0})
    other = Posterior(PRIOR, prior=PRIOR, n=1, ess=1, likelihood="categorical")
    with pytest.raises(InvalidInput, match="likelihood of 'b'"):
        merge({"a": fine_tuned, "b": other}, BASE)
    with pytest.raises(InvalidInput, match="posteriors: expected at least one"):
        merge({}, BASE)
    with pytest.raises(InvalidInput, match="at least one example left"):
        merge({"a": trained(BASE.structure, A, n=60)}, BASE, weights={"a": -0.99}, method="task_arithmetic")
    with pytest.raises(InvalidInput, match="architecture of 'a'"):
        merge(
            {"a": Posterior(PRIOR, prior=PRIOR, n=1, ess=1, likelihood="gaussian", architecture="x")},
            Posterior(PRIOR, prior=PRIOR, n=1, ess=1, likelihood="gaussian", architecture="y"),
        )
    members = Posterior(Ensemble([PRIOR.mean]), prior=PRIOR, n=1, ess=1, likelihood="gaussian")
    with pytest.raises(ArithmeticError, match="projection to 'diagonal'"):
        merge({"a": members}, BASE)
