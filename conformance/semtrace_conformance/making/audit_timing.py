"""Cases of the profile audit on when things happened: releases, and plans that were not kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace_conformance.making.audit_parts import (
    PLAN,
    SCENARIO,
    WORK,
    accept,
    clean_run,
    custom_plan,
    events_of,
    found,
    plant,
    put,
    rows_of,
    trace,
)
from semtrace_conformance.making.timing import Faults, replay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace_conformance.making.book import Book


def release(book: Book) -> None:
    """What was submitted early or late."""
    dag = custom_plan(name="dag")

    def change(name: str, mutation: str, requirement: str, rows: Sequence[int], faults: Faults) -> None:
        run = replay(WORK, dag, SCENARIO, faults).run()
        plant(book, "clean", name, mutation, [found(requirement, rows)], run)

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
    run = clean_run()
    row = rows_of("search")[0]
    ready = events_of(run)[row]["ready_ns"]
    put(run, row, ready_ns=ready - 2, released_ns=ready + 5)
    plant(
        book, "clean", "ready", "a ready time is recorded 2 ns too early", [found("ST-AUD-030", [row])], run
    )
    run = clean_run()
    put(run, row, released_ns=ready + 6)
    plant(
        book,
        "clean",
        "released",
        "a release is not the ready time plus the delay",
        [found("ST-AUD-031", [row])],
        run,
    )


def plans(book: Book) -> None:
    """Plans that were not kept, and such that are not legal."""
    full = custom_plan(**PLAN)

    def change(
        name: str, mutation: str, requirement: str, rows: Sequence[int], free: set[tuple[int, int]]
    ) -> None:
        replayed = replay(WORK, full, SCENARIO, Faults(free=frozenset(free)))
        plant(book, "plan", name, mutation, [found(requirement, rows)], replayed.run())

    b = WORK.number("b")
    # With the group alone, b would be released earlier than the added edge allows, and the other way round.
    change("barrier", "a barrier is not honoured", "ST-AUD-035", rows_of("b"), {(1, b)})
    replayed = replay(
        WORK, custom_plan(edges=[{"source": 2, "target": 3, "trigger": "finish", "lag_ns": 500}]), SCENARIO
    )
    accept(
        book,
        "added-edge",
        "a faithful replay under a plan with an added edge",
        ["ST-AUD-034"],
        replayed.run(),
        trace(),
    )
    broken = replay(
        WORK, custom_plan(edges=[{"source": 2, "target": 3, "trigger": "finish", "lag_ns": 500}]), SCENARIO,
        Faults(free=frozenset({(2, 3)})),
    )  # fmt: skip
    plant(
        book,
        "added-edge",
        "added-edge-broken",
        "the added edge is not honoured",
        [found("ST-AUD-034", rows_of("b"))],
        broken.run(),
    )
