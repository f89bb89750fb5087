"""Texts as vectors: a sentence encoder of the Hugging Face kind, read from a folder, never from a hub."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posterity.adapters import load_adapter
from posterity.adapters.store import CONFIG, TENSORS
from posterity.cells import counted
from posterity.errors import MissingExtra, RefusedFile
from posterity.features._encoder import Encoder, Matrix
from posterity.files import read_json
from posterity.texts import foreign

BATCH = 64  # texts in one forward pass, sorted by length so that few numbers are padding
LONGEST = 256  # tokens, where the encoder does not say


class TextEncoder(Encoder):
    """The mean of the last hidden states of a text's tokens, scaled to length 1.

    Sentence encoders that pool by their first token declare it in `1_Pooling/config.json`, which is followed.

    Args:
        path: A folder with `config.json`, weights in safetensors and a tokenizer.
        adapter: A folder with low-rank adapters of these weights, see `posterity.adapters.save_adapter`.
    """

    kind = "text"
    part = 512

    def __init__(self, path: Path, adapter: Path | None = None) -> None:
        super().__init__(path)
        self.adapter = adapter
        if not (path / "config.json").is_file():
            raise RefusedFile(f"{path}: expected a folder with config.json, weights and a tokenizer, got none")
        if not any(path.glob("*.safetensors")):
            raise RefusedFile(f"{path}: expected weights in safetensors beside config.json, got none; convert them")

    def files(self) -> list[Path]:
        wanted = ("config.json", "*.safetensors", "tokenizer.json", "vocab.txt", "tokenizer.model")
        pooling = [path for path in (self.path / "1_Pooling" / "config.json",) if path.is_file()]
        own = [] if self.adapter is None else [self.adapter / CONFIG, self.adapter / TENSORS]
        return [file for name in wanted for file in sorted(self.path.glob(name))] + pooling + own

    def settings(self) -> str:
        return f"{self.longest} tokens"

    @property
    def width(self) -> int:
        return int(read_json(self.path / "config.json")["hidden_size"])

    @cached_property
    def longest(self) -> int:
        """Tokens of a text that are read."""
        own = self.path / "sentence_bert_config.json"
        positions = read_json(self.path / "config.json").get("max_position_embeddings", LONGEST)
        said = read_json(own).get("max_seq_length", LONGEST) if own.is_file() else LONGEST
        return int(min(said, positions))

    @cached_property
    def first_token(self) -> bool:
        """Whether a text's vector is the state of its first token."""
        own = self.path / "1_Pooling" / "config.json"
        return bool(own.is_file() and read_json(own).get("pooling_mode_cls_token"))

    def encode(self, items: Sequence[str]) -> Matrix:
        order = np.argsort([len(text) for text in items], kind="stable")
        found = np.zeros((len(items), self.width), np.float32)
        model, device = self.model, next(self.model.parameters()).device
        for start in range(0, len(items), BATCH):
            rows = order[start : start + BATCH]
            tokens = self.tokens([items[row] for row in rows]).to(device)
            with torch.inference_mode():
                states = model(**tokens).last_hidden_state
            found[rows] = self.pool(states, tokens["attention_mask"]).cpu().numpy()
        return found

    def remarks(self, items: Sequence[str]) -> list[str]:
        found = []
        empty = sum(not text.strip() for text in items)
        if empty:
            found.append(f"{counted(empty, 'empty text')}; all of them have the same vector")
        counts, unknown = self._counted([text for text in items if text.strip()])
        long = int((counts > self.longest).sum())
        if long:
            found.append(f"{counted(long, 'text')} cut after {self.longest} tokens, as many as the encoder reads")
        strange = int((unknown > 0.5).sum())
        if strange:
            fix = "use an encoder of their language (--encoder)"
            found.append(f"{counted(strange, 'text')} mostly of signs that are unknown to the encoder; {fix}")
        return found

    def _counted(self, items: Sequence[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Tokens of each text, and the share of them that are unknown to the encoder."""
        if not items:
            return np.zeros(0), np.zeros(0)
        tokenizer = self._tokenizer
        ids = tokenizer(list(items), add_special_tokens=False, verbose=False)["input_ids"]
        special = tokenizer.num_special_tokens_to_add()
        lengths = np.array([len(one) + special for one in ids])
        unknown = np.array([np.mean([t == tokenizer.unk_token_id for t in one]) if one else 0.0 for one in ids])
        return lengths, unknown

    def tokens(self, texts: list[str]) -> Any:
        """Texts as the encoder reads them, padded to the longest of them."""
        return self._tokenizer(texts, padding=True, truncation=True, max_length=self.longest, return_tensors="pt")

    def pool(self, states: Tensor, mask: Tensor) -> Tensor:
        """The vector of each text, from the states (B, T, D) of its tokens."""
        if self.first_token:
            return nn.functional.normalize(states[:, 0].float(), dim=-1)
        weights = mask.unsqueeze(-1).to(states)
        mean = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        return nn.functional.normalize(mean.float(), dim=-1)

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = _transformers().AutoTokenizer.from_pretrained(str(self.path), local_files_only=True)
        why = foreign(tokenizer, self.model)
        if why is not None:
            raise RefusedFile(
                f"{self.path}: expected the tokenizer of the encoder, {why[0]}, got {why[1]}; put the files of one "
                "model into the folder"
            )
        return tokenizer

    @cached_property
    def model(self) -> Any:
        """The network, frozen; with adapters, if it has some."""
        transformers = _transformers()
        try:
            model = transformers.AutoModel.from_pretrained(
                str(self.path), local_files_only=True, use_safetensors=True, dtype=torch.float32
            )
        except (OSError, ValueError, KeyError, RuntimeError) as why:
            raise RefusedFile(f"{self.path}: expected an encoder that transformers reads, got: {why}") from why
        if self.adapter is not None:
            load_adapter(model, self.adapter)
        return model.eval().requires_grad_(False)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as why:
        raise MissingExtra("texts: expected the package transformers; pip install 'posterity[hf]'") from why
    package: Any = transformers
    package.utils.logging.disable_progress_bar()
    return package
