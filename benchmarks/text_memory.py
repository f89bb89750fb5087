"""Which texts made this answer: a text classifier without some of its texts, predicted and retrained.

    python benchmarks/text_memory.py --features FILE --kronfluence FOLDER --out docs/benchmarks

FILE is what `text_labels.py --prepare` writes: 384 numbers of MiniLM for questions of TREC, 2000 to train on and 500
for the test. A softmax regression (prior precision 10) is trained to its optimum. Groups of training texts go: at
random, and those nearest to one text. For each, the change of every test text's loss is predicted by
`memory_map(...).what_if` (its default makes passes over the data; `passes=0` is the closed form alone), by the product
of gradients (what the group's gradient does to the test loss to first order, without curvature), by the cosine of
features and by kronfluence (EK-FAC with the prior as damping; FOLDER is where it is installed, beside an environment
that has accelerate); then the model is trained again without the group. A best factor of 1 means the right size;
kronfluence's scores are those of a mean loss and have another unit.
Correlations are over all test texts and groups of a kind. Nothing was tuned. The groups of the two seeds differ.
Seconds are CPU time of one thread: once for the training set, and for each group. MiB are what the process grew by
beyond the rows above. The rows ran in one process: what an earlier row loaded is missing from the cost
of later ones, such as the default after Kronecker.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import kronfluence_scores
import report
import torch
import torch.nn.functional as F
from text_labels import Data, read
from torch import Tensor, nn

import posterity as po
from posterity.memory import MemoryMap

GROUPS, SIZE, PRIOR = 20, 30, 10.0
PRODUCTS, COSINE, PEER = "gradient products", "cosine of features", "kronfluence, EK-FAC"
DEFAULT, KRONECKER, FULL = "what_if, default", "what_if, Kronecker, no passes", "what_if, full curvature, no passes"
KINDS = ("at random", "neighbours")
Change = Callable[[Tensor], Tensor]  # from a group that goes to the change of every test text's loss
WAYS = (PRODUCTS, COSINE, KRONECKER, DEFAULT, PEER, FULL)  # those that need much memory last


def groups(x: Tensor, kind: str, seed: int, count: int = GROUPS, size: int = SIZE) -> Iterator[Tensor]:
    """Texts that go together, of those with the features x."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        order = torch.randperm(len(x), generator=generator)
        if kind == "at random":
            yield order[:size]
        else:
            unit = F.normalize(x, dim=1)
            yield (unit @ unit[order[0]]).topk(size).indices


def softmax_regression(x: Tensor, y: Tensor, classes: int, start: nn.Linear | None) -> nn.Linear:
    """The minimum of Σ loss + ½ δ‖θ‖²."""
    model = nn.Linear(x.shape[1], classes, dtype=x.dtype)
    with torch.no_grad():
        for p, old in zip(model.parameters(), [0, 0] if start is None else start.parameters(), strict=True):
            p.copy_(old if isinstance(old, Tensor) else torch.zeros_like(p))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimizer.zero_grad()
        penalty = 0.5 * PRIOR * sum(p.square().sum() for p in model.parameters())
        loss = F.cross_entropy(model(x), y, reduction="sum") + penalty
        loss.backward()
        return loss

    optimizer.step(objective)
    return model


def losses(model: nn.Module, data: Data) -> Tensor:
    with torch.no_grad():
        return F.cross_entropy(model(data[0]), data[1], reduction="none").double()


def products(model: nn.Linear, pool: Data, test: Data, group: Tensor) -> Tensor:
    """Σ_i ∇ℓ_i · ∇ℓ_test in closed form: a softmax's gradient is residual times input (and one, for the bias)."""
    with torch.no_grad():
        ours, theirs = (model(x).softmax(1) - F.one_hot(y, model.out_features) for x, y in (_part(pool, group), test))
        return (theirs @ ours.T * (test[0] @ pool[0][group].T + 1)).sum(1).double()


def _part(data: Data, rows: Tensor) -> Data:
    return data[0][rows], data[1][rows]


def prepared(way: str, model: nn.Linear, pool: Data, test: Data, peer: str | None) -> Change:
    """The estimate of a way, after what is done once."""
    if way == PRODUCTS:
        return lambda group: products(model, pool, test, group)
    if way == COSINE:
        return lambda group: _cosines(pool, test, group)
    if way == PEER:
        assert peer is not None
        scores = kronfluence_scores.pairwise(peer, model, pool, test, damping=PRIOR / len(pool[1]))
        return lambda group: scores[:, group].sum(1).double()
    structure, passes = {KRONECKER: ("kron", 0), DEFAULT: ("kron", "auto"), FULL: ("full", 0)}[way]
    posterior = po.laplace(model, pool, structure=structure, prior_precision=PRIOR, likelihood="categorical")
    return asked(po.memory_map(model, posterior, pool), test, passes)


