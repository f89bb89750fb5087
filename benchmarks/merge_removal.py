"""A character model forgets Shakespeare: removal by subtraction, weighted by curvature or not.

A small GPT reads WikiText and names (the base), then goes on with Shakespeare mixed in (the model that knows too much).
From it a specialist is fine-tuned on Shakespeare alone, and its change is subtracted: by task arithmetic, or weighted
by the curvature of all data against that of Shakespeare (gradient matching with a negative weight). The weight of the
subtraction is swept; at the weight where the loss on Shakespeare has risen to that of the base, which has never read
him, the loss on the rest says what was lost on the way. Losses are in nats for each character of held-out text.
The specialist's learning rate, the best of three for both methods (the smallest; 1e-3 and 2e-3 lose more of the rest),
and the range of weights were chosen with seed 100 and 2000 windows on other held-out text (`--part validation`).
"""

from __future__ import annotations

import argparse
import itertools
import lzma
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import datasets
import report
import torch
import torch.nn.functional as F
from specialists import Data, copy_of, interval
from torch import Tensor, nn

import posterity as po
from posterity.batches import batches
from posterity.curvature import diagonal_fisher
from posterity.merging import merge_state_dicts
from posterity.trees import Tree, trainable

SYMBOLS = "\n" + "".join(map(chr, range(32, 127)))
CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
REST, REMOVED = ("wikitext", "names"), "shakespeare"
WEIGHTS = {
    "task arithmetic": tuple(0.25 * i for i in range(41)),
    "gradient matching": (*(0.1 * i for i in range(8)), *(0.01 * i for i in range(80, 101))),  # nothing is left at 1
}
RATE = 4e-3  # of the base


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each on its normalised input and added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.split, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, WIDTH) to the same."""
        q, k, v = (
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.split(self.before(x)).split(WIDTH, dim=-1)
        )
        x = x + self.join(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.outer(F.gelu(self.inner(self.between(x))))


class CharacterModel(nn.Module):
    """Characters (B, T) to the logits of the next ones (B, T, symbols)."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(len(SYMBOLS), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(SYMBOLS))

    def forward(self, text: Tensor) -> Tensor:
        """Logits at each place."""
        places = torch.arange(text.shape[1], device=text.device).expand_as(text)
        return self.head(self.norm(self.blocks(self.symbols(text) + self.places(places))))


def read(root: Path, name: str, device: str) -> dict[str, Data]:
    """Windows of a text: what is trained on, and the last two tenths, held out to choose settings and to report."""
    if name == "wikitext":
        text = lzma.decompress((root / "lm" / "wikitext2_valid.txt.xz").read_bytes()).decode()
    else:
        text = (root / "lm" / {"names": "names.txt", "shakespeare": "tinyshakespeare.txt"}[name]).read_text()
    number = {symbol: i for i, symbol in enumerate(SYMBOLS)}
    symbols = torch.tensor([number[symbol] for symbol in text if symbol in number], device=device)
    windows = symbols[: len(symbols) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1)
    tenth = len(windows) // 10
    parts = zip(("train", "validation", "test"), windows.split([len(windows) - 2 * tenth, tenth, tenth]), strict=True)
    return {part: (w[:, :-1], w[:, 1:]) for part, w in parts}


def mixed(texts: Mapping[str, Mapping[str, Data]], names: tuple[str, ...]) -> Data:
    x, y = zip(*(texts[name]["train"] for name in names), strict=True)
    return torch.cat(x), torch.cat(y)


