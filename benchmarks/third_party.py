"""Training scripts that others wrote, with only the optimizer lines changed.

    python benchmarks/third_party.py FOLDER --data DATA            (at a size for a CPU)
    python benchmarks/third_party.py FOLDER --data DATA --full     (as long as their authors train, on a GPU)

FOLDER holds checkouts of three repositories, as git names them: `nanoGPT` (karpathy), `examples` (pytorch) and
`tiny-diffusion` (tanelp). Each script runs in a copy of its folder, as it is and with two lines in place of one:

    optimizer = Variational(<what it was>, n=..., total_steps=..., batch_size=...)
    optimizer.attach(model)

Losses on held-out data are those that the scripts print, at the weights as they are left, which are the mean for
`Variational`; tiny-diffusion computes none on new data, so that one is appended. Its targets are drawn anew in every
epoch, so that `n` counts all draws; it also runs with the number of rows instead, which is wrong there. `--full` leaves
all lengths and sizes as they are: nanoGPT's configuration for Shakespeare (six layers of width 384, 5000 steps), 14
epochs of MNIST and 200 epochs of two moons. Otherwise nanoGPT has four layers of width 128, 12 sequences of 64
characters and 400 steps, MNIST 6400 pictures and three epochs, and two moons have eight epochs. MNIST also runs with
AdamW in place of Adadelta. Without torchvision, a few lines that read the same pictures take its place; without pandas
and matplotlib, which two moons do not need, empty modules do. Two moons ran on a CPU, the others with an earlier
version of the budget.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import datasets
import numpy as np
import report

STEPS = 400
SHIM = """
import numpy as np
import torch


class transforms:
    Compose = ToTensor = Normalize = staticmethod(lambda *_: None)


class datasets:
    @staticmethod
    def MNIST(root, train=True, download=False, transform=None):
        part = np.load("train.npz" if train else "test.npz")
        x = (torch.from_numpy(part["x"]).float().div(255).view(-1, 1, 28, 28) - 0.1307) / 0.3081
        return torch.utils.data.TensorDataset(x, torch.from_numpy(part["y"]).long())
"""
NOTHING = "def __getattr__(name):\n    return lambda *_, **__: None\n"
EMPTY = {"pandas": {"__init__.py": ""}, "matplotlib": {"__init__.py": "", "pyplot.py": NOTHING}}
HELD_OUT = """
    model.eval()
    torch.manual_seed(1000)
    total = 0.0
    with torch.no_grad():
        for (batch,) in DataLoader(datasets.get_dataset(config.dataset), batch_size=1000):
            for t in range(noise_scheduler.num_timesteps):
                noise = torch.randn(batch.shape)
                t = torch.full((len(batch),), t)
                total += F.mse_loss(model(noise_scheduler.add_noise(batch, noise, t), t), noise).item()
    print("held out", total / noise_scheduler.num_timesteps / 8)
