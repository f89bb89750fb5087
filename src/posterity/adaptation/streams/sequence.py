"""Learning a stream, task by task: scores after each, and a record from which to go on to the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posterity import metrics
from posterity.adaptation.streams.strategies import Strategy
from posterity.adaptation.streams.tasks import Scores, Task
from posterity.errors import RefusedFile, require, require_seed
from posterity.files import load_record, save_record
from posterity.posterior import Diagonal, Memory
from posterity.progress import track
from posterity.trees import Tree, check_same_shapes, snapshot

FORMAT, VERSION = "stream", 1


def learn_stream(
    model: nn.Module,
    tasks: Sequence[Task],
    strategy: Strategy,
    *,
    seed: int = 0,
    folder: str | Path | None = None,
    stop_after: int | None = None,
) -> Scores:
    """Learn tasks one after the other, in place, and test on all of them after each.

    Args:
        model: The model.
        tasks: The tasks.
        strategy: How earlier tasks are kept; a new one for each stream.
        seed: Of everything random.
        folder: Where to keep what was learnt after each task; a stream that was stopped goes on from there.
        stop_after: Stop after so many tasks.

    Returns:
        The scores so far.
    """
    require(len(tasks) > 0, "tasks", "at least one", "none")
    for task in tasks:
        require(isinstance(task, Task), "tasks", "each a Task(name, train, test)", type(task).__name__)
    require(isinstance(strategy, Strategy), "strategy", "a Strategy such as EWC()", strategy)
    require_seed(seed)
    last = len(tasks) if stop_after is None else stop_after
    require(1 <= last <= len(tasks), "stop_after", f"a number of tasks in 1..{len(tasks)}", stop_after)
    require(strategy.seen == 0, "strategy", "a new one for each stream", f"one that has seen {strategy.seen} examples")
    stream = {"seed": int(seed), "tasks": [task.name for task in tasks]}
    if folder is not None and (Path(folder) / f"{FORMAT}.json").exists():
        board = _load(folder, model, strategy, stream)
        strategy.resume(tasks[: board.done])
    else:
        board = Board.empty(model, tasks, strategy)
    for number in track(range(board.done, last), "tasks"):
        strategy.learn(model, tasks[number], seed * 1000 + number)
        board = board.after(model, tasks, strategy)
        if folder is not None:
            _save(folder, model, strategy, board, stream)
    return board.scores(tasks)


@dataclass(frozen=True, eq=False)
class Board:
    """The score board: how many tasks are done, and the matrices so far."""

    done: int
    accuracy: Tensor
    calibration: Tensor
    initial: Tensor

    @classmethod
    def empty(cls, model: nn.Module, tasks: Sequence[Task], strategy: Strategy) -> Board:
        """The board before the first task."""
        initial = torch.tensor([_tested(Strategy.probabilities(strategy, model, t.test), t)[0] for t in tasks])
        nothing = torch.full((len(tasks), len(tasks)), float("nan"), dtype=torch.float64)
        return cls(0, nothing, nothing.clone(), initial.double())

    def after(self, model: nn.Module, tasks: Sequence[Task], strategy: Strategy) -> Board:
        """The board with one more row."""
        found = torch.tensor([_tested(strategy.probabilities(model, t.test), t) for t in tasks], dtype=torch.float64)
        accuracy, calibration = self.accuracy.clone(), self.calibration.clone()
        accuracy[self.done], calibration[self.done] = found.T
        return Board(self.done + 1, accuracy, calibration, self.initial)

    def scores(self, tasks: Sequence[Task]) -> Scores:
        """What is known so far."""
        names = tuple(task.name for task in tasks[: self.done])
        part = slice(self.done)
        return Scores(names, self.accuracy[part, part], self.calibration[part, part], self.initial[part])


def _tested(probabilities: Tensor, task: Task) -> tuple[float, float]:
    labels = task.test[1].cpu()
    return metrics.accuracy(probabilities.cpu(), labels), metrics.ece(probabilities.cpu(), labels)


def _save(folder: str | Path, model: nn.Module, strategy: Strategy, board: Board, stream: dict[str, Any]) -> None:
    tensors: Tree = {f"model/{name}": t for name, t in snapshot(model.state_dict()).items()}
    tensors |= {"accuracy": board.accuracy, "calibration": board.calibration, "initial": board.initial}
    if strategy.anchor is not None:
        tensors |= {f"anchor/{name}": t for name, t in strategy.anchor.tensors().items()}
    for i, memory in enumerate(strategy.memories):
        tensors |= {f"memory/{i}/{name}": t for name, t in memory.tensors().items()}
    content = stream | {
        "strategy": type(strategy).__name__,
        "done": board.done,
        "seen": strategy.seen,
        "memories": len(strategy.memories),
        "names": None if strategy.anchor is None else list(strategy.anchor.names),
    }
    save_record(folder, FORMAT, version=VERSION, content=content, tensors=tensors)


def _load(folder: str | Path, model: nn.Module, strategy: Strategy, stream: dict[str, Any]) -> Board:
    device = next(model.parameters()).device
    content, tensors = load_record(folder, FORMAT, version=VERSION, device=device)
    if content["strategy"] != type(strategy).__name__:
        raise RefusedFile(f"{folder}: expected a stream of {type(strategy).__name__}, got {content['strategy']}")
    count = len(tensors["initial"])
    require(count == len(stream["tasks"]), "tasks", f"{count}, as in the folder", len(stream["tasks"]))
    for name, value in stream.items():
        known = content.get(name, value)  # which the first records do not hold
        require(known == value, name, f"{known}, as in the folder", value)
    weights = _under("model/", tensors)
    check_same_shapes(weights, model.state_dict(), "model in the folder")
    model.load_state_dict(weights)
    strategy.seen = content["seen"]
    if content["names"] is not None:
        strategy.anchor = Diagonal.from_tensors(_under("anchor/", tensors), {"names": content["names"]})
    strategy.memories = [Memory.from_tensors(_under(f"memory/{i}/", tensors)) for i in range(content["memories"])]
    return Board(content["done"], *(tensors[name].cpu() for name in ("accuracy", "calibration", "initial")))


def _under(prefix: str, tensors: Tree) -> Tree:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
