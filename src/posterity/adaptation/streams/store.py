"""A stream on disk: its posteriors, and a sealed JSON file that names those which belong together."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posterity.errors import InvalidInput, RefusedFile
from posterity.files import read_sealed, write_sealed
from posterity.likelihoods import Likelihood, likelihood
from posterity.posterior import Posterior

FILE, VERSION = "stream.json", 1


@dataclass(frozen=True, eq=False)
class Kept:
    """Everything a stream goes on from."""

    likelihood: Likelihood
    forget: float | str
    settings: dict[str, Any]
    posteriors: list[Posterior]
    scores: list[float]
    rows: list[dict[str, Any]]
    linear: bool | None


def refuse_occupied(folder: Path) -> None:
    """Raise if a stream is already kept in a folder."""
    if (folder / FILE).exists():
        raise InvalidInput(f"folder: expected an empty one, got {folder} with a stream in it; go on by Stream.load")


def write(folder: Path, kept: Kept) -> None:
    """Write all posteriors into a new folder; the stream is the new one once its file names them."""
    folder.mkdir(parents=True, exist_ok=True)
    generation = f"chunk-{len(kept.rows)}"
    shutil.rmtree(folder / generation, ignore_errors=True)  # of a process that was killed here
    for k, posterior in enumerate(kept.posteriors):
        posterior.save(folder / generation / str(k))
    content = {
        "version": VERSION,
        "likelihood": kept.likelihood.settings(),
        "forget": kept.forget,
        "settings": kept.settings,
        "posteriors": [f"{generation}/{k}" for k in range(len(kept.posteriors))],
        "scores": kept.scores,
        "rows": kept.rows,
        "linear": kept.linear,
    }
    write_sealed(folder / FILE, content)
    for old in folder.glob("chunk-*"):
        if old.name != generation:
            shutil.rmtree(old, ignore_errors=True)


def read(folder: Path) -> Kept:
    """Read a stream; what is damaged or newer is refused."""
    content = read_sealed(folder / FILE)
    if content.get("version") != VERSION:
        raise RefusedFile(f"{folder / FILE}: expected version {VERSION}, got {content.get('version')!r}")
    posteriors = [Posterior.load(folder / name) for name in content["posteriors"]]
    return Kept(
        likelihood(**content["likelihood"]),
        content["forget"],
        content["settings"],
        posteriors,
        content["scores"],
        content["rows"],
        content["linear"],
    )
