"""Pages under names that they had, or that people try: each sends its reader on, also from disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

REDIRECTS = {
    "quickstart": "index.html",
    "getting-started": "index.html",
    "install": "index.html#install",
    "tutorials/index": "../index.html#choose-your-job",
    "adaptation": "adapt.html",
    "memory-map": "memory.html",
    "merging": "merge.html",
    "explore-next": "explore.html",
    "exploration": "explore.html",
    "prediction": "predict.html",
    "learning": "fit.html",
    "table-1": "table.html",
    "table1": "table.html",
    "pitfalls": "sharp-edges.html",
    "sharp_edges": "sharp-edges.html",
    "command_line": "command-line.html",
    "cli": "command-line.html",
    "from_adamw": "from-adamw.html",
    "from_ivon_opt": "from-ivon-opt.html",
    "from_laplace_torch": "from-laplace-torch.html",
    "from_cleanlab": "from-cleanlab.html",
    "lightning": "hosts.html",
    "trainers": "hosts.html",
    "optimisers": "optimizers.html",
    "variational": "from-adamw.html",
    "costs": "cost.html",
    "contributing": "architecture.html",
}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Moved</title>
<meta http-equiv="refresh" content="0; url={to}"><link rel="canonical" href="{to}"></head>
<body><p>This page has moved to <a href="{to}">{to}</a>.</p></body></html>
"""


def on_post_build(config: Any) -> None:
    """Write the pages that redirect; mkdocs calls this when the site is built."""
    site = Path(config["site_dir"])
    for old, new in REDIRECTS.items():
        page = site / f"{old}.html"
        target = (page.parent / new.partition("#")[0]).resolve()
        if page.exists() or not target.is_file():
            raise ValueError(f"redirect {old}: expected a free name and a page to go to, got {new}")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(PAGE.format(to=new), encoding="utf-8")
