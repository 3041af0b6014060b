"""A small team as a bundle, and a way to run commands: what the tests of the command line share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from semtrace.build import TraceBuilder
from semtrace.cli.main import build
from semtrace.records.enums import OperationKind, StageTemplate
from semtrace.store.bundle import write_bundle

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)


def run(*arguments: object) -> Ran:
    """Run a command in this process. A traceback is an error of the test."""
    result = CliRunner().invoke(build(), [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return Ran(result.exit_code, result.stdout, result.stderr)


def team() -> TraceBuilder:
    """A planner, two analysts side by side, each with a tool, and a writer that joins them."""
    builder = TraceBuilder(origin_unix_ns=1_700_000_000_000_000_000)
    task = builder.task("compare two cities", arrival_ns=0, input="Compare Oslo and Rome.")
    work = builder.stage(task, "research", template=StageTemplate.FORK_JOIN)
    model = builder.model("small")

    def call(
        agent: str, start: int, text: str, sources: dict[int, int], stage: int | None, answer: str
    ) -> int:
        session = builder.session(task, agent=agent, model=model)
        made = builder.operation(
            task, OperationKind.LLM, agent, stage=stage, session=session, model=model,
            started_ns=start, prompt_tokens=50, output_tokens=10,
        )  # fmt: skip
        builder.request(
            made, [{"role": "system", "content": agent}, {"role": "user", "content": text}], sources=sources
        )
        builder.output(made, {"content": answer})
        builder.observe(made, submitted_ns=start, finished_ns=start + 5_000_000)
        return made

    plan = call("planner", 0, "Compare Oslo and Rome.", {}, None, "look both up")
    found = []
    for at, city in enumerate(("Oslo", "Rome")):
        stage = builder.stage(task, city, parent=work)
        asked = call(
            f"analyst-{city}", 6_000_000 + at, "look both up", {1: plan}, stage, f"weather in {city}"
        )
        tool = builder.operation(
            task,
            OperationKind.TOOL,
            "weather",
            stage=stage,
            started_ns=12_000_000 + at,
            duration_ns=30_000_000,
        )
        builder.segment(tool, 3, f"weather in {city}", source=asked)
        builder.output(tool, f"{city}: sunny")
        builder.observe(tool, submitted_ns=12_000_000 + at, finished_ns=42_000_000 + at)
        found.append(tool)
    writer = builder.session(task, agent="writer", model=model)
    last = builder.operation(
        task, OperationKind.LLM, "writer", session=writer, model=model,
        started_ns=50_000_000, prompt_tokens=80, output_tokens=20,
    )  # fmt: skip
    builder.request(
        last,
        [{"role": "user", "content": "Oslo: sunny"}, {"role": "user", "content": "Rome: sunny"}],
        sources={0: found[0], 1: found[1]},
    )
    builder.output(last, {"content": "both are sunny"})
    builder.observe(last, submitted_ns=50_000_000, finished_ns=55_000_000)
    builder.update_task(task, output="both are sunny", answer_operation=last)
    return builder


@pytest.fixture(scope="session")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The team's trace with its native execution, as a ZIP file."""
    path = tmp_path_factory.mktemp("bundle") / "team.semtrace"
    built = team().build()
    write_bundle(path, built.trace, {"native": built.execution} if built.execution else {})
    return path