"""


@dataclass(frozen=True)
class Script:
    """One script: where it is, how it is called, and where its optimizer and its losses are."""

    folder: str
    file: str
    arguments: tuple[str, ...]
    full: tuple[str, ...]  # the arguments at full size
    optimizer: str  # a pattern for the statement that makes it
    size: str  # n, total_steps and batch_size, as arguments
    seed: tuple[str, str]  # a pattern, and what stands for it, with {} for the seed
    loss: str  # a pattern with one group, of each loss on held-out data
    others: tuple[tuple[str, str], ...] = ()  # further replacements
    bases: tuple[str, ...] = ("its own",)


SCRIPTS = {
    "nanoGPT, Shakespeare characters": Script(
        "nanoGPT",
        "train.py",
        (
            *("--dataset=own", "--device=cpu", "--compile=False", "--dtype=float32", "--eval_iters=40"),
            *("--gradient_accumulation_steps=1", "--batch_size=12", "--block_size=64", "--n_layer=4", "--n_head=4"),
            *("--n_embd=128", "--learning_rate=1e-3", "--warmup_iters=40", "--min_lr=1e-4", "--beta2=0.99"),
            *(f"--max_iters={STEPS}", f"--lr_decay_iters={STEPS}", f"--eval_interval={STEPS // 2}"),
        ),
        (
            *("config/train_shakespeare_char.py", "--dataset=own", "--device=cuda", "--compile=False"),
            *("--dtype=bfloat16", "--eval_interval=500", "--eval_iters=100"),
        ),
        r"optimizer = (model\.configure_optimizers\(.*\))",
        "n=1003854, total_steps=max_iters, batch_size=batch_size * block_size",
        (r"torch\.manual_seed\(1337 \+ seed_offset\)", "torch.manual_seed({})"),
        r"val loss ([\d.]+|nan|inf)",
        ((r"meta_vocab_size = None", "meta_vocab_size = 65"),),
    ),
    "PyTorch's mnist example": Script(
        "examples/mnist",
        "main.py",
        ("--epochs=3", "--no-accel"),
        (),
        r"optimizer = (optim\.Adadelta\(.*\))",
        "n=len(dataset1), total_steps=args.epochs * len(train_loader), batch_size=args.batch_size",
        (r"torch\.manual_seed\(args\.seed\)", "torch.manual_seed({})"),
        r"Average loss: ([\d.]+|nan|inf)",
        bases=("its own", "optim.AdamW(model.parameters(), lr=1e-3)"),
    ),
    "tiny-diffusion, two moons": Script(
        "tiny-diffusion",
        "ddpm.py",
        ("--dataset=moons", "--num_epochs=8", "--save_images_step=100"),
        ("--dataset=moons", "--save_images_step=100"),
        r"optimizer = (torch\.optim\.AdamW\([^)]*\),\s*lr=config\.learning_rate,\s*\))",
        "n=len(dataset) * config.num_epochs, total_steps=config.num_epochs * len(dataloader), "
        "batch_size=config.train_batch_size",  # every epoch draws new noise, which no network can memorise
        (r"config = parser\.parse_args\(\)", "config = parser.parse_args(); torch.manual_seed({})"),
        r"held out ([\d.]+|nan|inf)",
        ((r"\Z", HELD_OUT),),
    ),
}
SCRIPTS["tiny-diffusion, n without draws"] = replace(
    (drawn := SCRIPTS["tiny-diffusion, two moons"]), size=drawn.size.replace(" * config.num_epochs", "", 1)
)


def patched(text: str, script: Script, base: str, variational: bool, seed: int) -> str:
    """The script's text with another seed, and its optimizer as asked for."""
    for pattern, new in (*script.others, (script.seed[0], script.seed[1].format(seed))):
        text, found = re.subn(pattern, lambda _, new=new: new, text, count=1)
        if not found:
            raise SystemExit(f"{script.file}: expected {pattern!r} in the script, got another version of it")
    match = re.search(script.optimizer, text)
    if match is None:
        raise SystemExit(f"{script.file}: expected {script.optimizer!r} in the script, got another version of it")
    made = match[1] if base == "its own" else base
    if not variational:
        return text[: match.start()] + f"optimizer = {made}" + text[match.end() :]
    made = f"optimizer = Variational({made}, {script.size}); optimizer.attach(model)"
    return "from posterity.optim import Variational\n" + text[: match.start()] + made + text[match.end() :]


