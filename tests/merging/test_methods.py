"""The methods against mergekit's recorded and PEFT's live answers, and the invariances they must have."""

import json
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from peft.utils import merge_utils

from posterity.errors import InvalidInput
from posterity.merging import METHODS, Chunk, Dare, Linear, gram_matrices, merge_state_dicts
from posterity.merging.ties import thresholds

MERGEKIT = json.loads((Path(__file__).parent / "mergekit.json").read_text())
NAMES = ("a", "b", "c")
WEIGHTS = dict(zip(NAMES, MERGEKIT["weights"], strict=True))


def recorded():
    base = {"w": torch.tensor(MERGEKIT["base"])}
    return {n: {"w": torch.tensor(m)} for n, m in zip(NAMES, MERGEKIT["models"], strict=True)}, base


@dataclass(frozen=True)
class Masked(Dare):
    """DARE with given masks instead of drawn ones."""

    masks: tuple = ()

    def mask(self, model, chunk):
        return self.masks[model].bool()


def masked(case, **options):
    return Masked(density=case["options"]["density"], masks=tuple(map(torch.tensor, case["masks"])), **options)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("linear", lambda case: {"method": "linear"}),
        ("task_arithmetic", lambda case: {"method": "task_arithmetic"}),
        ("ties", lambda case: {"method": "ties", "density": 0.4, "convention": "mergekit"}),
        ("dare_linear", lambda case: {"method": masked(case, rescale="l1")}),
        ("dare_ties", lambda case: {"method": masked(case, rescale="l1", convention="mergekit")}),
    ],
)
def test_equals_mergekit(theirs, ours):
    models, base = recorded()
    case = MERGEKIT["cases"][theirs]
    merged = merge_state_dicts(models, None if theirs == "linear" else base, weights=WEIGHTS, **ours(case))
    torch.testing.assert_close(merged["w"], torch.tensor(case["merged"]), atol=1e-6, rtol=0)
    given, start = recorded()  # methods may work in place, but never in what the caller holds
    assert all(torch.equal(models[name]["w"], given[name]["w"]) for name in NAMES)
    assert torch.equal(base["w"], start["w"])


def test_slerp_equals_mergekit():
    models, _ = recorded()
    pair = {name: models[name] for name in "ab"}
    merged = merge_state_dicts(pair, method="slerp", weights={"a": 0.7, "b": 0.3})
    torch.testing.assert_close(merged["w"], torch.tensor(MERGEKIT["cases"]["slerp"]["merged"]), atol=1e-6, rtol=0)


def test_slerp_keeps_the_norm_of_a_quarter_turn():
    turn = {"a": {"w": torch.tensor([1.0, 0.0])}, "b": {"w": torch.tensor([0.0, 1.0])}}
    merged = merge_state_dicts(turn, method="slerp")["w"]
    torch.testing.assert_close(merged, torch.full((2,), 0.5**0.5))


