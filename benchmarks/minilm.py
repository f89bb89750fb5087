"""MiniLM in plain torch: a small BERT encoder with mean pooling and a linear head, and texts as numbers for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

WIDTH, INNER, HEADS, LAYERS, VOCABULARY, POSITIONS = 384, 1536, 12, 6, 30522, 512
PAD = 0


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to its input and normalised."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.attended_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.inner, self.outer = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.outer_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, WIDTH) to the same; `mask` (B, 1, 1, T) is True where there is a word."""
        q, k, v = (layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(-2)
        x = self.attended_norm(x + self.dropout(self.attended(seen)))
        return self.outer_norm(x + self.dropout(self.outer(F.gelu(self.inner(x)))))


class MiniLM(nn.Module):
    """Token numbers (B, T), zero where a text has ended, to logits (B, classes)."""

    def __init__(self, classes: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the mean of all words' last states."""
        there = tokens != PAD
        places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x = self.norm(self.words(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x, there[:, None, None])
        weights = there.unsqueeze(-1).to(x)
        return self.head((x * weights).sum(1) / weights.sum(1))


def convert(folder: Path, out: Path) -> None:
    """Keep what the encoder needs of a Hugging Face checkpoint, under the names above, in float16."""
    theirs = load_file(folder / "model.safetensors")
    save_file({name: t.half().contiguous() for name, t in _renamed(theirs).items()}, out)


def load(path: Path, classes: int, seed: int, dropout: float = 0.0) -> MiniLM:
    """The converted encoder with a new head, and dropout behind every layer that is added to its input."""
    torch.manual_seed(seed)
    model = MiniLM(classes, dropout)
    model.load_state_dict({name: t.float() for name, t in load_file(path).items()}, strict=False)
    return model


def tokenise(folder: Path, texts: Sequence[str], length: int) -> list[list[int]]:
    """Texts as numbers, cut to `length`."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def _renamed(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # Sentences have one segment, whose embedding joins that of the places.
    ours = {
        "words.weight": theirs["embeddings.word_embeddings.weight"],
        "places.weight": theirs["embeddings.position_embeddings.weight"]
        + theirs["embeddings.token_type_embeddings.weight"][0],
    }
    names = {"norm": "embeddings.LayerNorm"}
    parts = {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "attended": "attention.output.dense",
        "attended_norm": "attention.output.LayerNorm",
        "inner": "intermediate.dense",
        "outer": "output.dense",
        "outer_norm": "output.LayerNorm",
    }
    for i in range(LAYERS):
        names |= {f"blocks.{i}.{mine}": f"encoder.layer.{i}.{part}" for mine, part in parts.items()}
    for mine, name in names.items():
        ours |= {f"{mine}.{kind}": theirs[f"{name}.{kind}"] for kind in ("weight", "bias")}
    return ours
