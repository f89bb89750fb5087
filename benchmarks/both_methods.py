"""Every verb with the posterior of each method, untuned: which method should be the default?

`po.fit(network, data, method=...)` with nothing else said, a perceptron with two hidden layers of 64. AdamW leaves a
point, which stands for what a user has without a posterior; it is run at its usual rate and at that of "variational".
Seeds 0 and 1; the budget of "variational" was chosen on other cuts of some of these sets (`budgets.md`), its other
constants and those of IVON on other data (`untuned.md`, `fit_defaults.md`).

- learn: accuracy, NLL and ECE on held-out rows, from 64 draws of the weights.
- memory: a tenth of the labels is wrong; average precision of the memory map's ranking (of the loss, for AdamW). And
  the leave-one-out loss that the map estimates, divided by the loss on held-out rows.
- what if: six groups of a twentieth of nine digits (half of them random, half the most relevant of a class); estimated
  changes of the held-out loss against those of retraining with the same seed, by rank correlation and sign. All maps
  are of the same kind, a Laplace posterior of the last layer at the weights of each method.
- adapt: the planted labels are removed and a tenth digit is learnt, beside retraining.
- merge: one network, fine-tuned on three thirds of the digits by class, merged by curvature, beside a plain average.
- out of distribution: AUROC of the unknown digit by entropy and by mutual information; entropy far from two moons.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Iterator
from typing import Any

import budgets
import datasets
import report
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

import networks
import posterity as po

WAYS: dict[str, dict[str, Any]] = {
    "AdamW": {"method": "adamw"},
    "AdamW, lr 3e-3": {"method": "adamw", "lr": 3e-3},
    "ivon": {"method": "ivon"},
    "ivon, automatic": {"method": "ivon", "ess": "auto", "hess_init": "auto"},
    "variational": {"method": "variational"},
}
SETS = ("wine", "breast cancer", "two moons", "USPS 1000", "digits 800")
FLIPPED, GROUPS, NEW = 0.1, 6, 9
Data = tuple[Tensor, Tensor]
Way = dict[str, Any]


def network(data: Data, classes: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return networks.mlp((data[0].shape[1], 64, 64, classes))


def fitted(way: Way, data: Data, classes: int, seed: int) -> po.Run:
    return po.fit(network(data, classes, seed), data, seed=seed, progress=False, **way)


def mislabelled(y: Tensor, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Labels of which a tenth is another class, and which ones."""
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(y), generator=generator) < FLIPPED
    other = (y + torch.randint(1, classes, y.shape, generator=generator)) % classes
    return torch.where(wrong, other, y), wrong


def at_mean(model: nn.Module, data: Data) -> tuple[float, float]:
    with torch.no_grad():
        f = model(data[0])
    return (f.argmax(1) == data[1]).double().mean().item(), F.cross_entropy(f, data[1]).item()


def memory(run: po.Run, data: Data, wrong: Tensor | None, test: Data) -> report.Line:
    """How well wrong labels are found, and how near the estimated leave-one-out loss is to the held-out one."""
    if run.method == "adamw":
        with torch.no_grad():
            loss = F.cross_entropy(run.model(data[0]), data[1], reduction="none")
        return {"found": average_precision_score(wrong, loss)} if wrong is not None else {}
    m = po.memory_map(run.model, run.posterior, data)
    if wrong is not None:
        return {"found": average_precision_score(wrong, m.table[m.ranking])}
    return {"left_out": float(m.table["loo_nll"].mean()) / at_mean(run.model, test)[1]}


