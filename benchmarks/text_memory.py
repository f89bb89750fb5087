"""Which texts made this answer: a text classifier without some of its texts, predicted and retrained.

    python benchmarks/text_memory.py --features FILE --out docs/benchmarks

FILE is what `text_labels.py --prepare` writes: 384 numbers of MiniLM for questions of TREC, 2000 to train on and 500
for the test. A softmax regression (prior precision 10) is trained to its optimum. Groups of training texts go: at
random, and those nearest to one text. For each, the change of every test text's loss is predicted by
`memory_map(...).what_if`, by the product of gradients (what the group's gradient does to the test loss to first order,
without curvature) and by the cosine of features; then the model is trained again without the group. Correlations are
over all test texts and groups of a kind. Nothing was tuned. The groups of the two seeds differ; seconds are CPU time
of one thread for a group.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import report
import torch
import torch.nn.functional as F
from text_labels import PRIOR, Data, read, softmax_regression
from torch import Tensor, nn

import posterity as po

GROUPS, SIZE = 20, 30
WAYS = ("what_if, Kronecker", "what_if, full curvature", "gradient products", "cosine of features")


def groups(pool: Data, kind: str, seed: int) -> Iterator[Tensor]:
    """Texts that go together."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(GROUPS):
        order = torch.randperm(len(pool[1]), generator=generator)
        if kind == "at random":
            yield order[:SIZE]
        else:
            unit = F.normalize(pool[0], dim=1)
            yield (unit @ unit[order[0]]).topk(SIZE).indices


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


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    pool, test = read(Path(options.features), "trec")
    pool = (pool[0][: options.limit], pool[1][: options.limit])
    classes = int(pool[1].max()) + 1
    model = softmax_regression(*pool, classes, None)
    maps = {}
    for way, structure in (("what_if, Kronecker", "kron"), ("what_if, full curvature", "full")):
        posterior = po.laplace(model, pool, structure=structure, prior_precision=PRIOR, likelihood="categorical")
        maps[way] = po.memory_map(model, posterior, pool)
    before = losses(model, test)
    for seed in options.seeds:
        for kind in ("at random", "neighbours"):
            found: dict[str, list[Tensor]] = {way: [] for way in WAYS}
            seconds = dict.fromkeys((*WAYS, "retraining"), 0.0)
            real = []
            for group in groups(pool, kind, seed):
                for way in WAYS:
                    begin = time.process_time()
                    if way in maps:
                        outcome = maps[way].what_if(remove=group.tolist()).on(test)
                        change = (outcome.loss_after - outcome.loss_before).double()
                    elif way == "gradient products":
                        change = products(model, pool, test, group)
                    else:
                        unit = F.normalize(pool[0][group].mean(0), dim=0)
                        same = (test[1].unsqueeze(1) == pool[1][group]).double().mean(1)
                        change = (F.normalize(test[0], dim=1) @ unit).double() * same
                    seconds[way] += time.process_time() - begin
                    found[way].append(change)
                rest = torch.ones(len(pool[1]), dtype=torch.bool)
                rest[group] = False
                begin = time.process_time()
                again = softmax_regression(*_part(pool, rest.nonzero()[:, 0]), classes, model)
                seconds["retraining"] += time.process_time() - begin
                real.append(losses(again, test) - before)
            truth = torch.cat(real)
            for way in WAYS:
                change = torch.cat(found[way])
                scale = (change * truth).sum() / change.square().sum()
                yield {
                    "kind": kind, "seed": seed, "way": way, "pearson": _correlation(change, truth),
                    "spearman": _correlation(_ranks(change), _ranks(truth)), "scale": scale.item(),
                    "seconds": seconds[way] / GROUPS, "retraining": seconds["retraining"] / GROUPS,
                }  # fmt: skip


def _ranks(x: Tensor) -> Tensor:
    return x.argsort().argsort().double()


def _correlation(a: Tensor, b: Tensor) -> float:
    return torch.corrcoef(torch.stack([a, b]))[0, 1].item()


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--features", help="what text_labels.py --prepare wrote")
    arguments.add_argument("--limit", type=int, default=2000, help="training texts")
    arguments.add_argument("--seeds", nargs="+", type=int, default=(0, 1))
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    text = report.header("Which texts made this answer", lines, seeds=list(options.seeds), groups=GROUPS, texts=SIZE)
    text += "\n" + (__doc__ or "").split("\n\n")[2] + "\n"
    for kind in dict.fromkeys(line["kind"] for line in lines):
        rows = []
        for way in WAYS:
            mine = [line for line in lines if (line["kind"], line["way"]) == (kind, way)]
            figures = [
                report.spread([line[name] for line in mine]) for name in ("pearson", "spearman", "scale", "seconds")
            ]
            rows.append([way, *figures])
        retrained = report.spread([line["retraining"] for line in lines if line["kind"] == kind])
        rows.append(["retraining", "1", "1", "1", retrained])
        heads = ["estimate", "Pearson", "Spearman", "best factor on the estimate", "CPU s a group"]
        text += f"\n### Groups, {kind}\n\n{report.table(heads, rows)}"
    report.publish("text_memory", text, options.out)


if __name__ == "__main__":
    main()
