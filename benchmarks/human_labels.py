"""Labels that people gave: leave-one-out against the plain loss of the same training, and cross-validation beside them.

CIFAR-10H: each of 2000 test images gets the label of one of about fifty people. Inputs are features of a network that
was trained on other images. Nothing was chosen on these data.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import datasets
import report
import suspects
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import cross_val_predict
from torch import Tensor

import posterity as po
from networks import mlp

MODELS = {"softmax regression": (), "perceptron 64-64": (64, 64)}
EPOCHS, LR, PRIOR = 20, 3e-3, 1.0


def _ranked(scores: Tensor, wrong: Tensor) -> tuple[float, float]:
    return roc_auc_score(wrong.numpy(), scores.numpy()), average_precision_score(wrong.numpy(), scores.numpy())


def lines(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    x, y, counts = suspects._cifar(datasets.folder(options.data))
    for seed in range(options.seeds):
        given, wrong = suspects.human(y, counts, seed)
        found: dict[str, tuple[Tensor, float]] = {}
        for name, hidden in MODELS.items():
            torch.manual_seed(seed)
            model = mlp((x.shape[1], *hidden, 10))
            began = time.perf_counter()
            po.fit(model, (x, given), method="adamw", epochs=EPOCHS, lr=LR, seed=seed, progress=False)
            trained = time.perf_counter() - began
            posterior = po.laplace(model, (x, given), structure="kron", prior_precision=PRIOR)
            m = po.memory_map(model, posterior, (x, given)).table
            for score, column, more in (("plain loss", "loss", 0.0), ("leave-one-out NLL", "loo_nll", 1.0)):
                seconds = trained + more * (time.perf_counter() - began - trained)
                found[f"{score}, {name}"] = torch.tensor(m[column].to_numpy()), seconds
        began = time.perf_counter()
        probs = cross_val_predict(
            LogisticRegression(max_iter=1000), x.numpy(), given.numpy(), cv=5, method="predict_proba"
        )
        chosen = torch.tensor(probs)[torch.arange(len(given)), given]
        found["five-fold cross-validation, scikit-learn LogisticRegression"] = -chosen, time.perf_counter() - began
        for score, (values, seconds) in found.items():
            auroc, precision = _ranked(values, wrong)
            yield {"score": score, "seed": seed, "auroc": auroc, "ap": precision, "seconds": seconds}


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=5)
    given = arguments.parse_args()
    found = report.gather(given, lines)
    if given.raw:
        return
    rows = []
    for score in dict.fromkeys(line["score"] for line in found):
        some = [line for line in found if line["score"] == score]
        values = {name: [line[name] for line in some] for name in ("auroc", "ap", "seconds")}
        spread = {name: f"{statistics.fmean(v):.3f} ± {statistics.stdev(v):.3f}" for name, v in values.items()}
        rows.append([score, spread["auroc"], spread["ap"], f"{statistics.median(values['seconds']):.1f}"])
    facts = {"seeds": given.seeds, "epochs": EPOCHS, "learning_rate": LR, "prior_precision": PRIOR}
    about = (__doc__ or "").split("\n\n", 1)[1]
    table = report.table(["score", "AUROC", "average precision", "seconds (median)"], rows)
    head = report.header("Labels that people gave: leave-one-out and plain loss", found, **facts)
    report.publish("human_labels", "\n".join([head, about, table]), given.out)


if __name__ == "__main__":
    main()
