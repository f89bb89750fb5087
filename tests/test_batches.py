"""Batches of anything that holds examples: ids, orders, collation, refusals."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from posterity.batches import Batch, Batches, batches, inputs_of
from posterity.errors import InvalidInput
from posterity.inputs import call, move

X, Y = torch.arange(14.0).reshape(7, 2), torch.arange(7)


def gathered(data: Batches, epoch: int = 0) -> Batch:
    parts = list(data.epoch(epoch))
    assert len(parts) == len(data)
    return Batch(*(torch.cat([getattr(b, name) for b in parts]) for name in ("inputs", "targets", "ids")))


class Rows:
    """A map-style data set of mappings with ids of their own."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, i: int):
        if i >= 7:
            raise IndexError
        return {"x": X[i], "labels": int(Y[i]), "id": 100 + i}


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        (pd.DataFrame(X.numpy()), pd.Series(Y.numpy())),
        TensorDataset(X, Y),
        list(zip(X, Y.tolist(), strict=True)),
        DataLoader(TensorDataset(X, Y), batch_size=3),
    ],
    ids=["tensors", "list", "arrays", "pandas", "dataset", "pairs", "loader"],
)
def test_the_same_examples_from_any_source(data) -> None:
    found = batches(data, batch_size=3)
    assert (found.n, len(found), found.ids_known) == (7, 3, True)
    whole = gathered(found)
    assert torch.equal(whole.inputs, X)
    assert torch.equal(whole.targets, Y)
    assert torch.equal(whole.ids, torch.arange(7))
    picked = found.take(torch.tensor([5, 1]))
    assert torch.equal(picked.inputs, X[[5, 1]])
    assert picked.ids.tolist() == [5, 1]
    assert batches(found, batch_size=99) is found


@pytest.mark.parametrize("data", [(X, Y, 100 + Y), TensorDataset(X, Y, 100 + Y)], ids=["tensors", "dataset"])
def test_ids_of_their_own(data) -> None:
    assert gathered(batches(data, batch_size=2)).ids.tolist() == list(range(100, 107))
    shuffled = batches(DataLoader(TensorDataset(X, Y, 100 + Y), batch_size=2, shuffle=True))
    assert shuffled.ids_known
    whole = gathered(shuffled)
    assert torch.equal(whole.ids - 100, whole.targets)


def test_mappings_become_inputs_targets_and_ids() -> None:
    for data in (batches(DataLoader(Rows(), batch_size=2)), batches(list(Rows()), batch_size=2)):
        batch = next(iter(data))
        assert torch.equal(batch.inputs["x"], X[:2])
        assert batch.targets.tolist() == [0, 1]
        assert batch.ids.tolist() == [100, 101]
    columns = batches(({"a": X, "b": X + 1}, Y), batch_size=4)
    assert torch.equal(columns.take(torch.tensor([3])).inputs["b"], X[[3]] + 1)


def test_two_mappings_are_two_examples_not_two_columns() -> None:
    rows = [{"x": X[0], "labels": Y[0]}, {"x": X[1], "labels": Y[1]}]
    assert batches(rows).n == 2


def test_numpys_integers_and_arrays_that_walk_backwards() -> None:
    data = batches((X.numpy()[::-1], Y.numpy()[::-1]), batch_size=np.int64(3), shuffle=True, seed=np.int32(5))
    found = gathered(data, np.int32(2))
    assert torch.equal(found.inputs, X.flip(0)[found.ids])
    plain = batches((X.flip(0), Y.flip(0)), batch_size=3, shuffle=True, seed=5)
    assert torch.equal(found.targets, gathered(plain, 2).targets)


def test_shuffling_is_a_function_of_seed_and_epoch() -> None:
    data = batches((X, Y), batch_size=2, shuffle=True, seed=4)
    first, again, second = gathered(data, 0), gathered(data, 0), gathered(data, 1)
    assert torch.equal(first.ids, again.ids)
    assert not torch.equal(first.ids, second.ids)
    assert sorted(second.ids.tolist()) == list(range(7))
    assert torch.equal(second.inputs, X[second.ids])
    for seed in (5, 2**62):  # a seed may be as large as a time in nanoseconds
        other = gathered(batches((X, Y), batch_size=2, shuffle=True, seed=seed), 0)
        assert not torch.equal(first.ids, other.ids)


