"""A document in one HTML file: headings, sentences, tables, pictures and previews, with nothing to be loaded."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

import pandas as pd

from posterity.app.source import Preview

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CELLS = 6  # cells of a table's row that a preview shows
_COLUMNS = 6  # columns of a table of rows
_LETTERS = 240  # of a text that a preview shows


@dataclass(frozen=True, eq=False)
class Picture:
    """A matplotlib figure and the sentence under it."""

    figure: Figure
    caption: str


@dataclass(frozen=True, eq=False)
class Card:
    """An example for the eye: its preview, where there is one, and some lines about it."""

    preview: Preview | None
    lines: Sequence[str]


@dataclass(frozen=True, eq=False)
class Code:
    """Commands or code to be copied."""

    text: str


@dataclass(frozen=True)
class Alarm:
    """A sentence in red: something that a reader must not miss."""

    text: str


Block = str | Alarm | pd.DataFrame | Picture | Code | Sequence[Card]


@dataclass(frozen=True, eq=False)
class Section:
    """A heading and its content, in order: sentences, tables, pictures, cards, code."""

    title: str
    blocks: Sequence[Block]


def document(title: str, lead: str, sections: Sequence[Section], footer: str = "") -> str:
    """The whole file.

    Args:
        title: Heading of the document.
        lead: The most important sentence.
        sections: In order of reading.
        footer: A line at the end.

    Returns:
        HTML that loads nothing: style and pictures are in the file, and scripts are forbidden.

    Examples:
        >>> page = document("Digits", "All is well.", [Section("Numbers", [pd.DataFrame({"a": [0.5]})])])
        >>> "<td>0.5</td>" in page, "://" in page
        (True, False)
    """
    style = resources.files("posterity.app").joinpath("report.css").read_text(encoding="utf-8")
    body = "".join(
        f"<section><h2>{escape(s.title)}</h2>{''.join(_block(block) for block in s.blocks)}</section>\n"
        for s in sections
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style></head>\n"
        f"<body><main><h1>{escape(title)}</h1>\n<p class='lead'>{escape(lead)}</p>\n{body}"
        f"<footer>{escape(footer)}</footer></main></body></html>\n"
    )


def _block(block: Block) -> str:
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>\n"
    if isinstance(block, Alarm):
        return f'<p class="alarm">{escape(block.text)}</p>'
    if isinstance(block, pd.DataFrame):
        return _table(block)
    if isinstance(block, Picture):
        return _picture(block)
    if isinstance(block, Code):
        whole = re.sub(r"--[\w-]+", r"<span>\g<0></span>", escape(block.text))  # a line may not end inside an option
        return f"<pre><code>{whole}</code></pre>\n"
    if block and all(card.preview is not None and isinstance(card.preview.content, Mapping) for card in block):
        return _rows(block)
    return f"<div class='cards'>{''.join(_card(card) for card in block)}</div>\n"


def shown(value: Any) -> str:
    """A number with four digits, or all before its point; anything else unchanged; nothing for what is missing."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"
    return str(value)


def _table(table: pd.DataFrame) -> str:
    named = not isinstance(table.index, pd.RangeIndex)
    heads = ["", *table.columns] if named else list(table.columns)
    rows = []
    for name, row in zip(table.index, table.itertuples(index=False)):
        first = f"<th scope='row'>{_wrapping(str(name))}</th>" if named else ""
        rows.append(f"<tr>{first}{''.join(f'<td>{escape(shown(cell))}</td>' for cell in row)}</tr>")
    head = "".join(f"<th scope='col'>{_wrapping(str(name))}</th>" for name in heads)
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>\n"


def _rows(cards: Sequence[Card]) -> str:
    """Rows of a table as a table: notes on each, and the columns in which they are most unusual."""
    unusual: dict[str, float] = {}
    for card in cards:
        for name, cell in _cells(card).items():
            unusual[name] = unusual.get(name, 0.0) + abs(cell.get("z") or 0.0)
    kept = set(sorted(unusual, key=lambda name: -unusual[name])[:_COLUMNS])
    names = [name for name in unusual if name in kept]
    lines = []
    for card in cards:
        first, *others = [*card.lines, ""]
        said = f"<div>{escape(first)}</div><div>{escape(' · '.join(line for line in others if line))}</div>"
        values = (_cells(card).get(name, {}).get("value") for name in names)
        lines.append(f"<tr><td class='said'>{said}</td>{''.join(f'<td>{escape(shown(v))}</td>' for v in values)}</tr>")
    head = "".join(f"<th scope='col'>{_wrapping(name)}</th>" for name in names)
    left = len(unusual) - len(names)
    more = f"<p class='more'>and {left} other columns</p>" if left else ""
    return (
        f"<div class='wide'><table class='rows'><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
        f"</table></div>{more}\n"
    )


def _cells(card: Card) -> Mapping[str, Any]:
    content = None if card.preview is None else card.preview.content
    return content if isinstance(content, Mapping) else {}


def _wrapping(name: str) -> str:
    """A name that may be broken after its underscores and points, and nowhere else."""
    return escape(name).replace("_", "_<wbr>").replace(".", ".<wbr>")


def _picture(picture: Picture) -> str:
    file = io.BytesIO()
    picture.figure.savefig(file, format="png", dpi=150)
    caption, width = escape(picture.caption), 4.6 * picture.figure.get_figwidth()
    image = f"<img alt='{caption}' style='width:{width:.0f}rem' src='{_inline(file.getvalue())}'>"
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>\n"


def _inline(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _card(card: Card) -> str:
    lines = "".join(f"<div>{escape(line)}</div>" for line in card.lines)
    return f"<div class='card'>{'' if card.preview is None else _preview(card.preview)}{lines}</div>"


def _preview(preview: Preview) -> str:
    content = preview.content
    if isinstance(content, bytes):
        return f"<img class='pixels' alt='' src='{_inline(content)}'>"
    if isinstance(content, str):
        return f"<blockquote>{escape(content[:_LETTERS])}{'…' if len(content) > _LETTERS else ''}</blockquote>"
    unusual = sorted(content.items(), key=lambda cell: -abs(cell[1].get("z") or 0.0))[:_CELLS]
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(shown(c['value']))}</td></tr>" for name, c in unusual)
    return f"<table>{cells}</table>"
