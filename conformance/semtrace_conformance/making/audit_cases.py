"""The cases of the profile audit: clean executions, and such with one fault planted."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from semtrace.records.enums import (
    AccessMode,
    EdgeKind,
    EventOutcome,
    Evidence,
    OperationKind,
    OperationStatus,
)
from semtrace.records.media import TOKEN_IDS_TYPE
from semtrace_conformance.making.draft import COMPACT, Draft, Run, zip_bytes
from semtrace_conformance.making.timing import Faults, Replayed, plan_digest, replay
from semtrace_conformance.making.work import FIRST, START, After, Op, TaskFacts, Work, llm, tool

if TYPE_CHECKING:
    from collections.abc import Callable

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


def add_audit(book: Book) -> None:
    """Add all cases of the profile."""
    _clean(book)
    _presence(book)
    _identity(book)
    _headers(book)
    _counts(book)
    _release(book)
    _plans(book)
    _other_modes(book)


def _bundle(run: Run) -> dict[str, bytes]:
    members = Draft(None, runs={"run": run}, encoding=COMPACT).members()
    return {f"{RUN}/{name}": content for name, content in members.items()}


def _plan(**members: Any) -> Json:
    return {"work_digest": trace().digest("work"), "name": "custom", **members}


def _accept(
    book: Book,
    name: str,
    title: str,
    requirements: Sequence[str],
    run: Run,
    source: Draft,
    verdict: str = "clean",
) -> None:
    run.header["work_digest"] = source.digest("work")
    book.accept(
        f"audit/{name}",
        title,
        ["ST-AUD-100", "ST-AUD-104", *requirements],
        kind="audit",
        files={"trace.semtrace": zip_bytes(source.members()), **_bundle(run)},
        inputs={"trace": "trace.semtrace", "execution": RUN},
        facts={"violations": [], "verdict": verdict},
    )


def _change(
    book: Book,
    base: str,
    name: str,
    mutation: str,
    violations: Sequence[Row],
    run: Run,
    tests: Sequence[str] = (),
) -> None:
    run.header.setdefault("work_digest", trace().digest("work"))
    book.change(
        f"audit/{base}",
        f"audit/{name}",
        mutation,
        [],
        files={
            **dict.fromkeys(name for name in book.pages[f"audit/{base}"].files if name.startswith(RUN)),
            **_bundle(run),
        },
        facts={"violations": list(violations), "verdict": "violations"},
        tests=sorted({"ST-AUD-101", *(each["requirement"] for each in violations), *tests}),
    )


PLAN: Final = {
    "edges": [{"source": 2, "target": 3, "trigger": "start", "lag_ns": 60}],
    "groups": [{"wait": [1], "hold": [3, 5]}],
}


def _clean(book: Book) -> None:
    dag = _plan(name="dag")
    _accept(
        book, "clean", "a faithful replay of the recorded edges",
        ["ST-AUD-001", "ST-AUD-002", "ST-AUD-003", "ST-AUD-004", "ST-AUD-005", "ST-AUD-006", "ST-AUD-010", "ST-AUD-012"],
        replay(WORK, dag, SCENARIO).run(), trace(),
    )  # fmt: skip
    _accept(
        book, "plan", "a faithful replay under a plan with an added edge and a group",
        ["ST-AUD-013", "ST-AUD-030", "ST-AUD-034", "ST-AUD-035", "ST-AUD-102"],
        replay(WORK, _plan(**PLAN), SCENARIO).run(), trace(),
    )  # fmt: skip
    _accept(
        book, "closed-loop", "a faithful replay of a closed loop", ["ST-AUD-006"],
        replay(WORK, dag, LOOP).run(), trace(),
    )  # fmt: skip


def _rows(run: Run) -> list[Row]:
    return run.tables["events"]


def _set(run: Run, row: int, **values: Any) -> None:
    _rows(run)[row].update(values)
    for name in [each for each in values if each.endswith("_ns")]:
        evidence = Evidence.MISSING if values[name] is None else Evidence.OBSERVED
        _rows(run)[row][name.replace("_ns", "_evidence")] = evidence


def _of_clean() -> Run:
    return replay(WORK, _plan(name="dag"), SCENARIO).run()


def _presence(book: Book) -> None:
    def change(name: str, mutation: str, violations: Sequence[Row], spoil: Callable[[Run], object]) -> None:
        run = _of_clean()
        spoil(run)
        _change(book, "clean", name, mutation, violations, run)

    log = rows_of("log")[1]
    missing = [found("ST-AUD-001", [1], "instances")]  # of the task's second copy
    change("missing", "an event is missing", missing, lambda run: _rows(run).pop(log))
    change(
        "double",
        "an event is there twice",
        [found("ST-AUD-001", [log + 1])],
        lambda run: _rows(run).insert(log, dict(_rows(run)[log])),
    )
    x = WORK.number("x")
    change(
        "stray", "an event is of an operation of another task", [found("ST-AUD-001", [7])],
        lambda run: _rows(run).insert(7, {**_rows(run)[rows_of("x")[0]], "instance": 0, "operation": x}),
    )  # fmt: skip
    change(
        "unfinished", "an operation did not end", [found("ST-AUD-002", [log])],
        lambda run: _set(run, log, outcome=EventOutcome.UNFINISHED, finished_ns=None),
    )  # fmt: skip
    change(
        "outcome", "an operation that went well ended in an error", [found("ST-AUD-003", [log])],
        lambda run: _set(run, log, outcome=EventOutcome.ERROR),
    )  # fmt: skip
    lost = rows_of("lost")[0]
    change(
        "outcome-of-failure", "an operation that failed went well", [found("ST-AUD-003", [lost])],
        lambda run: _set(run, lost, outcome=EventOutcome.OK),
    )  # fmt: skip
    change(
        "no-submission", "the submission of an operation is not recorded", [found("ST-AUD-004", [log])],
        lambda run: _set(run, log, submitted_ns=None),
    )  # fmt: skip
    change(
        "no-arrival", "the arrival of an instance is not recorded", [found("ST-AUD-004", [3], "instances")],
        lambda run: run.tables["instances"][3].update(arrival_ns=None),
    )  # fmt: skip
    b = rows_of("b")[0]
    change(
        "token-after-end", "a first token comes after the end", [found("ST-AUD-005", [b])],
        lambda run: _set(run, b, first_token_ns=_rows(run)[b]["finished_ns"] + 1),
    )  # fmt: skip
    change(
        "scheduled-before-submission", "an operation is scheduled before it is submitted", [found("ST-AUD-005", [b])],
        lambda run: _set(run, b, scheduled_ns=_rows(run)[b]["submitted_ns"] - 1),
    )  # fmt: skip
    late = replay(
        WORK, _plan(name="dag"), {**SCENARIO, "arrivals": {"kind": "drawn", "times_ns": [0, 40, 305, 20]}}
    )
    late.header["scenario"] = _of_clean().header["scenario"]
    _change(book, "clean", "arrival", "an instance arrives 5 ns later than the scenario says",
            [found("ST-AUD-006", [1], "instances")], late.run())  # fmt: skip

    def without_last(run: Run) -> None:
        run.tables["instances"].pop()
        run.tables["events"] = [row for row in _rows(run) if row["instance"] != 3]

    change(
        "instance-missing",
        "an instance is missing with all of its events",
        [found("ST-AUD-006")],
        without_last,
    )
    loop = replay(WORK, _plan(name="dag"), LOOP)
    later = _moved(loop, 3, 1)
    _change(book, "closed-loop", "arrival-of-loop", "a user thinks 1 ns longer than the scenario says",
            [found("ST-AUD-006", [3], "instances")], later.run())  # fmt: skip


def _moved(replayed: Replayed, instance: int, by_ns: int) -> Replayed:
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


def _identity(book: Book) -> None:
    run = _of_clean()
    run.header["work_digest"] = "blake3:" + 64 * "0"
    _change(book, "clean", "other-work", "it is of other work", [found("ST-AUD-010")], run)
    run = _of_clean()
    other = {**_plan(name="dag"), "work_digest": "blake3:" + 64 * "0"}
    run.header |= {"plan": {**run.header["plan"], **other}, "plan_digest": plan_digest(other)}
    _change(book, "clean", "plan-of-other-work", "its plan is for other work", [found("ST-AUD-011")], run)
    run = _of_clean()
    run.header["plan_digest"] = "blake3:" + 64 * "0"
    _change(book, "clean", "other-plan", "it followed another plan than it says", [found("ST-AUD-012")], run)
    delayed = _plan(edges=[{"source": 0, "target": 3, "lag_ns": 4}])
    run = replay(WORK, delayed, SCENARIO).run()
    _change(
        book,
        "clean",
        "illegal-plan",
        "its plan delays an operation",
        [found("ST-AUD-013")],
        run,
        ["ST-AUD-013"],
    )


def _headers(book: Book) -> None:
    def change(name: str, mutation: str, requirement: str, spoil: Callable[[Run], object]) -> None:
        run = _of_clean()
        spoil(run)
        _change(book, "clean", name, mutation, [found(requirement)], run)

    a, y = rows_of("a")[1], rows_of("y")[0]
    change(
        "cached",
        "more tokens are cached than a prompt has",
        "ST-AUD-007",
        lambda run: _set(run, a, cached_tokens=21),
    )
    change(
        "attempts",
        "an operation was submitted twice on a virtual clock",
        "ST-AUD-007",
        lambda run: _set(run, a, attempts=2),
    )
    change("instance-outcome", "an instance that ran to its end is called a failure", "ST-AUD-008",
           lambda run: run.tables["instances"][1].update(outcome=3))  # fmt: skip
    change(
        "measured-elsewhere",
        "virtual times were read at a server",
        "ST-AUD-014",
        lambda run: run.header.update(measured_at="server"),
    )
    change("other-settings", "the backend has another setting than the scenario says", "ST-AUD-014",
           lambda run: run.header["scenario"]["backend"].update(settings={"c0_ns": 101, "c_pre_ns": 1, "c_dec_ns": 10}))  # fmt: skip
    change("other-backend", "the backend is another than the scenario says", "ST-AUD-014",
           lambda run: run.header.update(backend={"name": "other", "settings": {}}))  # fmt: skip
    change("no-scenario", "a replay without scenario", "ST-AUD-006", lambda run: run.header.pop("scenario"))
    change("no-plan", "a replay without plan", "ST-AUD-012", lambda run: run.header.pop("plan"))
    run = _of_clean()
    _set(run, y, finished_ns=_rows(run)[y]["finished_ns"] + 1)
    _change(
        book,
        "clean",
        "ideal-end",
        "a call ends 1 ns later than the backend lets it",
        [found("ST-AUD-042", [y])],
        run,
    )
    run = _of_clean()
    b = rows_of("b")[0]
    _set(run, b, first_token_ns=_rows(run)[b]["first_token_ns"] - 1)
    _change(
        book,
        "clean",
        "ideal-token",
        "a first token comes 1 ns sooner than the backend lets it",
        [found("ST-AUD-042", [b])],
        run,
    )


def _counts(book: Book) -> None:
    a = rows_of("a")[1]
    for name, mutation, requirement, values in (
        ("prompt", "a prompt is one token longer", "ST-AUD-020", {"prompt_tokens": 21}),
        ("prompt-unknown", "the length of a prompt is not recorded", "ST-AUD-020", {"prompt_tokens": None}),
        ("output", "an output is one token shorter", "ST-AUD-021", {"output_tokens": 3}),
        ("output-unknown", "the length of an output is not recorded", "ST-AUD-021", {"output_tokens": None}),
    ):
        run = _of_clean()
        _set(run, a, **values)
        _change(book, "clean", name, mutation, [found(requirement, [a])], run)


def _release(book: Book) -> None:
    dag = _plan(name="dag")

    def change(name: str, mutation: str, requirement: str, rows: Sequence[int], faults: Faults) -> None:
        run = replay(WORK, dag, SCENARIO, faults).run()
        _change(book, "clean", name, mutation, [found(requirement, rows)], run)

    search, write, y = (WORK.number(name) for name in ("search", "write", "y"))
    change(
        "early",
        "an operation is submitted 1 ns early",
        "ST-AUD-032",
        [rows_of("search")[1]],
        Faults({(1, search): -1}),
    )
    change("early-at-arrival", "an operation is submitted 1 ns before its instance arrives", "ST-AUD-032",
           [rows_of("x")[0]], Faults({(2, WORK.number("x")): -1}))  # fmt: skip
    change(
        "late", "an operation is submitted 1 ns late", "ST-AUD-033", [rows_of("y")[0]], Faults({(2, y): 1})
    )
    change(
        "no-delay",
        "an external delay is left out",
        "ST-AUD-032",
        [rows_of("search")[0]],
        Faults({(0, search): -7}),
    )
    change("duration", "a tool takes 1 ns longer than recorded", "ST-AUD-040", [rows_of("search")[0]],
           Faults(took={(0, search): 1}))  # fmt: skip
    change("duration-of-failure", "a failed call takes 1 ns less than recorded", "ST-AUD-040", [rows_of("lost")[1]],
           Faults(took={(1, WORK.number("lost")): -1}))  # fmt: skip
    # Both copies do it. The edge is the last to be satisfied of those into its target.
    change("state", "what reads a state does not wait for its writer", "ST-AUD-036", rows_of("write"),
           Faults(free=frozenset({(search, write)})))  # fmt: skip
    run = _of_clean()
    row = rows_of("search")[0]
    ready = _rows(run)[row]["ready_ns"]
    _set(run, row, ready_ns=ready - 2, released_ns=ready + 5)
    _change(
        book, "clean", "ready", "a ready time is recorded 2 ns too early", [found("ST-AUD-030", [row])], run
    )
    run = _of_clean()
    _set(run, row, released_ns=ready + 6)
    _change(
        book,
        "clean",
        "released",
        "a release is not the ready time plus the delay",
        [found("ST-AUD-031", [row])],
        run,
    )


def _plans(book: Book) -> None:
    full = _plan(**PLAN)

    def change(
        name: str, mutation: str, requirement: str, rows: Sequence[int], free: set[tuple[int, int]]
    ) -> None:
        replayed = replay(WORK, full, SCENARIO, Faults(free=frozenset(free)))
        _change(book, "plan", name, mutation, [found(requirement, rows)], replayed.run())

    b = WORK.number("b")
    # With the group alone, b would be released earlier than the added edge allows, and the other way round.
    change("barrier", "a barrier is not honoured", "ST-AUD-035", rows_of("b"), {(1, b)})
    replayed = replay(
        WORK, _plan(edges=[{"source": 2, "target": 3, "trigger": "finish", "lag_ns": 500}]), SCENARIO
    )
    _accept(
        book,
        "added-edge",
        "a faithful replay under a plan with an added edge",
        ["ST-AUD-034"],
        replayed.run(),
        trace(),
    )
    broken = replay(
        WORK, _plan(edges=[{"source": 2, "target": 3, "trigger": "finish", "lag_ns": 500}]), SCENARIO,
        Faults(free=frozenset({(2, 3)})),
    )  # fmt: skip
    _change(
        book,
        "added-edge",
        "added-edge-broken",
        "the added edge is not honoured",
        [found("ST-AUD-034", rows_of("b"))],
        broken.run(),
    )


def _other_modes(book: Book) -> None:
    dag = _plan(name="dag")
    _wall(book, dag)
    _locked(book)
    _native(book, dag)


def _wall(book: Book, dag: Json) -> None:
    y, search = WORK.number("y"), WORK.number("search")

    def run(faults: Faults) -> Run:
        made = replay(WORK, dag, SCENARIO, faults).run()
        made.header |= {"clock": "wall", "tolerance_ns": 5, "measured_at": "client"}
        return made

    within = Faults({(2, y): 5, (0, search): 3}, {(0, search): 5})
    _accept(
        book, "wall", "a live replay: some submissions late within the tolerance, a tool that took longer",
        ["ST-AUD-033", "ST-AUD-040"], run(within), trace(),
    )  # fmt: skip
    late = Faults({(2, y): 6, (0, search): 3}, {(0, search): 5})
    _change(book, "wall", "wall-late", "a submission is late by more than the tolerance",
            [found("ST-AUD-033", [rows_of("y")[0]])], run(late))  # fmt: skip
    early = Faults({(2, y): -1, (0, search): 3}, {(0, search): 5})
    _change(book, "wall", "wall-early", "a submission is early by less than the tolerance",
            [found("ST-AUD-032", [rows_of("y")[0]])], run(early))  # fmt: skip
    long = Faults({(2, y): 5, (0, search): 3}, {(0, search): 6})
    _change(book, "wall", "wall-long", "a tool took longer by more than the tolerance",
            [found("ST-AUD-040", [rows_of("search")[0]])], run(long))  # fmt: skip
    loose = run(Faults({(2, y): 1_000_001}))
    loose.header["tolerance_ns"] = 5_000_000
    _change(book, "wall", "wall-loose", "it allows itself 5 ms, and is late by more than 1 ms",
            [found("ST-AUD-033", [rows_of("y")[0]])], loose)  # fmt: skip
    short = Faults({(2, y): 5, (0, search): 3}, {(0, search): -1})
    _change(book, "wall", "wall-short", "a tool took less than it did",
            [found("ST-AUD-040", [rows_of("search")[0]])], run(short))  # fmt: skip


def _locked(book: Book) -> None:
    source = trace(ids=True)
    plan = {"work_digest": source.digest("work"), "name": "dag"}

    def run(change: Mapping[int, bytes] | None = None) -> Run:
        made = replay(WORK, plan, SCENARIO).run()
        # The backend ideal yields no tokens, so the replay is another's (ST-SCN-010).
        backend = {"name": "by hand"}
        made.header |= {"mode": "token_locked", "work_digest": plan["work_digest"], "backend": backend}
        made.header["scenario"] = {**made.header["scenario"], "mode": "token_locked", "backend": backend}
        ids = {}
        for at, row in enumerate(made.tables["events"]):
            operation = WORK.operations[row["operation"]]
            if operation.on_backend and operation.output:
                ids[at] = (change or {}).get(at) or output_ids(row["operation"], operation.output)
        made.content = {blake3(content).digest(): content for content in ids.values()}
        places = {digest: place for place, digest in enumerate(sorted(made.content))}
        for at, content in ids.items():
            made.tables["events"][at]["output_ids"] = places[blake3(content).digest()]
        return made

    _accept(
        book, "token-locked", "a token-locked replay with the recorded ids", ["ST-AUD-022"], run(), source
    )
    b = rows_of("b")[0]
    right = output_ids(WORK.number("b"), 6)
    absent = run()
    absent.tables["events"][b]["output_ids"] = None
    _change(
        book,
        "token-locked",
        "no-tokens",
        "the ids of an output are not there",
        [found("ST-AUD-022", [b])],
        absent,
    )
    for name, mutation, content in (
        ("token", "the last token of an output is another", right[:-4] + struct.pack("<I", 7)),
        ("token-missing", "an output has one token id less", right[:-4]),
    ):
        _change(book, "token-locked", name, mutation, [found("ST-AUD-022", [b])], run({b: content}))


def _native(book: Book, dag: Json) -> None:
    def run(faults: Faults, evidence: Evidence = Evidence.OBSERVED) -> Run:
        made = replay(WORK, dag, {"backend": SMALL}, faults).run()
        for name in ("plan", "plan_digest", "scenario"):
            del made.header[name]
        made.header |= {"mode": "native", "clock": "wall", "measured_at": "client"}
        for row in made.tables["events"]:
            for name in [each for each in row if each.endswith("_evidence")]:
                if row[name] != Evidence.MISSING:
                    row[name] = evidence
        return made

    search = WORK.number("search")
    _accept(
        book, "native", "the recorded run itself, which nobody released",
        ["ST-AUD-103"], run(Faults({(0, search): 90})), trace(), PARTLY,
    )  # fmt: skip
    _accept(
        book, "native-inferred", "a recorded run whose times are inferred, and contradict an edge",
        ["ST-AUD-103"], run(Faults({(0, search): -9}), Evidence.INFERRED), trace(), "not judged",
    )  # fmt: skip
    _change(book, "native-inferred", "native-observed", "the times are observed",
            [found("ST-AUD-032", [search])], run(Faults({(0, search): -9})), ["ST-AUD-103"])  # fmt: skip
    _change(book, "native", "native-early", "an operation began before one that it waits for had ended",
            [found("ST-AUD-032", [search])], run(Faults({(0, search): -8})), ["ST-AUD-103"])  # fmt: skip
