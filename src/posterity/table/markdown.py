"""Table 1 as a page of documentation, made from the registry."""

from __future__ import annotations

from collections.abc import Sequence

from posterity.table._row import Row


def markdown(rows: Sequence[Row]) -> str:
    """The table, then the derivation of each algorithm; nothing is run, so that the page is always the same."""
    lines = ["| row | posterior | approximations | reference | allowed deviation |", "|---|---|---|---|---|"]
    for row in rows:
        allowed = f"{row.tolerance:g}" if row.unit == "absolute" else f"{row.tolerance:g} ({row.unit})"
        anchor = f"[{row.name}](#{row.title.replace('.', '').lower()})"
        lines.append(f"| {anchor} | {row.posterior} | {row.approximations} | {row.reference} | {allowed} |")
    derivations = {row.title: row.derivation for row in rows}
    lines += [f"\n### {name}\n\n{text}" for name, text in derivations.items()]
    return "\n".join(lines) + "\n"
