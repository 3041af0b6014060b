"""Audit rules on the record as a whole: its form, its header, the outcomes of its instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.check.executions import check_form
from semtrace.errors import SemtraceError
from semtrace.measure.audit_events import TERMINAL
from semtrace.records.enums import Outcome
from semtrace.replay.ideal import IdealSettings
from semtrace.replay.scenario import Drawn, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from semtrace.check.finding import Finding
    from semtrace.measure.audit_events import Case
    from semtrace.records.execution import ExecutionHeader

_TOLD_BY: Final = {
    "ST-EXE-002": "ST-AUD-001",
    "ST-EXE-003": "ST-AUD-001",
    "ST-EXE-004": "ST-AUD-001",
}
"""Rules that a violation of the form may follow from, by the requirement on the form."""

_TOLD_OF: Final = {
    "events.instance": "ST-AUD-001",
    "events.operation": "ST-AUD-001",
    "instances.task": "ST-AUD-001",
    "instances.outcome": "ST-AUD-008",
    "events.outcome": "ST-AUD-002",
    "events.output_ids": "ST-AUD-022",
}
"""The same by the column."""

_IN_ORDER: Final = "ST-EXE-005"
"""Times in order: the audit judges them itself, with their evidence (ST-AUD-005), or as matters of release."""


def judge_form(case: Case) -> frozenset[str]:
    """The execution is well formed (ST-AUD-007); what other rules have said of it is not said again.

    Returns:
        The columns of events of which something was reported.
    """
    slots, ledger = case.slots, case.ledger
    left = [found for found in check_form(slots.execution, slots.trace) if not _told(case, found)]
    if not left:
        ledger.fact("ST-AUD-007", None, table="header")
    for found in left:
        ledger.fact(
            "ST-AUD-007",
            f"{found.message} ({found.requirement})",
            table=found.table or "header",
            column=found.column,
            rows=found.rows,
            count=found.count,
            hint=found.hint,
        )
    return frozenset(found.column for found in left if found.table == "events" and found.column)


def _told(case: Case, found: Finding) -> bool:
    rule = _TOLD_BY.get(found.requirement) or _TOLD_OF.get(f"{found.table}.{found.column}")
    return found.requirement == _IN_ORDER or (rule is not None and case.ledger.violated(rule))


def judge_outcomes(case: Case) -> None:
    """An instance of a replay of which every operation ended is a success (ST-AUD-008)."""
    slots, ledger = case.slots, case.ledger
    if case.native:
        return
    open_ = np.zeros(slots.instances, dtype=np.bool_)
    open_[slots.instance[~np.isin(slots.outcome, TERMINAL)]] = True
    ledger.skip("ST-AUD-008", "an operation of the instance did not end, which is reported", int(open_.sum()))
    outcome = slots.execution.instances.ints("outcome")
    at = np.flatnonzero(~open_)

    def told(i: int) -> str:
        number = int(outcome[at[i]])
        name = Outcome(number).name.lower() if number in set(Outcome) else f"outcome {number}"
        return f"instance {int(at[i])} ended as {name}, and every operation of it ended"

    ledger.judge(
        "ST-AUD-008",
        outcome[at] != Outcome.SUCCESS,
        told,
        rows=at,
        table="instances",
        column="outcome",
        hint="the outcome says that the instance ran to its end, not how good its answer is",
    )


def scenario_of(header: ExecutionHeader) -> Scenario:
    """The scenario in a header.

    Raises:
        SemtraceError: there is none, or it cannot be read.
    """
    return Scenario.parse(header.scenario, path="execution.scenario")


def judge_header(case: Case) -> None:
    """The header of a replay agrees with its scenario and its clock (ST-AUD-014)."""
    header = case.slots.execution.header
    if case.native:
        return
    problems = list(_contradictions(header))
    if not problems:
        case.ledger.fact("ST-AUD-014", None, table="header")
    for column, problem in problems:
        case.ledger.fact("ST-AUD-014", problem, table="header", column=column)


def _contradictions(header: ExecutionHeader) -> Iterator[tuple[str, str]]:
    """Members of a header that contradict others, with what is wrong."""
    if header.tolerance_ns < 0:
        yield "tolerance_ns", f"a tolerance of {header.tolerance_ns} ns"
    if header.clock == "virtual" and header.measured_at != "simulator":
        yield "measured_at", f"the clock is virtual, and times were read at the {header.measured_at}"
    if header.scenario is None:
        return  # ST-AUD-006
    try:
        scenario = scenario_of(header)
    except SemtraceError:
        return  # ST-AUD-006
    if header.mode != scenario.mode:
        yield "mode", f"the mode is {header.mode}, the scenario's is {scenario.mode}"
    wanted, ran = scenario.backend, header.backend
    if ran.name != wanted.name:
        yield "backend", f"the backend is {ran.name!r}, the scenario's is {wanted.name!r}"
    else:
        yield from _settings(ran.name, wanted.settings, ran.settings)
    drawn_from = scenario.arrivals.drawn_from if isinstance(scenario.arrivals, Drawn) else None
    seed = header.seeds.get("arrivals")
    if drawn_from is not None and seed is not None and seed != drawn_from.seed:
        yield "seeds", f"arrivals were drawn with seed {seed}, by the scenario with {drawn_from.seed}"


def _settings(backend: str, wanted: Mapping[str, Any], ran: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings of the scenario that the backend did not have; what the scenario leaves out, a backend may choose."""
    if backend == "ideal":
        try:
            wanted = IdealSettings.parse(dict(wanted), path="scenario.backend.settings").model_dump()
            ran = IdealSettings.parse(dict(ran), path="backend.settings").model_dump()
        except SemtraceError as error:
            yield "scenario", f"the backends cannot be compared: {error}"
            return
    for name, value in wanted.items():
        if name not in ran or ran[name] != value:
            has = repr(ran[name]) if name in ran else "not there"
            yield "backend", f"the setting {name} is {has}, by the scenario {value!r}"
