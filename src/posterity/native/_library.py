"""A C source compiled for this machine, once; the library is kept in the user's cache folder.

Threads are those of torch where that can be had: the code is compiled with OpenMP and linked without it, so that its
calls go to the runtime that torch has loaded, and two pools of threads do not fight over the same cores.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from posterity.progress import track

COMPILERS = ("cc", "gcc", "clang")
FLAGS = (
    *("-std=c99", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"),
    "-ffp-contract=off",  # every operation is rounded as it is written, the same way by all compilers
)
# On macOS a second copy of LLVM's runtime would end the process: torch's own is looked for, or none is used.
OPENMP = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-fopenmp",)
WAYS = tuple(  # flags to compile with and to link with, best first
    ((*target, *threads), linked)
    for target in (("-march=native",), ())
    for threads, linked in ((("-fopenmp",), ()), (("-fopenmp",), OPENMP), ((), ()))
)
ROOT = 0  # a user who could change everything anyway
CPUINFO = Path("/proc/cpuinfo")
PROCESSOR = ("model name", "flags", "CPU implementer", "CPU part", "Features")  # x86, and what ARM has in their place
_log = logging.getLogger("posterity.optim")


class NoLibrary(Exception):
    """Why there is none."""


def load(source: Path, definitions: Sequence[str] = (), headers: Path | None = None) -> ctypes.CDLL:
    """Load the library of a source, compiled now if it has not been before; `NoLibrary` says why it cannot be.

    Args:
        source: The file.
        definitions: Its macros, as NAME=value.
        headers: A folder of headers, beside its own.
    """
    compiler = find_compiler()
    options = [*FLAGS, *(f"-D{definition}" for definition in definitions)]
    options += [] if headers is None else ["-I", str(headers)]
    name, folder = f"{source.stem}-{_digest(source, compiler, options, headers)}.so", _cache()
    if folder is not None and (folder / name).exists() and _safe(folder / name):
        try:
            return ctypes.CDLL(str(folder / name))
        except OSError:
            _log.info("%s does not load and is compiled again", folder / name)
    # Made where it is kept: there it can be put in place at once, and loaded even if temporary files may not be run.
    place = folder if folder is not None and os.access(folder, os.W_OK) else None
    try:
        with tempfile.TemporaryDirectory(dir=place) as scratch:
            made, library = _make(source, compiler, options, Path(scratch))
            if place is not None:
                _keep(made, place / name)
    except OSError as why:
        raise NoLibrary(f"{source.name} cannot be compiled: {why}") from why
    return library


def _keep(made: Path, path: Path) -> None:
    try:
        made.chmod(0o700)
        os.replace(made, path)
    except OSError as why:
        _log.info("%s cannot be kept: %s", path, why)


def _cache() -> Path | None:
    """The folder of libraries, or None if there is none that is safe."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "posterity"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as why:  # the latter for a user without a home
        _log.info("no folder for compiled code: %s", why)
        return None
    return folder if _safe(folder) else None


def _safe(path: Path) -> bool:
    """Whether only this user, or root, can write there: what is loaded is run."""
    about = path.stat()
    safe = about.st_uid in (ROOT, os.geteuid()) and not about.st_mode & 0o022
    if not safe:
        _log.warning("%s is not used: it belongs to another user, or others may write to it", path)
    return safe


def find_compiler() -> list[str]:
    """The command in $CC, or the first compiler there is."""
    if os.name != "posix":
        raise NoLibrary("C kernels are compiled on Linux and macOS alone")
    command = shlex.split(os.environ.get("CC", "")) or [name for name in COMPILERS if shutil.which(name)][:1]
    path = shutil.which(command[0]) if command else None
    if path is None:
        raise NoLibrary("no C compiler was found; install one, or name one in the environment variable CC")
    return [path, *command[1:]]


def _digest(source: Path, compiler: list[str], options: list[str], headers: Path | None = None) -> str:
    about = os.stat(compiler[0])
    parts = [*compiler, about.st_size, about.st_mtime_ns, *options, WAYS, platform.machine(), _processor()]
    folders = [source.parent] if headers is None else [source.parent, headers]
    texts = [path.read_bytes() for path in (source, *(h for folder in folders for h in sorted(folder.glob("*.h"))))]
    return hashlib.sha256(b"".join(texts) + repr(parts).encode()).hexdigest()[:20]


def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(next((line for line in lines if line.startswith(key)), "") for key in PROCESSOR)


def _make(source: Path, compiler: list[str], options: list[str], scratch: Path) -> tuple[Path, ctypes.CDLL]:
    """Compile, link and load in the best way that works."""
    _log.info("compiling %s for this machine, which takes some seconds, once", source.name)
    trouble = ""
    for number, (compiled, linked) in enumerate(track(WAYS, f"compiling {source.name}, once")):
        target, library = scratch / f"{number}.o", scratch / f"{number}.so"
        try:
            _run([*compiler, *options, *compiled, "-c", str(source), "-o", str(target)])
            _run([*compiler, "-shared", str(target), "-o", str(library), *linked, "-lm"])
            return library, ctypes.CDLL(str(library))
        except (OSError, subprocess.SubprocessError) as why:
            said = why.stderr.strip() if isinstance(why, subprocess.CalledProcessError) else ""
            trouble = trouble or (said or str(why)).splitlines()[-1]
    raise NoLibrary(f"{source.name} does not compile with {compiler[0]}: {trouble}")


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", timeout=300)