def what_if(run: po.Run, way: Way, data: Data, test: Data, seed: int) -> report.Line:
    """Estimated against measured changes of the held-out loss, where groups are removed."""
    last = po.laplace(run.model, data, structure="last_layer", prior_precision=1.0)
    m = po.memory_map(run.model, last, data)
    size, generator = len(data[1]) // 20, torch.Generator().manual_seed(seed)
    groups = [torch.randperm(len(data[1]), generator=generator)[:size].tolist() for _ in range(GROUPS // 2)]
    table = m.table.sort_values("relevance", ascending=False)
    groups += [table[table["label"] == k]["id"].head(size).tolist() for k in range(GROUPS // 2)]
    before, estimated, measured = at_mean(run.model, test)[1], [], []
    for group in groups:
        estimated.append(m.what_if(remove=group).on(test).loss_change)
        keep = torch.ones(len(data[1]), dtype=torch.bool)
        keep[group] = False
        again = fitted(way, (data[0][keep], data[1][keep]), NEW, seed)
        measured.append(at_mean(again.model, test)[1] - before)
    signs = [(a > 0) == (b > 0) for a, b in zip(estimated, measured)]
    return {"rank": float(spearmanr(estimated, measured).statistic), "sign": statistics.fmean(signs)}


def change(run: po.Run, way: Way, data: Data, wrong: Tensor, new: Data, test: Data, seed: int) -> report.Line:
    """Remove the wrong labels and add a digit: accuracy and NLL of adaptation and of retraining, and their times."""
    began = time.process_time()
    gone = wrong.nonzero().flatten().tolist()
    found = po.adapt(run.model, run.posterior, data=data, remove=gone, add=new, classes=NEW + 1, seed=seed)
    adapted, began = time.process_time() - began, time.process_time()
    kept = (torch.cat((data[0][~wrong], new[0])), torch.cat((data[1][~wrong], new[1])))
    again = fitted(way, kept, NEW + 1, seed)
    line: report.Line = {"adapted_time": adapted / (time.process_time() - began)}
    for name, (model, posterior) in {
        "adapted": (found.model, found.posterior),
        "again": (again.model, again.posterior),
    }.items():
        p = po.predict(model, posterior, test[0], samples=64)
        line[f"{name}_accuracy"] = po.metrics.accuracy(p.probs, test[1])
        line[f"{name}_nll"] = po.metrics.nll(p.probs, test[1])
    return line


def merged(way: Way, data: Data, test: Data, seed: int) -> report.Line:
    """Three networks, fine-tuned on digits of their own from one base, as one network."""
    half = len(data[1]) // 2
    base = fitted(way, (data[0][:half], data[1][:half]), NEW + 1, seed)
    rest, parts = (data[0][half:], data[1][half:]), {}
    for k, own in enumerate(((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))):
        rows = torch.isin(rest[1], torch.tensor(own))
        model = copy.deepcopy(base.model)
        prior = {} if way["method"] == "adamw" else {"prior": base.posterior}
        parts[str(k)] = po.fit(
            model, (rest[0][rows], rest[1][rows]), epochs=5, seed=seed, progress=False, **prior, **way
        )
    line: report.Line = {}
    whole = {name: run.posterior for name, run in parts.items()}
    if prior:
        one = po.merge(whole, base=base.posterior)
        one.apply(base.model)
        line = {"merged": at_mean(base.model, test)[1], "merged_accuracy": at_mean(base.model, test)[0]}
    mean = {
        n: torch.stack([run.model.state_dict()[n] for run in parts.values()]).mean(0) for n in base.model.state_dict()
    }
    base.model.load_state_dict(mean)
    return line | {"average": at_mean(base.model, test)[1], "average_accuracy": at_mean(base.model, test)[0]}


def outside(run: po.Run, inside: Tensor, foreign: Tensor) -> report.Line:
    known, other = (po.predict(run.model, run.posterior, x, samples=64) for x in (inside, foreign))
    line = {"ood_entropy": po.metrics.ood_auroc(known.entropy, other.entropy), "far": other.entropy.mean().item()}
    if run.method != "adamw":
        line["ood_information"] = po.metrics.ood_auroc(known.mutual_information, other.mutual_information)
    return line


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    root = datasets.folder(options.data)
    done = {(line["data"], line["method"], line["seed"]) for line in report.earlier(options.raw)}
    for name in options.sets:
        for seed in options.seeds:
            data, test = budgets.split(name, seed, root)
            classes = int(data[1].max()) + 1
            labels, wrong = mislabelled(data[1], classes, seed)
            for row in options.methods:
                if (name, row, seed) in done:
                    continue
                way = WAYS[row]
                began = time.process_time()
                run = fitted(way, data, classes, seed)
                line = {"data": name, "method": row, "seed": seed, "steps": run.steps}
                line["seconds"] = time.process_time() - began
                line |= budgets.scores(run, test) | memory(run, data, None, test)
                line["temperature"] = run.posterior.temperature
                noisy = fitted(way, (data[0], labels), classes, seed)
                line |= memory(noisy, (data[0], labels), wrong, test)
                line |= {f"noisy_{key}": value for key, value in budgets.scores(noisy, test).items()}
                if name == "two moons":
                    angles = torch.linspace(0, 2 * torch.pi, 200)
                    line |= outside(run, test[0], 6 * torch.stack((angles.cos(), angles.sin()), 1))
                if name == "digits 800":
                    line |= digits(way, data, test, seed)
                yield line


def digits(way: Way, data: Data, test: Data, seed: int) -> report.Line:
    """What is asked of digits alone: nine of them with some wrong labels, then the tenth."""
    old, known = data[1] != NEW, test[1] != NEW
    labels, wrong = mislabelled(data[1][old], NEW, seed)
    nine, held_out = (data[0][old], labels), (test[0][known], test[1][known])
    run = fitted(way, nine, NEW, seed)
    line = outside(run, held_out[0], test[0][~known]) | merged(way, data, test, seed)
    line |= what_if(run, way, nine, held_out, seed)
    if run.method != "adamw":
        line |= change(run, way, nine, wrong, (data[0][~old], data[1][~old]), test, seed)
    return line


def summary(lines: list[report.Line]) -> str:
    """A table of predictions and memory for each data set, and one of the other verbs on digits and moons."""
    found: dict[tuple[str, str], list[report.Line]] = {}
    for line in lines:
        found.setdefault((line["data"], line["method"]), []).append(line)
    sets, rows = (list(dict.fromkeys(line[key] for line in lines)) for key in ("data", "method"))

    def mean(name: str, row: str, figure: str) -> str:
        values = [line[figure] for line in found[name, row] if figure in line]
        return f"{statistics.fmean(values):.3f}" if values else "–"

    figures = ["accuracy", "nll", "ece", "noisy_nll", "found", "left_out"]
    body = [[name, row, *(mean(name, row, each) for each in figures)] for name in sets for row in rows]
    columns = ["data", "method", "accuracy", "NLL", "ECE"]
    columns += ["NLL, tenth mislabelled", "AP of wrong labels", "leave-one-out / held-out loss"]
    text = "\n### Learn and remember\n\n" + report.table(columns, body)
    asked = {
        "what if: rank correlation": ("digits 800", "rank"),
        "what if: same sign": ("digits 800", "sign"),
        "adapt: NLL": ("digits 800", "adapted_nll"),
        "retrain: NLL": ("digits 800", "again_nll"),
        "adapt: accuracy": ("digits 800", "adapted_accuracy"),
        "retrain: accuracy": ("digits 800", "again_accuracy"),
        "adapt: share of retraining's time": ("digits 800", "adapted_time"),
        "merge by curvature: NLL": ("digits 800", "merged"),
        "plain average: NLL": ("digits 800", "average"),
        "unknown digit: AUROC of entropy": ("digits 800", "ood_entropy"),
        "unknown digit: AUROC of mutual information": ("digits 800", "ood_information"),
        "far from two moons: AUROC of entropy": ("two moons", "ood_entropy"),
        "far from two moons: entropy, at most 0.693": ("two moons", "far"),
    }
    asked = {question: (name, figure) for question, (name, figure) in asked.items() if name in sets}
    other = [[question, *(mean(name, row, figure) for row in rows)] for question, (name, figure) in asked.items()]
    return text + ("\n### Ask, adapt and merge\n\n" + report.table(["question", *rows], other) if other else "")


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    arguments.add_argument("--sets", nargs="+", default=list(SETS))
    arguments.add_argument("--methods", nargs="+", default=list(WAYS))
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    text = report.header("Every verb with every method", lines, seeds=sorted({line["seed"] for line in lines}))
    report.publish("both_methods", text + summary(lines), options.out)


if __name__ == "__main__":
    main()
