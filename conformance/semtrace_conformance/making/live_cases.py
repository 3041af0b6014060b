"""The cases of the profile live: replays that are sent to the witness, where nothing fails."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from semtrace.records.enums import OperationKind, OperationStatus
from semtrace_conformance.making.live_faults import add_faults
from semtrace_conformance.making.live_parts import MS, call, case, ids
from semtrace_conformance.making.planning import barrier
from semtrace_conformance.making.release_cases import document, trace_of
from semtrace_conformance.making.work import FIRST, START, After, Op, TaskFacts, Work, llm, tool
from semtrace_conformance.witness.script import Service

if TYPE_CHECKING:
    from semtrace_conformance.making.book import Book


def add_live(book: Book) -> None:
    """Add all cases of the profile."""
    _releases(book)
    _plans(book)
    _arrivals(book)
    _inputs(book)
    _limits(book)
    _refusals(book)
    add_faults(book)


TEAM: Final = Work(
    [
        call("plan", 40, 12),
        tool("look", 30 * MS, After("plan", START, 25 * MS)),
        call("speak", 20, 4, After("plan", FIRST, 20 * MS)),
        Op("cut", ("plan",), OperationKind.TRANSFORM, duration=12 * MS),
        call("bull", 33, 9, "cut", delay=18 * MS),
        call("bear", 31, 1, "plan"),
        call("watch", 12, 5, After("look", lag_ns=30 * MS)),
        call("note", 15, 3, After("plan", FIRST, 45 * MS)),
        call("check", 22, 4, "bear"),
        call("quote", 18, 2, After("bull", START, 35 * MS)),
        call("join", 64, 6, "look", "speak", "bull", "bear", "watch"),
        Op("lost", ("join",), OperationKind.LLM, OperationStatus.ERROR, duration=25 * MS, prompt=9, output=5),
        tool("write", 20 * MS, After("join", FIRST), "lost"),
        call("answer", 90, 8, "write"),
    ],
    [TaskFacts(answer="answer")],
)


def _releases(book: Book) -> None:
    case(
        book, "live/team", "a fork and a join with tools, all triggers, lags and delays",
        ["ST-REL-001", "ST-REL-002", "ST-REL-003", "ST-REL-004", "ST-REL-006", "ST-REL-010", "ST-REL-012", "ST-REL-014",
         "ST-SCN-013", "ST-INP-002", "ST-INP-007", "ST-LIV-031"],
        TEAM,
    )  # fmt: skip
    wide = [call("ask", 10, 2), *(call(f"branch {at}", 20 + at, 3, "ask", seed=at) for at in range(32))]
    case(
        book,
        "live/wide",
        "thirty-two branches at once",
        ["ST-REL-017"],
        Work([*wide, call("sum", 80, 2, *(each.name for each in wide[1:]))]),
        script={"service": Service(first_token_ns=40 * MS, token_ns=2 * MS)},
    )
    late = [
        call(f"{name} {at}", 12 + at, 2, After("slow", trigger, (20 + at) * MS), seed=first + at)
        for name, trigger, first in (("start", START, 0), ("token", FIRST, 100))
        for at in range(6)
    ]
    case(
        book,
        "live/triggers",
        "what follows a submission or a first token does not wait for the end, which is long after",
        ["ST-REL-002", "ST-REL-003"],
        Work([call("slow", 30, 40), *late]),
        script={
            "rules": [
                {"request": "semtrace-0-0", "service": Service(first_token_ns=400 * MS, token_ns=10 * MS)}
            ],
        },
    )
    chain: list[Op] = []
    for at in range(12):
        before = [chain[-1].name] if chain else []
        chain.append(call(f"turn {at}", 10 + at, 2, *before, seed=at))
        chain.append(tool(f"tool {at}", at * MS, f"turn {at}"))
    case(
        book,
        "live/chain",
        "a long chain of calls and tools, each as long as recorded, with a tolerance of its own",
        ["ST-REL-012", "ST-SCN-013"],
        Work(chain),
        scenario={"tolerance_ns": 4 * MS},
    )


FORK: Final = Work(
    [
        call("ask", 9, 3, stage="research"),
        call("bull", 20, 9, "ask", stage="research", session="bull"),
        call("bear", 30, 5, "ask", stage="research", session="bear"),
        call("bull2", 25, 4, "bull", stage="research", session="bull"),
        call("bear2", 35, 2, "bear", stage="research", session="bear"),
        call("sum", 50, 3, "bull2", "bear2"),
    ],
    stages={"research": (None, 0)},
)


def _plans(book: Book) -> None:
    for rule in ("chain", "level"):
        case(
            book,
            f"live/barrier-{rule}",
            f"a barrier plan by {rule}, two instances one after the other",
            ["ST-PLAN-006", "ST-REL-009", "ST-SCN-005"],
            FORK,
            plan={"name": "barrier", "options": {"rule": rule}, "groups": barrier(FORK, rule)},
            scenario={"copies": 2, "arrivals": {"kind": "drawn", "times_ns": [0, 35 * MS]}},
            features=["plans", "arrivals"],
        )
    case(
        book,
        "live/added-edges",
        "added edges with triggers and lags, one of them from a higher to a lower operation",
        ["ST-PLAN-005", "ST-PLAN-006"],
        Work([call("a", 10, 9), call("b", 20, 6), tool("c", 40 * MS), call("d", 8, 2, "b"), call("e", 9, 2)]),
        plan={
            "edges": [
                {"source": 0, "target": 1, "trigger": "first_token", "lag_ns": 40 * MS},
                {"source": 2, "target": 0, "trigger": "start", "lag_ns": 25 * MS},
                {"source": 4, "target": 3, "lag_ns": 200 * MS},
            ]
        },
        features=["plans"],
    )


def _arrivals(book: Book) -> None:
    tasks = 3
    work = Work(
        [
            each
            for task in range(tasks)
            for each in (
                call(f"first {task}", 12 + task, 4, task=task),
                tool(f"wait {task}", 8 * MS, f"first {task}", task=task),
                call(f"last {task}", 30 + task, 3, f"wait {task}", task=task),
            )
        ],
        [TaskFacts(arrival=at * 35 * MS, answer=f"last {at}") for at in (0, 1, 2)],
    )
    times = [(at * 7919) % 23 * 17 * MS + at * 137_000 for at in range(8 * tasks)]
    case(
        book, "live/drawn", "24 instances at given times, not in their order",
        ["ST-SCN-004", "ST-SCN-005", "ST-REL-009"], work,
        scenario={"copies": 8, "arrivals": {"kind": "drawn", "times_ns": times}}, features=["arrivals"],
    )  # fmt: skip
    case(
        book, "live/recorded", "arrivals as recorded", ["ST-SCN-001"], work,
        scenario={"copies": 2, "arrivals": {"kind": "recorded"}}, features=["arrivals"],
    )  # fmt: skip
    case(
        book, "live/closed-loop", "two users who come one after the other, three tasks, three copies of each",
        ["ST-SCN-003", "ST-SCN-004", "ST-SCN-006"], work,
        scenario={"copies": 3, "arrivals": {"kind": "closed_loop", "users": 2, "think_ns": 15 * MS, "ramp_ns": 50 * MS}},
        features=["arrivals"],
    )  # fmt: skip


def _inputs(book: Book) -> None:
    case(
        book,
        "live/synthetic",
        "a trace without token ids: prompts are as long as recorded",
        ["ST-INP-001", "ST-INP-007", "ST-INP-010", "ST-INP-011"],
        Work([llm("a", 100, 5), llm("b", 7, 1, "a"), llm("c", 3000, 2, "a"), llm("d", 1, 3, "b", "c")]),
        scenario={"copies": 2},
        features=["arrivals"],
    )
    case(
        book,
        "live/embeddings",
        "embeddings are sent too; they have no tokens",
        ["ST-REL-010", "ST-REL-011"],
        Work(
            [
                Op("embed", (), OperationKind.EMBED, prompt=30, prompt_ids=ids(1, 30)),
                Op("again", (), OperationKind.EMBED, prompt=9, prompt_ids=ids(2, 9), duration=70 * MS),
                call("answer", 20, 4, "embed", "again"),
            ]
        ),
    )
    case(
        book,
        "live/not-told",
        "the server does not say how many tokens there were: nor does the execution",
        ["ST-LIV-023"],
        Work([call("a", 10, 5), call("b", 20, 2, "a")]),
        script={"usage": False},
    )
    asked = (
        {"role": "system", "content": "Be brief. Sé breve."},
        {"role": "user", "content": "How far is Bergen?"},
    )
    case(
        book,
        "live/text",
        "a server that takes texts alone: the recorded messages are sent, and its count of their tokens is told",
        ["ST-INP-005", "ST-INP-006", "ST-INP-007"],
        Work(
            [
                llm("a", 17, 5, messages=asked),
                llm("b", 9, 3, "a", messages=({"role": "user", "content": "And \u201cOslo\u201d?\n"},)),
            ]
        ),
        script={"token_ids": False},
    )
    turn = call("first", 20, 6)
    case(
        book,
        "live/turns",
        "what a later prompt repeats is the recorded output, not the one that the server gave",
        ["ST-INP-002", "ST-INP-020"],
        Work(
            [
                turn,
                Op("second", ("first",), OperationKind.LLM, prompt=35, output=3, prompt_ids=ids(5, 9), base="first",
                   output_ids=ids(6, 3)),
                Op("third", ("second",), OperationKind.LLM, prompt=42, output=2, prompt_ids=ids(8, 4), base="second",
                   output_ids=ids(9, 2)),
            ]
        ),
    )  # fmt: skip


def _limits(book: Book) -> None:
    case(
        book,
        "live/concurrency",
        "no more than three operations are in flight at once",
        ["ST-LIV-010", "ST-SCN-017"],
        Work([*(call(f"a{at}", 10 + at, 3, seed=at) for at in range(12)), call("b", 9, 2, "a0", "a11")]),
        scenario={"concurrency": 3},
        script={"service": Service(first_token_ns=60 * MS, token_ns=MS)},
        features=["concurrency"],
    )
    case(
        book,
        "live/warm-up",
        "what is sent before the run has other ids",
        ["ST-SCN-017"],
        Work([call("a", 10, 5), call("b", 10, 5, "a")]),
        scenario={"warm_up": 3},
    )


def _refusals(book: Book) -> None:
    _plan_refusals(book)

    def change(name: str, work: Work, mutation: str, requirement: str) -> None:
        bundle, digest = trace_of(work)
        plan = document({"work_digest": digest, "name": "dag"})
        book.change(
            "live/team",
            f"live/{name}",
            mutation,
            [requirement],
            files={"trace.semtrace": bundle, "plan.json": plan},
        )

    last = TEAM.operations[-1]
    change(
        "no-output", replace(TEAM, operations=[*TEAM.operations[:-1], replace(last, output=0, output_ids=None)]),
        "the last call has no output token", "ST-LIV-024",
    )  # fmt: skip
    served = book.pages["live/team"].case.witness
    if served is None:
        raise ValueError("live/team has no server")
    book.change(
        "live/team", "live/too-long", "the server says that requests have 60 tokens at most, and one has 98",
        ["ST-LIV-025"], files={}, witness=served.model_copy(update={"context": 60}),
    )  # fmt: skip
    empty = replace(last, prompt=0, prompt_ids=None)
    change(
        "no-prompt", replace(TEAM, operations=[*TEAM.operations[:-1], empty]),
        "the last call has no prompt", "ST-INP-011",
    )  # fmt: skip


def _plan_refusals(book: Book) -> None:
    """Plans that are not legal: nothing of them is sent."""
    base = "live/added-edges"
    given = json.loads(book.pages[base].files["plan.json"])
    for name, mutation, requirement, change in (
        ("plan-backwards", "an added edge leads to what its source waits for", "ST-PLAN-010",
         {"edges": [*given["edges"], {"source": 3, "target": 1}]}),
        ("plan-circle", "two added edges make a circle", "ST-PLAN-012",
         {"edges": [*given["edges"], {"source": 1, "target": 0}]}),
        ("plan-other-work", "the plan is for other work", "ST-PLAN-001", {"work_digest": "blake3:" + 64 * "a"}),
    ):  # fmt: skip
        book.change(
            base, f"live/{name}", mutation, [requirement], files={"plan.json": document({**given, **change})}
        )
