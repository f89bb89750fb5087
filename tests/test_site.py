"""The documentation as a site: it builds strictly, loads nothing from elsewhere, and leaves no measurement out."""

import functools
import http.server
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import FunctionType

import pytest

import posterity

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LOADED = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built(site):
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS)).with_suffix(".html").is_file()


REDIRECTS = runpy.run_path(str(DOCS / "redirects.py"))["REDIRECTS"]


@pytest.mark.parametrize("old", REDIRECTS)
def test_old_names_of_pages_lead_on(site, old):
    page = (site / f"{old}.html").read_text(encoding="utf-8")
    target, _, anchor = REDIRECTS[old].partition("#")
    assert f'url={REDIRECTS[old]}"' in page
    there = (site / f"{old}.html").parent / target
    assert not anchor or f'id="{anchor}"' in there.read_text(encoding="utf-8")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def addresses(site):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {"disk": site.as_uri(), "http": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("where", ["disk", "http"])
def test_search_finds_a_page(addresses, where):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(200_000)  # on a busy machine
        page.goto(f"{addresses[where]}/tutorials/clean-a-table.html", wait_until="load")
        page.locator("[data-md-component=search-query]").focus()
        page.keyboard.type("mergekit configurations")
        first = page.locator(".md-search-result__item a").first  # whose page may change until the last letter is read
        sync_api.expect(first).to_have_attribute("href", re.compile(r"merge\.html$"), timeout=200_000)
        page.goto(f"{addresses[where]}/quickstart.html")
        page.wait_for_url("**/index.html")
        browser.close()


def test_nothing_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        assert LOADED.findall(page.read_text(encoding="utf-8")) == []
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8"))


def test_the_reference_documents_what_it_names(site):
    for page in (DOCS / "api").glob("*.md"):
        text = (site / "api" / page.name).with_suffix(".html").read_text(encoding="utf-8")
        for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert f'id="{name}"' in text, name


def public(package):
    """The classes and functions that a package offers: its `__all__`, or what its `__init__` takes from its modules."""
    names = getattr(package, "__all__", [name for name in vars(package) if not name.startswith("_")])
    return {name for name in names if isinstance(getattr(package, name), (type, FunctionType))}


def test_the_reference_leaves_no_public_name_out():
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    described = set(re.findall(r"^::: posterity\.(\S+)$", pages, re.MULTILINE))
    packages = {
        name: getattr(posterity, name) for name in posterity.__all__ if hasattr(getattr(posterity, name), "__path__")
    }
    offered = {f"{name}.{thing}" for name, package in packages.items() for thing in public(package)}
    assert offered - described == set()


def test_every_table_of_measurements_is_listed():
    listed = set(re.findall(r"\(benchmarks/(\w+)\.md\)", (DOCS / "benchmarks.md").read_text(encoding="utf-8")))
    assert listed == {page.stem for page in (DOCS / "benchmarks").glob("*.md")}


def test_every_picture_is_shown_and_every_shown_picture_is_there():
    shown = {
        match
        for page in (ROOT / "README.md", *DOCS.rglob("*.md"))
        for match in re.findall(r"pictures/(\w+)\.png", page.read_text(encoding="utf-8"))
    }
    assert shown == {picture.stem for picture in (DOCS / "pictures").glob("*.png")}
