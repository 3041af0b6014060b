"""What the cases of the profile audit are made of: one work, its replays, and how a case is written down."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from semtrace.records.enums import AccessMode, EdgeKind, Evidence, OperationKind, OperationStatus
from semtrace.records.media import TOKEN_IDS_TYPE
from semtrace_conformance.making.draft import COMPACT, Draft, Run, zip_bytes
from semtrace_conformance.making.timing import Replayed, replay
from semtrace_conformance.making.work import FIRST, START, After, Op, TaskFacts, Work, llm, tool

if TYPE_CHECKING:
    from semtrace_conformance.making.book import Book

Json = Mapping[str, Any]
Row = dict[str, Any]

WORK: Final = Work(
    [
        llm("plan", 50, 11),
        tool("search", 700, "plan", delay=7),
        llm("a", 20, 4, After("plan", FIRST, 2)),
        llm("b", 10, 6, "plan"),
        llm("write", 40, 3, "search", "a", "b"),
        tool("log", 5, After("b", START)),
        Op("lost", ("a",), OperationKind.LLM, OperationStatus.ERROR, duration=33),
        tool("x", 9, task=1),
        llm("y", 30, 1, "x", task=1),
    ],
    [TaskFacts(answer="write"), TaskFacts()],
)
READS: Final = ("search", "write")
"""The second reads the state that the first wrote: their edge is of kind state."""
SMALL: Final = {"name": "ideal", "settings": {"c0_ns": 100, "c_pre_ns": 1, "c_dec_ns": 10}}
SCENARIO: Final = {"copies": 2, "arrivals": {"kind": "drawn", "times_ns": [0, 40, 300, 20]}, "backend": SMALL}
RUN: Final = "run"
PARTLY: Final = "clean, as far as it can be judged"
LOOP: Final = {"copies": 2, "arrivals": {"kind": "closed_loop", "users": 2, "think_ns": 5}, "backend": SMALL}
PLAN: Final = {
    "edges": [{"source": 2, "target": 3, "trigger": "start", "lag_ns": 60}],
    "groups": [{"wait": [1], "hold": [3, 5]}],
}


def trace(*, ids: bool = False) -> Draft:
    """The trace of the work; with the token ids of outputs, if asked for."""
    draft = Draft.of(WORK.build())
    draft.encoding = COMPACT
    source, target = (WORK.number(name) for name in READS)
    draft.put("edges", draft.find("edges", target=target, source=source), kind=EdgeKind.STATE)
    draft.rows("edges").sort(key=lambda each: (each["target"], each["source"], each["kind"], each["trigger"]))
    draft.rows("states").append({"namespace": "memory", "name": "notes", "scope": 2, "lifetime": 2})
    draft.rows("state_versions").append(
        {"state": 0, "version": 0, "base": None, "mode": 1, "artifact": None, "writer": source}
    )
    draft.rows("state_accesses").extend(
        [
            {"operation": source, "state_version": 0, "mode": AccessMode.WRITE},
            {"operation": target, "state_version": 0, "mode": AccessMode.READ},
        ]
    )
    if ids:
        for at, operation in enumerate(WORK.operations):
            if operation.output is not None:
                content = output_ids(at, operation.output)
                digest = blake3(content).digest()
                draft.content[digest] = (TOKEN_IDS_TYPE, content)
                draft.put("operations", at, output_token_ids=len(draft.rows("artifacts")))
                draft.rows("artifacts").append(
                    {"digest": digest, "size": len(content), "media_type": TOKEN_IDS_TYPE, "availability": 1}
                )
    return draft


def output_ids(operation: int, count: int) -> bytes:
    """The token ids of an output."""
    return struct.pack(f"<{count}I", *(1000 * operation + at for at in range(count)))


def rows_of(name: str) -> list[int]:
    """The rows of an operation's events, in the scenario of two copies."""
    at = WORK.number(name)
    task = WORK.operations[at].task
    sizes = [len(WORK.of_task(each)) for each in range(len(WORK.tasks))]
    begin = 2 * sum(sizes[:task])
    return [begin + copy * sizes[task] + at - WORK.of_task(task)[0] for copy in range(2)]


def found(requirement: str, rows: Sequence[int] | None = None, table: str = "events") -> Row:
    """A violation that must be found."""
    return {"requirement": requirement} | ({} if rows is None else {"table": table, "rows": list(rows)})


def bundle(run: Run) -> dict[str, bytes]:
    """The files of an execution."""
    members = Draft(None, runs={"run": run}, encoding=COMPACT).members()
    return {f"{RUN}/{name}": content for name, content in members.items()}


def custom_plan(**members: Any) -> Json:
    """A plan for the work."""
    return {"work_digest": trace().digest("work"), "name": "custom", **members}


def accept(
    book: Book,
    name: str,
    title: str,
    requirements: Sequence[str],
    run: Run,
    source: Draft,
    verdict: str = "clean",
) -> None:
    """A case whose execution is faithful."""
    run.header["work_digest"] = source.digest("work")
    book.accept(
        f"audit/{name}",
        title,
        ["ST-AUD-100", "ST-AUD-104", *requirements],
        kind="audit",
        files={"trace.semtrace": zip_bytes(source.members()), **bundle(run)},
        inputs={"trace": "trace.semtrace", "execution": RUN},
        facts={"violations": [], "verdict": verdict},
    )


def plant(
    book: Book,
    base: str,
    name: str,
    mutation: str,
    violations: Sequence[Row],
    run: Run,
    tests: Sequence[str] = (),
) -> None:
    """A case whose execution differs from that of another in one fault."""
    run.header.setdefault("work_digest", trace().digest("work"))
    book.change(
        f"audit/{base}",
        f"audit/{name}",
        mutation,
        [],
        files={
            **dict.fromkeys(name for name in book.pages[f"audit/{base}"].files if name.startswith(RUN)),
            **bundle(run),
        },
        facts={"violations": list(violations), "verdict": "violations"},
        tests=sorted({"ST-AUD-101", *(each["requirement"] for each in violations), *tests}),
    )


def events_of(run: Run) -> list[Row]:
    """The rows of an execution's events."""
    return run.tables["events"]


def put(run: Run, row: int, **values: Any) -> None:
    """Set columns of an event; times with their evidence."""
    events_of(run)[row].update(values)
    for name in [each for each in values if each.endswith("_ns")]:
        evidence = Evidence.MISSING if values[name] is None else Evidence.OBSERVED
        events_of(run)[row][name.replace("_ns", "_evidence")] = evidence


def clean_run() -> Run:
    """A faithful replay of the recorded edges."""
    return replay(WORK, custom_plan(name="dag"), SCENARIO).run()


def moved(replayed: Replayed, instance: int, by_ns: int) -> Replayed:
    """A replay with an instance, the last to arrive, moved in time."""
    instances = [dict(row) for row in replayed.instances]
    instances[instance]["arrival_ns"] += by_ns
    events = [
        {
            name: value + by_ns
            if name.endswith("_ns") and value is not None and row["instance"] == instance
            else value
            for name, value in row.items()
        }
        for row in replayed.events
    ]
    return replace(replayed, instances=instances, events=events)
