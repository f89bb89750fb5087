"""The web application: a page, its columns once, and short answers to questions."""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from posterity.app import decisions
from posterity.app.endpoints import BINARY, file_of, starlette
from posterity.app.jobs import Jobs
from posterity.app.packing import bits, rows_of
from posterity.app.page import Page, exact, jsonable, static
from posterity.app.security import Wall
from posterity.app.source import Preview, Ranked, Source
from posterity.errors import InvalidInput, PosterityError, expected, require
from posterity.files import one_at_a_time

TRAILS = 300  # most examples whose ways are drawn
QUERY = 1000  # characters
WAIT = 20.0  # seconds for another server that writes decisions
WHOLE = "-?[0-9]{1,19}"


class Whole(Convertor[int]):
    """A whole number in a path; thousands of digits, which `int` refuses, are no path of ours."""

    regex = WHOLE

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("whole", Whole())


class Answers:
    """The answers to requests, from a source that is loaded when first needed."""

    def __init__(self, load: Callable[[], Source]) -> None:
        self._load, self._lock = load, threading.Lock()
        self._files, self._jobs = static(), Jobs()

    @cached_property
    def _page(self) -> Page:
        return Page(self._load())

    @property
    def page(self) -> Page:
        """The page, loaded at the first request."""
        with self._lock:
            return self._page

    @property
    def source(self) -> Source:
        """What is shown."""
        return self.page.source

    def file(self, request: Request) -> Response:
        """One of the page's own files."""
        return file_of(self._files, request)

    def columns(self, request: Request) -> Response:
        """All columns, and what else can be asked for."""
        return Response(self.page.columns(), media_type=BINARY)

    def example(self, request: Request) -> Response:
        """The exact numbers of an example."""
        return JSONResponse(exact(self.source, request.path_params["id"]))

    def preview(self, request: Request) -> Response:
        """A training example for the eye."""
        self.source.row(request.path_params["id"])
        return _shown(_offered(self.source.preview, "previews"), request.path_params["id"])

    def search(self, request: Request) -> Response:
        """Which rows contain a text, as a mask."""
        wanted = request.query_params.get("q", "")
        require(0 < len(wanted) <= QUERY, "q", f"1 to {QUERY} characters", len(wanted))
        return Response(bits(_offered(self.source.search, "search")(wanted)), media_type=BINARY)

    def neighbours(self, request: Request) -> Response:
        """The nearest training examples of one."""
        self.source.row(request.path_params["id"])
        ask = _offered(self.source.neighbours, "neighbours")
        return JSONResponse(_pairs(ask(request.path_params["id"], _count(request))))

    def test(self, request: Request) -> Response:
        """The test examples."""
        _offered(self.source.test, "test examples")
        return Response(self.page.test(), media_type=BINARY)

    def test_preview(self, request: Request) -> Response:
        """A test example for the eye."""
        self._test(request)
        return _shown(_offered(self.source.test_preview, "previews of test examples"), request.path_params["id"])

    def influences(self, request: Request) -> Response:
        """The training examples that most move a test prediction."""
        self._test(request)
        ask = _offered(self.source.influences, "influences")
        return JSONResponse(_pairs(ask(request.path_params["id"], _count(request))))

    def epoch(self, request: Request) -> Response:
        """The memory at one epoch."""
        history, index = _offered(self.page.history, "history"), request.path_params["index"]
        require(0 <= index < len(history.epochs), "epoch", f"a number below {len(history.epochs)}", index)
        return Response(history.at(index), media_type=BINARY)

    def trails(self, body: Any) -> Response:
        """The ways of some examples over the epochs."""
        history = _offered(self.page.history, "history")
        return JSONResponse(history.trails(self._rows(body, "mask")[:TRAILS]))

    def what_if(self, body: Any) -> Response:
        """The estimated effect of removing and relabelling: {"remove": mask, "relabel": {id: class or number}}."""
        ask = _offered(self.source.what_if, "what-if")
        return JSONResponse(jsonable(asdict(ask(*self._change(body)))))

    def measure(self, body: Any) -> Response:
        """Begin to measure the effect of the same, in the background; answers with the number to ask for."""
        ask = _offered(self.source.measure, "measure")
        remove, relabel = self._change(body)
        require(bool(remove or relabel), "measure", "examples to remove or relabel", "none")
        return JSONResponse({"job": self._jobs.start(lambda progress: ask(remove, relabel, progress))})

    def measured(self, request: Request) -> Response:
        """How far a measurement is, and what came out."""
        return JSONResponse(jsonable(asdict(self._jobs.about(request.path_params["job"]))))

    def _change(self, body: Any) -> tuple[list[int], dict[int, Any]]:
        """Ids to remove, and new labels by id."""
        ids = self.source.table["id"].to_numpy()[self._rows(body, "remove")].tolist()
        relabel = body.get("relabel", {})
        require(isinstance(relabel, dict), "relabel", "an object", relabel)
        return ids, dict(self._label(i, y) for i, y in relabel.items())

    def decide(self, body: Any) -> Response:
        """Take in new marks: {"decisions": [...]}; answers with all in the file, from other pages too."""
        require(isinstance(body, dict), "body", "an object", body)
        path, rows, classes = self.source.decisions, self.source.rows, self.source.classes
        if path is None:
            decisions.updated([], body.get("decisions"), rows, classes)
            return JSONResponse({"kept": "", "decisions": None})
        try:
            with one_at_a_time(path.parent, WAIT):  # between reading and writing nobody does either, in any server
                found = decisions.updated(decisions.read(path, rows, classes), body.get("decisions"), rows, classes)
                decisions.write(path, found)
        except PosterityError:
            raise
        except OSError as why:
            raise HTTPException(500, f"{path.name} cannot be written: {why.strerror}") from None
        return JSONResponse({"kept": path.name, "decisions": found})

    def _rows(self, body: Any, name: str) -> np.ndarray[Any, Any]:
        require(isinstance(body, dict), "body", "an object", body)
        try:
            return rows_of(base64.b64decode(body.get(name, ""), validate=True), len(self.source.table))
        except (binascii.Error, TypeError, ValueError):
            raise expected(name, "a mask in base64", body.get(name)) from None

    def _label(self, example: str, label: Any) -> tuple[int, Any]:
        number = _whole(example, "id to relabel")
        self.source.row(number)
        classes = self.source.classes
        finite = type(label) in (int, float) and -1e300 < label < 1e300  # JSON of Python's knows NaN
        fine = finite and (not classes or label in range(len(classes)))
        require(fine, f"new label of {number}", "a class or a number", label)
        return number, label

    def _test(self, request: Request) -> None:
        count = 0 if self.source.test is None else len(self.source.test)
        example = request.path_params["id"]
        require(0 <= example < count, "test example", f"a number below {count}", example)


