"""The least and the most relevant training images of MNIST and CIFAR-10, as pictures, and what the map cost.

LeNet is trained on MNIST and gets a Kronecker Laplace posterior; a public ResNet-20 for CIFAR-10 gets one over its last
layer. `memory_map` ranks all training images by how much the prediction for each would change without it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets
import report
import torch
from torch import Tensor, nn

import networks
import posterity as po
from posterity import plots

COUNT = 20
_CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@dataclass(frozen=True)
class Setting:
    """Images, a network, the structure of its posterior, its classes, and its weights unless it is to be trained."""

    data: Callable[[Path], tuple[Tensor, Tensor]]
    network: Callable[[], nn.Module]
    structure: str
    names: list[str]
    weights: str | None = None


SETTINGS = {
    "mnist": Setting(
        lambda root: datasets.digits_like(root, "MNIST", "train"), networks.lenet, "kron", [str(i) for i in range(10)]
    ),
    "cifar10": Setting(
        lambda root: datasets.cifar10(root, "train", imagenet=True),
        networks.ResNet20,
        "last_layer",
        _CIFAR,
        "cifar10_resnet20.pt",
    ),
}


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = datasets.folder(options.data)
    for name in options.settings:
        setting = SETTINGS[name]
        x, y = (part[: options.limit].to(device) for part in setting.data(root))
        torch.manual_seed(options.seed)
        model = setting.network().to(device)
        if setting.weights is None:
            po.fit(model, (x, y), method="adamw", epochs=options.epochs, batch_size=128, seed=options.seed)
        else:
            path = root / "weights" / setting.weights
            model.load_state_dict(torch.load(path, map_location=device, weights_only=True))
        start = time.perf_counter()
        posterior = po.laplace(model, (x, y), structure=setting.structure, class_names=setting.names)
        fitted = time.perf_counter()
        m = po.memory_map(model, posterior, (x, y))
        done = time.perf_counter()
        images, changed = x.cpu(), {}
        for which, smallest in (("least", True), ("most", False)):
            figure = plots.examples(m, images, by="sensitivity", count=COUNT, smallest=smallest)
            shown = m.top(COUNT, by="sensitivity", ascending=smallest)
            changed[which] = int((shown["loo_prediction"] != shown["label"]).sum())
            figure.set_size_inches(13, 4.7)
            for axis in figure.axes:
                axis.title.set_fontsize(11)
            figure.suptitle(
                f"The {COUNT} {which} relevant of {len(m):,} images, label → prediction when left out:\n"
                f"{changed[which]} of them would be taken for something else",
                fontsize=17,
            )
            folder = Path(options.pictures)
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(folder / f"{which}_relevant_{name}.png", dpi=80, bbox_inches="tight")
            numbers = {"predicted_otherwise": changed[which], "shown": COUNT, "images": len(m)}
            (folder / f"{which}_relevant_{name}.json").write_text(json.dumps(numbers) + "\n", encoding="utf-8")
        total = m.table["sensitivity"].sort_values(ascending=False).cumsum()
        yield {
            "name": name, "examples": len(m), "laplace": fitted - start, "map": done - fitted,
            "share": float(total.iloc[len(m) // 10] / total.iloc[-1]), "wrong": float((m.table["error"] > 1).mean()),
            "changed": changed,
        }  # fmt: skip


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    arguments.add_argument("--epochs", type=int, default=10, help="of training on MNIST")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--limit", type=int, help="use only so many images (to try the script out)")
    arguments.add_argument("--pictures", default="pictures", help="folder for the pictures")
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if options.raw:
        return
    rows = [
        [
            line["name"],
            line["examples"],
            f"{line['laplace']:.1f}",
            f"{line['map']:.1f}",
            f"{100 * line['share']:.0f} %",
            f"{100 * line['wrong']:.1f} %",
            *(f"{line['changed'][which]} of {COUNT}" for which in ("least", "most")),
        ]
        for line in lines
    ]
    columns = ["data", "images", "posterior, s", "map, s", "sensitivity in the first tenth", "error above 1"]
    columns += [f"predicted otherwise without itself, of the {which} relevant" for which in ("least", "most")]
    text = report.header("Least and most relevant examples", lines, seed=options.seed)
    report.publish("relevant_examples", text + "\n" + report.table(columns, rows), options.out)


if __name__ == "__main__":
    main()
