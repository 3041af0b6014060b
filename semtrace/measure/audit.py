"""The audit: whether an execution, from anyone, is a faithful run of a trace under a plan (spec, audit.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.errors import FormatError
from semtrace.graph.legality import judge
from semtrace.graph.plan import Plan
from semtrace.graph.resolve import plan_findings
from semtrace.measure.audit_blocks import judge_blocks, judge_drained
from semtrace.measure.audit_decisions import judge_decisions
from semtrace.measure.audit_derived import (
    judge_critical_path,
    judge_decomposition,
    judge_reported,
)
from semtrace.measure.audit_events import (
    Case,
    judge_counts,
    judge_durations,
    judge_ends,
    judge_finish_reasons,
    judge_ids,
    judge_presence,
    judge_times,
)
from semtrace.measure.audit_form import judge_form, judge_header, judge_outcomes
from semtrace.measure.audit_ideal import judge_ideal
from semtrace.measure.audit_order import judge_order
from semtrace.measure.audit_release import judge_arrivals, judge_release
from semtrace.measure.audit_room import judge_room
from semtrace.measure.audit_steps import engine_of, judge_steps
from semtrace.measure.audit_transfers import judge_transfers
from semtrace.measure.ready import Expected, no_plan
from semtrace.measure.recorded_engine import recorded
from semtrace.measure.report import AuditReport, Ledger
from semtrace.measure.slots import Slots
from semtrace.store.digests import show, work_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semtrace.records.execution import Execution
    from semtrace.records.trace import Trace

MOST_TOLERATED_NS: Final = 1_000_000
"""The greatest tolerance that an execution can declare for itself; whoever audits may allow more (ST-AUD-033)."""


DETAIL: Final = ("steps", "step_runs", "blocks", "transfers", "decisions")
"""The detail tables."""


def audit(
    trace: Trace,
    execution: Execution,
    plan: Plan | None = None,
    *,
    tolerance_ns: int | None = None,
    measures: Mapping[str, Any] | None = None,
) -> AuditReport:
    """Audit an execution.

    Args:
        trace: the trace; valid (see `semtrace.check`).
        execution: the execution, from anyone.
        plan: the plan that it should have followed; the one in its header if left out.
        tolerance_ns: allowed lateness in ns. If left out: 0 on a virtual clock; on a wall clock what the header
            declares, but not more than `MOST_TOLERATED_NS`.
        measures: a report of measures to be verified, as `semtrace.measure.metrics.Measures.as_dict` makes it.

    Returns:
        The report: every violation, and for each rule how much was judged.
    """
    ledger = Ledger()
    header = execution.header
    followed = _judge_identity(trace, execution, plan, ledger)
    slots = Slots.of(trace, execution)
    if tolerance_ns is None:
        declared = min(max(header.tolerance_ns, 0), MOST_TOLERATED_NS)
        tolerance_ns = 0 if header.clock == "virtual" else declared
    spoilt = np.zeros(slots.instances, dtype=np.bool_)
    case = Case(slots, followed, Expected.of(slots, followed), ledger, tolerance_ns, spoilt)
    judge_presence(case)
    judge_ends(case)
    judge_times(case)
    judge_outcomes(case)
    judge_header(case)
    judge_arrivals(case)
    judge_counts(case)
    judge_ids(case)
    judge_finish_reasons(case)
    lateness = judge_release(case)
    judge_room(case)
    judge_order(case)
    judge_durations(case)
    judge_ideal(case, judge_form(case))
    judge_critical_path(case)
    judge_decomposition(case)
    _judge_detail(case)
    if measures is not None:
        judge_reported(case, measures)
    facts = {
        "work_digest": header.work_digest,
        "plan_digest": header.plan_digest,
        "mode": header.mode,
        "clock": header.clock,
        "tolerance_ns": tolerance_ns,
        "declared_tolerance_ns": header.tolerance_ns,
        "backend": header.backend.name,
        "instances": slots.instances,
        "operations": slots.count,
        "events": execution.events.rows,
    }
    findings = sorted(ledger.findings, key=lambda finding: finding.requirement)
    notes = sorted(ledger.notes, key=lambda note: note.requirement)
    return AuditReport(findings, notes, ledger.results(), lateness, facts)


def _judge_detail(case: Case) -> None:
    """Steps, blocks, transfers and decisions, as far as they were recorded (ST-AUD-060 to ST-AUD-086)."""
    if not any(recorded(case.slots.execution, name) for name in DETAIL):
        return
    engine = engine_of(case)
    steps = judge_steps(case, engine)
    blocks = judge_blocks(case, engine, steps)
    judge_transfers(case, engine, blocks)
    judge_decisions(case, engine, steps, blocks)
    if engine is not None and blocks is not None:
        judge_drained(blocks)


def _judge_identity(trace: Trace, execution: Execution, plan: Plan | None, ledger: Ledger) -> Plan | None:
    """Digests and plan (ST-AUD-010 … ST-AUD-013); returns the plan to judge by, None if it is not known.

    A native run follows the recorded edges.
    """
    header = execution.header
    if header.plan is None and header.mode != "native":
        ledger.fact(
            "ST-AUD-012",
            "there is no plan, which says what was to be released when",
            table="header",
            column="plan",
            hint="a replay names the plan that it followed",
        )
    own = show(work_digest(trace))
    other = header.work_digest != own
    ledger.fact(
        "ST-AUD-010",
        f"the execution is of work {header.work_digest[:19]}…, the trace is work {own[:19]}…"
        if other
        else None,
        table="header",
        column="work_digest",
        hint="a trace whose operations, inputs, counts, durations or edges changed is other work",
    )
    if plan is None:
        plan = _own_plan(execution, ledger)
    if plan is None and header.plan_digest == no_plan(trace).content_digest():
        plan = no_plan(trace)
    if plan is None and header.mode == "native":
        return no_plan(trace)
    if plan is None:
        for requirement in ("ST-AUD-011", "ST-AUD-012", "ST-AUD-013"):
            ledger.skip(requirement, "the plan is not known")
        return None
    same_cause = other and plan.work_digest == header.work_digest
    if same_cause:
        ledger.skip("ST-AUD-011", "the execution is of other work, which is reported")
    else:
        ledger.fact(
            "ST-AUD-011",
            None if plan.work_digest == own else f"the plan is for work {plan.work_digest[:19]}…",
            table="plan",
            column="work_digest",
        )
    digest = plan.content_digest()
    followed = header.plan_digest or "no plan"
    ledger.fact(
        "ST-AUD-012",
        None
        if followed == digest
        else f"the execution followed {followed[:19]}…, the plan is {digest[:19]}…",
        table="header",
        column="plan_digest",
        hint="audit with the plan that the replay was given",
    )
    return _judge_plan(trace, plan.model_copy(update={"work_digest": own}), ledger)


def _own_plan(execution: Execution, ledger: Ledger) -> Plan | None:
    """The plan in an execution's header."""
    if execution.header.plan is None:
        return None
    try:
        found = Plan.parse(execution.header.plan, path="header.plan")
        found.content_digest()  # numbers that no JSON document can hold have no digest
    except FormatError as error:
        ledger.fact("ST-AUD-013", f"it cannot be read: {error}", table="header", column="plan")
        return None
    return found


def _judge_plan(trace: Trace, plan: Plan, ledger: Ledger) -> Plan | None:
    """Legality (ST-AUD-013); returns the plan if it can be applied to the trace."""
    against = judge(trace, plan).findings
    for finding in against:
        ledger.fact(
            "ST-AUD-013",
            f"{finding.message} ({finding.requirement})",
            table=finding.table or "plan",
            column=finding.column,
            hint=finding.hint,
        )
    if not against:
        ledger.fact("ST-AUD-013", None, table="plan")
    return None if list(plan_findings(trace, plan)) else plan