@torch.no_grad()
def loss(model: nn.Module, data: Data) -> float:
    """Nats for each character."""
    model.eval()
    parts = zip(data[0].split(256), data[1].split(256), strict=True)
    total = sum(F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") for x, y in parts)
    return (total / data[1].numel()).item()


def train(model: nn.Module, data: Data, epochs: int, lr: float, seed: int) -> nn.Module:
    options = {"method": "adamw", "likelihood": "categorical", "schedule": "cosine", "clip": 1.0, "progress": False}
    return po.fit(model, data, epochs=epochs, lr=lr, batch_size=32, seed=seed, prior=1e-3, **options).model


def fisher(model: nn.Module, data: Data, seed: int) -> Tree:
    """The diagonal Fisher, summed over windows, with symbols drawn from the model."""
    return diagonal_fisher(model, batches(data, batch_size=64), "categorical", "sampled", seed=seed)


def study(texts: Mapping[str, Mapping[str, Data]], options: argparse.Namespace, seed: int) -> Iterator[report.Line]:
    torch.manual_seed(seed)
    device = texts[REMOVED]["train"][0].device
    base = train(CharacterModel().to(device), mixed(texts, REST), options.epochs, RATE, seed)
    knowing = copy_of(base, CharacterModel)
    train(knowing, mixed(texts, (*REST, REMOVED)), options.epochs, RATE / 2, seed + 1)
    specialist = train(copy_of(knowing, CharacterModel), texts[REMOVED]["train"], 1, options.lr, seed + 2)

    def losses(model: nn.Module) -> dict[str, float]:
        return {name: loss(model, texts[name][options.part]) for name in texts}

    common = {"seed": seed, "epochs": options.epochs, "lr": options.lr, "windows": options.windows}
    known = {"base": losses(base), "with Shakespeare": losses(knowing), "specialist": losses(specialist)}
    for name, found in known.items():
        yield common | {"method": name, "losses": found}
    # In float64, what is left when all of a large curvature is taken away is still there.
    everything = {name: _double(fisher(knowing, texts[name]["train"], seed)) for name in texts}
    precision = {name: 1e-3 + sum(of[name] for of in everything.values()) for name in trainable(knowing)}
    start, end = _double(trainable(knowing)), {"task": _double(trainable(specialist))}
    ways: dict[str, Callable[[float], Tree]] = {
        "task arithmetic": lambda w: merge_state_dicts(end, start, method="task_arithmetic", weights={"task": -w}),
        "gradient matching": lambda w: merge_state_dicts(
            end, start, method="gradient_matching", weights={"task": -w},
            curvatures={"task": everything[REMOVED]}, base_precision=precision,
        ),
    }  # fmt: skip
    model = CharacterModel().to(device)
    for name, merged in ways.items():
        model.load_state_dict(merged(1.0))
        yield common | {"method": f"{name}, all of it", "weight": 1.0, "losses": losses(model)}
        for weight in WEIGHTS[name]:
            model.load_state_dict(merged(weight))
            found = losses(model)
            yield common | {"method": name, "weight": weight, "losses": found}
            if found[REMOVED] > known["base"][REMOVED]:
                break


def _double(tree: Mapping[str, Tensor]) -> Tree:
    return {name: t.detach().double() for name, t in tree.items()}


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = datasets.folder(options.data)
    texts = {name: read(root, name, device) for name in (*REST, REMOVED)}
    sizes = {"train": options.windows, "validation": options.windows // 10, "test": options.windows // 10}
    texts = {name: {part: (x[: sizes[part]], y[: sizes[part]]) for part, (x, y) in parts.items()}
             for name, parts in texts.items()}  # fmt: skip
    for seed in options.seeds:
        yield from study(texts, options, seed)


def crossing(lines: list[report.Line], level: float) -> dict[str, float] | None:
    """The losses where that on the removed text first reaches a level, interpolated between weights."""
    for before, after in itertools.pairwise(lines):
        low, high = before["losses"][REMOVED], after["losses"][REMOVED]
        if low <= level <= high:
            t = (level - low) / max(high - low, 1e-12)
            at = {name: (1 - t) * before["losses"][name] + t * after["losses"][name] for name in before["losses"]}
            return at | {"weight": (1 - t) * before["weight"] + t * after["weight"]}
    return None


EXPLANATION = (
    f"\nHeld-out losses in nats for each character, means with 95 % intervals over seeds. A GPT of {LAYERS} layers and "
    f"width {WIDTH}; windows: of {CONTEXT} characters, from each text; lr: of the specialist. Rows with a swept weight "
    "stand where the loss on Shakespeare is that of the base; Δ: their loss on the rest against task arithmetic, "
    "paired by seed.\n\n"
)


def publish(lines: list[report.Line], options: argparse.Namespace) -> None:
    seeds = sorted({line["seed"] for line in lines})
    rows, found = [], {}
    plain = [line for line in lines if line["method"] not in WEIGHTS]
    for name in dict.fromkeys(line["method"] for line in plain):
        mine = [line["losses"] for line in plain if line["method"] == name]
        weight = "1" if name.endswith("all of it") else ""
        rows.append([name, weight, *(interval([each[text] for each in mine]) for text in (REMOVED, *REST)), ""])
    levels = {line["seed"]: line["losses"][REMOVED] for line in lines if line["method"] == "base"}
    for name in WEIGHTS:
        swept = [[li for li in lines if li["method"] == name and li["seed"] == seed] for seed in seeds]
        found[name] = [crossing(one, levels[seed]) for one, seed in zip(swept, seeds, strict=True)]
        reached = [at for at in found[name] if at is not None]
        if len(reached) < len(seeds):
            rows.append([name, f"level not reached in {len(seeds) - len(reached)} of {len(seeds)} seeds", *[""] * 4])
        if reached:
            cells = [interval([at[key] for at in reached]) for key in ("weight", REMOVED, *REST)]
            pairs = [(a, b) for a, b in zip(found["task arithmetic"], found[name], strict=True) if a and b]
            gains = [sum(b[text] - a[text] for text in REST) / len(REST) for a, b in pairs]
            rows.append([name, *cells, interval(gains) if gains else ""])
    facts = {key: lines[0][key] for key in ("epochs", "windows", "lr")}
    text = report.header("Forgetting Shakespeare", lines, seeds=seeds, **facts) + EXPLANATION
    columns = ["model", "weight", REMOVED, *REST, "Δ rest"]
    report.publish("merge_removal", text + report.table(columns, rows), options.out)


def picture(lines: list[report.Line], path: Path) -> None:
    """The loss on the rest against that on Shakespeare as the weight grows, a line for each seed."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5.2), layout="constrained")
    levels = [line["losses"][REMOVED] for line in lines if line["method"] == "base"]
    for name, colour in zip(WEIGHTS, ("#D55E00", "#0072B2"), strict=True):
        for seed in sorted({line["seed"] for line in lines}):
            swept = [line["losses"] for line in lines if line["method"] == name and line["seed"] == seed]
            rest = [sum(each[text] for text in REST) / len(REST) for each in swept]
            label = f"{name}, a line for each seed" if seed == lines[0]["seed"] else None
            axes.plot([each[REMOVED] for each in swept], rest, ".-", color=colour, lw=1.6, ms=7, label=label)
    axes.axvline(sum(levels) / len(levels), color="0.5", ls=":", lw=2, label="a model that never read Shakespeare")
    axes.set_xlabel("loss on Shakespeare (nats a character)", fontsize=13)
    axes.set_ylabel("loss on the rest", fontsize=13)
    axes.tick_params(labelsize=12)
    axes.set_title("Shakespeare is subtracted:\nweighted by curvature, the rest suffers less", fontsize=16)
    axes.legend(frameon=False, loc="upper left", fontsize=12)
    figure.savefig(path, dpi=110)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments.add_argument("--epochs", type=int, default=3, help="passes of the base, and again with Shakespeare")
    arguments.add_argument("--lr", type=float, default=5e-4, help="learning rate of the specialist")
    arguments.add_argument(
        "--windows", type=int, default=2000, help="train on so many of each text, and score a tenth of as many"
    )
    arguments.add_argument("--part", default="test", choices=["validation", "test"], help="what losses are taken on")
    arguments.add_argument("--picture", help="draw the trade-off there")
    options = arguments.parse_args()
    lines = report.gather(options, runs)
    if not options.raw:
        publish(lines, options)
    if options.picture:
        picture(lines, Path(options.picture))


if __name__ == "__main__":
    main()
