"""Recipes: a merge written down in YAML, or in the same words on the command line."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from posterity.errors import RefusedFile, expected, require
from posterity.merging._method import Method, number
from posterity.merging.job import Job, MergeSource
from posterity.merging.lora import is_adapter, merge_adapters
from posterity.merging.mergekit import translated
from posterity.merging.methods import METHODS, method_of
from posterity.merging.stream import merge_checkpoints

KEYS = ("method", "options", "base", "models", "out", "prior_precision", "temperature", "shard_size", "rank")
SOURCE_KEYS = ("path", "weight", "curvature", "n")
LIMIT = 2**20  # characters of a recipe
UNREADABLE = (yaml.YAMLError, ValueError, OverflowError, LookupError, AttributeError)  # what PyYAML raises
SPECIAL = (":merge", ":value")  # tags of keys that are instructions to YAML
DEEPEST = 50  # brackets, lists and keys within one another
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_OPENING = (
    yaml.FlowSequenceStartToken,
    yaml.FlowMappingStartToken,
    yaml.BlockSequenceStartToken,
    yaml.BlockMappingStartToken,
)
_CLOSING = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)


@dataclass(frozen=True)
class Recipe:
    """A merge of checkpoints, or of adapters of the given rank, and the folder that it makes."""

    models: Mapping[str, MergeSource]
    method: Method
    out: Path
    base: MergeSource | None
    rank: int | None
    settings: Mapping[str, Any]

    def weighted(self, weights: Mapping[str, float], out: Path) -> Recipe:
        """The same merge under other weights, into another folder."""
        models = {name: replace(source, weight=weights[name]) for name, source in self.models.items()}
        return replace(self, models=models, out=out)

    def cook(self) -> Path:
        """Merge, and return the folder that was made."""
        if any(is_adapter(source.path) for source in self.models.values()):
            require(self.base is None, "base", "none, adapters are changes already", "one")
            return merge_adapters(self.models, self.out, method=self.method, rank=self.rank)
        require(self.rank is None, "rank", "none, it is for adapters", self.rank)
        return merge_checkpoints(Job(self.models, self.method, self.base, **self.settings), self.out)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The content of a recipe file, ours or mergekit's, with our keys; nothing in it is executed."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LIMIT + 1)
        require(len(text) <= LIMIT, "recipe", f"at most {LIMIT} characters", "more")
        content = _loaded(text)
    except UNREADABLE as error:
        raise RefusedFile(f"{path}: expected a recipe in YAML, got {error}") from None
    except IsADirectoryError:
        raise RefusedFile(f"{path}: expected a recipe, got a folder; models are given by --model NAME=PATH") from None
    except OSError as error:
        raise RefusedFile(f"{path}: expected a recipe, got {error.strerror}") from None
    if not isinstance(content, dict):
        raise RefusedFile(f"{path}: expected keys such as method, base and models, got {type(content).__name__}")
    return translated(content)


def read_value(text: str) -> Any:
    """A number, a word or a list, as written in a recipe."""
    try:
        return _loaded(text)
    except UNREADABLE:
        raise expected("option", "a value in YAML", text[:100]) from None


def _loaded(text: str) -> Any:
    """A text, parsed as YAML. Aliases, which could expand to billions of entries, and deep nesting are refused."""
    depth = 0
    for token in yaml.scan(text):
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if isinstance(token, yaml.AliasToken):
            raise ValueError("an alias (*name); write the value out")
        if depth > DEEPEST:  # the time that YAML takes grows with the square of the depth
            raise ValueError("brackets within brackets, too deep to read")
    twice = _repeated(yaml.compose(text, yaml.SafeLoader))
    if twice is not None:
        raise ValueError(f"the key {twice!r:.60} twice")
    return yaml.safe_load(text)


def _repeated(node: yaml.Node | None) -> str | None:
    """A key that a mapping has twice, of which YAML would keep the last without a word."""
    if isinstance(node, yaml.SequenceNode):
        return next((key for child in node.value if (key := _repeated(child)) is not None), None)
    if not isinstance(node, yaml.MappingNode):
        return None
    read = yaml.SafeLoader("").construct_object  # 1, 0x1 and 1.0 are one key
    words = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(SPECIAL)]
    keys = Counter(map(read, words))
    inside = (key for _, child in node.value if (key := _repeated(child)) is not None)
    return next((str(key) for key, often in keys.items() if often > 1), next(inside, None))


def recipe(content: Mapping[str, Any], folder: str | Path = ".") -> Recipe:
    """Make sense of a recipe; the error names an unknown key and lists the known ones.

    Args:
        content: The keys `method`, `models` and `out`, and as needed `base`, `options`, `prior_precision`,
            `temperature`, `shard_size`, `rank`. A model is a path, or a mapping with `path`, `weight`, `curvature` and
            `n`. A configuration of mergekit, with `merge_method`, is translated first.
        folder: Where relative paths start.
    """
    folder, content = Path(folder), translated(content)
    _check_keys("recipe", content, KEYS)
    methods = f"--method with one of {sorted(METHODS)}"
    for key, flag in (("method", methods), ("models", "--model NAME=PATH"), ("out", "--out")):
        require(content.get(key) is not None, "recipe", f"a key {key!r}, or {flag}", sorted(content))
    models, options = content["models"], content.get("options") or {}
    require(isinstance(models, Mapping) and len(models) > 0, "models", "a mapping from names to paths", models)
    require(isinstance(options, Mapping), "options", "a mapping", options)
    options = {str(name): _option(value) for name, value in options.items()}
    settings: dict[str, float] = {
        key: number(key, content[key]) for key in ("prior_precision", "temperature") if key in content
    }
    if "shard_size" in content:
        settings["shard_size"] = _bytes(content["shard_size"])
    rank = content.get("rank")
    require(rank is None or (type(rank) is int and rank >= 1), "rank", "an integer >= 1", rank)
    base = content.get("base")
    return Recipe(
        {str(name): _source(f"model {name!r}", given, folder) for name, given in models.items()},
        method_of(content["method"], options),
        _folder(folder, str(content["out"])),
        None if base is None else _source("base", base, folder),
        rank,
        settings,
    )


def _folder(start: Path, name: str) -> Path:
    try:
        fine = b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:  # half of a pair of characters
        fine = False
    require(fine, "out", "a path", name)
    return start / name


def _source(label: str, given: Any, folder: Path) -> MergeSource:
    if isinstance(given, str | Path):
        return MergeSource(folder / given)
    require(isinstance(given, Mapping), label, f"a path, or a mapping with {SOURCE_KEYS}", given)
    _check_keys(label, given, SOURCE_KEYS)
    require("path" in given, label, "a key 'path'", sorted(given))
    return MergeSource(
        folder / str(given["path"]),
        number(f"weight of {label}", given.get("weight", 1.0)),
        folder / str(given["curvature"]) if given.get("curvature") else None,
        number(f"n of {label}", given["n"]) if given.get("n") is not None else None,
    )


def _check_keys(label: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise expected(label, f"keys among {list(known)}", key)


def _option(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value  # YAML reads 1e-3 as text
    except ValueError:
        return value


def _bytes(value: Any) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(|KB|MB|GB)", str(value).upper())
    if match is None:
        raise expected("shard_size", "bytes such as 500000, 500MB or 5GB", value)
    return int(float(match[1]) * UNITS[match[2]])