def test_slerp_of_a_tensor_without_direction_is_an_average():
    nowhere, somewhere = {"w": torch.zeros(2)}, {"w": torch.tensor([2.0, 4.0])}
    for pair in ({"a": nowhere, "b": somewhere}, {"a": somewhere, "b": nowhere}):
        assert merge_state_dicts(pair, method="slerp")["w"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("density", [0.05, 0.2, 0.5, 1.0])
def test_ties_equals_peft(density):
    models, base = recorded()
    deltas = [models[name]["w"] - base["w"] for name in NAMES]
    wanted = base["w"]
    if density < 1:
        wanted = wanted + merge_utils.ties(deltas, torch.tensor(MERGEKIT["weights"]), density)
    else:  # PEFT warns here, so its parts are called one by one
        stacked = torch.stack(deltas)
        mask = merge_utils.calculate_majority_sign_mask(stacked)
        weighted = stacked * torch.tensor(MERGEKIT["weights"])[:, None, None]
        wanted = wanted + merge_utils.disjoint_merge(weighted, mask)
    merged = merge_state_dicts(models, base, method="ties", weights=WEIGHTS, density=density, convention="peft")
    torch.testing.assert_close(merged["w"], wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("signs", [None, "peft"])
def test_dare_equals_peft(signs):
    models, base = recorded()
    case = MERGEKIT["cases"]["dare_linear"]
    masks = map(torch.tensor, case["masks"])
    theirs = merge_utils.dare_linear if signs is None else merge_utils.dare_ties
    with mock.patch("torch.bernoulli", side_effect=masks):
        wanted = theirs([models[n]["w"] - base["w"] for n in NAMES], torch.tensor(MERGEKIT["weights"]), 0.5)
    merged = merge_state_dicts(models, base, method=masked(case, convention=signs), weights=WEIGHTS)
    torch.testing.assert_close(merged["w"], base["w"] + wanted, atol=1e-6, rtol=0)


def test_ties_of_the_paper_trims_over_the_whole_model():
    base = {"large": torch.zeros(4), "small": torch.zeros(4)}
    a = {"large": torch.tensor([4.0, -3.0, 2.0, 1.0]), "small": torch.tensor([0.4, 0.3, 0.2, 0.1])}
    b = {"large": torch.tensor([-1.0, -5.0, 6.0, 0.5]), "small": torch.tensor([0.0, 0.0, 0.1, -0.2])}
    merged = merge_state_dicts({"a": a, "b": b}, base, method="ties", density=0.375)
    # Kept: a 4, −3, 2 and b −1, −5, 6. Elected: +, −, +. Averaged over those that agree.
    assert merged["large"].tolist() == [4.0, -4.0, 4.0, 0.0]
    assert merged["small"].tolist() == [0.0] * 4


@pytest.mark.parametrize(("convention", "merged"), [("paper", 0.0), ("peft", 2.0), ("mergekit", 2.0)])
def test_where_signs_balance_the_conventions_differ(convention, merged):
    models = {"a": {"w": torch.tensor([2.0])}, "b": {"w": torch.tensor([-2.0])}}
    base = {"w": torch.zeros(1)}
    found = merge_state_dicts(models, base, method="ties", density=1.0, convention=convention)
    assert found["w"].item() == merged


def test_an_average_of_weights_that_cancel_is_refused():
    models = {"a": {"w": torch.ones(1)}, "b": {"w": torch.ones(1)}}
    for method in ("linear", "slerp"):
        with pytest.raises(InvalidInput, match="sum of weights: expected not zero"):
            merge_state_dicts(models, method=method, weights={"a": 1.0, "b": -1.0})


def test_the_arc_between_tensors_that_are_nearly_parallel_is_a_line():
    """Above a cosine of 0.9995, that is."""
    for tilt, on_the_line in ((0.02, True), (0.2, False)):
        a, b = torch.tensor([1.0, 0.0]), torch.tensor([1.0, tilt])
        weights = {"a": 3.0, "b": 1.0}
        merged = merge_state_dicts({"a": {"w": a}, "b": {"w": b}}, method="slerp", weights=weights)["w"]
        assert torch.equal(merged, 0.75 * a + 0.25 * b) == on_the_line


@pytest.mark.parametrize("density", [0.001, 0.3, 0.77])
def test_thresholds_are_order_statistics(density):
    models, base = torch.randn(3, 1001, generator=torch.Generator().manual_seed(1)), torch.zeros(1001)
    pieces = [slice(0, 400), slice(400, 1001)]
    found = thresholds(lambda: (Chunk(list(models[:, p]), [1.0] * 3, base[p]) for p in pieces), density, 0)
    k = int(density * 1001)
    assert found == models.abs().sort(descending=True).values[:, k - 1].tolist()


def test_dare_drops_the_given_share_and_keeps_the_expectation():
    base, model = {"w": torch.zeros(200_000)}, {"w": torch.ones(200_000)}
    merged = merge_state_dicts({"a": model}, base, method="dare", density=0.3, seed=5)["w"]
    assert set(merged.unique().tolist()) == {0.0, torch.tensor(1 / 0.3).item()}
    assert abs(merged.mean().item() - 1) < 4 * (0.7 / 0.3 / 200_000) ** 0.5
    again = merge_state_dicts({"a": model}, base, method="dare", density=np.float64(0.3), seed=np.int64(5))["w"]
    other = merge_state_dicts({"a": model}, base, method="dare", density=0.3, seed=6)["w"]
    assert torch.equal(merged, again)
    assert not torch.equal(merged, other)


def test_regmean_is_least_squares_on_what_the_models_say():
    generator = torch.Generator().manual_seed(2)
    inputs = {n: torch.randn(40, 5, generator=generator, dtype=torch.float64) for n in "ab"}
    layers = {n: {"weight": torch.randn(3, 5, generator=generator, dtype=torch.float64)} for n in "ab"}
    layer = torch.nn.Linear(5, 3, bias=False, dtype=torch.float64)
    grams = {
        "a": gram_matrices(layer, (inputs["a"], torch.zeros(40))),
        "b": gram_matrices(layer, [(x, torch.zeros(len(x))) for x in inputs["b"].split(16)]),
    }
    merged = merge_state_dicts(layers, method="regmean", curvatures=grams, shrink=1.0)["weight"]
    outputs = torch.cat([inputs[n] @ layers[n]["weight"].mT for n in "ab"])
    wanted = torch.linalg.lstsq(torch.cat([inputs["a"], inputs["b"]]), outputs).solution.mT
    torch.testing.assert_close(merged, wanted)


def test_regmean_shrinks_what_is_off_the_diagonal():
    """Jin and others (2023): W = (Σ wₜ Wₜ G̃ₜ)(Σ wₜ G̃ₜ)⁻¹ with G̃ = αG + (1 − α) diag(G)."""
    generator = np.random.default_rng(3)
    inputs, layers = generator.normal(size=(2, 9, 4)), generator.normal(size=(2, 3, 4))
    grams = np.stack([x.T @ x for x in inputs])
    shrunk = np.where(np.eye(4, dtype=bool), grams, 0.4 * grams) * np.array([0.3, 0.7])[:, None, None]
    wanted = np.linalg.solve(shrunk.sum(0), np.einsum("toi,tij->jo", layers, shrunk)).T
    merged = merge_state_dicts(
        {n: {"w": torch.tensor(w)} for n, w in zip("ab", layers)},
        method="regmean",
        weights={"a": 0.3, "b": 0.7},
        curvatures={n: {"w": torch.tensor(g)} for n, g in zip("ab", grams)},
        shrink=0.4,
    )["w"]
    torch.testing.assert_close(merged, torch.tensor(wanted))


def test_regmean_of_layers_without_any_input_is_the_average():
    layers = {n: {"w": torch.randn(3, 5)} for n in "ab"}
    merged = merge_state_dicts(layers, method="regmean", curvatures={n: {"w": torch.zeros(5, 5)} for n in "ab"})["w"]
    torch.testing.assert_close(merged, (layers["a"]["w"] + layers["b"]["w"]) / 2)


def random_problem(seed=0):
    generator = torch.Generator().manual_seed(seed)

    def tree(positive=False):
        shapes = {"w": (4, 3), "b": (4,)}
        draws = {k: torch.randn(s, generator=generator, dtype=torch.float64) for k, s in shapes.items()}
        return {k: t**2 + 0.1 for k, t in draws.items()} if positive else draws

    return tree(), {n: tree() for n in "ab"}, {n: tree(True) for n in "ab"}, tree(True)


def merged_by(method, base, models, curvatures, base_precision, **options):
    if method == "regmean":
        curvatures = {n: {"w": torch.eye(3, dtype=torch.float64)} for n in models}
    return merge_state_dicts(
        models,
        base if METHODS[method].needs_base else None,
        method=method,
        curvatures=curvatures,
        base_precision=base_precision,
        **options,
    )


@pytest.mark.parametrize(("convention", "kept"), [("mergekit", [0.0, -3.0, 0.0]), ("paper", [0.0, 0.0, 0.0])])
def test_a_share_of_less_than_one_weight(convention, kept):
    """mergekit never trims a whole tensor away; the paper's share is rounded down, to nothing if need be."""
    base, model = {"w": torch.zeros(3)}, {"w": torch.tensor([1.0, -3.0, 2.0])}
    merged = merge_state_dicts({"a": model}, base, method="ties", density=0.2, convention=convention)
    assert merged["w"].tolist() == kept


WHOLE = {"ties": {"density": 1.0}, "dare": {"density": 1.0}}


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"slerp"}))
def test_one_model_is_itself(method):
    base, models, curvatures, precision = random_problem()
    one, its = {"a": models["a"]}, {"a": curvatures["a"]}
    merged = merged_by(method, base, one, its, precision, **WHOLE.get(method, {}))
    for name in merged:
        torch.testing.assert_close(merged[name], models["a"][name])


