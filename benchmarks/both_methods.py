"""Every verb with the posterior of each method, untuned: which method should be the default?

`po.fit(network, data, method=...)` with nothing else said, on data that scikit-learn bundles or makes. AdamW leaves a
point, which stands for what a user has without a posterior. Learning rates, lengths and budgets were chosen on other
data (`untuned.md`, `fit_defaults.md`), not here.

- learn: accuracy, NLL and ECE on held-out rows, from 64 draws of the weights; and the share of confident mistakes:
  rows that are wrong at a confidence above 0.9.
- memory: a tenth of the labels is wrong; average precision of the memory map's ranking (of the loss, for AdamW). And
  the leave-one-out loss that the map estimates, divided by the loss on held-out rows.
- what if: six groups of a twentieth of the digits (half of them random, half the most relevant of a class);
  estimated changes of the held-out loss against those of retraining with the same seed, by rank correlation and sign.
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

import report
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_moons
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

import networks
import posterity as po

METHODS = ("adamw", "ivon", "variational")
FLIPPED, CONFIDENT, GROUPS, NEW = 0.1, 0.9, 6, 9
Data = tuple[Tensor, Tensor]


def load(name: str, seed: int) -> tuple[Data, Data]:
    """Rows to learn from and rows to test with, split by a seed."""
    if name == "two moons":
        x, y = make_moons(600, noise=0.25, random_state=seed)
        share = 200
    else:
        x, y = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}[name](return_X_y=True)
        share = 800 if name == "digits" else len(y) // 2
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    rows, labels = torch.tensor(x, dtype=torch.float32)[order], torch.tensor(y)[order]
    middle, width = rows[:share].mean(0), rows[:share].std(0)
    rows = rows / 16 if name == "digits" else (rows - middle) / width
    return (rows[:share], labels[:share]), (rows[share:], labels[share:])


def network(data: Data, classes: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return networks.mlp((data[0].shape[1], 64, 64, classes))


def fitted(method: str, data: Data, classes: int, options: argparse.Namespace, seed: int, **more: Any) -> Any:
    return po.fit(network(data, classes, seed), data, method=method, seed=seed, progress=False, **more, **options.fit)


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


def learn(run: Any, test: Data) -> report.Line:
    p = po.predict(run.model, run.posterior, test[0], samples=64)
    confidence, guess = p.probs.max(-1)
    return {
        "accuracy": po.metrics.accuracy(p.probs, test[1]),
        "nll": po.metrics.nll(p.probs, test[1]),
        "ece": po.metrics.ece(p.probs, test[1]),
        "confident": ((confidence > CONFIDENT) & (guess != test[1])).double().mean().item(),
        "temperature": run.posterior.temperature,
    }


def memory(run: Any, data: Data, wrong: Tensor | None, test: Data) -> report.Line:
    """How well wrong labels are found, and how near the estimated leave-one-out loss is to the held-out one."""
    if run.method == "adamw":
        with torch.no_grad():
            loss = F.cross_entropy(run.model(data[0]), data[1], reduction="none")
        return {"found": average_precision_score(wrong, loss)} if wrong is not None else {}
    m = po.memory_map(run.model, run.posterior, data)
    if wrong is not None:
        return {"found": average_precision_score(wrong, m.table[m.ranking])}
    left_out = float(m.table["loo_nll"].mean())
    dimension = m.reliability.effective_dimension
    return {"left_out": left_out / at_mean(run.model, test)[1], "dimension": dimension / len(data[1])}


def what_if(run: Any, data: Data, test: Data, classes: int, options: argparse.Namespace, seed: int) -> report.Line:
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
        again = fitted(run.method, (data[0][keep], data[1][keep]), classes, options, seed)
        measured.append(at_mean(again.model, test)[1] - before)
    signs = [(a > 0) == (b > 0) for a, b in zip(estimated, measured)]
    return {"rank": float(spearmanr(estimated, measured).statistic), "sign": statistics.fmean(signs)}


def change(
    run: Any, data: Data, wrong: Tensor, new: Data, test: Data, options: argparse.Namespace, seed: int
) -> report.Line:
    """Remove the wrong labels and add a digit: accuracy and NLL of adaptation and of retraining, and their times."""
    began = time.process_time()
    gone = wrong.nonzero().flatten().tolist()
    found = po.adapt(run.model, run.posterior, data=data, remove=gone, add=new, classes=NEW + 1, seed=seed)
    adapted, began = time.process_time() - began, time.process_time()
    p = po.predict(found.model, found.posterior, test[0], samples=64)
    kept = (torch.cat((data[0][~wrong], new[0])), torch.cat((data[1][~wrong], new[1])))
    began = time.process_time()
    again = fitted(run.method, kept, NEW + 1, options, seed)
    line = {"seconds": adapted / (time.process_time() - began)}
    for name, (model, posterior) in {
        "adapted": (found.model, found.posterior),
        "again": (again.model, again.posterior),
    }.items():
        p = po.predict(model, posterior, test[0], samples=64)
        line |= {
            f"{name}_accuracy": po.metrics.accuracy(p.probs, test[1]),
            f"{name}_nll": po.metrics.nll(p.probs, test[1]),
        }
    line["adapted_mean"], line["again_mean"] = at_mean(found.model, test)[1], at_mean(again.model, test)[1]
    return line


def merged(method: str, data: Data, test: Data, options: argparse.Namespace, seed: int) -> report.Line:
    """Three networks, fine-tuned on digits of their own from one base, as one network."""
    half = len(data[1]) // 2
    base = fitted(method, (data[0][:half], data[1][:half]), 10, options, seed)
    rest, parts = (data[0][half:], data[1][half:]), {}
    for k, own in enumerate(((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))):
        rows = torch.isin(rest[1], torch.tensor(own))
        model = copy.deepcopy(base.model)
        prior = {} if method == "adamw" else {"prior": base.posterior}
        parts[str(k)] = po.fit(
            model, (rest[0][rows], rest[1][rows]), method=method, epochs=5, seed=seed, progress=False, **prior
        )
    line = {"base": at_mean(base.model, test)[1], "base_accuracy": at_mean(base.model, test)[0]}
    whole = {name: run.posterior for name, run in parts.items()}
    if method != "adamw":
        one = po.merge(whole, base=base.posterior)
        one.apply(base.model)
        line |= {"merged": at_mean(base.model, test)[1], "merged_accuracy": at_mean(base.model, test)[0]}
    mean = {
        n: torch.stack([run.model.state_dict()[n] for run in parts.values()]).mean(0) for n in base.model.state_dict()
    }
    base.model.load_state_dict(mean)
    return line | {"average": at_mean(base.model, test)[1], "average_accuracy": at_mean(base.model, test)[0]}


def outside(run: Any, inside: Tensor, foreign: Tensor) -> report.Line:
    known, other = (po.predict(run.model, run.posterior, x, samples=64) for x in (inside, foreign))
    line = {"ood_entropy": po.metrics.ood_auroc(known.entropy, other.entropy), "far": other.entropy.mean().item()}
    if run.method != "adamw":
        line["ood_information"] = po.metrics.ood_auroc(known.mutual_information, other.mutual_information)
    return line


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    for name in options.sets:
        for seed in options.seeds:
            data, test = load(name, seed)
            classes = int(data[1].max()) + 1
            labels, wrong = mislabelled(data[1], classes, seed)
            for method in options.methods:
                began = time.process_time()
                run = fitted(method, data, classes, options, seed)
                line = {"data": name, "method": method, "seed": seed, "steps": run.steps}
                line["fit_seconds"] = time.process_time() - began
                line |= learn(run, test) | memory(run, data, None, test)
                noisy = fitted(method, (data[0], labels), classes, options, seed)
                line |= memory(noisy, (data[0], labels), wrong, test)
                line |= {f"noisy_{key}": value for key, value in learn(noisy, test).items()}
                if name == "two moons":
                    angles = torch.linspace(0, 2 * torch.pi, 200)
                    line |= outside(run, test[0], 6 * torch.stack((angles.cos(), angles.sin()), 1))
                if name == "digits" and "verbs" not in options.without:
                    line |= digits(method, data, test, options, seed)
                line["all_seconds"] = time.process_time() - began
                yield line


def digits(method: str, data: Data, test: Data, options: argparse.Namespace, seed: int) -> report.Line:
    """What is asked of digits alone: nine of them with some wrong labels, then the tenth."""
    old, unknown = data[1] != NEW, test[1] != NEW
    labels, wrong = mislabelled(data[1][old], NEW, seed)
    nine, held_out = (data[0][old], labels), (test[0][unknown], test[1][unknown])
    run = fitted(method, nine, NEW, options, seed)
    line = outside(run, held_out[0], test[0][~unknown]) | merged(method, data, test, options, seed)
    line |= what_if(run, nine, held_out, NEW, options, seed)
    if method != "adamw":
        line |= change(run, nine, wrong, (data[0][~old], data[1][~old]), test, options, seed)
    return line


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments.add_argument("--sets", nargs="+", default=["wine", "breast cancer", "two moons", "digits"])
    arguments.add_argument("--methods", nargs="+", default=list(METHODS))
    arguments.add_argument("--epochs", help="of every training; by default what po.fit chooses")
    arguments.add_argument("--without", nargs="*", default=[])
    options = arguments.parse_args()
    epochs = options.epochs
    options.fit = {} if epochs is None else {"epochs": int(epochs) if epochs.isdigit() else epochs}
    lines = report.gather(options, runs)
    if options.raw:
        return

    for name in dict.fromkeys(line["data"] for line in lines):
        for method in dict.fromkeys(line["method"] for line in lines):
            mine = [line for line in lines if line["data"] == name and line["method"] == method]
            keys = [k for k in mine[0] if isinstance(mine[0][k], (int, float)) and k != "seed"]
            print(name, method, {k: round(statistics.fmean(line[k] for line in mine), 3) for k in keys})


if __name__ == "__main__":
    main()