def test_shuffled_batches_are_of_one_size() -> None:
    x, y = torch.arange(23.0), torch.arange(23)
    for batch_size in range(1, 25):
        data = batches((x, y), batch_size=batch_size, shuffle=True, seed=2)
        whole = gathered(data)
        sizes = [len(batch) for batch in data]
        assert len(sizes) == len(data) == -(-23 // batch_size)
        assert max(sizes) <= batch_size
        assert max(sizes) - min(sizes) <= 1
        for together in (1, 2, 3, 5, 40):
            steps = list(data.steps(0, together))
            assert len(steps) == -(-len(data) // together)
            assert [i for step in steps for batch in step for i in batch.ids.tolist()] == whole.ids.tolist()
            examples = [sum(map(len, step)) for step in steps]
            assert max(examples) - min(examples) <= 1
            assert max(map(len, steps)) <= together
            assert max(len(batch) for step in steps for batch in step) <= batch_size


def test_sizes_that_divide_the_examples_are_kept() -> None:
    data = batches((torch.arange(24.0), torch.arange(24)), batch_size=4, shuffle=True, seed=2)
    order = torch.cat([batch.ids for batch in data])
    assert [batch.ids.tolist() for batch in data] == [part.tolist() for part in order.split(4)]
    for step, part in zip(data.steps(0, 3), order.split(12), strict=True):
        assert [batch.ids.tolist() for batch in step] == [rows.tolist() for rows in part.split(4)]


def test_steps_of_a_loader_have_about_as_many_batches_each() -> None:
    loader = DataLoader(TensorDataset(torch.arange(26.0), torch.arange(26)), batch_size=2)
    steps = list(batches(loader).steps(0, 4))
    assert [len(step) for step in steps] == [4, 3, 3, 3]
    assert [i for step in steps for batch in step for i in batch.ids.tolist()] == list(range(26))


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"sampler": SubsetRandomSampler(range(7))},
        {"batch_sampler": [[3, 1], [0, 2]]},
    ],
)
def test_orders_that_nobody_knows_have_no_known_ids(options) -> None:
    assert not batches(DataLoader(TensorDataset(X, Y), **options)).ids_known


def test_a_batch_sampler_in_order_is_an_order() -> None:
    sampler = BatchSampler(SequentialSampler(X), 3, drop_last=False)
    assert batches(DataLoader(TensorDataset(X, Y), batch_sampler=sampler)).ids_known


def test_a_loader_collates_in_its_own_way() -> None:
    def doubled(rows):
        return torch.stack([row[0] for row in rows]) * 2, torch.tensor([row[1] for row in rows])

    data = batches(DataLoader(TensorDataset(X, Y), batch_size=3, collate_fn=doubled))
    assert torch.equal(next(iter(data)).inputs, 2 * X[:3])
    assert torch.equal(data.take(torch.tensor([6])).inputs, 2 * X[[6]])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(X[0], Y[0])])


class CountedStream(IterableDataset):
    def __len__(self) -> int:
        return 7

    def __iter__(self):
        return iter(zip(X, Y, strict=True))


def test_a_stream_that_knows_its_length() -> None:
    found = batches(DataLoader(CountedStream(), batch_size=3))
    assert (found.n, found.ids_known) == (7, False)
    assert torch.equal(gathered(found).inputs, X)