def application(load: Callable[[], Source], *, hosts: Iterable[str], token: str, port: int) -> Wall:
    """The whole application behind its wall.

    Args:
        load: Gives the source, when the page first asks; what it raises is shown in the page.
        hosts: Exact values of the Host header that are served.
        token: Secret that the first address carries.
        port: Where it listens.
    """
    answers = Answers(load)
    gets: dict[str, Callable[[Request], Response]] = {
        "/": answers.file,
        "/static/{name}": answers.file,
        "/api/columns": answers.columns,
        "/api/example/{id:whole}": answers.example,
        "/api/preview/{id:whole}": answers.preview,
        "/api/search": answers.search,
        "/api/neighbours/{id:whole}": answers.neighbours,
        "/api/test": answers.test,
        "/api/test/preview/{id:whole}": answers.test_preview,
        "/api/influences/{id:whole}": answers.influences,
        "/api/epoch/{index:whole}": answers.epoch,
        "/api/measure/{job:whole}": answers.measured,
    }
    posts: dict[str, Callable[[Any], Response]] = {
        "/api/trails": answers.trails,
        "/api/what-if": answers.what_if,
        "/api/measure": answers.measure,
        "/api/decisions": answers.decide,
    }
    return Wall(starlette(gets, posts), hosts, token, port)


def _offered(thing: Any, what: str) -> Any:
    if thing is None:
        raise InvalidInput(f"{what}: not available for this map")
    return thing


def _count(request: Request) -> int:
    count = _whole(request.query_params.get("k", "12"), "k")
    require(1 <= count <= 100, "k", "a number from 1 to 100", count)
    return count


def _whole(text: str, what: str) -> int:
    if not re.fullmatch(WHOLE, text):
        raise expected(what, "a whole number", text[:40])
    return int(text)


def _pairs(found: Ranked) -> list[Sequence[float]]:
    return [[i, value] for i, value in found]


def _shown(preview: Callable[[int], Preview], example: int) -> Response:
    try:
        shown = preview(example)
    except FileNotFoundError:
        raise HTTPException(404, f"the file of example {example} is gone") from None
    if shown.kind == "image":
        return Response(shown.content, media_type="image/png")
    if shown.kind == "text":
        return Response(shown.content, media_type="text/plain; charset=utf-8")
    return JSONResponse(jsonable(shown.content))
