"""A page as one file that needs no server: its script, its style and what it carries, under a strict policy."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from posterity.app.bundle import bundle

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{script_hash}'; \
style-src '{style_hash}'; img-src data: blob:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
{carried}
<script type="module">{script}</script>
</body>
</html>
"""


def whole_page(title: str, files: Mapping[str, bytes], style: str, carried: Mapping[str, str]) -> str:
    """The page in one text.

    Args:
        title: Its title.
        files: Its own files by name: `index.html`, whose body is taken, `main.js` and the modules it imports, a style.
        style: Which file is the style.
        carried: Data by the id of the element that holds them: JSON (`as_json`), or packed bytes (`packed`).
    """
    texts = {name: data.decode() for name, data in files.items()}
    script = "\n" + bundle({name: text for name, text in texts.items() if name.endswith(".js")}, "main.js")
    look = "\n" + texts[style]
    elements = (f'<script type="text/plain" id="{name}">{data}</script>' for name, data in carried.items())
    return _PAGE.format(
        title=title,
        script=script,
        style=look,
        script_hash=_digest(script),
        style_hash=_digest(look),
        body=texts["index.html"].partition("<body>")[2].partition("</body>")[0].strip(),
        carried="\n".join(elements),
    )


def packed(data: bytes) -> str:
    """Bytes as a text that the page inflates."""
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def as_json(value: Any) -> str:
    """JSON that cannot end its HTML element."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _digest(text: str) -> str:
    """What the page's policy calls a script or a style that it lets in."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
