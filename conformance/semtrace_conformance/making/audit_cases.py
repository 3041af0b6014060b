"""The cases of the profile audit: clean executions, and such with one fault planted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace_conformance.making.audit_modes import other_modes
from semtrace_conformance.making.audit_parts import LOOP, PLAN, SCENARIO, WORK, accept, custom_plan, trace
from semtrace_conformance.making.audit_records import counts, headers, identity, presence
from semtrace_conformance.making.audit_timing import plans, release
from semtrace_conformance.making.timing import replay

if TYPE_CHECKING:
    from semtrace_conformance.making.book import Book


def add_audit(book: Book) -> None:
    """Add all cases of the profile."""
    clean(book)
    presence(book)
    identity(book)
    headers(book)
    counts(book)
    release(book)
    plans(book)
    other_modes(book)


def clean(book: Book) -> None:
    """Clean executions."""
    dag = custom_plan(name="dag")
    accept(
        book, "clean", "a faithful replay of the recorded edges",
        ["ST-AUD-001", "ST-AUD-002", "ST-AUD-003", "ST-AUD-004", "ST-AUD-005", "ST-AUD-006", "ST-AUD-010", "ST-AUD-012"],
        replay(WORK, dag, SCENARIO).run(), trace(),
    )  # fmt: skip
    accept(
        book, "plan", "a faithful replay under a plan with an added edge and a group",
        ["ST-AUD-013", "ST-AUD-030", "ST-AUD-034", "ST-AUD-035", "ST-AUD-102"],
        replay(WORK, custom_plan(**PLAN), SCENARIO).run(), trace(),
    )  # fmt: skip
    accept(
        book, "closed-loop", "a faithful replay of a closed loop", ["ST-AUD-006"],
        replay(WORK, dag, LOOP).run(), trace(),
    )  # fmt: skip
