"""How long commands take to start, and a whole replay of a real trace: what a user waits for each time.

Python's bytecode is there, as it is where an installer has compiled it, whatever the environment says of writing it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from results import Result, median, timed

ROOT = Path(__file__).resolve().parent.parent
SEMTRACE = Path(sys.executable).parent / "semtrace"


def run(folder: Path, times: int) -> dict[str, Result]:
    """The figures `cli.help`, `cli.check` of a small bundle, and `cli.replay` of a real trace on the compiled engine.

    In seconds of the whole process, once all that is compiled once has been.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    small = folder / "small.semtrace"
    recording = ROOT / "examples/autogen/graphflow"
    words = [SEMTRACE, "import", *sorted(recording.glob("[ces]*.jsonl")), "-o", small, "--force"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    def seconds(*arguments: str | Path) -> Result:
        def call() -> None:
            command = [SEMTRACE, *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)

        call()
        taken = timed(call, times)
        return Result(median(taken), "s", taken)

    results = {"cli.help": seconds("--help"), "cli.check": seconds("check", small)}
    samples = os.environ.get("SEMTRACE_SAMPLES")
    if samples is None:
        print("cli.replay not run: SEMTRACE_SAMPLES is not set", file=sys.stderr)
        return results
    trace, execution = folder / "conversation.semtrace", folder / "conversation-replay.semtrace"
    source = Path(samples).resolve() / "peers/mooncake/conversation_trace.jsonl"
    words = [SEMTRACE, "import", source, "-o", trace, "--force"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    results["cli.replay"] = seconds("replay", trace, "--engine", "qwen3-8b-a100", "-o", execution, "--force")
    return results