@pytest.mark.parametrize("method", sorted(METHODS))
def test_order_of_models_does_not_matter(method):
    base, models, curvatures, precision = random_problem()
    weights = {"a": 0.3, "b": 0.8}
    options = {"dare": {"density": 1.0}}.get(method, {})  # masks belong to positions
    first = merged_by(method, base, models, curvatures, precision, weights=weights, **options)
    turned = merged_by(
        method, base, dict(reversed(models.items())), dict(reversed(curvatures.items())), precision,
        weights=weights, **options,
    )  # fmt: skip
    for name in first:
        torch.testing.assert_close(first[name], turned[name])


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_gradient_matching_without_task_curvature_is_task_arithmetic(strength):
    base, models, curvatures, precision = random_problem()
    none = {n: {k: 0 * t for k, t in tree.items()} for n, tree in curvatures.items()}
    prior = {k: strength * t for k, t in precision.items()}
    weights = {"a": 0.3, "b": -0.8}
    matched = merged_by("gradient_matching", base, models, none, prior, weights=weights)
    wanted = merge_state_dicts(models, base, method="task_arithmetic", weights=weights)
    for name in wanted:
        torch.testing.assert_close(matched[name], wanted[name])


def test_curvature_that_cancels_is_not_taken_for_none():
    base, models, curvatures, _ = random_problem()
    same = {"a": curvatures["a"], "b": curvatures["a"]}
    with pytest.raises(InvalidInput, match="more was removed than was there"):
        merge_state_dicts(
            models, base, method="gradient_matching", curvatures=same, weights={"b": -1.0}
        )  # H̄ = H − H, and no prior


