"""SmolLM2-135M in plain torch, from the quantised weights of a GGUF file: a small Llama with a linear head.

The weights are Q4_1 (four bits, a scale and a minimum for each 32) and stay so on disk; they are dequantised when they
are loaded. What is measured with them is measured with these, not with the weights that were published in bfloat16.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, INNER, HEADS, SHARED, LAYERS, BASE, EPS = 576, 1536, 9, 3, 30, 100_000.0, 1e-5
PAD = 0
PARTS = 2  # files that the layers are spread over, so that each can be carried alone
_F32, _Q4_1, _Q8_0 = 0, 3, 8
_BYTES = {_F32: (1, 4), _Q4_1: (32, 20), _Q8_0: (32, 34)}  # numbers in a block, and its bytes
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, tuple[int, tuple[int, ...], np.ndarray]]]:
    """What a GGUF file says of itself, and (type, shape, raw bytes) of every tensor."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{path}: expected a GGUF file, got another")
        _number(file, "I")
        tensors, facts = _number(file, "Q"), _number(file, "Q")
        about = {_text(file): _value(file, _number(file, "I")) for _ in range(facts)}
        places = {}
        for _ in range(tensors):
            name = _text(file)
            shape = tuple(_number(file, "Q") for _ in range(_number(file, "I")))[::-1]
            places[name] = (_number(file, "I"), shape, _number(file, "Q"))
        start = -(-file.tell() // 32) * 32
        found = {}
        for name, (kind, shape, offset) in places.items():
            count, size = _BYTES[kind]
            file.seek(start + offset)
            found[name] = (kind, shape, np.frombuffer(file.read(math.prod(shape) // count * size), np.uint8))
    return about, found


def _number(file: IO[bytes], form: str) -> Any:
    return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))[0]


def _text(file: IO[bytes]) -> str:
    return file.read(_number(file, "Q")).decode()


def _value(file: IO[bytes], kind: int) -> Any:
    if kind == 8:
        return _text(file)
    if kind == 9:
        inner, count = _number(file, "I"), _number(file, "Q")
        return [_value(file, inner) for _ in range(count)]
    return _number(file, _SCALARS[kind])


def dequantised(kind: int, shape: tuple[int, ...], raw: np.ndarray) -> Tensor:
    """The numbers of a tensor: Q4_1 is scale · nibble + minimum, low nibbles first; Q8_0 is scale · byte."""
    if kind == _F32:
        return torch.from_numpy(raw.view(np.float32).copy()).reshape(shape)
    blocks = raw.reshape(-1, _BYTES[kind][1])
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == _Q8_0:
        return torch.from_numpy(scale * blocks[:, 2:].view(np.int8)).reshape(shape)
    least = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1)
    return torch.from_numpy(scale * nibbles + least).reshape(shape)


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
