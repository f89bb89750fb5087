"""Tiny encoders for tests: a BERT of random weights with a tokenizer of a few words, on disk as real ones are."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from posterity.features.efficientnet import EfficientNetLite0

WORDS = ["good", "bad", "fine", "awful", "film", "plot", "actor", "music", "very", "not", "a", "the", "was", "and"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tiny_text_encoder(
    folder: Path, words: list[str] = WORDS, vocabulary: int | None = None, positions: int = 32
) -> Path:
    """A BERT of one layer; `vocabulary` is the number of embeddings where it is not that of the tokenizer."""
    known = {word: i for i, word in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordPiece(known, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=vocabulary or len(known), max_position_embeddings=positions, **size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}))
    return folder


def tiny_picture_weights(path: Path) -> Path:
    """EfficientNet-lite0 with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.save(EfficientNetLite0().state_dict(), path)
    return path
