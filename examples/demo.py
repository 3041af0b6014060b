"""The main job on real input: a recorded AutoGen run imported, checked, replayed under two plans, audited, compared.

Run by `make demo`. Every step is a command that a user types; the table at the end is made of what they print.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
RECORDING = Path("examples/autogen/graphflow")
OUT = Path("build/demo")
SEMTRACE = Path(sys.executable).parent / "semtrace"


def semtrace(*arguments: str | Path, show: bool = True) -> str:
    """Run a command of semtrace from the root of the repository and return what it prints."""
    words = [str(argument) for argument in arguments]
    if show:
        print(f"\n$ semtrace {' '.join(words)}", flush=True)
    done = subprocess.run([SEMTRACE, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    if show:
        print(done.stdout, end="")
    return done.stdout


def values(*arguments: str | Path) -> dict[str, Any]:
    """The JSON object that a command prints."""
    parsed: dict[str, Any] = json.loads(semtrace(*arguments, "--json", show=False))
    return parsed


def say(text: str) -> None:
    """Say what comes next."""
    print(f"\n# {text}", flush=True)


def main() -> None:
    """Go through the whole path."""
    shutil.rmtree(ROOT / OUT, ignore_errors=True)
    (ROOT / OUT).mkdir(parents=True)
    trace = OUT / "run.semtrace"
    plans = {name: OUT / f"{name}.plan.json" for name in ("dag", "barrier")}
    executions = {name: OUT / f"{name}.semtrace" for name in plans}

    say(
        "A planner, three analysts with tools side by side, an editor and a reviewer ran under AutoGen, and were logged."
    )
    sources = [RECORDING / name for name in ("events.jsonl", "spans.jsonl", "stream.jsonl", "config.json")]
    semtrace("import", *sources, "-o", trace)
    semtrace("check", trace)
    say("The tree of its stages; behind each operation what it waits for. Below, the run as AutoGen ran it.")
    semtrace("show", trace)
    say(
        "Two plans. dag: only what was recorded. barrier: the analysts one after the other, each pair with its proof."
    )
    semtrace("plan", trace, "--rule", "dag", "-o", plans["dag"])
    semtrace("plan", trace, "--rule", "barrier", "--by", "chain", "-o", plans["barrier"])
    say(
        "The same work, released under each plan, on a simulated backend that serves everything at once (see README)."
    )
    for name, plan in plans.items():
        semtrace("replay", trace, "--plan", plan, "--arrivals", "together", "-o", executions[name])
    semtrace("show", executions["barrier"], "--trace", trace)
    say(
        "Was it the same work, and was nothing released early or late? Each rule, and on how many cases it was judged."
    )
    semtrace("audit", trace, executions["barrier"])
    semtrace("compare", trace, executions["dag"], executions["barrier"])

    table = Table(title="One AutoGen run, two release rules, the same work", title_justify="left")
    for heading in ("plan", "added pairs", "width, greatest", "width, mean", "root latency ms", "audit"):
        table.add_column(heading, justify="left" if heading in {"plan", "audit"} else "right")
    for name, execution in executions.items():
        plan = json.loads((ROOT / plans[name]).read_text())
        measured = values("measure", trace, execution)
        audited = values("audit", trace, execution)
        table.add_row(
            name,
            str(sum(len(group["wait"]) * len(group["hold"]) for group in plan["groups"])),
            str(measured["width"]["max"]),
            f"{measured['width']['mean']:.2f}",
            f"{measured['root_latency']['p50'] / 1e6:,.1f}",
            "clean" if audited["clean"] else "[red]not clean[/red]",
        )
    print()
    Console().print(table)
    print(
        "added pairs: pairs of operations that the plan orders beyond the recorded edges. width: operations ready and not\n"
        "finished at one time. The work is the same to the token; only the release rule differs."
    )


if __name__ == "__main__":
    main()
