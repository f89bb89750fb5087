"""Training scripts that others wrote, with only the optimizer lines changed.

    python benchmarks/third_party.py FOLDER --data DATA

FOLDER holds checkouts of three repositories, as git names them: `nanoGPT` (karpathy), `examples` (pytorch) and
`tiny-diffusion` (tanelp). Each script runs in a copy of its folder, as it is and with two lines in place of one:

    optimizer = Variational(<what it was>, n=..., total_steps=..., batch_size=...)
    optimizer.attach(model)

Losses are those that the scripts print or compute at the weights as they are left, which are the mean for
`Variational`; tiny-diffusion computes none on new data, so that one is appended. Sizes are such that a CPU is enough:
nanoGPT with four layers of width 128, 12 sequences of 64 characters and 400 steps; 6400 MNIST pictures, three epochs;
8000 points of two moons and eight epochs. MNIST also runs with AdamW in place of Adadelta.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
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
    optimizer: str  # a pattern for the statement that makes it
    size: str  # n, total_steps and batch_size, as arguments
    seed: tuple[str, str]  # a pattern, and what stands for it, with {} for the seed
    loss: str  # a pattern with one group; the last match counts
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
            *(f"--max_iters={STEPS}", f"--lr_decay_iters={STEPS}", f"--eval_interval={STEPS}"),
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
        r"optimizer = (torch\.optim\.AdamW\([^)]*\),\s*lr=config\.learning_rate,\s*\))",
        "n=len(dataset), total_steps=config.num_epochs * len(dataloader), batch_size=config.train_batch_size",
        (r"config = parser\.parse_args\(\)", "config = parser.parse_args(); torch.manual_seed({})"),
        r"held out ([\d.]+|nan|inf)",
        ((r"\Z", HELD_OUT),),
    ),
}


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


def prepare(name: str, folder: Path, data: Path) -> None:
    """Put the data where the script looks for them."""
    if name.startswith("nanoGPT"):
        text = (data / "lm" / "tinyshakespeare.txt").read_text()
        codes = np.array([sorted(set(text)).index(c) for c in text], dtype=np.uint16)
        (folder / "data" / "own").mkdir(parents=True)
        cut = int(0.9 * len(codes))
        for part, values in (("train", codes[:cut]), ("val", codes[cut:])):
            values.tofile(folder / "data" / "own" / f"{part}.bin")
    elif name.startswith("PyTorch"):
        (folder / "torchvision.py").write_text(SHIM)
        for part, split, rows in (("train", "train", 6400), ("test", "t10k", 5000)):
            x, y = datasets.digits_like(data, "MNIST", split)
            np.savez(folder / f"{part}.npz", x=(x[:rows] * 255).round().byte().numpy(), y=y[:rows].numpy())


def run(name: str, base: str, variational: bool, seed: int, options: argparse.Namespace) -> float:
    """The last loss that a script prints."""
    script = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "copy"
        shutil.copytree(Path(options.path) / script.folder, folder)
        prepare(name, folder, datasets.folder(options.data))
        file = folder / script.file
        file.write_text(patched(file.read_text(), script, base, variational, seed))
        command = [sys.executable, script.file, *script.arguments]
        paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
        environment = os.environ | {"PYTHONPATH": paths, "MPLBACKEND": "Agg"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        losses = re.findall(script.loss, done.stdout)
        if done.returncode or not losses:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
        return float(losses[-1])


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    for seed in options.seeds:
        for name, script in SCRIPTS.items():
            for base in script.bases:
                for variational in (False, True):
                    if options.only and options.only not in name:
                        continue
                    loss = run(name, base, variational, seed, options)
                    yield {"script": name, "base": base, "variational": variational, "seed": seed, "loss": loss}


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    text = report.header("Training scripts of others", lines) + "\n" + (__doc__ or "").strip() + "\n\n"
    rows = []
    for name, base in dict.fromkeys((line["script"], line["base"]) for line in lines):
        mine = [line for line in lines if (line["script"], line["base"]) == (name, base)]
        losses = [[line["loss"] for line in mine if line["variational"] == v] for v in (False, True)]
        rows.append([name, base, *(report.spread(part, 4) for part in losses), len(losses[1])])
    text += report.table(["script", "optimizer", "as it is", "in Variational", "seeds"], rows)
    report.publish("third_party", text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("path", nargs="?", help="folder with the three repositories")
    arguments.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments.add_argument("--only", help="a part of a script's name")
    options = arguments.parse_args()
    if options.path is None and not options.collect:
        arguments.error("expected the folder with the three repositories")
    report.study(options, runs, publish)


if __name__ == "__main__":
    main()
