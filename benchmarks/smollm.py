"""SmolLM2-135M in plain torch, from the quantised weights of a GGUF file: a small Llama with a linear head.

The weights are Q4_1 (four bits, a scale and a minimum for each 32) and stay so on disk; they are dequantised when they
are loaded. What is measured with them is measured with these, not with the weights that were published in bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gguf_files import dequantised, read_gguf
from torch import Tensor, nn

WIDTH, INNER, HEADS, SHARED, LAYERS, BASE, EPS = 576, 1536, 9, 3, 30, 100_000.0, 1e-5
PAD = 0
PARTS = 2  # files that the layers are spread over, so that each can be carried alone


def tokenizer(about: dict[str, Any]) -> Any:
    """The byte-pair tokenizer that the file describes."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    places = {token: i for i, token in enumerate(about["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in about["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(places, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return made


def prepare(path: Path, out: Path, texts: Sequence[str], length: int) -> list[list[int]]:
    """Write the layers and the embeddings of the words that occur; return the texts as numbers of those, from 1."""
    about, tensors = read_gguf(path)
    encoded = [encoding.ids[:length] for encoding in tokenizer(about).encode_batch(list(texts))]
    used = sorted({token for text in encoded for token in text})
    kind, shape, raw = tensors.pop("token_embd.weight")
    rows = raw.reshape(shape[0], -1)[used]
    for part in range(PARTS):
        share = range(part * LAYERS // PARTS, (part + 1) * LAYERS // PARTS)
        kept = {name: t for name, t in tensors.items() if name.startswith("blk.") and int(name.split(".")[1]) in share}
        if part == 0:
            kept |= {name: t for name, t in tensors.items() if not name.startswith("blk.")}
            kept["token_embd.weight"] = (kind, (len(used), shape[1]), rows)
        folder = out / f"smollm-{part + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"{name}|{kind}|{'x'.join(map(str, shape))}": raw for name, (kind, shape, raw) in kept.items()}
        np.savez(folder / "weights.npz", **arrays)
    place = {token: i + 1 for i, token in enumerate(used)}
    return [[place[token] for token in text] for text in encoded]


class Norm(nn.Module):
    """x / √(mean x² + ε) · weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """(..., WIDTH) to the same."""
        return F.rms_norm(x, (WIDTH,), self.weight.to(x.dtype), EPS)


class Block(nn.Module):
    """Causal attention with shared keys, and a gated feed-forward layer, each added to its input."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        small = WIDTH // HEADS * SHARED
        self.attn_norm, self.ffn_norm = Norm(), Norm()
        self.attn_q, self.attn_output = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.attn_k, self.attn_v = (nn.Linear(WIDTH, small, bias=False) for _ in range(2))
        self.ffn_gate, self.ffn_up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.ffn_down = nn.Linear(INNER, WIDTH, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """(B, T, WIDTH) to the same; `turn` (T, 32) are the angles of each place."""
        h = self.attn_norm(x)
        q, k, v = (
            layer(h).unflatten(-1, (-1, 64)).transpose(1, 2) for layer in (self.attn_q, self.attn_k, self.attn_v)
        )
        k, v = (t.repeat_interleave(HEADS // SHARED, 1) for t in (_turned(k, turn), v))
        seen = F.scaled_dot_product_attention(_turned(q, turn), k, v, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + self.dropout(self.attn_output(seen))
        h = self.ffn_norm(x)
        return x + self.dropout(self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h)))


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate neighbouring pairs of numbers by the angle of their place (GGUF keeps them beside each other)."""
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = turn.cos().to(x.dtype), turn.sin().to(x.dtype)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class SmolLM(nn.Module):
    """Token numbers (B, T), zero where a text has ended, to logits (B, classes) from its last token."""

    def __init__(self, words: int, classes: int, dropout: float = 0.0, layers: int = LAYERS) -> None:
        super().__init__()
        self.words = nn.Embedding(words + 1, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(layers))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, classes)

    def states(self, tokens: Tensor) -> Tensor:
        """(B, T, WIDTH), after the last norm."""
        places = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
        turn = places[:, None] * BASE ** (-torch.arange(0, 64, 2, device=tokens.device) / 64)
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, turn)
        return self.norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the last word's state; what follows it cannot be seen from there."""
        last = (tokens != PAD).sum(1).clamp(min=1) - 1
        states = self.states(tokens)
        return self.head(states[torch.arange(len(tokens), device=tokens.device), last])


def load(folders: Sequence[Path], classes: int, seed: int, dropout: float = 0.0) -> SmolLM:
    """The model of the folders that `prepare` wrote, with a new head."""
    found: dict[str, Tensor] = {}
    for folder in folders:
        with np.load(folder / "weights.npz") as arrays:
            for key in arrays.files:
                name, kind, shape = key.split("|")
                found[name] = dequantised(int(kind), tuple(map(int, shape.split("x"))), arrays[key])
    torch.manual_seed(seed)
    words = found.pop("token_embd.weight")
    model = SmolLM(len(words), classes, dropout)
    state = {"words.weight": torch.cat([torch.zeros(1, WIDTH), words]), "norm.weight": found.pop("output_norm.weight")}
    state |= {name.replace("blk.", "blocks."): t for name, t in found.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) != {"head.weight", "head.bias"}:
        raise ValueError(f"weights: expected all but the head, got others ({missing}, {unexpected})")
    return model