def test_equal_or_absent_fisher_is_the_average():
    _, models, curvatures, _ = random_problem()
    for same in (curvatures["a"], {k: 0 * t for k, t in curvatures["a"].items()}):
        merged = merge_state_dicts(models, method="fisher", curvatures={"a": same, "b": same})
        for name, t in merged.items():
            torch.testing.assert_close(t, (models["a"][name] + models["b"][name]) / 2)


def test_dtype_is_kept_and_integers_are_copied():
    base = {"w": torch.ones(3, dtype=torch.bfloat16), "steps": torch.tensor(7)}
    model = {"w": torch.full((3,), 2, dtype=torch.bfloat16), "steps": torch.tensor(9)}
    merged = merge_state_dicts({"a": model}, base, weights={"a": 0.5})
    assert merged["w"].dtype == torch.bfloat16
    assert merged["w"].tolist() == [1.5] * 3
    assert merged["steps"].item() == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "nonsense"}, "method: expected one of .*'dare'.*got 'nonsense'"),
        ({"method": "ties", "densty": 0.1}, "options of 'ties'.*'density'.*got 'densty'"),
        ({"method": "linear", "weights": {"a": 1.0, "b": -1.0}}, "sum of weights: expected not zero"),
        ({"method": "linear", "weights": {"a": float("nan")}}, "weights: expected finite numbers, got nan"),
        ({"method": "linear", "weights": {"z": 1.0}}, "weights: expected names of models .* got 'z'"),
        ({"method": "task_arithmetic"}, "base: expected the model that 'task_arithmetic' starts from"),
        ({"method": "fisher"}, "curvatures: expected those of model 'a'"),
        ({"method": Linear(), "density": 0.1}, r"options: expected none beside Linear\(\), .*, got \['density'\]"),
        ({"method": "ties", "density": 0.0}, "density: expected a fraction above 0"),
        ({"method": "ties", "density": np.float32(1.5)}, "density: expected a fraction above 0"),
        ({"method": "ties", "density": 10**400}, "density: expected a fraction above 0, at most 1, got a larger one"),
        ({"method": "ties", "density": [0.5]}, "density: expected one fraction, or one for each of 2 models"),
        ({"method": "dare", "density": [0.5, 0.0]}, "density: expected a fraction above 0"),
        ({"method": ["ties"]}, "method: expected one of"),
        ({"method": "dare", "seed": 1.5}, "seed: expected a whole number, got 1.5"),
        ({"method": "ties", "convention": "mine"}, "convention: expected 'paper', 'mergekit', 'mergekit_sum' or"),
        ({"method": "dare", "rescale": "l2"}, "rescale: expected 'paper' or 'l1'"),
        ({"method": "regmean", "shrink": 2}, "shrink: expected a number from 0 to 1"),
        ({"method": "regmean", "shrink": "much"}, "shrink: expected a number from 0 to 1"),
    ],
)
def test_bad_input_is_named(arguments, message):
    _, models, _, _ = random_problem()
    with pytest.raises(InvalidInput, match=message):
        merge_state_dicts(models, **arguments)