def asked(memory: MemoryMap, test: Data, passes: int | str) -> Change:
    """What a memory map says about the loss of every test text without a group."""

    def change(group: Tensor) -> Tensor:
        outcome = memory.what_if(remove=group.tolist(), passes=passes).on(test)
        return (outcome.loss_after - outcome.loss_before).double()

    return change


def _cosines(pool: Data, test: Data, group: Tensor) -> Tensor:
    unit = F.normalize(pool[0][group].mean(0), dim=0)
    same = (test[1].unsqueeze(1) == pool[1][group]).double().mean(1)
    return (F.normalize(test[0], dim=1) @ unit).double() * same


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    pool, test = read(Path(options.features), "trec")
    pool = (pool[0][: options.limit], pool[1][: options.limit])
    classes = int(pool[1].max()) + 1
    model = softmax_regression(*pool, classes, None)
    before = losses(model, test)

    def retrained(group: Tensor) -> Tensor:
        rest = without(len(pool[1]), group)
        return losses(softmax_regression(*_part(pool, rest), classes, model), test) - before

    ways = [way for way in WAYS if way != PEER or options.kronfluence is not None]
    estimators = {way: partial(prepared, way, model, pool, test, options.kronfluence) for way in ways}
    yield from compared(retrained, estimators, lambda kind, seed: groups(pool[0], kind, seed), options.seeds)


def compared(
    retrained: Change,
    estimators: Mapping[str, Callable[[], Change]],
    grouped: Callable[[str, int], Iterable[Tensor]],
    seeds: Iterable[int],
) -> Iterator[report.Line]:
    """How well each way predicts what retraining without groups does to the test texts, and what it costs.

    Args:
        retrained: The real change of every test text's loss without a group.
        estimators: Of each way, what is done once; it gives the estimate for a group.
        grouped: The groups of a kind and a seed.
        seeds: Seeds of the groups.
    """
    those = {(kind, seed): list(grouped(kind, seed)) for seed in seeds for kind in KINDS}
    begin = time.process_time()
    truth = {key: torch.cat([retrained(group) for group in found]) for key, found in those.items()}
    retraining = (time.process_time() - begin) / sum(map(len, those.values()))
    for way, estimator in estimators.items():
        held, begin = _peak(), time.process_time()
        change_of = estimator()
        once = time.process_time() - begin
        for (kind, seed), found in those.items():
            begin = time.process_time()
            change = torch.cat([change_of(group) for group in found])
            seconds = (time.process_time() - begin) / len(found)
            real = truth[kind, seed]
            yield {
                "kind": kind, "seed": seed, "way": way, "pearson": _correlation(change, real),
                "spearman": _correlation(_ranks(change), _ranks(real)), "seconds": seconds, "once": once,
                "scale": ((change * real).sum() / change.square().sum()).item(), "retraining": retraining,
                "mebibytes": _peak() - held, "groups": len(found), "texts": len(found[0]),
            }  # fmt: skip


def without(n: int, group: Tensor) -> Tensor:
    rest = torch.ones(n, dtype=torch.bool)
    rest[group] = False
    return rest.nonzero()[:, 0]


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _ranks(x: Tensor) -> Tensor:
    return x.argsort().argsort().double()


def _correlation(a: Tensor, b: Tensor) -> float:
    return torch.corrcoef(torch.stack([a, b]))[0, 1].item()


def tables(lines: list[report.Line], options: argparse.Namespace, title: str, about: str | None) -> None:
    """Publish a table for each kind of groups."""
    facts = {name: lines[0][name] for name in ("groups", "texts") if name in lines[0]}
    text = report.header(title, lines, seeds=sorted({line["seed"] for line in lines}), **facts)
    text += "\n" + (about or "").split("\n\n")[2] + "\n"
    for kind in dict.fromkeys(line["kind"] for line in lines):
        rows = []
        for way in dict.fromkeys(line["way"] for line in lines):
            mine = [line for line in lines if (line["kind"], line["way"]) == (kind, way)]
            figures = [
                report.spread([line[name] for line in mine])
                for name in ("pearson", "spearman", "scale", "once", "seconds")
            ]
            rows.append([way, *figures, f"{max(line['mebibytes'] for line in mine):.0f}"])
        retrained = report.spread([line["retraining"] for line in lines if line["kind"] == kind])
        rows.append(["retraining", "1", "1", "1", "", retrained, ""])
        heads = ["estimate", "Pearson", "Spearman", "best factor on the estimate", "CPU s once", "CPU s a group", "MiB"]
        text += f"\n### Groups, {kind}\n\n{report.table(heads, rows)}"
    report.publish(Path(sys.argv[0]).stem, text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--features", help="what text_labels.py --prepare wrote")
    arguments.add_argument("--kronfluence", help="where kronfluence is installed")
    arguments.add_argument("--limit", type=int, default=2000, help="training texts")
    arguments.add_argument("--seeds", nargs="+", type=int, default=(0, 1))
    title = "Which texts made this answer"
    report.study(arguments.parse_args(), runs, lambda lines, options: tables(lines, options, title, __doc__))


if __name__ == "__main__":
    main()
