"""Texts and a tokenizer as what a model of texts takes: padded numbers with a mask, cut to what the model reads."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from posterity.errors import expected
from posterity.inputs import Inputs, over_tensors

MASK = "attention_mask"
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")  # files of tokenizers


class Labelled(NamedTuple):
    """Texts as inputs of a model, with their targets; names of the classes where labels were words."""

    inputs: dict[str, Tensor]
    targets: Tensor
    class_names: tuple[str, ...] | None


def tokenised(tokenizer: Any, texts: Sequence[str], model: nn.Module | None = None) -> dict[str, Tensor]:
    """Texts as the keyword arguments of a transformers or PEFT model.

    Texts that are longer than the model reads are cut, with a warning that counts them.

    Args:
        tokenizer: A tokenizer of transformers.
        texts: The texts.
        model: The model that they are meant for; a tokenizer of another model is refused.

    Returns:
        Tensors of one row for each text: `input_ids`, `attention_mask` and what else the tokenizer makes.

    Examples:
        >>> inputs = tokenised(tokenizer, ["a fine film", "not again"], model)  # doctest: +SKIP
        >>> po.predict(model, posterior, inputs).probs  # doctest: +SKIP
    """
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise expected("texts", "a list of strings, after the tokenizer", type(texts).__name__)
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise expected("texts", "strings", type(text).__name__)
    if not texts:
        raise expected("texts", "at least one", "none")
    if not callable(tokenizer):
        wanted = "a tokenizer of transformers (AutoTokenizer.from_pretrained)"
        raise expected("tokenizer", wanted, type(tokenizer).__name__)
    why = None if model is None else foreign(tokenizer, model)
    if why is not None:
        raise expected("tokenizer", *why)
    if getattr(tokenizer, "pad_token", None) is None:
        raise expected("tokenizer", "one with a padding token (tokenizer.pad_token = tokenizer.eos_token)", "none")
    longest = _longest(tokenizer, model)
    encoded = tokenizer(texts, truncation=longest is not None, max_length=longest, verbose=False)
    cut = 0
    if longest is not None and any(len(ids) >= longest for ids in encoded["input_ids"]):
        cut = sum(len(ids) > longest for ids in tokenizer(texts, verbose=False)["input_ids"])
    if cut:
        warnings.warn(
            f"texts: {cut} of {len(texts)} are longer than the {longest} tokens that the model reads; they are cut. "
            "Split them to have all of them read.",
            stacklevel=2,
        )
    inputs = dict(tokenizer.pad(encoded, padding="longest", padding_side="right", return_tensors="pt"))
    known = None if model is None else _vocabulary(model)
    if known is not None and int(inputs["input_ids"].max()) >= known:
        raise expected("tokenizer", *_too_large(tokenizer, known))
    _warn_of_little_content(tokenizer, texts, inputs["input_ids"])
    return inputs


def foreign(tokenizer: Any, model: nn.Module) -> tuple[str, str] | None:
    """What was expected and what came, where a tokenizer is known to belong to another model; None where it is not.

    A tokenizer with more tokens than the model has embeddings fits no model. The rest is asked only of models that were
    loaded: one that starts from random weights learns any tokenizer. The number of the padding token has to be the
    model's. The tokenizer that lies beside the model's weights decides by its vocabulary. Where there is none, nine
    tenths of the embeddings have to have a token (models round the number of embeddings up, by 3 % at most).
    """
    known, size = _vocabulary(model), len(tokenizer)
    if known is not None and getattr(tokenizer, "vocab_size", 0) > known:
        return _too_large(tokenizer, known)
    source = getattr(model, "name_or_path", "")
    if not source:
        return None
    padding, theirs = getattr(getattr(model, "config", None), "pad_token_id", None), tokenizer.pad_token_id
    if padding is not None and theirs is not None and padding != theirs:
        wanted = f"the model's own, which pads by token {padding} (or set model.config.pad_token_id)"
        return wanted, f"one that pads by token {theirs}"
    own = None if source == getattr(tokenizer, "name_or_path", None) else _vocabulary_beside(Path(source))
    if own is not None:
        words = tokenizer.get_vocab()
        moved = sum(words.get(word) != place for word, place in own.items())
        wanted = f"the model's own (AutoTokenizer.from_pretrained({source!r}))"
        got = f"one of another model: {moved} of {len(own)} tokens are others"
        return (wanted, got) if moved > len(own) / 10 else None
    if known is not None and size < 0.9 * known:
        wanted = f"the model's own, with about {known} tokens (or model.resize_token_embeddings)"
        return wanted, f"one of another model, with {size}"
    return None


def _too_large(tokenizer: Any, known: int) -> tuple[str, str]:
    return f"the model's own, with at most {known} tokens", f"one of another model, with {len(tokenizer)}"


def _vocabulary_beside(folder: Path) -> dict[str, int] | None:
    """The vocabulary that lies in the folder of a model; None where there is none."""
    if not any((folder / name).is_file() for name in VOCABULARIES):
        return None
    from transformers import AutoTokenizer

    return dict(AutoTokenizer.from_pretrained(str(folder), local_files_only=True).get_vocab())


def _warn_of_little_content(tokenizer: Any, texts: Sequence[str], ids: Tensor) -> None:
    """One warning about empty texts, and one where the tokenizer does not know most of what it reads."""
    empty = sum(not text.strip() for text in texts)
    if empty:
        warnings.warn(f"texts: {empty} of {len(texts)} are empty; drop them, or they share one answer.", stacklevel=3)
    unknown = getattr(tokenizer, "unk_token_id", None)
    special = torch.tensor([i for i in tokenizer.all_special_ids if i != unknown], dtype=ids.dtype)
    read = ids[~torch.isin(ids, special)]
    if unknown is not None and len(read) and (read == unknown).double().mean() > 0.5:
        warnings.warn(
            "texts: the tokenizer does not know more than half of their tokens. Take the tokenizer of this model, "
            "and a model of their language.",
            stacklevel=3,
        )


def labelled(tokenizer: Any, data: Any, model: nn.Module, class_names: Sequence[str] | None = None) -> Labelled:
    """(texts, labels) as inputs and targets; labels that are words become classes, in the order of their names."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise expected("data", "(texts, labels) beside a tokenizer", type(data).__name__)
    texts, labels = data
    if len(texts) != len(labels):
        raise expected("data", "as many labels as texts", f"{len(texts)} texts and {len(labels)} labels")
    inputs = tokenised(tokenizer, texts, model)
    if not any(isinstance(label, str) for label in labels):
        return Labelled(inputs, torch.as_tensor(np.asarray(labels)), None)
    names = tuple(sorted({str(label) for label in labels})) if class_names is None else tuple(class_names)
    place = {name: i for i, name in enumerate(names)}
    for label in labels:
        if str(label) not in place:
            raise expected("labels", f"one of the classes {list(names)[:10]}", label)
    outputs = getattr(getattr(model, "config", None), "num_labels", len(names))
    if outputs < len(names):
        raise expected("model", f"an output for each of the {len(names)} classes (num_labels)", outputs)
    if outputs > len(names) and class_names is None:
        wanted = f"num_labels={len(names)}, one for each class among the labels (or class_names of all of them)"
        raise expected("model", wanted, outputs)
    return Labelled(inputs, torch.tensor([place[str(label)] for label in labels]), names)


