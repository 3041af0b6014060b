"""semtrace as a testee: the shim that any author writes, over semtrace's public functions alone.

    semtrace certify --testee "python conformance/testees/semtrace_testee.py"

It reads one message a line from standard input, and writes one line for each (protocol.md).
"""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path
from typing import Any, TextIO

import semtrace
from semtrace.build.ordering import order_operations
from semtrace.check import Finding, check_bundle, check_trace
from semtrace.errors import SemtraceError
from semtrace.graph.barrier import barrier
from semtrace.graph.legality import judge
from semtrace.graph.plan import Plan
from semtrace.measure.audit import audit
from semtrace.records.chat import rebuild_request
from semtrace.records.columns import NULL, Columns
from semtrace.records.enums import ContentLevel, EventOutcome
from semtrace.records.trace import MemoryContent, Trace
from semtrace.records.trace_tables import TRACE_TABLES
from semtrace.replay.run import replay
from semtrace.replay.scenario import BackendChoice, Scenario
from semtrace.store.artifact_store import ArtifactStore
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.digests import artifact_digest, execution_digest, show, trace_digest, work_digest
from semtrace.store.external import embed, externalize, named_digests

Json = dict[str, Any]

PROFILES = {
    "reader": ["directory", "zip", "executions", "requests"],
    "writer": ["directory", "zip", "rewrite", "numbering"],
    "planner": ["judge", "barrier"],
    "release": ["plans", "arrivals"],
    "audit": [],
    "live": ["plans", "arrivals", "retries", "failures", "concurrency", "record"],
    "token_locked": ["plans", "arrivals", "retries", "record"],
    "store": ["concurrent", "collect", "external"],
}
TIMES = ("ready_ns", "released_ns", "submitted_ns", "scheduled_ns", "first_token_ns", "finished_ns")
_PHASES = (
    (r"ST-EVO-.*|ST-SCN-01[02]|ST-REL-021|ST-LIV-021|ST-STO-003", "unsupported"),
    (r"ST-TAB-00[1235]|ST-DOC-.*|ST-STO-001", "malformed"),
    (r"ST-BND-0(11|12|13|14|22)|ST-DIG-.*|ST-ART-00[5678]|ST-STO-.*", "integrity"),
    (r"ST-BND-.*", "malformed"),
    (r"ST-REL-.*|ST-PLAN-.*|ST-SCN-.*|ST-LIV-.*|ST-INP-.*", "unreplayable"),
)
"""By requirement, the phase in which it is violated: the table of protocol.md."""


