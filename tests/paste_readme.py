"""Run the Python and sh blocks of a README in the present folder as they stand: python paste_readme.py FILE BIN."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path


def main(readme: str, programs: str) -> int:
    """Run all blocks, and say which fail."""
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```", Path(readme).read_text(encoding="utf-8"), re.M | re.S)
    place = str(Path(programs).resolve())
    environment = {**os.environ, "PATH": place + os.pathsep + os.environ["PATH"]}
    python, failed = "", 0
    for kind, text in blocks:
        python += text if kind == "python" else ""  # later blocks use names of earlier ones
        commands = [[f"{place}/python", "-c", python]] if kind == "python" else [["sh", "-ec", text]]
        for words in commands:
            began = time.perf_counter()
            done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
            first = text.strip().splitlines()[0]
            print(f"{'ok' if done.returncode == 0 else 'FAILED'}  {time.perf_counter() - began:5.1f} s  {first}")
            if done.returncode:
                failed += 1
                print(done.stdout[-1000:] + done.stderr[-1000:])
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
