"""The files of the page, and the page as one file that carries the presets' films."""

from __future__ import annotations

from importlib import resources

from posterity.app._write_html import as_json, digest, packed
from posterity.app.bundle import bundle
from posterity.app.rule.catalogue import asked, catalogue
from posterity.app.rule.presets import PRESETS
from posterity.progress import track

SHARED = ("dom.js",)  # modules of the memory map's page that this one uses too

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{script_hash}'; \
style-src '{style_hash}'; img-src data: blob:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>The Bayesian learning rule</title>
<style>{style}</style>
</head>
<body>
{body}
<script type="application/json" id="catalogue">{catalogue}</script>
<script type="application/json" id="films">{films}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def static() -> dict[str, bytes]:
    """The files of the page, by name; nothing else is ever read for a request."""
    own = resources.files("posterity.app.rule").joinpath("static")
    other = resources.files("posterity.app").joinpath("static")
    found = {file.name: file.read_bytes() for file in own.iterdir() if file.is_file()}
    return found | {name: other.joinpath(name).read_bytes() for name in SHARED}


def document() -> str:
    """The page with the films of all presets."""
    files = {name: data.decode() for name, data in static().items()}
    script = "\n" + bundle({name: text for name, text in files.items() if name.endswith(".js")}, "main.js")
    style = "\n" + files["rule.css"]
    body = files["index.html"].partition("<body>")[2].partition("</body>")[0]
    films = {}
    for name in track(list(PRESETS), "films", total=len(PRESETS)):
        films[name] = packed(as_json(asked({"preset": name})).encode())
    return _PAGE.format(
        script=script,
        style=style,
        script_hash=digest(script),
        style_hash=digest(style),
        body=body.strip(),
        catalogue=as_json(catalogue()),
        films=as_json(films),
    )
