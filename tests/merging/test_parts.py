"""Parts of a merge: shards, tasks that run ahead, sweeps over weights, and recipes."""

import pytest
import torch

from posterity.checkpoints import StoredTensor
from posterity.errors import InvalidInput, RefusedFile
from posterity.merging import recipes
from posterity.merging._prefetch import one_thread_each, prefetched
from posterity.merging._sweep import sweep, trade_offs
from posterity.merging.methods import method_of
from posterity.merging.recipes import read_value, read_yaml, recipe
from posterity.merging.shards import plan_shards


def test_shards_are_as_full_as_they_may_be():
    tensors = {name: StoredTensor(torch.float32, (size,)) for name, size in zip("abcd", (10, 15, 5, 30))}
    sizes = [[e.size for e in shard.entries.values()] for shard in plan_shards(tensors, 100, {})]
    assert sizes == [[40, 60], [20], [120]]


def test_results_of_tasks_come_while_later_ones_have_not_begun():
    begun = []

    def tasks():
        for k in range(6):
            begun.append(k)
            yield lambda k=k: k * k

    results = prefetched(tasks(), threads=2)
    assert (next(results), begun) == (0, [0, 1, 2])
    assert (list(results), begun) == ([1, 4, 9, 16, 25], list(range(6)))


def test_a_sweep_over_nothing_is_refused():
    with pytest.raises(InvalidInput, match="weights: expected at least one choice"):
        sweep(lambda weights: None, [], lambda state: {})


def test_each_of_several_models_is_traded_off_against_the_others():
    assert trade_offs(["a"], steps=2) == [{"a": 0.0}, {"a": 1.0}]
    assert trade_offs(["a", "b", "c"], steps=2, total=3.0) == [
        {"a": 0.0, "b": 1.5, "c": 1.5}, {"a": 3.0, "b": 0.0, "c": 0.0},
        {"a": 1.5, "b": 0.0, "c": 1.5}, {"a": 0.0, "b": 3.0, "c": 0.0},
        {"a": 1.5, "b": 1.5, "c": 0.0}, {"a": 0.0, "b": 0.0, "c": 3.0},
    ]  # fmt: skip


def test_brackets_side_by_side_are_not_deep():
    assert read_value(f"[{', '.join(['[1]'] * 200)}]") == [[1]] * 200
    with pytest.raises(InvalidInput, match="a value in YAML"):
        read_value("[" * 51 + "]" * 51)


def test_a_model_of_a_recipe_is_a_path_or_a_mapping():
    with pytest.raises(InvalidInput, match=r"model 'a': expected a path, or a mapping with .*, got 3"):
        recipe({"method": "linear", "models": {"a": 3}, "out": "out"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": ["a"]}, "models: expected a mapping from names to paths"),
        ({"models": {}}, "models: expected a mapping from names to paths"),
        ({"options": ["density"]}, "options: expected a mapping"),
    ],
)
def test_models_and_options_of_a_recipe_have_names(change, message):
    with pytest.raises(InvalidInput, match=message):
        recipe({"method": "linear", "models": {"a": "a"}, "out": "out"} | change)


def test_a_rank_is_for_adapters_alone(files):
    plain = {"method": "linear", "models": {"a": str(files / "a")}, "out": str(files / "out")}
    with pytest.raises(InvalidInput, match="rank: expected none, it is for adapters, got 2"):
        recipe(plain | {"rank": 2}).cook()
    assert not (files / "out").exists()


def test_a_recipe_that_is_too_long_is_not_read_in_part(tmp_path, monkeypatch):
    text = "method: linear\nout: o\nmodels: {a: a}\n"
    (tmp_path / "recipe.yaml").write_text(text)
    monkeypatch.setattr(recipes, "LIMIT", len(text))
    assert read_yaml(tmp_path / "recipe.yaml")["models"] == {"a": "a"}
    monkeypatch.setattr(recipes, "LIMIT", len(text) - 1)
    with pytest.raises(RefusedFile, match="recipe: expected at most"):
        read_yaml(tmp_path / "recipe.yaml")


def test_densities_are_counted_before_anything_is_read():
    with pytest.raises(InvalidInput, match="density: expected one fraction, or one for each of 2 models"):
        method_of("dare", {"density": [0.5]}).check([1.0, 1.0])


def test_torch_has_its_threads_back_after_a_merge():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread_each():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
