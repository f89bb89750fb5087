"""An encoder of texts tuned for one task: adapters beside its attention, kept in the run and loaded with it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from posterity.adapters import insert_lora, save_adapter
from posterity.errors import expected
from posterity.features import TextEncoder
from posterity.learning import fit
from posterity.runs.columns import as_text
from posterity.runs.data import Data
from posterity.runs.encoding import ADAPTER, TEXT, Encoding
from posterity.runs.targets import Classes, infer_target
from posterity.texts import trimmed

RANK, ALPHA, LR, BATCH, EPOCHS = 8, 16.0, 1e-3, 32, 4
ATTENTION = (("query", "value"), ("q_proj", "v_proj"), ("q_lin", "v_lin"))  # BERT's names, Llama's, DistilBERT's
FRESH = 5  # one row of so many is not tuned on: those judge the head that is trained on tuned vectors


class Classifier(nn.Module):
    """The encoder with a linear head on its vectors, which have length √D here, as standardised ones have."""

    def __init__(self, encoder: TextEncoder, classes: int) -> None:
        super().__init__()
        self.encoder, self._pool = encoder.model, encoder.pool
        self.head = nn.Linear(encoder.width, classes)

    def forward(self, **tokens: Tensor) -> Tensor:
        """Tokens to logits, (B, C)."""
        vectors = self._pool(self.encoder(**tokens).last_hidden_state, tokens["attention_mask"])
        return self.head(vectors * vectors.shape[1] ** 0.5)


def fresh_rows(count: int, seed: int) -> Tensor:
    """Which of the training rows the encoder is not tuned on."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)) % FRESH == 0


def tuned(data: Data, folder: Path, seed: int, task: str | None = None) -> Data:
    """The same data, read by an encoder with low-rank adapters that learnt four fifths of the training rows.

    Args:
        data: The rows, with the encoding that is to be tuned.
        folder: The run, which keeps the adapters.
        seed: Seed of the tuning.
        task: The user's options for the target.
    """
    encoding = data.encoding
    if encoding is None or encoding.kind != TEXT:
        got = "none" if encoding is None else "pictures"
        raise expected("tune", "texts that an encoder reads (--text, and --encoder or an installed one)", got)
    rows, ids = replace(data, encoding=None).select(folder, "train")
    target = infer_target(data.target, rows.table[data.target], task, True)
    if not isinstance(target, Classes):
        raise expected("tune", "a target with classes", f"one of kind {target.task}")
    learnt = (~fresh_rows(len(ids), seed)).nonzero()[:, 0]
    texts = as_text(rows.table[encoding.column])
    encoder = encoding.encoder(folder)
    assert isinstance(encoder, TextEncoder)  # as encodings of texts have
    place = folder / ADAPTER
    labels = target.encode(rows.table[data.target])[learnt]
    _tune(encoder, [texts[i] for i in learnt.tolist()], labels, target.outputs, place, seed)
    return replace(data, encoding=Encoding.of(TextEncoder(encoder.path, place), encoding.column))


def _tune(encoder: TextEncoder, texts: list[str], labels: Tensor, classes: int, place: Path, seed: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Classifier(encoder, classes)
        names = {name.rpartition(".")[2] for name, part in model.encoder.named_modules() if isinstance(part, nn.Linear)}
        targets = next((pair for pair in ATTENTION if set(pair) <= names), None)
        if targets is None:
            raise expected("tune", f"an encoder with layers called {ATTENTION}", f"layers called {sorted(names)[:8]}")
        insert_lora(model.encoder, targets, rank=RANK, alpha=ALPHA)
    fit(
        model,
        (dict(encoder.tokens(texts)), labels),
        method="adamw",
        likelihood="categorical",
        lr=LR,
        epochs=EPOCHS,
        batch_size=BATCH,
        seed=seed,
        schedule="cosine",
        augment=trimmed,
    )
    partial = place.with_name(f"{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    save_adapter(model.encoder, partial, base=str(encoder.path), task="FEATURE_EXTRACTION")
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)
