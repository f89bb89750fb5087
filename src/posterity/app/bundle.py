"""The page's own ES modules as one script: each becomes a function that returns what it exports."""

from __future__ import annotations

import re
from collections.abc import Mapping

from posterity.errors import InvalidInput

IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (async function|function|const|let|class) (\w+)", re.MULTILINE)


def bundle(modules: Mapping[str, str], entry: str) -> str:
    r"""One script that does what loading `entry` would do.

    Args:
        modules: Sources by file name; imports name what they take, one statement each.
        entry: Where to start.

    Examples:
        >>> a, b = 'import { two } from "./b.js";\ntwo();\n', "export const two = () => 2;\n"
        >>> print(bundle({"a.js": a, "b.js": b}, "a.js"))
        const $b = (() => {
        const two = () => 2;
        return { two };
        })();
        const $a = (() => {
        const { two } = $b;
        two();
        return {  };
        })();
        <BLANKLINE>
    """
    done: list[str] = []
    written: list[str] = []

    def add(name: str, waiting: tuple[str, ...]) -> None:
        if name in done:
            return
        if name in waiting or name not in modules:
            raise InvalidInput(f"bundle: expected modules without circles, got {' -> '.join((*waiting, name))}")
        for _, other in IMPORT.findall(modules[name]):
            add(other, (*waiting, name))
        done.append(name)
        written.append(_closed(name, modules[name]))

    add(entry, ())
    return "".join(written)


def _closed(name: str, source: str) -> str:
    exports = [found for _, found in EXPORT.findall(source)]
    body = IMPORT.sub(lambda m: f"const {{{m[1].replace(' as ', ': ')}}} = {_room(m[2])};\n", source)
    body = EXPORT.sub(lambda m: f"{m[1]} {m[2]}", body)
    return f"const {_room(name)} = (() => {{\n{body}return {{ {', '.join(exports)} }};\n}})();\n"


def _room(name: str) -> str:
    return "$" + name.removesuffix(".js")
