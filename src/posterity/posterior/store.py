"""Posteriors on disk, format version 1."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from posterity.errors import PosterityError, RefusedFile, expected
from posterity.files import Record, load_record, save_record
from posterity.likelihoods import likelihood
from posterity.posterior._memory import Memory
from posterity.posterior._structure import Structure, pack, unpack
from posterity.posterior.diagonal import Diagonal
from posterity.posterior.dropout import Dropout
from posterity.posterior.full import Full
from posterity.posterior.kronecker import Kronecker
from posterity.posterior.last_layer import LastLayer
from posterity.posterior.low_rank import LowRank
from posterity.posterior.mixture import Ensemble, Mixture
from posterity.posterior.rotated import Rotated
from posterity.posterior.signs import Signs
from posterity.posterior.training import Training

if TYPE_CHECKING:
    from posterity.posterior._posterior import Posterior

P = TypeVar("P", bound="Posterior")

NAME, VERSION = "posterior", 1

STRUCTURES: dict[str, type[Structure]] = {
    s.kind: s for s in (Diagonal, Full, Kronecker, Rotated, LastLayer, LowRank, Mixture, Ensemble, Dropout, Signs)
}


def save(posterior: Posterior, folder: str | Path) -> None:
    """Write a posterior as a record."""
    likelihood(**posterior.likelihood.settings())  # one that cannot be made again is refused before anything is written
    content = {
        "structure": {"kind": posterior.structure.kind, **posterior.structure.settings()},
        "prior": posterior.prior.settings(),
        "n": posterior.n,
        "ess": posterior.ess,
        "likelihood": posterior.likelihood.settings(),
        "buffers": list(posterior.buffers),
        "class_names": posterior.class_names and list(posterior.class_names),
        "architecture": posterior.architecture,
        "memory": posterior.memory is not None,
        "predictive": posterior.predictive,
        "training": posterior.training and posterior.training._asdict(),
        "output_temperature": posterior.output_temperature,
    }
    tensors = pack("structure", posterior.structure.tensors()) | pack("prior", posterior.prior.tensors())
    tensors |= pack("buffers", posterior.buffers)
    if posterior.memory is not None:
        tensors |= pack("memory", posterior.memory.tensors())
    save_record(folder, NAME, version=VERSION, content=content, tensors=tensors)


def load(kind: type[P], folder: str | Path, device: str | torch.device = "cpu") -> P:
    """Read a posterior, all of it on one device; anything else is refused."""
    record = load_record(folder, NAME, version=VERSION, device=_usable(device))
    try:
        return kind(**_parts(record))
    except (PosterityError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RefusedFile(f"{folder}: expected a posterior, got a record that makes none ({error})") from error


def _usable(device: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as why:
        raise expected("device", "one that torch can use here, such as 'cpu'", device) from why


def _names(given: Any) -> list[str] | None:
    if given is not None and not (isinstance(given, list) and all(isinstance(name, str) for name in given)):
        raise expected("class_names", "a list of texts", type(given).__name__)
    return given


def _parts(record: Record) -> dict[str, Any]:
    """The arguments of `Posterior`."""
    content, tensors = record
    settings = content["structure"]
    return {
        "structure": STRUCTURES[settings["kind"]].from_tensors(unpack("structure", tensors), settings),
        "prior": Diagonal.from_tensors(unpack("prior", tensors), content["prior"]),
        "n": content["n"],
        "ess": content["ess"],
        "likelihood": likelihood(**content["likelihood"]),
        "buffers": unpack("buffers", tensors, content["buffers"]),
        "class_names": _names(content["class_names"]),
        "architecture": content["architecture"],
        "memory": Memory.from_tensors(unpack("memory", tensors)) if content["memory"] else None,
        "predictive": content.get("predictive", "sampled"),  # which earlier files do not name
        "training": Training.read(content.get("training")),
        "output_temperature": content.get("output_temperature", 1.0),
    }