def test_mismatches_are_named():
    base, models, _, _ = random_problem()
    with pytest.raises(InvalidInput, match="dtype of 'w': expected real numbers"):
        merge_state_dicts({"a": {"w": torch.ones(2) + 1j}}, method="linear")
    with pytest.raises(InvalidInput, match="dtype of 'w': expected real numbers of 16 bits"):
        merge_state_dicts({"a": {"w": torch.ones(2).to(torch.float8_e5m2)}}, method="linear")
    with pytest.raises(InvalidInput, match=r"expected like torch\.float32, got torch\.int64"):
        merge_state_dicts({"a": {"w": torch.tensor([2])}}, {"w": torch.ones(1)})
    with pytest.raises(InvalidInput, match="models: expected a mapping from names to state dicts, got 'list'"):
        merge_state_dicts([base], base)
    with pytest.raises(InvalidInput, match=r"model 'a'\['w'\]: expected a Tensor, got 'float'"):
        merge_state_dicts({"a": {"w": 1.0}}, {"w": torch.ones(())})
    with pytest.raises(InvalidInput, match="base: expected a mapping from names to Tensors, got 'Linear'"):
        merge_state_dicts(models, torch.nn.Linear(2, 2))
    for odd, message in [({"v": base["w"]}, "expected parameters among"), ({"w": torch.ones(2)}, "expected shape")]:
        with pytest.raises(InvalidInput, match=f"base_precision.*{message}"):
            merge_state_dicts(models, base, method="gradient_matching", curvatures=models, base_precision=odd)
    with pytest.raises(InvalidInput, match=r"base_precision\['w'\]: expected a Tensor, got 'float'"):
        merge_state_dicts(models, base, method="gradient_matching", curvatures=models, base_precision={"w": 1.0})
    with pytest.raises(InvalidInput, match="two for slerp"):
        merge_state_dicts({"a": models["a"]}, method="slerp")
    with pytest.raises(InvalidInput, match="base: expected none, 'linear' is an average"):
        merge_state_dicts(models, base, method="linear")
    with pytest.raises(InvalidInput, match=r"model 'c' of 'w': expected shape \(4, 3\), got \(2,\)"):
        merge_state_dicts({"c": {**base, "w": torch.ones(2)}}, base)
    with pytest.raises(InvalidInput, match=r"curvature of 'a' of 'w': expected shape \(3, 3\), got \(4, 3\)"):
        merge_state_dicts(models, method="regmean", curvatures=models)  # of the shapes that Fisher information has
