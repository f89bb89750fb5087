"""Time and peak memory of merging checkpoints, beside mergekit.

    python benchmarks/merge_cost.py --layers 16 --mergekit ENVIRONMENT/bin/mergekit-yaml

A base and two models, Llama-shaped, in bfloat16 and 100 MB shards, are made in a temporary folder: 65.5 million
numbers and 12.8 million for each layer (16 layers: 271 million). Every merge runs in a process of its own, several
times, the programs in turn: the middle of the seconds on the clock and of processor time, and the largest resident
set. Outputs of both programs are compared.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import report
import torch

from posterity.checkpoints import StoredTensor, open_checkpoint
from posterity.files import write_json
from posterity.merging.shards import plan_shards, write_index, write_shards

HIDDEN, INNER, VOCABULARY, SHARD = 1024, 2816, 32000, 10**8
METHODS: dict[str, dict[str, Any]] = {
    "task_arithmetic": {},
    "ties": {"density": 0.2, "convention": "mergekit"},
    "dare": {"density": 0.5, "rescale": "l1", "convention": "mergekit"},
}
THEIRS = {"task_arithmetic": "task_arithmetic", "ties": "ties", "dare": "dare_ties"}
PROGRAM = [sys.executable, "-c", "from posterity.cli import main; main()"]
# A process inherits the peak of the one that started it, so a small one stands between.
WATCH = """
import os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
print(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000)
sys.exit(process.returncode)
"""
IMPORT = [sys.executable, "-c", "import posterity.merging.recipes"]


def shapes(layers: int) -> dict[str, StoredTensor]:
    attention = {f"self_attn.{x}_proj": (HIDDEN, HIDDEN) for x in "qkvo"}
    feed_forward = {f"mlp.{x}_proj": (INNER, HIDDEN) for x in ("gate", "up")} | {"mlp.down_proj": (HIDDEN, INNER)}
    norms = {"input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,)}
    block = attention | feed_forward | norms
    tensors = {f"model.layers.{i}.{name}.weight": shape for i in range(layers) for name, shape in block.items()}
    tensors |= {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN)}
    return {
        name: StoredTensor(torch.bfloat16, shape)
        for name, shape in (tensors | {"model.norm.weight": (HIDDEN,)}).items()
    }


def make(folder: Path, layers: int, seed: int) -> None:
    """A synthetic model: random numbers, the same for every seed but for a small part."""
    folder.mkdir()
    shards = plan_shards(shapes(layers), SHARD, {"format": "pt"})

    def tensor(number: int, entry: StoredTensor) -> torch.Tensor:
        common = torch.randn(entry.shape, generator=torch.Generator().manual_seed(number))
        own = torch.randn(entry.shape, generator=torch.Generator().manual_seed(10_000 * (seed + 1) + number))
        return (0.02 * common + 0.002 * own).to(entry.dtype)

    for i, shard in enumerate(shards):
        tensors = (tensor(100 * i + j, entry) for j, entry in enumerate(shard.entries.values()))
        write_shards(folder, [(shard, tensors)])
    write_index(folder, shards)
    write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_hidden_layers": layers,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "vocab_size": VOCABULARY,
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
        },
    )


def run(command: list[str], out: Path | None = None) -> list[float]:
    """Seconds on the clock, seconds of processor time and the largest resident set in MB; `out` is made anew."""
    if out is not None:
        shutil.rmtree(out, ignore_errors=True)
    watched = subprocess.run([sys.executable, "-c", WATCH, *command], capture_output=True, text=True, check=False)
    if watched.returncode:
        raise SystemExit(f"{command[0]} failed:\n{watched.stderr[-3000:]}")
    return [float(number) for number in watched.stdout.split()[-3:]]


def cells(runs: Sequence[Sequence[float]]) -> list[str]:
    clock, processor, memory = zip(*runs, strict=True)
    return [f"{statistics.median(clock):.1f}", f"{statistics.median(processor):.1f}", f"{max(memory):.0f}"]


def recipe(folder: Path, method: str) -> Path:
    """Our recipe for a method, on disk."""
    path = folder / f"{method}.json"  # JSON is YAML
    content = {"method": method, "options": METHODS[method], "base": "base", "models": {"a": "a", "b": "b"}}
    path.write_text(json.dumps(content | {"out": f"ours-{method}", "shard_size": SHARD}))
    return path


def their_recipe(folder: Path, method: str) -> Path:
    """Mergekit's recipe for the same."""
    path = folder / f"theirs-{method}.yml"
    density = {"density": METHODS[method]["density"]} if METHODS[method] else {}
    models = [{"model": str(folder / name), "parameters": {"weight": 1.0, **density}} for name in "ab"]
    content = {"merge_method": THEIRS[method], "base_model": str(folder / "base"), "models": models}
    parameters = {"normalize": method != "task_arithmetic"}
    path.write_text(json.dumps(content | {"parameters": parameters, "dtype": "bfloat16"}))
    return path


def difference(ours: Path, theirs: Path) -> str:
    """How far two merged checkpoints are apart."""
    a, b = open_checkpoint(ours), open_checkpoint(theirs)
    largest, unequal, total = 0.0, 0, 0
    for name, entry in a.entries.items():
        x, y = (c.read(name, 0, entry.count).float() for c in (a, b))
        largest = max(largest, (x - y).abs().max().item())
        unequal, total = unequal + int((x != y).sum()), total + entry.count
    return f"{unequal / total:.1%} of numbers differ, by {largest:.1e} at most"


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--layers", type=int, default=4)
    arguments.add_argument("--mergekit", help="path of mergekit-yaml, in an environment of its own")
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    options = arguments.parse_args()
    count = sum(entry.count for entry in shapes(options.layers).values())
    rows, differences = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for seed, name in enumerate(("base", "a", "b")):
            make(folder / name, options.layers, seed)
        rows.append(["none, import only", "posterity", *cells([run(IMPORT) for _ in range(options.repeats)])])
        for method in options.methods:
            ours, theirs = folder / f"ours-{method}", folder / f"theirs-{method}"
            commands = {"posterity": [*PROGRAM, "merge", str(recipe(folder, method))]}
            if options.mergekit:
                flags = ["--no-copy-tokenizer", "--no-write-model-card"]
                commands["mergekit"] = [options.mergekit, str(their_recipe(folder, method)), str(theirs), *flags]
            outs, names = {"posterity": ours, "mergekit": theirs}, {"posterity": method, "mergekit": THEIRS[method]}
            turns = [{name: run(each, outs[name]) for name, each in commands.items()} for _ in range(options.repeats)]
            rows += [[names[name], name, *cells([turn[name] for turn in turns])] for name in commands]
            if options.mergekit and method != "dare":  # which has other random masks
                differences.append(f"{method}: {difference(ours, theirs)}.")
    facts = {"numbers": f"{count / 1e6:.0f} million in each of base and 2 models, bfloat16", "repeats": options.repeats}
    text = report.header("Cost of merging", **facts) + "\n"
    text += report.table(["method", "program", "seconds", "processor seconds", "peak MB"], rows)
    report.publish("merge_cost", text + "\n" + "\n".join(differences) + "\n", options.out)


if __name__ == "__main__":
    main()
