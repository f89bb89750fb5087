"""Plain English where people read: short sentences, plain headings, none of the phrases that made readers stop.

Deleting a page, or most of it, does not help: every page keeps its sections and most of its words.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from posterity.cli import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MADE = {"table.md"}  # by a command, from docstrings
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(page for page in DOCS.glob("*.md") if page.name not in MADE),
    *sorted((DOCS / "tutorials").glob("*.md")),
]
SOURCES = sorted((ROOT / "src" / "posterity").rglob("*.py"))
SCREENS = [path for kind in ("*.html", "*.js") for path in sorted((ROOT / "src" / "posterity" / "app").rglob(kind))]
LONGEST, AVERAGE = 36, 21  # words in a sentence, and in all of a page's

BANNED = (  # with what to write instead
    (r"\bhow surely\b", "how certain"),
    (r"\bsomebody\b|\bwhoever\b|\bnobody\b", "the actor: the user, a process, another program"),
    (r"\bhas cut us\b|\bsharp edges?\b", "common pitfalls, known limitations"),
    (r"\bknown to fall short\b", "known limitations"),
    (r"\bposterior wants\b|\bwants \"", "use `...`"),
    (r"\bwhere you are used to\b", "in the usual places"),
    (r"\bothers could have written\b", "that other users can write to"),
    (r"\bhessian stands\b", "the Hessian is not updated"),
    (r"\bspeaks? about\b", "assumes, applies to"),
    (r"\b(?:is|are) said\b|\bsays? so\b", "with a message; warns; raises"),
    (r"\btaken as given\b", "overrides"),
    (r"\bundecided of which\b", "abstains"),
    (r"\bnearly as near\b", "about as close"),
    (r"\bknows what it does not\b", "is uncertain"),
    (r"\bas you always did\b", "as before"),
    (r"\bout of reach\b", "not measured"),
    (r"\bbehind (?:its|their) back\b", "elsewhere"),
    (r"\bwhat there is to\b", "the message"),
    (r"\bat hand\b", "given, available"),
    (r"\bhand(?:s|ed)? over\b", "returns"),
    (r"\bspeaks? for\b", "suggests; inferred from"),
    (r"\bunless (?:told|said)\b", "by default"),
    (r"\b(?:stays? as (?:it is|they are)|left as (?:it is|they are))\b", "is not changed"),
    (r"\b(?:leaves?|left) behind\b", "returns, writes"),
    (r"\bmodel says\b", "the model's prediction"),
    (r"\bwhatever happens\b", "also after an error"),
)
HEADINGS = (  # riddles
    r"^(?:One idea|Interrupted|How equal|How far it is|Who can see it|How fast|What to know|Whole or not there)$",
    r"somebody|sharp edge|beside AdamW|and when not|to whom|what maps to what|ask, label|what goes in",
)


def paragraphs(text: str) -> Iterator[str]:
    """What is prose on a page: no code, tables, headings, pictures and lists of pages."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    ", "#", "!["))]
    for part in re.split(r"\n\s*\n|\n(?=\s*[-*] |\s*\d+\. )", "\n".join(lines)):
        yield re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(part.split()))


def sentences(text: str) -> list[str]:
    found = [s for part in paragraphs(text) for s in re.split(r"(?<=[.!?:;])\s+(?=[A-Z`\"(*])|(?<=[.!?])\s+", part)]
    return [s for s in found if s.strip()]


def complaints(text: str) -> list[str]:
    return [
        f"{match[0]!r}: write {instead!r}"
        for phrase, instead in BANNED
        for match in re.finditer(phrase, text, re.IGNORECASE)
    ]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_sentences_are_short(page):
    lengths = {sentence: len(sentence.split()) for sentence in sentences(page.read_text(encoding="utf-8"))}
    assert {s: n for s, n in lengths.items() if n > LONGEST} == {}
    assert statistics.fmean(lengths.values()) <= AVERAGE


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_phrase_that_made_readers_stop(page):
    text = page.read_text(encoding="utf-8")
    assert complaints(re.sub(r"\]\([^)]*\)", "]", text)) == []
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    assert [h for h in headings if any(re.search(riddle, h, re.IGNORECASE) for riddle in HEADINGS)] == []


def test_none_in_docstrings_and_messages():
    found = [
        f"{name(path)}:{node.lineno} {complaint}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for complaint in complaints(node.value)
    ]
    assert found == []


def test_none_on_screens():
    assert [f"{name(path)} {c}" for path in SCREENS for c in complaints(path.read_text(encoding="utf-8"))] == []


def test_none_in_benchmarks_and_examples():
    files = [
        *(DOCS / "benchmarks").glob("*.md"),
        *(ROOT / "benchmarks").glob("*.py"),
        *(ROOT / "examples").glob("*.py"),
    ]
    assert len(files) > 150
    assert [f"{name(path)} {c}" for path in sorted(files) for c in complaints(path.read_text(encoding="utf-8"))] == []


def test_help_is_short_and_complete():
    commands = get_command(app).commands
    assert len(commands) >= 14
    for command, content in commands.items():
        helps = [content.help or "", *(getattr(p, "help", None) or "" for p in content.params if p.name != "help")]
        assert all(helps), f"{command}: an option without help"
        long = [s for text in helps for s in sentences(text) if len(s.split()) > LONGEST]
        assert long == []
        assert [c for text in helps for c in complaints(text)] == []


# Sections and words that each page had when this was written, less a fifth.
LEAST = json.loads((ROOT / "tests" / "prose.json").read_text(encoding="utf-8"))


def size(page: Path) -> tuple[int, int]:
    text = page.read_text(encoding="utf-8")
    return len(re.findall(r"^##+ ", text, re.MULTILINE)), len(text.split())


def test_no_page_is_gone():
    assert set(LEAST) <= {name(page) for page in PAGES}


@pytest.mark.parametrize("page", sorted(LEAST))
def test_pages_keep_their_content(page):
    sections, words = size(ROOT / page)
    assert sections >= LEAST[page][0]
    assert words >= LEAST[page][1]


def test_every_page_begins_with_what_it_is_for():
    for page in PAGES:
        first = page.read_text(encoding="utf-8").split("\n## ")[0]
        assert len(" ".join(paragraphs(first)).split()) >= 10, name(page)


def test_the_navigation_leads_to_every_page():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"[\w/-]+\.md", yaml.safe_dump(yaml.safe_load(text)["nav"])))
    assert {str(page.relative_to(DOCS)) for page in PAGES if DOCS in page.parents} <= listed


def test_the_check_finds_what_it_looks_for():
    assert complaints("It says so, and somebody knows how surely.") != []
    assert complaints("The loader raises an error.") == []
    assert [len(s.split()) for s in sentences("One two three. Four five.\n\n- Six `seven`.\n\n| a | b |\n")] == [
        3,
        2,
        3,
    ]
