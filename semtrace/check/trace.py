"""Checking a trace: all rules, in stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semtrace.check.artifacts import ARTIFACT_RULES
from semtrace.check.content import CONTENT_RULES, ContentView
from semtrace.check.context import CONTEXT_RULES
from semtrace.check.edges import EDGE_RULES
from semtrace.check.hierarchy import HIERARCHY_RULES
from semtrace.check.operations import OPERATION_RULES
from semtrace.check.order import NUMBERING_RULES, ORDER_RULES, REFERENCE_RULES
from semtrace.check.rules import Ledger
from semtrace.check.segments import SEGMENT_RULES
from semtrace.check.state import STATE_RULES
from semtrace.check.tokens import TOKEN_RULES
from semtrace.check.values import check_values
from semtrace.records.trace_tables import TRACE_TABLES

if TYPE_CHECKING:
    from semtrace.check.finding import Finding
    from semtrace.records.trace import Trace

TABLE_RULES = (
    *ORDER_RULES,
    *HIERARCHY_RULES,
    *NUMBERING_RULES,
    *REFERENCE_RULES,
    *OPERATION_RULES,
    *SEGMENT_RULES,
    *CONTEXT_RULES,
    *TOKEN_RULES,
    *EDGE_RULES,
    *STATE_RULES,
    *ARTIFACT_RULES,
)
"""The rules on the tables of a trace; a rule stands after those that it builds upon."""


def check_trace(trace: Trace, *, content: bool = True) -> list[Finding]:
    """Check a trace against every rule of the standard.

    Args:
        trace: the trace.
        content: whether to read all content and check it too.

    Returns:
        Everything that is wrong, at once; nothing if the trace is valid. Where a rule could not be judged because
        of a finding, the finding's hint says so.
    """
    return judge_trace(trace, Ledger(), content=content)


def judge_trace(trace: Trace, ledger: Ledger, *, content: bool) -> list[Finding]:
    """Check a trace of which some tables, or the content, may be unreadable: marked broken in the ledger."""
    rows_of = {spec.name: trace[spec.name].rows for spec in TRACE_TABLES if not ledger.causes(spec.name)}
    for spec in TRACE_TABLES:
        if spec.name in rows_of:
            check_values(trace[spec.name], rows_of, ledger)
    view = ContentView(trace, ledger)
    ledger.run(TABLE_RULES, view)
    if content:
        ledger.run(CONTENT_RULES, view)
    return ledger.result()
