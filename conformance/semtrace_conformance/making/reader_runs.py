"""The reader's case with executions, and its mutations."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from semtrace.records.enums import (
    BlockAction,
    Direction,
    EventOutcome,
    Evidence,
    OperationKind,
    OperationStatus,
    Outcome,
    Phase,
    Tier,
)
from semtrace.records.execution_tables import EXECUTION_TABLE
from semtrace_conformance.making.draft import TABLES, Draft, Run, arrow
from semtrace_conformance.making.reader_cases import BUNDLE, change, facts_of, in_folder
from semtrace_conformance.making.team import duo
from semtrace_conformance.observe import root_digest

if TYPE_CHECKING:
    from semtrace_conformance.making.book import Book

Row = dict[str, Any]
Edit = Callable[[Run], object]
TIMES: Final = ("ready", "released", "submitted", "scheduled", "first_token", "finished")


def add_reader_runs(book: Book) -> None:
    """Add the case with executions, and its mutations."""
    draft = with_runs()
    book.accept(
        "reader/executions",
        "a trace with two executions: a native run of which little is known, and one with all details",
        ["ST-DIG-012", "ST-DIG-013", "ST-DIG-014", "ST-EXE-001", "ST-EXE-009", "ST-DOC-004"],
        kind="read",
        files=in_folder(draft.members()),
        inputs={"bundle": BUNDLE},
        facts={**facts_of(draft, {}), "executions": {name: _facts(run) for name, run in draft.runs.items()}},
        features=["directory", "executions"],
        ask={"executions": True},
    )
    replay = with_replay()
    book.accept(
        "reader/replay",
        "a trace with a replay of three instances",
        ["ST-DIG-012", "ST-EXE-001", "ST-EXE-002", "ST-EXE-003"],
        kind="read",
        files=in_folder(replay.members()),
        inputs={"bundle": BUNDLE},
        facts={
            **facts_of(replay, {}),
            "executions": {name: _facts(run) for name, run in replay.runs.items()},
        },
        features=["directory", "executions"],
        ask={"executions": True},
    )
    alone = with_run_alone()
    book.accept(
        "reader/execution-alone",
        "a bundle that holds an execution and no trace",
        ["ST-DIG-012", "ST-BND-010"],
        kind="read",
        files=in_folder(alone.members()),
        inputs={"bundle": BUNDLE},
        facts={"executions": {"run": _facts(alone.runs["run"])}},
        features=["directory", "executions"],
        ask={"executions": True},
    )
    _mutations(book)
    _headers(book)
    _content(book)
    _stated(book)


def _facts(run: Run) -> Row:
    tables = {name: arrow(EXECUTION_TABLE[name], rows) for name, rows in run.tables.items()}
    whole = {name: tables[name] for name in ("instances", "events")}
    return {
        "execution_digest": root_digest(whole, TABLES, {"run"}, "semtrace v1 execution"),
        "detail_digests": {
            name: root_digest({name: tables[name]}, TABLES, {"run"}, "semtrace v1 execution")
            for name in run.header["detail"]
        },
        "instances": len(run.tables["instances"]),
        "events": len(run.tables["events"]),
    }


def with_runs() -> Draft:
    """A trace with two executions."""
    draft = duo().draft()
    operations = draft.rows("operations")
    draft.runs = {"native": _native(operations), "detailed": _detailed(operations)}
    return draft


def with_replay() -> Draft:
    """A trace with one execution, without details."""
    draft = with_runs()
    run = draft.runs["detailed"]
    run.header["detail"] = []
    for name in set(run.tables) - {"instances", "events"}:
        run.tables[name] = []
    draft.runs = {"replay": run}
    return draft


def with_run_alone() -> Draft:
    """An execution without its trace."""
    whole = with_runs()
    alone = Draft(None, runs={"run": whole.runs["native"]})
    alone.runs["run"].header["work_digest"] = whole.digest("work")
    return alone


def _event(
    operation: int, row: Mapping[str, Any], instance: int, times: Mapping[str, int | None], **more: Any
) -> Row:
    outcome = {OperationStatus.OK: EventOutcome.OK, OperationStatus.ERROR: EventOutcome.ERROR}[row["status"]]
    event: Row = {"instance": instance, "operation": operation, "outcome": outcome, **more}
    for name in TIMES:
        event[f"{name}_ns"] = times.get(name)
        event[f"{name}_evidence"] = Evidence.MISSING if times.get(name) is None else Evidence.OBSERVED
    return event


def _header(**more: Any) -> Row:
    return {"mode": "native", "clock": "wall", "tolerance_ns": 0, "measured_at": "client",
            "backend": {"name": "native", "settings": {}}, "detail": [], "environment": {}, "seeds": {}, **more}  # fmt: skip


def _native(operations: Sequence[Row]) -> Run:
    events = [
        _event(
            at,
            row,
            row["task"],
            {"submitted": 1000 * at, "finished": 1000 * at + 500} if at % 3 else {},
            request_id=f"r{at}",
        )
        for at, row in enumerate(operations)
    ]
    instances: list[Row] = [
        {"task": 0, "instance": 0, "arrival_ns": 0, "outcome": Outcome.SUCCESS},
        {"task": 1, "instance": 0, "arrival_ns": None, "outcome": Outcome.UNKNOWN},
    ]
    tables: dict[str, list[Row]] = {name: [] for name in EXECUTION_TABLE}
    header = _header(origin_unix_ns="1790000000123456789", seeds={"arrivals": "9223372036854775807"})
    return Run(header, {**tables, "instances": instances, "events": events})


def _detailed(operations: Sequence[Row]) -> Run:
    instances: list[Row] = [
        {"task": 0, "instance": 0, "arrival_ns": 0, "outcome": Outcome.SUCCESS},
        {"task": 0, "instance": 1, "arrival_ns": 7, "outcome": Outcome.FAILURE},
        {"task": 1, "instance": 0, "arrival_ns": 9, "outcome": Outcome.UNKNOWN},
    ]
    events = []
    for instance, facts in enumerate(instances):
        for at, row in enumerate(operations):
            if row["task"] == facts["task"]:
                begin = 1000 * at + instance
                times: dict[str, int | None] = dict(
                    zip(TIMES, (begin, begin, begin + 1, begin + 2, begin + 50, begin + 90), strict=True)
                )
                if row["kind"] != OperationKind.LLM:
                    times |= {"scheduled": None, "first_token": None}
                events.append(
                    _event(at, row, instance, times, prompt_tokens=row["prompt_tokens"], output_tokens=row["output_tokens"],
                           cached_tokens=8 if row["kind"] == OperationKind.LLM and row["prompt_tokens"] else None, preemptions=0, attempts=1, server=0)
                )  # fmt: skip
    contents = [struct.pack("<3I", 7, 8, at) for at in range(2)]
    content = {blake3(each).digest(): each for each in contents}
    events[0]["output_ids"], events[1]["output_ids"] = 0, 1
    tables: dict[str, list[Row]] = {
        "instances": instances,
        "events": events,
        "steps": [
            {"server": server, "index": at, "start_ns": 10 * at, "end_ns": 10 * at + 9, "tokens": 5, "requests": 1, "free_blocks": 99}
            for server in range(2)
            for at in range(3)
        ],
        "step_runs": [
            {"event": 0, "first_step": 0, "count": 1, "start_position": 0, "tokens_per_step": 30, "phase": Phase.PREFILL},
            {"event": 0, "first_step": 1, "count": 2, "start_position": 30, "tokens_per_step": 1, "phase": Phase.DECODE},
            {"event": 1, "first_step": 2, "count": 1, "start_position": 0, "tokens_per_step": 19, "phase": Phase.PREFILL},
        ],
        "blocks": [
            {"time_ns": time, "sequence": sequence, "server": 0, "tier": Tier.DEVICE, "action": BlockAction.ALLOCATE, "event": 0,
             "blocks": 2, "bytes": 4096, "reason": None}
            for time, sequence in ((0, 0), (0, 1), (5, 0))
        ],
        "transfers": [
            {"server": 0, "link": link, "direction": Direction.OUT, "start_ns": start, "end_ns": start + 4, "bytes": 4096, "event": None}
            for start, link in ((0, "pcie"), (0, "pcie2"), (3, "pcie"))
        ],
        "decisions": [
            {"time_ns": 4, "sequence": at, "policy": "keep", "event": at, "inputs": f'{{"free":{at}}}', "choice": "keep"}
            for at in range(2)
        ],
    }  # fmt: skip
    header = _header(
        mode="length_locked", clock="virtual", measured_at="simulator", backend={"name": "engine", "version": "1", "settings": {"x": 1}},
        detail=["steps", "step_runs", "blocks", "transfers", "decisions"], **{"example.org/colour": "blue"},
    )  # fmt: skip
    return Run(header, tables, content)


def _mutations(book: Book) -> None:
    def of_run(
        name: str, mutation: str, reasons: str | Sequence[str], edit: Edit, run: str = "replay"
    ) -> None:
        draft, base = (with_replay(), "replay") if run == "replay" else (with_runs(), "executions")
        wanted = [reasons] if isinstance(reasons, str) else list(reasons)
        change(book, base, name, mutation, wanted, draft, lambda each: edit(each.runs[run]))

    def of_detail(name: str, mutation: str, reasons: str | Sequence[str], edit: Edit) -> None:
        of_run(name, mutation, reasons, edit, "detailed")

    def put(table: str, row: int, **values: Any) -> Edit:
        return lambda run: run.tables[table][row].update(values)

    def swap(table: str, one: int, other: int) -> Edit:
        def apply(run: Run) -> None:
            rows = run.tables[table]
            rows[one], rows[other] = rows[other], rows[one]

        return apply

    of_run("run-of-other-work", "an execution is of other work", "ST-EXE-001",
           lambda run: run.header.update(work_digest="blake3:" + 64 * "0"))  # fmt: skip
    of_run("run-value", "the outcome of an event is 0", "ST-ENUM-001", put("events", 3, outcome=0))
    of_run(
        "run-reference",
        "an event is of an instance that is not there",
        ["ST-TAB-006", "ST-EXE-004"],
        put("events", 6, instance=3),
    )
    of_run(
        "instances-swapped",
        "two instances are numbered 1, 0",
        "ST-EXE-002",
        lambda run: (put("instances", 0, instance=1)(run), put("instances", 1, instance=0)(run)),
    )
    of_run(
        "instance-gap",
        "the instances of a task are numbered 0, 2",
        "ST-EXE-002",
        put("instances", 1, instance=2),
    )
    of_run("events-swapped", "two events are swapped", "ST-EXE-003", swap("events", 3, 4))
    of_run(
        "event-twice",
        "an event is there twice",
        "ST-EXE-003",
        lambda run: run.tables["events"].append(dict(run.tables["events"][-1])),
    )
    of_run(
        "event-of-other-task",
        "an event is of an operation of another task",
        "ST-EXE-004",
        put("events", 6, operation=2),
    )
    of_run(
        "end-before-start",
        "an event ends before it was submitted",
        "ST-EXE-005",
        put("events", 5, finished_ns=2001),
    )
    of_run(
        "released-before-ready",
        "an event is released before it is ready",
        "ST-EXE-005",
        put("events", 5, released_ns=2000),
    )
    of_run(
        "evidence-of-nothing",
        "the evidence of an unknown time is not missing",
        "ST-EXE-006",
        put("events", 2, first_token_evidence=1),
    )
    of_run(
        "evidence-missing",
        "the evidence of a known time is missing",
        "ST-EXE-006",
        put("events", 1, submitted_evidence=4),
        "native",
    )
    of_run(
        "cached",
        "more tokens are cached than the prompt has",
        "ST-EXE-007",
        put("events", 0, cached_tokens=31),
    )
    of_run(
        "computed",
        "fewer tokens are computed than are not cached",
        "ST-EXE-018",
        put("events", 0, computed_prompt_tokens=21),
    )
    of_run(
        "attempts",
        "an operation was submitted twice on a virtual clock",
        "ST-EXE-019",
        put("events", 0, attempts=2),
    )
    of_run(
        "no-attempt",
        "an operation that was submitted was not submitted once",
        "ST-EXE-019",
        put("events", 1, attempts=0),
        "native",
    )
    of_run(
        "preempted",
        "an operation was preempted for longer than it took",
        "ST-EXE-020",
        put("events", 0, preemptions=1, preempted_ns=90),
    )
    of_run(
        "not-preempted",
        "an operation that was never preempted spent time preempted",
        "ST-EXE-020",
        put("events", 0, preempted_ns=1),
    )
    of_detail("detail-not-declared", "a detail table with rows is not declared", "ST-EXE-008",
           lambda run: run.header.update(detail=["steps", "step_runs", "blocks", "transfers"]))  # fmt: skip
    of_detail("detail-unknown", "a detail is declared that there is not", "ST-EXE-009",
           lambda run: run.header["detail"].append("queues"))  # fmt: skip
    of_detail("output-ids", "output ids are not there", "ST-EXE-010", put("events", 1, output_ids=2))
    of_detail(
        "step-gap", "the steps of a server are numbered 0, 1, 3", "ST-EXE-011", put("steps", 2, index=3)
    )
    of_detail("step-backwards", "a step ends before it starts", "ST-EXE-012", put("steps", 4, end_ns=9))
    of_detail(
        "transfer-backwards", "a transfer ends before it starts", "ST-EXE-012", put("transfers", 2, end_ns=2)
    )
    of_detail("runs-swapped", "two runs of steps are swapped", "ST-EXE-013", swap("step_runs", 0, 1))
    of_detail("run-empty", "a run has no step", "ST-EXE-014", put("step_runs", 1, count=0))
    of_detail("blocks-swapped", "block events are not in order of time", "ST-EXE-015", swap("blocks", 1, 2))
    of_detail(
        "decision-gap",
        "the decisions of an instant are numbered 0, 2",
        "ST-EXE-015",
        put("decisions", 1, sequence=2),
    )
    of_detail(
        "transfers-swapped",
        "two transfers of one instant are not in order of their links",
        "ST-EXE-016",
        swap("transfers", 0, 1),
    )
    of_detail(
        "inputs-not-canonical",
        "what a decision saw has a space too many",
        "ST-EXE-017",
        put("decisions", 0, inputs='{"free": 0}'),
    )
    of_detail(
        "inputs-not-json",
        "what a decision saw is cut short",
        "ST-EXE-017",
        put("decisions", 0, inputs='{"free":'),
    )


def _headers(book: Book) -> None:
    wrong = ["ST-DOC-001", "ST-BND-010", "ST-DOC-006"]

    def header(name: str, mutation: str, edit: Callable[[Row], object], *more: str) -> None:
        change(book, "execution-alone", name, mutation, [*more, *wrong], with_run_alone(),
               lambda draft: edit(draft.runs["run"].header))  # fmt: skip

    header(
        "header-value",
        "the mode of an execution is one that there is not",
        lambda values: values.update(mode="sometimes"),
    )
    header(
        "header-key",
        "the header of an execution has a member that headers do not have",
        lambda values: values.update(origin_ns=1),
    )
    header(
        "header-member",
        "the header of an execution does not say where times were read",
        lambda values: values.pop("measured_at"),
    )
    header(
        "origin-as-number",
        "the origin of an execution is a number",
        lambda values: values.update(origin_unix_ns=5),
        "ST-DOC-004",
    )
    header(
        "seed-with-zero",
        "a seed begins with a zero",
        lambda values: values.update(seeds={"arrivals": "07"}),
        "ST-DOC-004",
    )


def _content(book: Book) -> None:
    def held(name: str, mutation: str, requirement: str, edit: Callable[[Run], object]) -> None:
        change(book, "replay", name, mutation, [requirement], with_replay(),
               lambda draft: edit(draft.runs["replay"]))  # fmt: skip

    def altered(run: Run) -> None:
        first = min(run.content)
        run.content[first] = run.content[first][:-1] + b"\7"

    def cut(run: Run) -> None:
        ids = run.content.pop(min(run.content))[:-1]
        run.content[blake3(ids).digest()] = ids

    held("output-ids-altered", "the output ids of an execution were altered", "ST-ART-007", altered)
    held("output-ids-cut", "the output ids of an execution are 11 bytes", "ST-ART-004", cut)


def _stated(book: Book) -> None:
    def stated(name: str, mutation: str, reasons: Sequence[str], edit: Callable[[Draft], object]) -> None:
        change(book, "executions", name, mutation, reasons, with_runs(), edit)

    wrong = "blake3:" + 64 * "0"
    stated("execution-digest", "the manifest says another execution digest", ["ST-DIG-014"],
           lambda draft: draft.runs["native"].stated.update(execution_digest=wrong))  # fmt: skip
    stated("detail-digest", "the manifest says another digest of a detail", ["ST-DIG-014"],
           lambda draft: draft.runs["detailed"].stated.update(detail_digests={**_facts(draft.runs["detailed"])["detail_digests"], "steps": wrong}))  # fmt: skip

    def missing(draft: Draft) -> None:
        digests = _facts(draft.runs["detailed"])["detail_digests"]
        del digests["blocks"]
        draft.runs["detailed"].stated["detail_digests"] = digests

    stated(
        "detail-digest-missing", "the manifest does not say the digest of a detail", ["ST-DIG-014"], missing
    )

    def shared(draft: Draft) -> None:
        def seal(manifest: Row) -> None:
            runs = manifest["executions"]
            for entry in runs["again"]["tables"].values():
                draft.files[entry["path"]] = None
            runs["again"]["tables"] = runs["native"]["tables"]

        draft.runs["again"] = with_runs().runs["native"]
        draft.seal = seal

    def named(draft: Draft) -> None:
        def seal(manifest: Row) -> None:
            manifest["executions"][".native"] = manifest["executions"].pop("native")

        draft.seal = seal

    stated(
        "execution-name", "the name of an execution begins with a dot", ["ST-BND-015", "ST-BND-003"], named
    )
    stated("member-named-twice", "two executions are said to be the same members", ["ST-BND-014"], shared)
