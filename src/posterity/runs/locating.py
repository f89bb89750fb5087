"""Which rows of which file a run is to learn from, from the user's options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posterity.errors import InvalidInput, expected
from posterity.runs.data import Data, DataSource
from posterity.runs.readers import LABEL, PICTURES, read_rows

TARGETS = ("y", "labels", "label", "targets", "target")  # what a column to predict is usually called


def locate(
    path: Path,
    folder: Path,
    target: str | None,
    test: str,
    id_column: str | None,
    seed: int,
    inputs: str | None,
    size: int | None,
    embeddings: Path | None,
) -> Data:
    """The rows of a file, once it is clear what to predict and what to hold out."""
    source = DataSource.of(path, folder, inputs=inputs, size=size, embeddings=embeddings)
    if target is None and (path.is_dir() or path.suffix.lower() in PICTURES):
        target = LABEL  # without decoding pictures, which may be many
    if target is None:
        known = [str(name) for name in read_rows(path, inputs, size).table]
        target = next((name for name in TARGETS if name in known), None)
        if target is None:
            raise InvalidInput(f"target: expected the column to predict (--target), one of {known}, got none")
    return Data(source, target, id_column, held_out(test, folder, seed, inputs, size))


def held_out(test: str, folder: Path, seed: int, inputs: str | None, size: int | None) -> dict[str, Any]:
    """What to hold out, from the user's option: a fraction, a file, or COLUMN=VALUE."""
    try:
        fraction = float(test)
    except ValueError:
        if Path(test).exists():
            return {"source": vars(DataSource.of(Path(test), folder, inputs=inputs, size=size))}
        if "=" not in test:
            raise expected("test", "a fraction, a file or COLUMN=VALUE", test) from None
        name, _, value = test.partition("=")
        return {"column": name, "value": value}
    if not 0 <= fraction < 1:
        raise expected("test", "a fraction in [0, 1)", test)
    return {"fraction": fraction, "seed": seed, "rare": True} if fraction else {}