def test_inputs_of_several_arguments() -> None:
    found = batches(((X, 2 * X.numpy()), Y), batch_size=3)
    last = list(found)[-1]
    assert torch.equal(call(torch.add, last.inputs), 3 * X[6:])
    two_examples = batches(((X[0], Y[0]), (X[1], Y[1])))
    assert torch.equal(gathered(two_examples).inputs, X[:2])
    with pytest.raises(InvalidInput, match="inputs, targets and ids: expected 7 examples each, got 3"):
        batches(((X, X[:3]), Y))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, r"expected \(inputs, targets\), a Dataset or a DataLoader, got 'int'"),
        ((X[:0], Y[:0]), "at least one example"),
        ([], "at least one example"),
        (DataLoader([]), "at least one example"),
        (DataLoader(Stream()), "a data set with a length"),
        (Stream(), "a data set with a length"),
        (CountedStream(), "data: expected a DataLoader around a stream, got 'CountedStream'"),
        (DataLoader(TensorDataset(X, Y), batch_size=None), "a DataLoader that makes batches"),
        ((X, Y[:3]), "inputs, targets and ids: expected 3 examples each, got 7"),
        ((X, Y, Y[:3]), "inputs, targets and ids: expected 7 examples each, got 3"),
        ((X, [0] * 7), "targets and ids: expected tensors or arrays, like the inputs, got 'list'"),
        ((X, Y, Y.float()), "ids: expected an integer for each example"),
        ((X, Y, Y > 3), "ids: expected an integer for each example"),
        ((X[0, 0], Y), "data: expected a data set with a length"),
        ((np.array(["a", "b"]), Y[:2]), "data: expected arrays of numbers"),
        ((X.to_sparse(), Y), r"data: expected dense tensors \(`.to_dense\(\)`\), got torch.sparse_coo"),
    ],
)
def test_what_holds_no_examples_is_refused(data, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        batches(data)
    with pytest.raises(InvalidInput, match="batch_size: expected a whole number >= 1, got 0"):
        batches((X, Y), batch_size=0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"x": 1.0}], "batch: expected a key among"),
        ([1.0, 2.0], "batch: expected .* got Tensor"),
        ([(X[0], 1, "cat")], "ids: expected an integer for each example"),
        ((X.tolist(), Y.tolist()), r"data: expected examples that can be stacked, or tensors \(inputs, targets\)"),
    ],
)
def test_batches_without_targets_or_with_odd_ids_are_refused(rows, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        next(iter(batches(rows)))


def test_calling_models() -> None:
    linear = nn.Linear(2, 3)
    assert torch.equal(call(linear, X), linear(X))
    assert torch.equal(call(lambda a, b: a + b, (X, X)), 2 * X)
    assert torch.equal(call(lambda a, b: SimpleNamespace(logits=a - b), {"a": X, "b": X}), 0 * X)
    with pytest.raises(InvalidInput, match=r"a tensor of logits, or an object with `\.logits`"):
        call(lambda x: "cat", X)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_labels_are_integers_that_torch_can_add(dtype) -> None:
    labels = (Y % 2).to(dtype)
    for source in ((X, labels), TensorDataset(X, labels), DataLoader(TensorDataset(X, labels), batch_size=3)):
        assert torch.equal(gathered(batches(source)).targets, Y % 2)
    assert gathered(batches((X, Y.to(torch.uint8)))).targets.dtype == torch.uint8


def test_data_bring_no_graph() -> None:
    inputs = {"x": X.clone().requires_grad_() * 2}
    found = next(iter(batches((inputs, Y.float().requires_grad_()))))
    assert not found.inputs["x"].requires_grad
    assert not found.targets.requires_grad
    assert inputs["x"].requires_grad


def test_moving_keeps_the_form() -> None:
    moved = move({"a": X, "b": (X, [X, "text"])}, "cpu")
    assert torch.equal(moved["b"][1][0], X)
    assert moved["b"][1][1] == "text"
    batch = Batch(X, Y, Y).to("cpu")
    assert len(batch) == 7


def test_inputs_of_collated_items() -> None:
    for item in (X, (X, Y), [X], {"x": X, "labels": Y, "id": Y}, Batch(X, Y, Y)):
        found = inputs_of(item)
        assert torch.equal(found["x"] if isinstance(found, dict) else found, X)


def test_a_list_of_batches_is_no_list_of_examples():
    x, y = torch.randn(12, 3), torch.arange(12) % 2
    for targets in (y, y.float(), y[:, None].float(), x):
        with pytest.raises(InvalidInput, match=r"examples, or a DataLoader .* got 'a list of 3 batches'"):
            batches([(x[i : i + 4], targets[i : i + 4]) for i in (0, 4, 8)])
    assert batches([(x[i], y[i]) for i in range(12)]).n == 12
    assert batches([(x[i], x[i, :2]) for i in range(12)]).n == 12
    assert batches([(torch.randn(3, 8, 8), torch.randn(3)) for _ in range(12)]).n == 12  # a picture and its colour


def test_rows_of_a_batch_and_batches_as_one():
    whole = Batch({"a": X, "b": (X + 1, Y)}, Y, Y + 100)
    first, second = whole.take(torch.tensor([4, 0])), whole.take(torch.tensor([6]))
    assert first.ids.tolist() == [104, 100]
    assert torch.equal(first.inputs["b"][1], torch.tensor([4, 0]))
    both = Batch.concatenate([first, second])
    assert both.ids.tolist() == [104, 100, 106]
    assert torch.equal(both.inputs["a"], X[[4, 0, 6]])
