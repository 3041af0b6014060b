"""The cases of the profile release: virtual replays on the backend `ideal`, to the nanosecond."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from semtrace.records.enums import OperationKind, OperationStatus
from semtrace_conformance.making.draft import COMPACT, Draft, zip_bytes
from semtrace_conformance.making.planning import barrier
from semtrace_conformance.making.random_work import random_plan, random_work
from semtrace_conformance.making.timing import replay
from semtrace_conformance.making.work import FIRST, START, After, Op, TaskFacts, Work, llm, tool

if TYPE_CHECKING:
    from semtrace_conformance.making.book import Book

Json = Mapping[str, Any]
SMALL: Final = {"name": "ideal", "settings": {"c0_ns": 100, "c_pre_ns": 1, "c_dec_ns": 10}}
INPUTS: Final = {"trace": "trace.semtrace", "plan": "plan.json", "scenario": "scenario.json"}


def document(value: Json) -> bytes:
    """A document as it is stored."""
    return (json.dumps(value, indent=1) + "\n").encode()


def trace_of(work: Work) -> tuple[bytes, str]:
    """The bundle of a work, and its work digest."""
    draft = Draft.of(work.build())
    draft.encoding = COMPACT
    return zip_bytes(draft.members()), draft.digest("work")


def add_release(book: Book) -> None:
    """Add all cases of the profile."""
    _triggers(book)
    _ends(book)
    _kinds(book)
    _instants(book)
    _settings(book)
    _plans(book)
    _arrivals(book)
    _random(book)
    _refusals(book)


def _case(
    book: Book,
    name: str,
    title: str,
    requirements: Sequence[str],
    work: Work,
    *,
    plan: Json | None = None,
    scenario: Json | None = None,
    features: Sequence[str] = (),
) -> None:
    bundle, digest = trace_of(work)
    full = {"work_digest": digest, "name": "custom" if plan else "dag", **(plan or {})}
    chosen = {"backend": SMALL, **(scenario or {})}
    book.accept(
        f"release/{name}",
        title,
        ["ST-REL-005", "ST-REL-032", "ST-REL-035", *requirements],
        kind="replay",
        files={"trace.semtrace": bundle, "plan.json": document(full), "scenario.json": document(chosen)},
        inputs=INPUTS,
        facts=replay(work, full, chosen).facts(),
        features=features,
    )


TEAM: Final = Work(
    [
        llm("plan", 50, 11),
        tool("write", 70, After("plan", START, 5)),
        tool("speak", 1, After("plan", FIRST)),
        llm("draft", 120, 30, "write", delay=7),
        tool("join", 9, "plan", "write", "speak", "draft", delay=40),
    ]
)


def _triggers(book: Book) -> None:
    _case(
        book,
        "team",
        "triggers start, first token and finish, with lags and delays",
        ["ST-REL-001", "ST-REL-002", "ST-REL-003", "ST-REL-004", "ST-REL-006", "ST-REL-007", "ST-REL-008",
         "ST-REL-010", "ST-REL-020", "ST-REL-030", "ST-REL-031", "ST-REL-034"],
        TEAM,
    )  # fmt: skip
    _case(
        book,
        "triggers-of-one-source",
        "edges of several triggers from one operation: the latest counts",
        ["ST-REL-002", "ST-REL-003"],
        Work(
            [
                llm("a", 10, 5),
                tool("b", 1, After("a", START, 130), After("a", FIRST, 25), "a"),
                tool("c", 1, After("a", START, 200), After("a", FIRST, 3), "a"),
                tool("d", 1, After("a", START, 1), After("a", FIRST, 60)),
                tool("e", 1, After("b", START, 9), After("c", START), After("d", FIRST, 8)),
            ]
        ),
    )


def _ends(book: Book) -> None:
    _case(
        book,
        "first-token-that-never-comes",
        "a trigger that does not come comes with the end: failed calls, empty outputs, tools, embeddings",
        ["ST-REL-003", "ST-REL-004", "ST-REL-010"],
        Work(
            [
                Op("failed", (), OperationKind.LLM, OperationStatus.ERROR, duration=30, prompt=9, output=5),
                llm("retry", 0, 1, After("failed", FIRST)),
                llm("empty", 7, 0),
                tool("last", 0, After("empty", FIRST, 2)),
                Op("embed", (), OperationKind.EMBED, prompt=12),
                tool("after", 4, After("embed", FIRST), After("last", FIRST)),
            ]
        ),
    )
    _case(
        book,
        "one-output-token",
        "with one output token the first token is the end; with two it is not",
        ["ST-REL-020"],
        Work(
            [
                llm("one", 3, 1),
                llm("two", 3, 2),
                tool("a", 1, After("one", FIRST)),
                tool("b", 1, "one"),
                tool("c", 1, After("two", FIRST)),
                tool("d", 1, "two"),
            ]
        ),
    )
    _case(
        book,
        "failures",
        "what failed, timed out or was cancelled ends so again, and what waits for it goes on",
        ["ST-REL-010", "ST-REL-014", "ST-REL-015"],
        Work(
            [
                Op("error", (), OperationKind.LLM, OperationStatus.ERROR, duration=500),
                Op("late", (), OperationKind.LLM, OperationStatus.TIMEOUT, duration=900, prompt=40),
                Op("stopped", (), OperationKind.LLM, OperationStatus.CANCELLED, prompt=40, output=7),
                Op("broken", (), OperationKind.TOOL, OperationStatus.ERROR, duration=11),
                Op("called-off", ("broken",), OperationKind.HUMAN, OperationStatus.CANCELLED, duration=13),
                tool("end", 1, "error", "late", "stopped", "broken", "called-off"),
            ]
        ),
    )


def _kinds(book: Book) -> None:
    _case(
        book,
        "kinds",
        "tools, transformations, people and embeddings take what each takes",
        ["ST-REL-010", "ST-REL-012"],
        Work(
            [
                Op("person", (), OperationKind.HUMAN, duration=5_000),
                Op("cut", ("person",), OperationKind.TRANSFORM, duration=17),
                Op("embed", ("cut",), OperationKind.EMBED, prompt=900),
                # Its recorded duration is not used: it runs on the backend.
                Op("embed-again", ("cut",), OperationKind.EMBED, prompt=10, duration=77_777),
                llm("answer", 1, 1, "embed", "embed-again"),
            ]
        ),
    )
    _case(
        book,
        "empty-tasks",
        "a task without operations has an instance, and no events",
        ["ST-REL-030", "ST-REL-031", "ST-SCN-003"],
        Work([tool("only", 3, task=1)], [TaskFacts(), TaskFacts(), TaskFacts()]),
        features=["arrivals"],
    )


def _instants(book: Book) -> None:
    _case(
        book,
        "one-instant",
        "chains of no duration, ends and releases at one instant",
        ["ST-REL-016", "ST-REL-018"],
        Work(
            [
                tool("a", 0),
                tool("b", 0, "a"),
                tool("c", 0, After("b", START)),
                llm("d", 0, 0, "c"),
                tool("e", 100, "a"),
                tool("f", 0, "d", "e"),
                tool("g", 0, After("f", FIRST), "d"),
                tool("h", 5, "g", After("e", START, 100)),
            ]
        ),
    )
    _case(
        book,
        "far-away",
        "times near 2^62 are times like others",
        ["ST-REL-001"],
        Work([tool("a", (1 << 61) + 1), tool("b", (1 << 61) - 7, After("a", lag_ns=3)), tool("c", 1, "b")]),
    )


def _settings(book: Book) -> None:
    work = Work([llm("a", 1000, 100), llm("b", 1, 1, "a"), tool("c", 3, "a"), llm("d", 7, 3, "b", "c")])
    _case(
        book, "default-settings", "the settings of the backend that are left out", ["ST-REL-021", "ST-SCN-015"], work,
        scenario={"backend": {"name": "ideal", "settings": {"c_dec_ns": 7}}},
    )  # fmt: skip
    _case(
        book, "no-scenario", "a scenario that says nothing", ["ST-REL-021", "ST-SCN-007", "ST-SCN-015"], work,
        scenario={"backend": {"name": "ideal"}},
    )  # fmt: skip
    _case(
        book, "settings-at-their-limits", "settings 0 and 2^40 - 1", ["ST-REL-021"], work,
        scenario={"backend": {"name": "ideal", "settings": {"c0_ns": 0, "c_pre_ns": (1 << 40) - 1, "c_dec_ns": 0}}},
    )  # fmt: skip
    _case(
        book,
        "what-changes-no-time",
        "tolerance, deadline, window, salt, notes and namespaced members change no time",
        ["ST-DOC-002", "ST-SCN-011", "ST-SCN-013", "ST-SCN-014"],
        work,
        scenario={
            "tolerance_ns": 1_000_000, "deadline_ns": 5, "window_ns": 1, "salt": "none", "notes": "none",
            "example.org/colour": {"of": "nothing"},
        },
    )  # fmt: skip


FORK: Final = Work(
    [
        tool("ask", 5, stage="research"),
        tool("bull", 20, "ask", stage="research", session="bull"),
        tool("bear", 30, "ask", stage="research", session="bear"),
        tool("bull2", 20, "bull", stage="research", session="bull"),
        llm("sum", 10, 3, "bull2", "bear"),
    ],
    stages={"research": (None, 0)},
)


def _plans(book: Book) -> None:
    _case(
        book,
        "group",
        "a group: what it holds waits for all that it waits for",
        ["ST-PLAN-006", "ST-REL-005"],
        Work([tool("a", 10), tool("b", 30), tool("c", 5, delay=3), tool("d", 5)]),
        plan={"groups": [{"wait": [0, 1], "hold": [2, 3]}]},
        features=["plans"],
    )
    _case(
        book,
        "group-members-twice",
        "an operation that stands in a list of a group twice stands there once",
        ["ST-PLAN-003"],
        Work([tool("a", 10), tool("b", 30), tool("c", 5, delay=3), tool("d", 5)]),
        plan={"groups": [{"wait": [0, 1, 0, 0], "hold": [3, 2, 3]}]},
        features=["plans"],
    )
    _case(
        book,
        "added-edges",
        "added edges with triggers and lags, one of them from a higher to a lower operation",
        ["ST-PLAN-005", "ST-PLAN-006"],
        Work([llm("a", 10, 5), llm("b", 20, 6), tool("c", 40), tool("d", 1, "b")]),
        plan={
            "edges": [
                {"source": 0, "target": 1, "trigger": "first_token", "lag_ns": 4},
                {"source": 2, "target": 0, "trigger": "start", "lag_ns": 25},
                {"source": 2, "target": 3},
            ]
        },
        features=["plans"],
    )
    _case(
        book,
        "redundant",
        "constraints that are there already change nothing",
        ["ST-PLAN-014"],
        TEAM,
        plan={
            "edges": [
                {"source": 0, "target": 4},
                {"source": 0, "target": 2, "trigger": "start"},
                {"source": 0, "target": 1, "trigger": "start", "lag_ns": 5},
            ]
        },
        features=["plans"],
    )
    for rule in ("chain", "level"):
        _case(
            book,
            f"barrier-{rule}",
            f"a barrier plan by {rule}",
            ["ST-PLAN-006", "ST-REL-009"],
            FORK,
            plan={"name": "barrier", "options": {"rule": rule}, "groups": barrier(FORK, rule)},
            scenario={"copies": 2, "arrivals": {"kind": "drawn", "times_ns": [3, 60]}},
            features=["plans", "arrivals"],
        )


LOOP: Final = Work(
    [
        tool("a1", 4),
        tool("a2", 6, "a1"),
        tool("a3", 50, "a1"),
        tool("b1", 20, task=1),
        tool("c1", 7, delay=1, task=2),
    ],
    [TaskFacts(answer="a2"), TaskFacts(), TaskFacts()],
)


def _arrivals(book: Book) -> None:
    def case(
        name: str, title: str, requirements: Sequence[str], work: Work, arrivals: Json | None, copies: int = 1
    ) -> None:
        scenario = {"copies": copies, **({"arrivals": arrivals} if arrivals else {})}
        _case(book, name, title, requirements, work, scenario=scenario, features=["arrivals"])

    case(
        "closed-loop", "two users, three tasks, two copies of each; work goes on after an answer",
        ["ST-SCN-003", "ST-SCN-004", "ST-SCN-006", "ST-REL-009"], LOOP,
        {"kind": "closed_loop", "users": 2, "think_ns": 3}, 2,
    )  # fmt: skip
    case(
        "more-users-than-instances", "users who have nothing to send",
        ["ST-SCN-006"], LOOP, {"kind": "closed_loop", "users": 9, "think_ns": 3}, 2,
    )  # fmt: skip
    case(
        "one-user", "one user without a pause, and tasks that are answered when they arrive",
        ["ST-SCN-006"],
        Work([tool("x", 5, task=1), llm("y", 3, 2, task=2)], [TaskFacts(), TaskFacts(), TaskFacts(), TaskFacts()]),
        {"kind": "closed_loop", "users": 1}, 3,
    )  # fmt: skip
    case(
        "answers-at-one-instant", "several answers at one instant send several tasks",
        ["ST-SCN-006"],
        Work([tool("x", 5), tool("y", 5, task=1), tool("z", 10, task=2)], [TaskFacts(), TaskFacts(), TaskFacts()]),
        {"kind": "closed_loop", "users": 3, "think_ns": 0}, 4,
    )  # fmt: skip
    recorded = Work(
        [llm("x", 5, 5), tool("y", 8, task=1), tool("z", 1, "y", task=1)], [TaskFacts(70), TaskFacts(20)]
    )
    case("recorded", "arrivals as recorded", ["ST-SCN-001"], recorded, {"kind": "recorded"}, 2)
    case("recorded-by-default", "every task has an arrival: they count", ["ST-SCN-007"], recorded, None)
    case("together", "everything at once", ["ST-SCN-005"], recorded, {"kind": "together"}, 3)
    some = Work([tool("x", 5), tool("y", 8, task=1)], [TaskFacts(70), TaskFacts()])
    case("together-by-default", "not every task has an arrival: none counts", ["ST-SCN-007"], some, None)
    case(
        "drawn", "given arrivals, in the order of sending, not in order of time",
        ["ST-SCN-004", "ST-SCN-005"],
        Work([tool("x", 5), llm("y", 3, 2, task=1)], [TaskFacts(), TaskFacts()]),
        {"kind": "drawn", "times_ns": [1, 2, 30, 4]}, 2,
    )  # fmt: skip
    case(
        "drawn-from", "arrivals that were drawn before are as good as any",
        ["ST-SCN-002", "ST-SCN-008"],
        Work([tool("x", 5), llm("y", 3, 2, task=1)], [TaskFacts(), TaskFacts()]),
        {"kind": "drawn", "times_ns": [17, 41], "drawn_from": {"kind": "poisson", "mean_ns": 20, "seed": 7}},
    )  # fmt: skip


def _random(book: Book) -> None:
    for seed in range(6):
        work = random_work(seed, tasks=1 + seed % 3, operations=10 + 3 * seed, arrivals=seed % 2 == 0)
        _, digest = trace_of(work)
        plan = random_plan(seed, work, digest, edges=seed, groups=seed // 2)
        copies = 1 + seed % 4
        count = copies * len(work.tasks)
        arrivals: Json = (
            {"kind": "closed_loop", "users": 1 + seed % 3, "think_ns": 10},
            {
                "kind": "drawn",
                "times_ns": [(at * 7919 * (seed + 1)) % 1000 // 10 * 10 for at in range(count)],
            },
            {"kind": "together"},
        )[seed % 3]
        _case(
            book,
            f"random-{seed}",
            f"random work {seed}: all kinds of operations, edges, plans and arrivals at once",
            ["ST-REL-009", "ST-REL-016", "ST-REL-018"],
            work,
            plan=plan,
            scenario={"copies": copies, "arrivals": arrivals},
            features=["plans", "arrivals"],
        )


def _refusals(book: Book) -> None:
    def change(name: str, mutation: str, requirements: Sequence[str], **files: bytes) -> None:
        named = {f"{key}.{'semtrace' if key == 'trace' else 'json'}": value for key, value in files.items()}
        book.change("release/team", f"release/{name}", mutation, requirements, files=named)

    # The plan must be for the work as it is now: a trace that lacks a count is other work.
    def with_plan(trace: bytes, digest: str) -> dict[str, bytes]:
        return {"trace": trace, "plan": document({"work_digest": digest, "name": "dag"})}

    for name, operation, column, requirement in (
        ("unknown-prompt", "draft", "prompt_tokens", "ST-REL-011"),
        ("unknown-output", "plan", "output_tokens", "ST-REL-011"),
        ("unknown-duration", "speak", "duration_ns", "ST-REL-012"),
    ):
        draft = Draft.of(TEAM.build())
        draft.encoding = COMPACT
        draft.put("operations", TEAM.number(operation), **{column: None})
        if column == "duration_ns":
            draft.put("operations", TEAM.number(operation), duration_evidence=4)
        change(
            name, f"{column} of {operation} is not known", [requirement, "ST-REL-013"],
            **with_plan(zip_bytes(draft.members()), draft.digest("work")),
        )  # fmt: skip

    overflow = Work([tool("a", (1 << 62) - 1), tool("b", (1 << 62) - 1, "a"), tool("c", (1 << 62) - 1, "b")])
    trace, digest = trace_of(overflow)
    change("overflow", "durations add up to 2^63 ns", ["ST-REL-001"], **with_plan(trace, digest))

    _, team = trace_of(TEAM)

    def plan(**members: Any) -> bytes:
        return document({"work_digest": team, "name": "custom", **members})

    change("other-work", "the plan is for other work", ["ST-PLAN-001"], plan=plan(work_digest=digest))
    change(
        "work-only",
        "the plan drops recorded edges",
        ["ST-PLAN-004", "ST-PLAN-016"],
        plan=plan(base="work-only"),
    )
    change(
        "illegal-plan", "the plan lets an operation wait for one that waits for it", ["ST-PLAN-010", "ST-PLAN-016"],
        plan=plan(edges=[{"source": 4, "target": 0}]),
    )  # fmt: skip
    change("plan-key", "the plan has a member that plans do not have", ["ST-DOC-001"], plan=plan(edge=[]))
    change(
        "plan-without-work",
        "the plan does not say for which work",
        ["ST-DOC-001"],
        plan=document({"name": "dag"}),
    )
    change("plan-trigger", "the plan has a trigger that there is not", ["ST-DOC-001"],
           plan=plan(edges=[{"source": 0, "target": 4, "trigger": "end"}]))  # fmt: skip

    def scenario(**members: Any) -> bytes:
        return document({"backend": SMALL, **members})

    change(
        "scenario-key",
        "the scenario has a member that scenarios do not have",
        ["ST-DOC-001"],
        scenario=scenario(copy=2),
    )
    change(
        "scenario-value", "the scenario has no copy of anything", ["ST-DOC-001"], scenario=scenario(copies=0)
    )
    change("scenario-key-twice", "a member stands in the scenario twice", ["ST-DOC-003"],
           scenario=b'{"copies": 1, "copies": 2}')  # fmt: skip
    change("no-arrival", "arrivals are to be as recorded, and a task has none", ["ST-SCN-001"],
           scenario=scenario(arrivals={"kind": "recorded"}))  # fmt: skip
    change("too-few-arrivals", "there are fewer arrivals than instances", ["ST-SCN-009"],
           scenario=scenario(copies=3, arrivals={"kind": "drawn", "times_ns": [0, 5]}))  # fmt: skip
    change("token-locked", "the outputs are to be locked, which the backend cannot do", ["ST-SCN-010"],
           scenario=scenario(mode="token_locked"))  # fmt: skip
    change("unknown-backend", "the backend is one that there is not", ["ST-SCN-012"],
           scenario=document({"backend": {"name": "magic"}}))  # fmt: skip
    change("unknown-setting", "the backend has a setting that it does not have", ["ST-SCN-012", "ST-REL-021"],
           scenario=document({"backend": {"name": "ideal", "settings": {"c_post_ns": 1}}}))  # fmt: skip
    change("setting-out-of-range", "a setting of the backend is 2^40", ["ST-REL-021", "ST-SCN-012"],
           scenario=document({"backend": {"name": "ideal", "settings": {"c0_ns": 1 << 40}}}))  # fmt: skip