class Refused(Exception):  # noqa: N818  # an answer, not an error
    """The input is wrong: by which requirement, and, of a plan, the path that shows it."""

    def __init__(self, requirement: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.requirement = requirement
        self.facts = facts


def phase_of(requirement: str) -> str:
    """The phase in which a requirement is violated."""
    return next((phase for pattern, phase in _PHASES if re.fullmatch(pattern, requirement)), "invalid")


class Testee:
    """Answers the messages of the harness."""

    def handle(self, message: Json) -> Json | None:
        """The answer to a message; none to the last one."""
        if message["type"] == "start":
            if 1 not in message["protocols"] or "1.0-draft" not in message["specs"]:
                return {"type": "mismatch", "message": "this shim knows protocol 1 and spec 1.0-draft"}
            about = {"name": "semtrace", "version": semtrace.__version__, "language": "Python"}
            return {
                "type": "started",
                "protocol": 1,
                "spec": "1.0-draft",
                "testee": about,
                "profiles": PROFILES,
            }
        if message["type"] == "stop":
            return None
        return {"type": "answer", "id": message["id"], **self.answer(message)}

    def answer(self, message: Json) -> Json:
        """The verdict on a case."""
        ask = message.get("ask", {})
        inputs = {name: Path(path) for name, path in message["inputs"].items()}
        try:
            output = [Path(message["output"])] if "output" in message else []
            facts = getattr(self, message["kind"])(inputs, ask, *output)
        except Refused as error:
            return self.reject(error.requirement, str(error), error.facts)
        except SemtraceError as error:
            if error.requirement is None:
                return {"verdict": "error", "message": f"{error} ({error.code})"}
            return self.reject(error.requirement, str(error), {})
        return {"verdict": "accept", "facts": facts}

    def reject(self, requirement: str, message: str, facts: Json) -> Json:
        """A refusal."""
        return {
            "verdict": "reject",
            "phase": phase_of(requirement),
            "requirement": requirement,
            "message": message[:2000],
            "facts": facts,
        }

    # -- reader -----------------------------------------------------------------------------------------------

    def read(self, inputs: Json, ask: Json) -> Json:
        """A bundle: its digests and what is asked of it, or why it is none."""
        bundle = open_bundle(inputs["bundle"])
        self.refuse(check_bundle(bundle))
        facts: Json = {}
        if bundle.manifest.trace is not None:
            trace = bundle.trace
            level = ContentLevel(int(trace["trace"].ints("content_level")[0]))
            facts = {
                "work_digest": show(work_digest(trace)),
                "trace_digest": show(trace_digest(trace)),
                "content_level": level.name.lower(),
                "rows": {spec.name: trace[spec.name].rows for spec in TRACE_TABLES if trace[spec.name].rows},
                "cells": [
                    _cell(trace[table].row(row)[column]) for table, column, row in ask.get("cells", ())
                ],
                "inputs": [self.pieces(trace, operation) for operation in ask.get("inputs", ())],
                "requests": [rebuild_request(trace, operation) for operation in ask.get("requests", ())],
            }
            facts = {name: value for name, value in facts.items() if value or name == "rows"}
        if ask.get("executions"):
            facts["executions"] = {name: self.execution(bundle, name) for name in bundle.manifest.executions}
        return facts

    def refuse(self, findings: list[Finding]) -> None:
        """Refuse by the first finding, if there is one."""
        if findings:
            raise Refused(findings[0].requirement, str(findings[0]))

    def pieces(self, trace: Trace, operation: int) -> list[list[Any]]:
        """The whole input of an operation: own segments, and inherited ones and outputs."""
        base, count = (
            int(trace.operations.ints(name)[operation]) for name in ("context_base", "context_segments")
        )
        inherited = [] if base == NULL else [*self.pieces(trace, base), ["output", base]][:count]
        begin, end = (int(trace.segment_offsets[operation + at]) for at in range(2))
        return inherited + [["segment", at] for at in range(begin, end)]

    def execution(self, bundle: Any, name: str) -> Json:
        """Digests and sizes of an execution."""
        execution = bundle.execution(name)
        return {
            "execution_digest": show(execution_digest(execution)),
            "detail_digests": bundle.manifest.executions[name].detail_digests,
            "instances": execution.instances.rows,
            "events": execution.events.rows,
        }

    # -- writer -----------------------------------------------------------------------------------------------

    def write(self, inputs: Json, ask: Json, output: Path) -> Json:
        """A bundle of plain facts."""
        trace = self.trace_of(json.loads(inputs["facts"].read_text("utf-8"))["tables"])
        self.refuse(check_trace(trace))
        write_bundle(output, trace, directory=ask["form"] == "directory")
        return {"work_digest": show(work_digest(trace)), "trace_digest": show(trace_digest(trace))}

    def trace_of(self, tables: dict[str, list[Json]]) -> Trace:
        """The trace that rows say."""
        content = MemoryContent()
        for row in tables.get("artifacts", ()):
            raw = row.pop("text", None)
            held = (
                base64.b64decode(row.pop("base64"))
                if "base64" in row
                else None
                if raw is None
                else raw.encode()
            )
            if held is not None:
                row |= {"digest": artifact_digest(held).hex(), "size": len(held)}
                content[artifact_digest(held)] = held
        made = {}
        for spec in TRACE_TABLES:
            rows = tables.get(spec.name, [])
            columns = {
                column.name: [_value(row.get(column.name), column.type.name) for row in rows]
                for column in spec.columns
            }
            made[spec.name] = Columns.of(spec, columns)
        return Trace(made, content)

    def rewrite(self, inputs: Json, ask: Json, output: Path) -> Json:
        """A bundle written again."""
        bundle = open_bundle(inputs["bundle"])
        self.refuse(check_bundle(bundle))
        executions = {name: bundle.execution(name) for name in bundle.manifest.executions}
        write_bundle(output, bundle.trace, executions, info=bundle.info, directory=ask["form"] == "directory")
        return {
            "work_digest": show(work_digest(bundle.trace)),
            "trace_digest": show(trace_digest(bundle.trace)),
        }

    def number(self, inputs: Json, _ask: Json) -> Json:
        """The operations of a source in their canonical order."""
        rows = json.loads(inputs["source"].read_text("utf-8"))["operations"]
        tasks, starts = [row["task"] for row in rows], [row.get("started_ns") for row in rows]
        return {"order": order_operations(tasks, starts, [set(row["references"]) for row in rows], str)}

    # -- store ------------------------------------------------------------------------------------------------

    def get(self, inputs: Json, ask: Json) -> Json:
        """Content by its digest."""
        store = ArtifactStore(inputs["store"])
        found = [store.get(bytes.fromhex(digest.removeprefix("blake3:"))) for digest in ask["digests"]]
        return {"contents": [None if each is None else base64.b64encode(each).decode() for each in found]}

    def verify(self, inputs: Json, _ask: Json) -> Json:
        """A whole store, checked."""
        state = ArtifactStore(inputs["store"]).verify()
        for error in state.damaged:
            raise error
        return {"objects": state.objects}

    def put(self, inputs: Json, ask: Json) -> Json:
        """Content put into a store."""
        store = ArtifactStore(inputs["store"])
        return {
            "digests": [show(store.put((inputs["contents"] / name).read_bytes())) for name in ask["files"]]
        }

    def collect(self, inputs: Json, ask: Json) -> Json:
        """What no bundle names, removed."""
        named = named_digests(open_bundle(inputs["bundle"]).trace)
        collected = ArtifactStore(inputs["store"]).collect(named, grace_s=ask["grace_s"])
        return {"removed": [show(digest) for digest in collected.removed]}

    def externalize(self, inputs: Json, ask: Json, output: Path) -> Json:
        """The content of a bundle moved into a store."""
        return self.moved(
            externalize(open_bundle(inputs["bundle"]).trace, ArtifactStore(inputs["store"])), ask, output
        )

    def embed(self, inputs: Json, ask: Json, output: Path) -> Json:
        """Content taken from a store into a bundle."""
        return self.moved(
            embed(open_bundle(inputs["bundle"]).trace, ArtifactStore(inputs["store"])), ask, output
        )

    def moved(self, trace: Trace, ask: Json, output: Path) -> Json:
        """A trace written, with its digests."""
        write_bundle(output, trace, directory=ask["form"] == "directory")
        return {"work_digest": show(work_digest(trace)), "trace_digest": show(trace_digest(trace))}

    # -- planner ----------------------------------------------------------------------------------------------

    def judge(self, inputs: Json, _ask: Json) -> Json:
        """A plan: what each added edge is, or why it is not legal."""
        trace = open_bundle(inputs["trace"]).trace
        plan = Plan.read(inputs["plan"])
        judgement = judge(trace, plan)
        if judgement.findings:
            against = [list(verdict.path) for verdict in judgement.verdicts if not verdict.legal]
            path = [*against, *map(list, judgement.circles)][:1]
            raise Refused(
                judgement.findings[0].requirement, str(judgement.findings[0]), path=path[0] if path else None
            )
        verdicts = [verdict.kind for verdict in judgement.verdicts if verdict.edge is not None]
        return {"verdicts": verdicts, "plan_digest": plan.content_digest()}

    def barrier(self, inputs: Json, ask: Json) -> Json:
        """The groups of a barrier plan."""
        trace = open_bundle(inputs["trace"]).trace
        plan = barrier(trace, ask["rule"], width=ask.get("width", 1), stages=ask.get("stages"))
        groups = [{"wait": sorted(group.wait), "hold": sorted(group.hold)} for group in plan.groups]
        return {"groups": groups, "options": plan.options}

    # -- release ----------------------------------------------------------------------------------------------

    def replay(self, inputs: Json, _ask: Json) -> Json:
        """A virtual replay: its digest, and when everything happened."""
        trace = open_bundle(inputs["trace"]).trace
        self.refuse(check_trace(trace))
        execution = replay(trace, Plan.read(inputs["plan"]), Scenario.read(inputs["scenario"]))
        columns = [execution.events.array(name).to_pylist() for name in TIMES]
        return {
            "execution_digest": show(execution_digest(execution)),
            "arrivals": execution.instances.array("arrival_ns").to_pylist(),
            "times": [list(times) for times in zip(*columns, strict=True)],
        }

    # -- live, token_locked -----------------------------------------------------------------------------------

    def replay_live(self, inputs: Json, ask: Json, output: Path | None = None) -> Json:
        """A replay on a server: how many events ended in each way."""
        trace = open_bundle(inputs["trace"]).trace
        self.refuse(check_trace(trace))
        settings = {"url": ask["url"], "vocabulary": ask["vocabulary"]}
        scenario = Scenario.read(inputs["scenario"]).model_copy(
            update={"backend": BackendChoice(name="http", settings=settings)}
        )
        execution = replay(trace, Plan.read(inputs["plan"]), scenario)
        if output is not None:
            write_bundle(output, None, {"run": execution})
        outcomes = [EventOutcome(each).name.lower() for each in execution.events.ints("outcome").tolist()]
        return {"outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes))}}

    # -- audit ------------------------------------------------------------------------------------------------

    def audit(self, inputs: Json, _ask: Json) -> Json:
        """What an execution violates."""
        trace = open_bundle(inputs["trace"]).trace
        report = audit(trace, open_bundle(inputs["execution"]).execution())
        violations = [self.violation(finding) for finding in report.findings]
        return {"violations": violations, "verdict": report.verdict.value}

    def violation(self, finding: Finding) -> Json:
        """A violation with its rows."""
        return {"requirement": finding.requirement, "table": finding.table, "rows": list(finding.rows)}


def _cell(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _value(value: Any, kind: str) -> Any:
    if isinstance(value, str) and kind != "STRING":
        return bytes.fromhex(value) if kind == "BYTES32" else int(value)
    return value


def serve(testee: Testee, source: TextIO = sys.stdin, sink: TextIO = sys.stdout) -> None:
    """Answer lines until the last."""
    for line in source:
        answer = testee.handle(json.loads(line))
        if answer is None:
            return
        sink.write(json.dumps(answer, ensure_ascii=False) + "\n")
        sink.flush()


if __name__ == "__main__":
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # standard streams can be
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    serve(Testee())
