"""`write_html`: the memory map as one file that needs no server."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from posterity.app._serve import loader
from posterity.app.page import History, Page, jsonable, static
from posterity.app.source import Preview, Source
from posterity.app.whole_page import as_json, packed, whole_page
from posterity.errors import PosterityError, require
from posterity.files import write_bytes
from posterity.memory import MemoryMap
from posterity.progress import track

if TYPE_CHECKING:
    from posterity.runs import RunFolder

TEXT = 600  # characters of a text that the file carries
EPOCHS = 300_000  # most points over all epochs that it carries
NEAR, NEAREST, NEAR_ROWS = 40, 12, 20_000  # suspects with neighbours, neighbours of each, rows up to which it has any


def write_html(
    what: MemoryMap | Source | RunFolder | str | Path, path: str | Path, *, previews: int = 2000, **options: Any
) -> Path:
    """Write a memory map as one self-contained HTML file: for a notebook, a report or a colleague's mail.

    Previews of the most suspicious examples travel with it. What-if is limited to sums of first-order effects of
    single examples, with a note on the page. It carries the neighbours of the first suspects, and searches the texts
    and rows that it carries. Influences on test examples need the server.

    Args:
        what: A `MemoryMap`, a `Source`, a run, or its folder.
        path: The file.
        previews: How many examples it carries images, texts or rows of, the likeliest wrong labels first.
        options: What `from_map` takes (or `from_run`, for a run): test, examples, ...

    Returns:
        The path.
    """
    require(previews >= 0, "previews", "an integer >= 0", previews)
    path = Path(path)
    write_bytes(path, _document(loader(what, options)(), previews).encode())
    return path


def _document(source: Source, previews: int) -> str:
    page = Page(source)
    epochs = page.history if page.history is not None and page.history.error.size <= EPOCHS else None
    carried = {
        "columns": packed(_columns(page, epochs)),
        "epochs": as_json([packed(epochs.at(k)) for k in range(len(epochs.epochs))] if epochs else []),
        "previews": as_json(_previews(source, previews)),
        "neighbours": as_json(_neighbours(source)),
    }
    return whole_page("Memory map", static(), "app.css", carried)


def _columns(page: Page, epochs: History | None) -> bytes:
    """All columns and the first-order effects; what needs a server is not offered."""
    source, table = page.source, page.table
    effects = None
    if source.effects is not None and source.test is not None:
        found = source.effects().set_index("id").add_prefix("effect_").reindex(table["id"]).reset_index(drop=True)
        table = pd.concat([table, found], axis=1)
        effects = {"examples": len(source.test), "loss": float(source.test["loss"].mean())}
    absent = {"whatIf": False, "neighbours": _near(source), "influences": False, "test": 0, "keeps": "", "adapt": ""}
    absent["searchable"] = source.preview is not None and source.kind in ("text", "row")
    return page.columns(table, effects=effects, **absent, **({} if epochs else {"epochs": []}))


def _near(source: Source) -> bool:
    return source.neighbours is not None and len(source.table) <= NEAR_ROWS


def _neighbours(source: Source) -> dict[str, Any]:
    """The neighbours of the first suspects, by id."""
    if source.neighbours is None or not _near(source):
        return {}
    by = source.ranking if source.ranking in source.table else "error"
    suspects = source.table.nlargest(NEAR, by)["id"].tolist()
    k = min(NEAREST, len(source.table) - 1)
    return {str(i): source.neighbours(int(i), k) for i in track(suspects, "neighbours", total=len(suspects))}


def _previews(source: Source, count: int) -> dict[str, Any]:
    if source.preview is None:
        return {}
    by = source.ranking if source.ranking in source.table else "error"
    ids = source.table.nlargest(count, by)["id"].tolist()
    found = {}
    for i in track(ids, "previews", total=len(ids)):
        try:
            found[str(i)] = _carried(source.preview(i))
        except (OSError, PosterityError):
            continue  # the page says that it has none
    return found


def _carried(preview: Preview) -> dict[str, Any]:
    if isinstance(preview.content, bytes):
        return {"png": base64.b64encode(preview.content).decode()}
    if isinstance(preview.content, str):
        return {"text": preview.content[:TEXT] + ("…" if len(preview.content) > TEXT else "")}
    return {"row": jsonable(preview.content)}
