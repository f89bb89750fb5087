"""A small language model on the characters of Shakespeare: AdamW against IVON, 49 epochs, no early stopping.

Six layers, 384 wide, 10.7 million weights, context 256, batch 64, 3000 steps, bfloat16 autocast. The loss is that of
all characters of the validation part (the last tenth), in blocks of 256; averages over samples are of probabilities.
Published for ivon-opt at the settings of GPT-2 ("IVON-published" here): final 1.564, average of 8 samples 1.599.
Measured before for AdamW: with dropout 0.2 best 1.503 and final 1.727, without it best 1.561 and final 3.85.

Settings are tried with --tune, which holds out the tenth before the last, and nothing of the validation part.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import datasets
import report
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training import Pass, device, warm_cosine

from posterity.optim import IVON

LAYERS, WIDTH, HEADS, CONTEXT, BATCH = 6, 384, 6, 256, 64
PUBLISHED = {"lr": 100.0, "hess_init": 1e-3, "ess": 1e7, "weight_decay": 1e-6, "clip_radius": 1e-3, "beta2": 0.99999}


@dataclass(frozen=True)
class Row:
    """One way to train; `options` are those of the optimizer."""

    optimizer: str
    dropout: float = 0.0
    pure: bool = False  # parameters themselves in bfloat16
    options: dict[str, float] = field(default_factory=dict)


def ivon(dropout: float = 0.0, pure: bool = False, **options: float) -> Row:
    return Row("IVON", dropout, pure, {**PUBLISHED, **options})


# With clip_radius 1e-3 nearly every component is clipped, so a step is ± lr · 1e-6 for each weight: a third of AdamW's
# largest at lr 300. ess sets the noise: σ = 1/√(ess · 1e-3), 0.01 at 1e7 and 0.0045 at 5e7.
ROWS = {
    "AdamW": Row("AdamW", 0.0, False, {"lr": 1e-3}),
    "AdamW-dropout": Row("AdamW", 0.2, False, {"lr": 1e-3}),
    "IVON-published": ivon(),
    "IVON-faster": ivon(lr=300.0),
    "IVON-warmer": ivon(lr=300.0, ess=3e6),
    "IVON-dropout": ivon(0.2, lr=300.0),
    "IVON-colder": ivon(0.2, lr=300.0, ess=5e7),
    "IVON-colder-more-dropout": ivon(0.3, lr=300.0, ess=5e7),
    "IVON-colder-fastest": ivon(0.3, lr=600.0, ess=5e7),
    "IVON-colder-learnt": ivon(0.2, lr=300.0, ess=5e7, beta2=0.9995),
    "AdamW-pure": Row("AdamW", 0.2, True, {"lr": 1e-3}),
    "IVON-pure": ivon(0.2, True, lr=300.0, ess=5e7),
}


def describe(row: Row) -> str:
    """The settings that differ between rows."""
    shown = {"lr": row.options["lr"], "dropout": row.dropout}
    shown |= {key: row.options[key] for key in ("ess", "hess_init", "beta2") if key in row.options}
    return ", ".join([f"{key} {value:g}" for key, value in shown.items()] + ["pure bfloat16"] * row.pure)


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) to the same."""
        b, t, width = x.shape
        q, k, v = (
            part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, dim=-1)
        )
        rate = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=rate)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(b, t, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """A decoder with tied embeddings and the initialisation of GPT-2."""

    def __init__(self, vocabulary: int, layers: int, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads, dropout) for _ in range(layers)])
        self.norm, self.drop = nn.LayerNorm(width, bias=False), nn.Dropout(dropout)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(
                    p, std=0.02 / math.sqrt(2 * layers) if name.endswith(("out.weight", "down.weight")) else 0.02
                )

    def forward(self, index: Tensor) -> Tensor:
        """Logits (B, T, vocabulary)."""
        x = self.drop(self.tokens(index) + self.places.weight[: index.shape[1]])
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


