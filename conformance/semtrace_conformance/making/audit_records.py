"""Cases of the profile audit on what a record says: which events there are, whose work it is, headers, counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.records.enums import EventOutcome
from semtrace_conformance.making.audit_parts import (
    LOOP,
    SCENARIO,
    WORK,
    clean_run,
    custom_plan,
    events_of,
    found,
    moved,
    plant,
    put,
    rows_of,
)
from semtrace_conformance.making.timing import plan_digest, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from semtrace_conformance.making.audit_parts import Row
    from semtrace_conformance.making.book import Book
    from semtrace_conformance.making.draft import Run


def presence(book: Book) -> None:
    """Events and instances that are missing or too many, and times that are."""

    def change(name: str, mutation: str, violations: Sequence[Row], spoil: Callable[[Run], object]) -> None:
        run = clean_run()
        spoil(run)
        plant(book, "clean", name, mutation, violations, run)

    log = rows_of("log")[1]
    missing = [found("ST-AUD-001", [1], "instances")]  # of the task's second copy
    change("missing", "an event is missing", missing, lambda run: events_of(run).pop(log))
    change(
        "double",
        "an event is there twice",
        [found("ST-AUD-001", [log + 1])],
        lambda run: events_of(run).insert(log, dict(events_of(run)[log])),
    )
    x = WORK.number("x")
    change(
        "stray", "an event is of an operation of another task", [found("ST-AUD-001", [7])],
        lambda run: events_of(run).insert(7, {**events_of(run)[rows_of("x")[0]], "instance": 0, "operation": x}),
    )  # fmt: skip
    change(
        "unfinished", "an operation did not end", [found("ST-AUD-002", [log])],
        lambda run: put(run, log, outcome=EventOutcome.UNFINISHED, finished_ns=None),
    )  # fmt: skip
    change(
        "outcome", "an operation that went well ended in an error", [found("ST-AUD-003", [log])],
        lambda run: put(run, log, outcome=EventOutcome.ERROR),
    )  # fmt: skip
    lost = rows_of("lost")[0]
    change(
        "outcome-of-failure", "an operation that failed went well", [found("ST-AUD-003", [lost])],
        lambda run: put(run, lost, outcome=EventOutcome.OK),
    )  # fmt: skip
    change(
        "no-submission", "the submission of an operation is not recorded", [found("ST-AUD-004", [log])],
        lambda run: put(run, log, submitted_ns=None),
    )  # fmt: skip
    change(
        "no-arrival", "the arrival of an instance is not recorded", [found("ST-AUD-004", [3], "instances")],
        lambda run: run.tables["instances"][3].update(arrival_ns=None),
    )  # fmt: skip
    b = rows_of("b")[0]
    change(
        "token-after-end", "a first token comes after the end", [found("ST-AUD-005", [b])],
        lambda run: put(run, b, first_token_ns=events_of(run)[b]["finished_ns"] + 1),
    )  # fmt: skip
    change(
        "scheduled-before-submission", "an operation is scheduled before it is submitted", [found("ST-AUD-005", [b])],
        lambda run: put(run, b, scheduled_ns=events_of(run)[b]["submitted_ns"] - 1),
    )  # fmt: skip
    late = replay(
        WORK,
        custom_plan(name="dag"),
        {**SCENARIO, "arrivals": {"kind": "drawn", "times_ns": [0, 40, 305, 20]}},
    )
    late.header["scenario"] = clean_run().header["scenario"]
    plant(book, "clean", "arrival", "an instance arrives 5 ns later than the scenario says",
            [found("ST-AUD-006", [1], "instances")], late.run())  # fmt: skip

    def without_last(run: Run) -> None:
        run.tables["instances"].pop()
        run.tables["events"] = [row for row in events_of(run) if row["instance"] != 3]

    change(
        "instance-missing",
        "an instance is missing with all of its events",
        [found("ST-AUD-006")],
        without_last,
    )
    loop = replay(WORK, custom_plan(name="dag"), LOOP)
    later = moved(loop, 3, 1)
    plant(book, "closed-loop", "arrival-of-loop", "a user thinks 1 ns longer than the scenario says",
            [found("ST-AUD-006", [3], "instances")], later.run())  # fmt: skip


def identity(book: Book) -> None:
    """Executions of other work, and of other plans."""
    run = clean_run()
    run.header["work_digest"] = "blake3:" + 64 * "0"
    plant(book, "clean", "other-work", "it is of other work", [found("ST-AUD-010")], run)
    run = clean_run()
    other = {**custom_plan(name="dag"), "work_digest": "blake3:" + 64 * "0"}
    run.header |= {"plan": {**run.header["plan"], **other}, "plan_digest": plan_digest(other)}
    plant(book, "clean", "plan-of-other-work", "its plan is for other work", [found("ST-AUD-011")], run)
    run = clean_run()
    run.header["plan_digest"] = "blake3:" + 64 * "0"
    plant(book, "clean", "other-plan", "it followed another plan than it says", [found("ST-AUD-012")], run)
    delayed = custom_plan(edges=[{"source": 0, "target": 3, "lag_ns": 4}])
    run = replay(WORK, delayed, SCENARIO).run()
    plant(
        book,
        "clean",
        "illegal-plan",
        "its plan delays an operation",
        [found("ST-AUD-013")],
        run,
        ["ST-AUD-013"],
    )


def headers(book: Book) -> None:
    """Headers that contradict themselves."""

    def change(name: str, mutation: str, requirement: str, spoil: Callable[[Run], object]) -> None:
        run = clean_run()
        spoil(run)
        plant(book, "clean", name, mutation, [found(requirement)], run)

    a, y = rows_of("a")[1], rows_of("y")[0]
    change(
        "cached",
        "more tokens are cached than a prompt has",
        "ST-AUD-007",
        lambda run: put(run, a, cached_tokens=21),
    )
    change(
        "attempts",
        "an operation was submitted twice on a virtual clock",
        "ST-AUD-007",
        lambda run: put(run, a, attempts=2),
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
    run = clean_run()
    put(run, y, finished_ns=events_of(run)[y]["finished_ns"] + 1)
    plant(
        book,
        "clean",
        "ideal-end",
        "a call ends 1 ns later than the backend lets it",
        [found("ST-AUD-042", [y])],
        run,
    )
    run = clean_run()
    b = rows_of("b")[0]
    put(run, b, first_token_ns=events_of(run)[b]["first_token_ns"] - 1)
    plant(
        book,
        "clean",
        "ideal-token",
        "a first token comes 1 ns sooner than the backend lets it",
        [found("ST-AUD-042", [b])],
        run,
    )


def counts(book: Book) -> None:
    """Token counts and durations that are not the recorded ones."""
    a = rows_of("a")[1]
    for name, mutation, requirement, values in (
        ("prompt", "a prompt is one token longer", "ST-AUD-020", {"prompt_tokens": 21}),
        ("prompt-unknown", "the length of a prompt is not recorded", "ST-AUD-020", {"prompt_tokens": None}),
        ("output", "an output is one token shorter", "ST-AUD-021", {"output_tokens": 3}),
        ("output-unknown", "the length of an output is not recorded", "ST-AUD-021", {"output_tokens": None}),
    ):
        run = clean_run()
        put(run, a, **values)
        plant(book, "clean", name, mutation, [found(requirement, [a])], run)
