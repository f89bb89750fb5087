"""Configurations of mergekit, as recipes of ours."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from posterity.errors import InvalidInput, expected, require
from posterity.merging._method import number

METHODS = ("linear", "slerp", "task_arithmetic", "ties", "dare_linear", "dare_ties")
KEYS = (
    *("merge_method", "models", "base_model", "parameters", "dtype", "out_dtype", "tokenizer_source", "tokenizer"),
    *("chat_template", "out"),
)
PARAMETERS = {  # what each method may be told, for all models or for one
    "linear": ("weight", "normalize"),
    "slerp": ("t",),
    "task_arithmetic": ("weight", "normalize", "lambda", "int8_mask"),
    "ties": ("weight", "density", "normalize", "lambda", "int8_mask", "rescale"),
    "dare_linear": ("weight", "density", "normalize", "lambda", "int8_mask", "rescale"),
    "dare_ties": ("weight", "density", "normalize", "lambda", "int8_mask", "rescale"),
}
KEEPS_DTYPE = (
    "dtype of the mergekit configuration is not applied: arithmetic is in float32, and each tensor keeps the dtype of "
    "the base (of the first model, for averages)"
)
KEEPS_TEMPLATE = "chat_template of the mergekit configuration is not applied: the result has the base's"


def translated(content: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of mergekit with our keys; a recipe in our format is returned unchanged.

    The methods are linear, slerp, task_arithmetic, ties, dare_linear and dare_ties, with one number for each parameter.
    Results equal mergekit's, except for DARE's random masks. Gradients over layers, filters, slices, and tokenizers
    other than the base's are refused.

    Examples:
        >>> translated(
        ...     {
        ...         "merge_method": "ties",
        ...         "base_model": "base",
        ...         "models": [{"model": "base"}, {"model": "math", "parameters": {"weight": 0.5, "density": 0.2}}],
        ...     }
        ... )["options"]
        {'convention': 'mergekit', 'density': [0.2]}
    """
    if "merge_method" not in content:
        return dict(content)
    if "slices" in content:
        raise InvalidInput(
            "mergekit configuration: expected `models`, got `slices`; where the slices cover all layers of the same "
            "two models, list these under `models` and give `t` or `weight` as one number"
        )
    for key in content:
        require(key in KEYS, "mergekit configuration", f"keys among {list(KEYS)}", key)
    method, shared = content["merge_method"], _mapping("parameters", content.get("parameters"))
    require(method in METHODS, "merge_method", f"one of {list(METHODS)}", method)
    models = _models(content.get("models"))
    base = None if content.get("base_model") is None else str(content["base_model"])
    _check_tokenizer(content, base)
    if content.get("dtype") is not None or content.get("out_dtype") is not None:
        warnings.warn(KEEPS_DTYPE, stacklevel=2)
    found: dict[str, Any] = {"out": content["out"]} if "out" in content else {}
    if method == "slerp":
        return found | _slerp(models, base, shared)
    given = {path: {**shared, **own} for path, own in models.items() if method == "linear" or path != base}
    names = _names(list(given))
    for path, own in given.items():
        for key in own:
            require(key in PARAMETERS[method], f"parameters of {path!r}", f"among {PARAMETERS[method]}", key)
        require("weight" in own, f"parameters of {path!r}", "a weight", sorted(own))
    weights = [_scalar("weight", own["weight"]) for own in given.values()]
    normalize = bool(shared.get("normalize", method in ("linear", "ties")))
    weights = _scaled(method, weights, normalize, _scalar("lambda", shared.get("lambda", 1.0)))
    sources = {names[path]: {"path": path, "weight": w} for path, w in zip(given, weights, strict=True)}
    if method == "linear":
        return found | {"method": "linear", "models": sources}
    require(base is not None, "base_model", f"the model that {method!r} starts from", None)
    found |= {"base": base, "models": sources}
    if method == "task_arithmetic":
        return found | {"method": method}
    rescale = bool(shared.get("rescale", method != "ties"))
    require(rescale == (method != "ties"), "rescale", f"{method != 'ties'} for {method}", rescale)
    options: dict[str, Any] = {}
    if method != "dare_linear":
        options["convention"] = "mergekit" if normalize else "mergekit_sum"
    if method != "ties":
        options["rescale"] = "l1"
    options["density"] = [_scalar("density", own.get("density", 1.0)) for own in given.values()]
    return found | {"method": "ties" if method == "ties" else "dare", "options": options}


def _check_tokenizer(content: Mapping[str, Any], base: str | None) -> None:
    """Raise for a tokenizer that would have to be merged; the result has that of the base."""
    asked = _mapping("tokenizer", content.get("tokenizer"))
    require(set(asked) <= {"source"}, "tokenizer", "the key 'source' alone", sorted(asked))
    for what, source in (("tokenizer_source", content.get("tokenizer_source")), ("tokenizer", asked.get("source"))):
        require(source in (None, "base", base), what, "'base', the others are not merged", source)
    if content.get("chat_template") is not None:
        warnings.warn(KEEPS_TEMPLATE, stacklevel=3)


def _scaled(method: str, weights: list[float], normalize: bool, factor: float) -> list[float]:
    """Weights that hold `normalize` and `lambda` too, where the method is a plain sum."""
    if method == "linear":
        require(normalize, "normalize", "true, 'linear' is an average", normalize)
        return weights
    if normalize and method in ("ties", "dare_ties"):
        require(factor == 1, "lambda", "1 beside normalize: true", factor)
        return weights
    total = sum(weights)
    return [weight * factor / (total if normalize and abs(total) >= 1e-8 else 1.0) for weight in weights]


def _slerp(models: Mapping[str, Mapping[str, Any]], base: str | None, shared: Mapping[str, Any]) -> dict[str, Any]:
    for key in shared:
        require(key in PARAMETERS["slerp"], "parameters", f"among {PARAMETERS['slerp']}", key)
    require("t" in shared, "parameters", "a number t", sorted(shared))
    require(len(models) == 2 and base in models, "models", "two, of which base_model is one", sorted(models))
    t, names = _scalar("t", shared["t"]), _names(list(models))
    other = next(path for path in models if path != base)
    weighted = ((base, 1 - t), (other, t))
    return {"method": "slerp", "models": {names[str(path)]: {"path": path, "weight": w} for path, w in weighted}}


def _models(given: Any) -> dict[str, dict[str, Any]]:
    """Parameters of each model, by its path."""
    require(isinstance(given, list) and len(given) > 0, "models", "a list of models", type(given).__name__)
    found: dict[str, dict[str, Any]] = {}
    for entry in given:
        fine = (
            isinstance(entry, Mapping) and isinstance(entry.get("model"), str) and set(entry) <= {"model", "parameters"}
        )
        require(fine, "models", "entries with `model` and `parameters`", entry)
        require(entry["model"] not in found, "models", "each model once", entry["model"])
        found[entry["model"]] = _mapping("parameters", entry.get("parameters"))
    return found


def _names(paths: list[str]) -> dict[str, str]:
    """A short name for each model: the last part of its path, or the whole where that is not unique."""
    last = [PurePath(path).name for path in paths]
    return {path: name if last.count(name) == 1 else path for path, name in zip(paths, last, strict=True)}


def _mapping(what: str, given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise expected(what, "a mapping", type(given).__name__)
    return dict(given)


def _scalar(what: str, value: Any) -> float:
    if isinstance(value, list):
        raise InvalidInput(f"{what}: expected one number, got a list; gradients over layers and filters are not read")
    return number(what, value)
