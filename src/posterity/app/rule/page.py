"""The files of the page, and the page as one file that carries the presets' films."""

from __future__ import annotations

from importlib import resources

from posterity.app.rule.catalogue import asked, catalogue
from posterity.app.rule.presets import PRESETS
from posterity.app.whole_page import as_json, packed, whole_page
from posterity.progress import track

SHARED = ("ask.js", "dom.js")  # modules of the memory map's page that this one uses too


def static() -> dict[str, bytes]:
    """The files of the page, by name; nothing else is ever read for a request."""
    own = resources.files("posterity.app.rule").joinpath("static")
    other = resources.files("posterity.app").joinpath("static")
    found = {file.name: file.read_bytes() for file in own.iterdir() if file.is_file()}
    return found | {name: other.joinpath(name).read_bytes() for name in SHARED}


def document() -> str:
    """The page with the films of all presets."""
    films = {}
    for name in track(list(PRESETS), "films", total=len(PRESETS)):
        films[name] = packed(as_json(asked({"preset": name})).encode())
    carried = {"catalogue": as_json(catalogue()), "films": as_json(films)}
    return whole_page("The Bayesian learning rule", static(), "rule.css", carried)