def loss(f: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(f.flatten(0, 1), y.flatten())


def make_optimizer(row: Row, model: nn.Module, seed: int) -> tuple[torch.optim.Optimizer, float]:
    """The optimizer, and the floor of its schedule."""
    if row.optimizer == "AdamW":
        matrices = [p for p in model.parameters() if p.dim() == 2]
        rest = [{"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0}]
        groups = [{"params": matrices, "weight_decay": 0.1}, *rest]
        return torch.optim.AdamW(groups, **row.options, betas=(0.9, 0.99), fused=device() == "cuda"), 0.1
    options = dict(row.options)
    return IVON(model.parameters(), betas=(0.9, options.pop("beta2")), seed=seed, **options), 0.0


@torch.no_grad()
def log_probabilities(model: nn.Module, text: Tensor, context: int) -> Tensor:
    """log p of each character of a text given those before it in its block."""
    model.eval()
    usable = (len(text) - 1) // context * context
    x, y = text[:usable].view(-1, context), text[1 : usable + 1].view(-1, context)
    found = []
    for inputs, targets in zip(x.split(BATCH), y.split(BATCH), strict=True):
        with torch.autocast(text.device.type, torch.bfloat16, enabled=text.is_cuda):
            f = model(inputs)
        found.append(F.log_softmax(f.float(), -1).gather(-1, targets.unsqueeze(-1)).flatten())
    model.train()
    return torch.cat(found)


def train(row: Row, train_text: Tensor, valid: Tensor, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train one model; its validation loss along the way, at the end, and averaged over samples."""
    torch.manual_seed(seed)
    context, batch = options.context, options.batch
    model = GPT(int(train_text.max()) + 1, options.layers, options.width, HEADS, context, row.dropout)
    model = model.to(train_text.device, torch.bfloat16 if row.pure else torch.float32).train()
    optimizer, floor = make_optimizer(row, model, seed)
    schedule = warm_cosine(optimizer, min(100, options.steps // 10), options.steps, floor)
    window = torch.arange(context + 1, device=train_text.device)

    def draw() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(train_text) - context, (batch, 1), device=train_text.device)
        block = train_text[starts + window]
        return block[:, :-1], block[:, 1:]

    step, curve, training = Pass(model, loss, *draw(), autocast=not row.pure), [], torch.zeros((), device=window.device)
    for t in range(1, options.steps + 1):
        optimizer.zero_grad()
        if isinstance(optimizer, IVON):
            with optimizer.sampled_params(train=True):
                training += step(*draw())
        else:
            training += step(*draw())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if t % options.every == 0 or t == options.steps:
            value = -log_probabilities(model, valid, context).mean().item()
            curve.append((t, value, training.item() / (t - (curve[-1][0] if curve else 0))))
            training.zero_()
    return {"curve": curve, **samples(model, optimizer, valid, context, options.draws)}


def samples(
    model: nn.Module, optimizer: torch.optim.Optimizer, valid: Tensor, context: int, draws: int
) -> dict[str, float]:
    """Validation loss of one sample, and of probabilities averaged over 8 and over all draws."""
    if not isinstance(optimizer, IVON):
        return {}
    found = []
    for _ in range(draws):
        with optimizer.sampled_params():
            found.append(log_probabilities(model, valid, context))
    logs = torch.stack(found)
    counts = sorted({1, min(8, draws), draws})
    return {f"{k} samples": -(torch.logsumexp(logs[:k], 0) - math.log(k)).mean().item() for k in counts}


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    text = (datasets.folder(options.data) / "lm" / "tinyshakespeare.txt").read_text()
    letters = {letter: i for i, letter in enumerate(sorted(set(text)))}
    codes = torch.tensor([letters[letter] for letter in text]).to(device())
    first, second = (0.8, 0.9) if options.tune else (0.9, 1.0)
    train_text, valid = codes[: int(first * len(codes))], codes[int(first * len(codes)) : int(second * len(codes))]
    changes = {key: float(value) for key, value in (change.split("=") for change in options.change)}
    for name in options.rows:
        row = ROWS[name]
        row = replace(row, dropout=changes.get("dropout", row.dropout))
        row = replace(row, options=row.options | {k: v for k, v in changes.items() if k != "dropout"})
        for seed in options.seeds:
            start = time.perf_counter()
            found = train(row, train_text, valid[: options.limit], options, seed)
            yield {
                "name": name.partition("-")[0] + ": " + describe(row), "seed": seed,
                "steps": options.steps, "tune": options.tune,
                "minutes": (time.perf_counter() - start) / 60, **found,
            }  # fmt: skip


def tabulate(lines: list[report.Line]) -> str:
    """A row for each way to train."""
    rows = []
    for name in dict.fromkeys(line["name"] for line in lines):
        mine = [line for line in lines if line["name"] == name]
        best = [min(value for _, value, _ in line["curve"]) for line in mine]
        final, training = ([line["curve"][-1][k] for line in mine] for k in (1, 2))
        keys = [key for key in mine[0] if key.endswith(" samples")]
        averages = "; ".join(f"{key.split()[0]}: {report.spread([line[key] for line in mine])}" for key in keys)
        minutes = sum(line["minutes"] for line in mine) / len(mine)
        rows.append(
            [name, report.spread(best), report.spread(final), averages, report.spread(training), f"{minutes:.1f}"]
        )
    return report.table(["training", "best", "final", "average over samples", "training loss (last)", "minutes"], rows)


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    facts = {"steps": lines[0]["steps"], "seeds": sorted({line["seed"] for line in lines})}
    text = report.header("Characters of Shakespeare, 10.7 million weights", lines, **facts)
    for tune, title in (
        (False, "The last tenth held out"),
        (True, "How settings were chosen: the tenth before held out"),
    ):
        if mine := [line for line in lines if line["tune"] == tune]:
            text += f"\n### {title}\n\n" + tabulate(mine)
    report.publish("tiny_shakespeare", text, options.out)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    arguments.add_argument("--change", nargs="+", default=[], help="key=value: options of the rows, or dropout")
    arguments.add_argument("--tune", action="store_true", help="hold out the tenth before the validation part instead")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments.add_argument("--steps", type=int, default=3000)
    arguments.add_argument("--every", type=int, default=250, help="steps between evaluations")
    arguments.add_argument("--draws", type=int, default=32)
    arguments.add_argument("--layers", type=int, default=LAYERS)
    arguments.add_argument("--width", type=int, default=WIDTH)
    arguments.add_argument("--context", type=int, default=CONTEXT)
    arguments.add_argument("--batch", type=int, default=BATCH)
    arguments.add_argument("--limit", type=int, help="evaluate on so many characters only")
    report.study(arguments.parse_args(), runs, publish)


if __name__ == "__main__":
    main()
