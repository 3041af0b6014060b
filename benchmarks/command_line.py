"""How long commands take to start: what a user waits for each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from results import Result, median, timed

ROOT = Path(__file__).resolve().parent.parent
SEMTRACE = Path(sys.executable).parent / "semtrace"


def run(folder: Path, times: int) -> dict[str, Result]:
    """The figures `cli.help` and `cli.check`, in seconds of the whole process; the check is of a small bundle."""
    small = folder / "small.semtrace"
    recording = ROOT / "examples/autogen/graphflow"
    words = [SEMTRACE, "import", *sorted(recording.glob("[ces]*.jsonl")), "-o", small, "--force"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    def seconds(*arguments: str | Path) -> Result:
        def call() -> None:
            subprocess.run([SEMTRACE, *arguments], check=True, stdout=subprocess.DEVNULL)

        call()
        taken = timed(call, times)
        return Result(median(taken), "s", taken)

    return {"cli.help": seconds("--help"), "cli.check": seconds("check", small)}
