"""The run that the examples of spec/measures.md and spec/audit.md are about, and what an example changes in it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure_cases import change, plan_of, scenario_of

from semtrace.build import TraceBuilder
from semtrace.records.columns import Columns
from semtrace.records.enums import EventOutcome, Evidence, OperationKind, Outcome, Role
from semtrace.records.execution import Backend, Execution, ExecutionHeader
from semtrace.records.execution_tables import EVENTS, INSTANCES
from semtrace.records.media import TOKEN_IDS_TYPE
from semtrace.records.trace import MemoryContent, Trace
from semtrace.store.digests import artifact_digest

SPEC = Path(__file__).parents[3] / "spec"
TIMES = ("ready", "released", "submitted", "scheduled", "first_token", "finished")


def blocks(page: str, kind: str) -> list[dict[str, Any]]:
    text = (SPEC / page).read_text("utf-8")
    return [json.loads(b) for b in re.findall(rf"^```json {kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


def requirements(page: str) -> list[str]:
    return re.findall(r"^\*\*\[(ST-[A-Z]+-\d{3})\]\*\*", (SPEC / page).read_text("utf-8"), re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """A trace, the rows of its operations by name, and the run itself."""

    trace: Trace
    rows: dict[str, int]
    execution: Execution

    def plan(self, short: dict[str, Any]):
        def ids(names: list[str]) -> list[int]:
            return [self.rows[name] for name in names]

        edges = [
            {**e, "source": self.rows[e["source"]], "target": self.rows[e["target"]]}
            for e in short.get("edges", ())
        ]
        groups = [{"wait": ids(g["wait"]), "hold": ids(g["hold"])} for g in short.get("groups", ())]
        return plan_of(self.trace, edges=edges, groups=groups)

    def changed(self, example: dict[str, Any]) -> Execution:
        """The run with what an example changes in it."""
        cells: dict[int, dict[str, Any]] = {}
        for name, values in example.get("change", {}).items():
            cells[self.rows[name]] = {
                column: EventOutcome[value.upper()] if column == "outcome" else self._cell(column, value)
                for column, value in values.items()
            }
        for name, evidence in example.get("evidence", {}).items():
            cells.setdefault(self.rows[name], {}).update(
                {f"{time}_evidence": Evidence[evidence.upper()] for time in TIMES}
            )
        header = dict(example.get("header", {}))
        if "plan" in example:
            plan = self.plan(example["plan"])
            header |= {"plan": plan.as_json(), "plan_digest": plan.content_digest()}
        if header.get("mode") == "native":
            header |= {"plan": None, "plan_digest": None, "clock": "wall", "scenario": None}
        if isinstance(header.get("backend"), dict):
            header["backend"] = Backend(**header["backend"])
        return change(
            self.execution,
            cells,
            drop=tuple(self.rows[name] for name in example.get("drop", ())),
            double=tuple(self.rows[name] for name in example.get("double", ())),
            instances={0: example["instance"]} if "instance" in example else None,
            **header,
        )

    def _cell(self, column: str, value: Any) -> Any:
        if column == "output_ids" and value is not None:  # the ids that another operation returned
            return self.execution.events.row(self.rows[value])["output_ids"]
        return value


def spec_run(*, ids: bool = False) -> Run:
    (short,) = blocks("measures.md", "run")
    b = TraceBuilder()
    task = b.task("report", arrival_ns=short["arrival_ns"])
    stages: dict[str, int] = {}
    for stage in short["stages"]:
        stages[stage["name"]] = b.stage(task, stage["name"], parent=stages.get(stage.get("parent")))
    sessions: dict[str, int] = {}
    rows: dict[str, int] = {}
    for op in short["operations"]:
        agent = op["agent"]
        if agent not in sessions:
            sessions[agent] = b.session(task, agent=agent)
        row = rows[op["name"]] = b.operation(
            task,
            OperationKind[op["kind"].upper()],
            op["name"],
            stage=stages[op["stage"]],
            session=sessions[agent],
            prompt_tokens=op.get("prompt"),
            output_tokens=op.get("output"),
            duration_ns=op.get("duration_ns"),
            external_delay_ns=op.get("delay_ns", 0),
        )
        for piece in op.get("input", ()):
            text = piece.get("text", f"output of {piece.get('of')}")
            source = rows[piece["of"]] if "of" in piece else None
            b.segment(row, Role.USER, text, source=source, tokens=piece["tokens"])
        for source in op.get("after", ()):
            b.edge(row, rows[source])
        for writer in op.get("reads_state_of", ()):
            b.read(row, b.version(b.state("team", f"of {writer}", task=task), "notes", writer=rows[writer]))
        if ids and "output" in op:
            raw = b"".join((1000 * row + at).to_bytes(4, "little") for at in range(op["output"]))
            b.update_operation(row, output_token_ids=b.artifact(raw, TOKEN_IDS_TYPE))
    b.update_task(task, answer_operation=rows[short["answer"]])
    trace = b.build().trace
    content = MemoryContent()
    for row in trace.operations.ints("output_token_ids").tolist():
        raw = trace.artifact(row)
        if raw is not None:
            content[artifact_digest(raw)] = raw
    own = sorted(content)
    events = []
    for op in short["operations"]:
        times = dict(zip(TIMES, short["events"][op["name"]], strict=True))
        row = rows[op["name"]]
        model = op["kind"] == "llm"
        held = trace.artifact(int(trace.operations.ints("output_token_ids")[row]))
        events.append(
            {
                "instance": 0,
                "operation": row,
                **{f"{name}_ns": value for name, value in times.items()},
                **{
                    f"{name}_evidence": Evidence.MISSING if value is None else Evidence.OBSERVED
                    for name, value in times.items()
                },
                "outcome": EventOutcome.OK,
                "prompt_tokens": op.get("prompt"),
                "output_tokens": op.get("output"),
                "preemptions": 0 if model else None,
                "output_ids": None if held is None else own.index(artifact_digest(held)),
            }
        )
    plan = plan_of(trace)
    header = ExecutionHeader(
        work_digest=plan.work_digest,
        plan_digest=plan.content_digest(),
        plan=plan.as_json(),
        mode="length_locked",
        clock="virtual",
        measured_at="simulator",
        backend=Backend(name="by hand"),
        scenario=scenario_of(trace, [short["arrival_ns"]]),
    )
    tables = {
        "instances": Columns.of(
            INSTANCES,
            {"task": [0], "instance": [0], "arrival_ns": [short["arrival_ns"]], "outcome": [Outcome.SUCCESS]},
        ).data,
        "events": Columns.of(EVENTS, {n: [event.get(n) for event in events] for n in EVENTS.by_name}).data,
    }
    return Run(trace, rows, Execution.from_arrow(header, tables, content))
