"""Runs of the simulated engine that audits are tried on, and what an example or a test changes in them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from measure_cases import evidence_of
from spec_runs import blocks

from semtrace.measure.audit import audit
from semtrace.records.columns import Columns
from semtrace.records.execution import Backend, Execution
from support.lifecycle import COEFFICIENTS, Ran, run_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

PAGES = {"steps": "audit.md", "blocks": "audit.md", "engine": "measures.md"}
DETAIL = {
    "engine": ("steps", "step_runs"),
    "steps": ("steps", "step_runs"),
    "blocks": ("steps", "step_runs", "blocks", "transfers", "decisions"),
}


@cache
def base(name: str) -> Ran:
    """The run that the examples of this kind are about."""
    (short,) = blocks(PAGES[name], name)
    return run_engine(short["operations"], short["engine"], detail=DETAIL[name])


def tampered(ran: Ran, example: Mapping[str, Any]) -> Execution:
    """An execution with cells, rows and settings changed.

    Args:
        ran: the run.
        example: by table, cells by row (of events by the name of the operation); `without`: rows left out, by table;
            `settings`: members of the engine document.
    """
    execution = ran.execution
    header = execution.header
    if "settings" in example:
        changed = dict(example["settings"])
        if isinstance(changed.get("cost"), list):
            names = zip(COEFFICIENTS, changed["cost"], strict=True)
            changed["cost"] = {"kind": "linear", **{name: 1000 * value for name, value in names}}
        settings = {**header.backend.settings, **changed}
        scenario = {**header.scenario, "backend": {"name": "engine", "settings": settings}}
        header = header.model_copy(
            update={"scenario": scenario, "backend": Backend(name="engine", settings=settings)}
        )
    tables: dict[str, pa.Table] = {}
    for name, table in execution.tables.items():
        rows = table.data.to_pylist()
        for key, cells in example.get(name, {}).items():
            row = ran.names[key] if name == "events" else int(key)
            rows[row].update(evidence_of(cells) | cells if name == "events" else cells)
        left = set(example.get("without", {}).get(name, ()))
        rows = [row for at, row in enumerate(rows) if at not in left]
        if left and "sequence" in table.spec.by_name:
            seen: dict[int, int] = {}
            for row in rows:
                row["sequence"] = seen.get(row["time_ns"], -1) + 1
                seen[row["time_ns"]] = row["sequence"]
        tables[name] = Columns.of(
            table.spec, {each: [row[each] for row in rows] for each in table.spec.by_name}
        ).data
    return Execution.from_arrow(header, tables, execution.content)


def found(ran: Ran, execution: Execution | None = None) -> dict[str, str]:
    """The rules that an audit finds violated, each with what it says first."""
    report = audit(ran.trace, execution or ran.execution)
    found: dict[str, str] = {}
    for finding in report.findings:
        found.setdefault(finding.requirement, finding.message)
    return found