def are_texts(data: Any) -> bool:
    """Whether the inputs of (inputs, targets) are strings, which need a tokenizer."""
    first = data[0] if isinstance(data, (tuple, list)) and len(data) > 0 else None
    return isinstance(first, (list, tuple)) and len(first) > 0 and isinstance(first[0], str)


def trimmed(inputs: Inputs) -> Inputs:
    """A batch of texts without the padding that none of them needs."""
    if not isinstance(inputs, Mapping) or not isinstance(inputs.get(MASK), Tensor):
        return inputs
    width = inputs[MASK].shape[1]
    needed = max(1, int(inputs[MASK].sum(1).max()))
    return over_tensors(lambda t: t[:, :needed] if t.dim() >= 2 and t.shape[1] == width else t, inputs)


def trimming(augment: Callable[[Inputs], Inputs] | None) -> Callable[[Inputs], Inputs]:
    """What is done to a training batch of texts: padding is removed, then the user's transform runs."""
    return trimmed if augment is None else lambda inputs: augment(trimmed(inputs))


def _longest(tokenizer: Any, model: nn.Module | None) -> int | None:
    """Tokens that tokenizer and model read; None where neither has a limit."""
    known = [getattr(tokenizer, "model_max_length", None)]
    known.append(getattr(getattr(model, "config", None), "max_position_embeddings", None))
    limits = [int(limit) for limit in known if limit is not None and limit < 10**9]
    return min(limits, default=None)


def _vocabulary(model: nn.Module) -> int | None:
    find = getattr(model, "get_input_embeddings", None)
    return getattr(find(), "num_embeddings", None) if callable(find) else None
