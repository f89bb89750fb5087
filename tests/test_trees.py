"""Named parameters and flat vectors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from posterity import trees
from posterity.errors import InvalidInput

shapes = st.dictionaries(
    st.text(min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=5
)


@given(shapes, st.lists(st.integers(1, 3), max_size=2))
def test_vectors_round_trip_with_any_leading_axes(shapes, leading) -> None:
    like = {name: torch.empty(shape) for name, shape in shapes.items()}
    total = sum(t.numel() for t in like.values())
    vector = torch.randn(*leading, total)
    tree = trees.from_vector(vector, like)
    assert list(tree) == list(like)
    assert all(t.shape == (*leading, *like[name].shape) for name, t in tree.items())
    pieces = [t.reshape(*leading, like[name].numel()) for name, t in tree.items()]
    assert torch.equal(torch.cat(pieces, dim=-1), vector)
    if not leading:
        assert torch.equal(trees.to_vector(tree), vector)


def test_flat_vectors_agree_with_torch() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    assert torch.equal(trees.to_vector(trees.trainable(model)), nn.utils.parameters_to_vector(model.parameters()))


def test_wrong_lengths_and_empty_trees_are_refused() -> None:
    with pytest.raises(InvalidInput, match="vector length: expected 3, got 4"):
        trees.from_vector(torch.zeros(4), {"w": torch.zeros(3)})
    with pytest.raises(InvalidInput, match="tree: expected at least one tensor"):
        trees.to_vector({})


def test_trainable_leaves_out_frozen_and_repeated_parameters() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)
    model[2].weight = model[1].weight
    assert list(trees.trainable(model)) == ["0.bias", "1.weight", "1.bias", "2.bias"]


def test_snapshots_do_not_follow() -> None:
    model = nn.Linear(2, 2)
    copy = trees.snapshot(trees.trainable(model))
    with torch.no_grad():
        model.weight.add_(1)
    assert not torch.equal(copy["weight"], model.weight)
    assert not copy["weight"].requires_grad


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "x: expected a tensor for parameter 'w'"),
        ({"w": torch.zeros(3)}, r"x of 'w': expected shape \(2,\), got \(3,\)"),
        ({"w": torch.zeros(2), "v": torch.zeros(2)}, r"x: expected parameters among \['w'\], got 'v'"),
    ],
)
def test_the_first_mismatch_is_named(tree, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        trees.check_same_shapes(tree, {"w": torch.zeros(2)}, "x")


class WithExtraState(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"epoch": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


def test_fingerprints_tell_architectures_apart_and_nothing_else() -> None:
    def build(hidden: int = 4, activation: nn.Module | None = None) -> nn.Module:
        return nn.Sequential(
            nn.Linear(3, hidden), nn.BatchNorm1d(hidden), activation or nn.ReLU(), nn.Linear(hidden, 2)
        )

    assert trees.fingerprint(build()) == trees.fingerprint(build().double().eval())
    distinct = {trees.fingerprint(m) for m in (build(), build(5), build(activation=nn.Tanh()), nn.Linear(3, 2))}
    assert len(distinct) == 4
    assert trees.fingerprint(WithExtraState(2, 2)) == trees.fingerprint(WithExtraState(2, 2))


def test_state_is_never_kept_in_half_precision() -> None:
    kept = {d: trees.state_dtype(d) for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
    assert list(kept.values()) == [torch.float32, torch.float32, torch.float32, torch.float64]


def test_looks_at_shapes_may_be_nested() -> None:
    with trees.looking_at_shapes():
        with trees.looking_at_shapes():
            assert trees.looks_at_shapes()
        assert trees.looks_at_shapes()
    assert not trees.looks_at_shapes()
