"""Damaged files for every reader: `python tests/fuzz.py FOLDER --rounds 1000`.

Each file is a good one with random bytes changed, cut, doubled or put in. A reader either reads it or refuses it with
an error of this package, which names the file; any other exception is a fault. No reader may run what is in a file.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import struct
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from runpy import run_path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from safetensors.torch import save

from posterity.checkpoints import open_checkpoint
from posterity.errors import PosterityError
from posterity.files import read_json, read_tensors
from posterity.merging.recipes import read_yaml, recipe
from posterity.posterior import Diagonal, Posterior
from posterity.runs.decisions import RowDecisions
from posterity.runs.readers import read_rows

# The folder of benchmarks is kept off the path, where its datasets.py would hide the package of that name.
_GGUF = run_path(str(Path(__file__).parent.parent / "benchmarks" / "gguf_files.py"))
dequantised, read_gguf = _GGUF["dequantised"], _GGUF["read_gguf"]

TABLE = pd.DataFrame({"a": [1.0, 2.5, -3.0] * 4, "b": ["x", "=y", None] * 4, "label": [0, 1, 1] * 4})
RECIPE = "method: ties\noptions: {density: 0.2}\nmodels:\n  a: {path: a.safetensors, weight: 0.5}\nout: merged\n"


def _bytes(write: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def _picture(kind: str) -> bytes:
    colours = np.random.default_rng(0).integers(0, 255, (9, 8, 3), dtype=np.uint8)
    return _bytes(lambda b: Image.fromarray(colours).save(b, kind))


def _read_picture(path: Path) -> object:
    folder = path.with_suffix("") / "class"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("good", "bad"):
        (folder / f"{name}{path.suffix}").write_bytes(
            _picture(path.suffix[1:]) if name == "good" else path.read_bytes()
        )
    return read_rows(folder.parent)


def _read_posterior(path: Path) -> object:
    folder = path.with_suffix("")
    mean = {"w": torch.ones(3)}
    prior = Diagonal.isotropic(mean, 1.0)
    Posterior(prior, prior=prior, n=3, ess=3.0, likelihood="gaussian").save(folder)
    (folder / "posterior.json").write_bytes(path.read_bytes())
    return Posterior.load(folder)


def _manifest(folder: Path) -> bytes:
    mean = {"w": torch.ones(3)}
    prior = Diagonal.isotropic(mean, 1.0)
    Posterior(prior, prior=prior, n=3, ess=3.0, likelihood="gaussian").save(folder)
    return (folder / "posterior.json").read_bytes()


def _gguf() -> bytes:
    """A text, a list, and two tensors of ones, by the letters of the format."""
    text = lambda t: struct.pack("<Q", len(t)) + t  # noqa: E731
    facts = text(b"name") + struct.pack("<I", 8) + text(b"small")
    facts += text(b"words") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"bc")
    tensors = text(b"w") + struct.pack("<IQQIQ", 2, 3, 2, 0, 0) + text(b"q") + struct.pack("<IQIQ", 1, 32, 8, 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 2) + facts + tensors
    ones = struct.pack("<6f", *[1.0] * 6).ljust(32, b"\0") + struct.pack("<e", 1.0) + bytes([1] * 32)
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + ones


def _read_gguf(path: Path) -> object:
    about, stored = read_gguf(path)
    return about, {name: dequantised(*one) for name, one in stored.items()}


def good(folder: Path) -> dict[str, tuple[bytes, Callable[[Path], object]]]:
    """A good file for each reader, by name, and the reader."""
    arrays = {"x": np.ones((4, 3), dtype=np.float32), "y": np.arange(4)}
    tensors = save({"w": torch.ones(2, 3), "b": torch.zeros(3, dtype=torch.bfloat16)})
    return {
        "t.csv": (TABLE.to_csv(index=False).encode(), read_rows),
        "t.tsv": (TABLE.to_csv(index=False, sep="\t").encode(), read_rows),
        "t.csv.gz": (gzip.compress(TABLE.to_csv(index=False).encode(), mtime=0), read_rows),
        "t.jsonl": (TABLE.to_json(orient="records", lines=True).encode(), read_rows),
        "t.parquet": (_bytes(lambda b: TABLE.to_parquet(b, index=False)), read_rows),
        "t.npz": (_bytes(lambda b: np.savez(b, **arrays)), lambda p: read_rows(p, None, None, "y")),
        "t.png": (_picture("png"), _read_picture),
        "t.bmp": (_picture("bmp"), _read_picture),
        "t.yaml": (RECIPE.encode(), lambda p: recipe(read_yaml(p), p.parent)),
        "t.safetensors": (tensors, lambda p: (read_tensors(p), open_checkpoint(p))),
        "t.pt": (_bytes(lambda b: torch.save({"w": torch.ones(2)}, b)), open_checkpoint),
        "t.gguf": (_gguf(), _read_gguf),
        "d.csv": (b"id,decision,label\n3,drop,\n4,relabel,cat\n", RowDecisions.read),
        "r.json": (json.dumps({"a": [1, {"b": None}]}).encode(), read_json),
        "posterior.json": (_manifest(folder / "good"), _read_posterior),
        "t-idx1-ubyte": (struct.pack(">BBBBI", 0, 0, 8, 1, 5) + bytes(range(5)), read_rows),
    }


def damaged(content: bytes, chance: random.Random) -> bytes:
    """The file with one to four accidents."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place, count = chance.randrange(len(data) + 1), chance.choice((1, 1, 2, 4, 8, 40))
        kind = chance.randrange(6)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[place : place + count] = bytes(chance.randrange(256) for _ in range(count))
        elif kind == 2:
            del data[place : place + count * 10]
        elif kind == 3:
            data[place:place] = data[place : place + count * 10]
        elif kind == 4:
            data[place:place] = chance.choice(
                (b"\0", b"\xff\xff\xff\xff", b"9" * 400, b"\r", b"\n", b'"', b"\xed\xa0\x80")
            )
        else:
            del data[max(1, place) :]
    return bytes(data)


def fuzz(folder: Path, rounds: int, seed: int = 0, only: str = "") -> list[str]:
    """Faults: the file, the round, and what was raised."""
    faults, told = [], Counter[str]()
    folder.mkdir(parents=True, exist_ok=True)
    for name, (content, read) in good(folder).items():
        if only not in name:
            continue
        chance = random.Random(f"{seed}{name}")
        (folder / name).write_bytes(content)
        if name != "t-idx1-ubyte":
            read(folder / name)  # the good one is read
        for number in range(rounds):
            (folder / name).write_bytes(damaged(content, chance))
            try:
                read(folder / name)
                told[f"{name} read"] += 1
            except PosterityError:
                told[f"{name} refused"] += 1
            except Exception as fault:
                faults.append(f"{name}, round {number} of seed {seed}: {type(fault).__name__}: {str(fault)[:200]}")
        print(f"{name}: {told[f'{name} read']} read, {told[f'{name} refused']} refused", file=sys.stderr)
    return faults


def main() -> None:
    """Print the faults; their number is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a file's name")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    faults = fuzz(given.folder, given.rounds, given.seed, given.only)
    print("\n".join(faults) or "no faults")
    sys.exit(min(len(faults), 100))


if __name__ == "__main__":
    main()