def prepare(name: str, folder: Path, data: Path, full: bool) -> None:
    """Put the data where the script looks for them."""
    if name.startswith("nanoGPT"):
        text = (data / "lm" / "tinyshakespeare.txt").read_text()
        places = {c: place for place, c in enumerate(sorted(set(text)))}
        codes = np.array([places[c] for c in text], dtype=np.uint16)
        (folder / "data" / "own").mkdir(parents=True)
        cut = int(0.9 * len(codes))
        for part, values in (("train", codes[:cut]), ("val", codes[cut:])):
            values.tofile(folder / "data" / "own" / f"{part}.bin")
    elif name.startswith("tiny"):
        for package in filter(lambda package: not find_spec(package), EMPTY):
            (folder / package).mkdir()
            for file, text in EMPTY[package].items():
                (folder / package / file).write_text(text)
    elif name.startswith("PyTorch") and full and find_spec("torchvision"):
        shutil.copytree(data / "MNIST", folder.parent / "data" / "MNIST")  # which it then need not download
    elif name.startswith("PyTorch"):
        (folder / "torchvision.py").write_text(SHIM)
        for part, split, rows in (("train", "train", 6400), ("test", "t10k", 5000)):
            x, y = datasets.digits_like(data, "MNIST", split)
            kept = len(x) if full else rows
            np.savez(folder / f"{part}.npz", x=(x[:kept] * 255).round().byte().numpy(), y=y[:kept].numpy())


def run(name: str, base: str, variational: bool, seed: int, options: argparse.Namespace) -> list[float]:
    """The losses on held-out data that a script prints."""
    script = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "copy"
        shutil.copytree(Path(options.path) / script.folder, folder)
        prepare(name, folder, datasets.folder(options.data), options.full)
        file = folder / script.file
        file.write_text(patched(file.read_text(), script, base, variational, seed))
        command = [sys.executable, script.file, *(script.full if options.full else script.arguments)]
        paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
        environment = os.environ | {"PYTHONPATH": paths, "MPLBACKEND": "Agg"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        losses = re.findall(script.loss, done.stdout)
        if done.returncode or not losses:
            raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
        return [float(loss) for loss in losses]


KEYS = ("script", "base", "variational", "seed")


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    """Every script, as it is and in `Variational`; what a raw file has is not run again, what fails is printed."""
    known = {tuple(line[key] for key in KEYS) for line in report.earlier(options.raw)}
    wanted = [
        (name, base, variational, seed)
        for seed in options.seeds
        for name, script in SCRIPTS.items()
        for base in script.bases
        for variational in (False, True)
        if not options.only or options.only in name
    ]
    with ThreadPoolExecutor(options.workers) as pool:
        jobs = {pool.submit(run, *each, options): each for each in wanted if each not in known}
        for job in as_completed(jobs):
            if (problem := job.exception()) is not None:
                print(problem, file=sys.stderr)
                continue
            yield {**dict(zip(KEYS, jobs[job], strict=True)), "losses": job.result(), "full": options.full}


POINTS: dict[str, Callable[[list[float]], float]] = {
    "half of the steps": lambda losses: losses[(len(losses) - 1) // 2],
    "best": min,
    "end": lambda losses: losses[-1],
}


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    size = "full" if all(line["full"] for line in lines) else "for a CPU"
    text = report.header("Training scripts of others", lines, size=size) + "\n" + (__doc__ or "").strip() + "\n\n"
    rows = []
    for name, base in dict.fromkeys((line["script"], line["base"]) for line in lines):
        mine = [line for line in lines if (line["script"], line["base"]) == (name, base)]
        both = [[line["losses"] for line in mine if line["variational"] == v] for v in (False, True)]
        for what, of in POINTS.items():
            if what == "end" or len(both[0][0]) > 1:
                points = [report.spread([of(losses) for losses in part], 4) for part in both]
                rows.append([name, base, what, *points, len(both[1])])
    text += report.table(["script", "optimizer", "held-out loss", "as it is", "in Variational", "seeds"], rows)
    report.publish("third_party", text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("path", nargs="?", help="folder with the three repositories")
    arguments.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments.add_argument("--full", action="store_true", help="lengths and sizes as in the scripts, on a GPU")
    arguments.add_argument("--workers", type=int, default=1, help="runs at a time")
    arguments.add_argument("--only", help="a part of a script's name")
    options = arguments.parse_args()
    if options.path is None and not options.collect:
        arguments.error("expected the folder with the three repositories")
    report.study(options, runs, publish)


if __name__ == "__main__":
    main()
