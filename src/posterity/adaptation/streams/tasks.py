"""Streams of tasks: data permuted, classes split, clouds in the plane; and how well a learner remembers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posterity.errors import require, require_whole
from posterity.inputs import Inputs
from posterity.memory.ids import whole_numbers
from posterity.noise import seeded

Data = tuple[Inputs, Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """One task: a name, data to learn from and data to be tested on."""

    name: str
    train: Data
    test: Data


def permuted(train: Data, test: Data, count: int, *, seed: int = 0) -> list[Task]:
    """Tasks that show the same flat inputs with their features in another order; the first keeps the order."""
    require_whole("count", count)
    require(train[0].ndim == 2, "inputs", "one row of features for each example", tuple(train[0].shape))
    tasks = []
    for number in range(count):
        order = torch.arange(train[0].shape[1])
        if number:
            order = torch.randperm(len(order), generator=seeded(1000 * seed + number))
        tasks.append(Task(f"permutation {number}", (train[0][:, order], train[1]), (test[0][:, order], test[1])))
    return tasks


def split(train: Data, test: Data, groups: Sequence[Sequence[int]], *, scenario: str = "multi-head") -> list[Task]:
    """Tasks with some of the classes each.

    Args:
        train: Inputs and labels.
        test: The same for testing.
        groups: Classes of each task.
        scenario: "multi-head": each task has outputs of its own, labels count within the task, and inputs are mappings
            {"x", "task"} for a `MultiHead`. "single-head": all classes share the outputs (class-incremental).
            "domain": labels count within the task and all tasks share the outputs (domain-incremental).
    """
    known = ("multi-head", "single-head", "domain")
    require(scenario in known, "scenario", f"one of {list(known)}", scenario)
    for group in groups:
        require(isinstance(group, Iterable), "groups", "a list of classes for each task", group)
    groups = [whole_numbers("groups", list(group)).tolist() for group in groups]

    def part(data: Data, group: Sequence[int], number: int) -> Data:
        inside = torch.isin(data[1], torch.tensor(group, device=data[1].device))
        require(bool(inside.any()), f"task {number}", f"examples of the classes {group}", "none")
        x, y = data[0][inside], data[1][inside]
        if scenario == "single-head":
            return x, y
        place = torch.zeros(int(max(map(max, groups))) + 1, dtype=torch.int64, device=y.device)
        place[group] = torch.arange(len(group), device=y.device)
        if scenario == "domain":
            return x, place[y]
        return {"x": x, "task": torch.full((len(x),), number, device=x.device)}, place[y]

    return [
        Task("/".join(map(str, group)), part(train, group, number), part(test, group, number))
        for number, group in enumerate(groups)
    ]


class MultiHead(nn.Module):
    """A network whose outputs are cut into one head for each task; `task` selects the head.

    Args:
        body: A network with heads · outputs outputs.
        heads: Number of tasks.
    """

    def __init__(self, body: nn.Module, heads: int) -> None:
        super().__init__()
        self.body, self.heads = body, heads

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        """Outputs of each example's own task."""
        f = self.body(x)
        require(f.shape[1] % self.heads == 0, "outputs of the body", f"as many for each of {self.heads}", f.shape[1])
        f = f.reshape(len(f), self.heads, -1)
        return f.gather(1, task.reshape(-1, 1, 1).expand(-1, 1, f.shape[2])).squeeze(1)


def toy(*, per_class: int = 200, seed: int = 0, count: int = 5) -> list[Task]:
    """Binary tasks in the plane, two round clouds each, at places that overlap more and more as tasks come."""
    centres = torch.tensor(
        [[[0.0, 0.2], [0.6, 0.9]], [[1.3, 0.4], [1.6, -0.1]], [[1.2, 0.6], [0.9, 0.4]], [[1.6, -0.8], [2.0, 0.7]],
         [[0.3, -0.6], [1.0, -0.4]]]
    )  # fmt: skip
    require(1 <= count <= len(centres), "count", f"1..{len(centres)} tasks", count)
    generator = seeded(seed)

    def draw(pair: Tensor) -> Data:
        x = pair.repeat_interleave(per_class, 0) + 0.12 * torch.randn(2 * per_class, 2, generator=generator)
        return x, torch.arange(2).repeat_interleave(per_class)

    return [Task(f"clouds {i}", draw(pair), draw(pair)) for i, pair in enumerate(centres[:count])]


@dataclass(frozen=True, eq=False)
class Scores:
    """How a learner did along a stream: row i after task i, column j on task j.

    Args:
        names: Names of the tasks.
        accuracy: (tasks, tasks); rows that are not there yet are NaN.
        calibration: Expected calibration error, shaped as the accuracy.
        initial: Accuracy on each task before anything was learnt.
    """

    names: tuple[str, ...]
    accuracy: Tensor
    calibration: Tensor
    initial: Tensor

    @property
    def average(self) -> float:
        """Mean accuracy over all tasks at the end."""
        return self.accuracy[-1].mean().item()

    @property
    def forgetting(self) -> float:
        """Mean over the earlier tasks of the best accuracy there ever was minus that at the end."""
        if len(self.names) < 2:
            return 0.0
        return (self.accuracy[:-1, :-1].max(0).values - self.accuracy[-1, :-1]).mean().item()

    @property
    def backward_transfer(self) -> float:
        """Mean over the earlier tasks of the accuracy at the end minus that when the task had just been learnt."""
        fresh = self.accuracy.diagonal()[:-1]
        return (self.accuracy[-1, :-1] - fresh).mean().item() if len(self.names) > 1 else 0.0

    @property
    def forward_transfer(self) -> float:
        """Mean over the later tasks of the accuracy just before learning one minus that before learning anything."""
        before = self.accuracy.diagonal(1)
        return (before - self.initial[1:]).mean().item() if len(self.names) > 1 else 0.0
