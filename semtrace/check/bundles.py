"""Checking a bundle: all that can be read of it, with all that cannot be read as findings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from semtrace.check.executions import DETAIL_TABLES, judge_execution
from semtrace.check.finding import Finding
from semtrace.check.rules import Ledger
from semtrace.check.segments import TOKEN_ID_BYTES
from semtrace.check.trace import judge_trace
from semtrace.errors import SemtraceError
from semtrace.records.columns import Columns
from semtrace.records.enums import ContentLevel
from semtrace.records.execution import Execution
from semtrace.records.execution_tables import EXECUTION_TABLE
from semtrace.records.trace import Content, MemoryContent, Trace
from semtrace.records.trace_tables import TRACE_TABLE
from semtrace.store.digests import (
    artifact_digest,
    detail_digest,
    execution_digest,
    show,
    trace_digest,
    work_digest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from semtrace.records.schema import Table
    from semtrace.store.bundle import Bundle
    from semtrace.store.manifest import StoredExecution, StoredTable, StoredTrace

_MANIFEST: Final = "manifest"


def check_bundle(bundle: Bundle) -> list[Finding]:
    """Check an open bundle: its members, its trace with all content, and its executions.

    Returns:
        Everything that is wrong, at once. What cannot be read is a finding, and the rest is checked without it.
    """
    findings = list(_members(bundle))
    trace: Trace | None = None
    stored = bundle.manifest.trace
    if stored is not None:
        ledger = Ledger()
        tables = _read_tables(bundle, stored.tables, TRACE_TABLE, ledger)
        trace = Trace(tables, _read_content(bundle, stored, ledger))
        whole = not ledger.causes(*TRACE_TABLE)
        if whole:
            for finding in _trace_digests(trace, stored):
                ledger.add(finding)
        findings += judge_trace(trace, ledger, content=True)
        trace = trace if whole else None
    for name, execution in sorted(bundle.manifest.executions.items()):
        findings += _execution(bundle, name, execution, trace)
    return findings


def _members(bundle: Bundle) -> Iterator[Finding]:
    """Findings for members with wrong checksums."""
    for name in bundle.damaged_members():
        yield Finding(
            "ST-BND-009", f"the CRC-32 of the member {name} in the ZIP file is wrong", table=_MANIFEST
        )


def _read_tables(
    bundle: Bundle, stored: Mapping[str, StoredTable], specs: Mapping[str, Table], ledger: Ledger
) -> dict[str, Columns]:
    """Every table that the standard has; those that cannot be read are empty, and broken in the ledger."""
    for name in sorted(set(stored) - set(specs)):
        message = f"there is no table {name!r} in the standard"
        ledger.add(Finding("ST-TAB-001", message, table=_MANIFEST, hint=f"one of {', '.join(specs)}"))
    tables = {}
    for name, spec in specs.items():
        tables[name] = Columns(spec, spec.empty())
        if name in stored:
            try:
                tables[name] = Columns(spec, bundle.table(stored[name]))
            except SemtraceError as error:
                ledger.add_error(error, "ST-BND-020", name, name)
    return tables


def _read_content(bundle: Bundle, stored: StoredTrace | StoredExecution, ledger: Ledger) -> Content:
    """The content in the packs; nothing, and broken in the ledger, if a pack cannot be read."""
    kept: Content = MemoryContent()
    try:
        content = bundle.packs(stored.packs)
        held = sum(1 for _ in content)
        claimed = sum(pack.artifacts for pack in stored.packs)
        if held != claimed:
            message = f"the packs hold {held} artifacts, the manifest says {claimed}"
            ledger.add(Finding("ST-BND-022", message, table="packs"))
        kept = content
    except SemtraceError as error:
        ledger.add_error(error, "ST-BND-020", "packs", "content")
    return kept


def _trace_digests(trace: Trace, stored: StoredTrace) -> Iterator[Finding]:
    digests = {"work_digest": show(work_digest(trace)), "trace_digest": show(trace_digest(trace))}
    for name, digest in digests.items():
        if getattr(stored, name) != digest:
            message = f"the manifest says {getattr(stored, name)}, the tables have {digest}"
            yield Finding("ST-DIG-014", message, table=_MANIFEST, column=name)
    levels = trace["trace"].ints("content_level")
    names = [level.name.lower() for level in ContentLevel if level in levels.tolist()]
    if names and stored.content_level not in names:
        message = f"the manifest says {stored.content_level}, the trace {names[0]}"
        yield Finding("ST-LVL-003", message, table=_MANIFEST, column="content_level")


def _execution(bundle: Bundle, name: str, stored: StoredExecution, trace: Trace | None) -> Iterator[Finding]:
    ledger = Ledger()
    tables = _read_tables(bundle, stored.tables, EXECUTION_TABLE, ledger)
    execution = Execution(stored.header, tables, _read_content(bundle, stored, ledger))
    if not ledger.causes("content"):
        for finding in _token_ids(execution.content):
            ledger.add(finding, "content")
    if not ledger.causes("instances", "events"):
        digest = show(execution_digest(execution))
        if stored.execution_digest != digest:
            message = f"the manifest says {stored.execution_digest}, the tables have {digest}"
            ledger.add(Finding("ST-DIG-014", message, table=_MANIFEST, column="execution_digest"))
    for detail in sorted(set(stored.detail_digests) | set(stored.header.detail)):
        if detail in DETAIL_TABLES and not ledger.causes(detail):
            digest = show(detail_digest(execution, detail))
            if stored.detail_digests.get(detail) != digest:
                said = stored.detail_digests.get(detail, "nothing")
                message = f"the manifest says {said} of {detail}, the table has {digest}"
                ledger.add(Finding("ST-DIG-014", message, table=_MANIFEST, column="detail_digests"))
    for finding in judge_execution(execution, trace, ledger):
        yield replace(finding, table=f"executions/{name}/{finding.table}")


def _token_ids(content: Content) -> Iterator[Finding]:
    """What lies in the packs of an execution has its digest, and is token ids."""
    other, broken = _Counted(), _Counted()
    for digest in content:
        held = content.get(digest) or b""
        if artifact_digest(held) != digest:
            other.add(f"the content {show(digest)} does not have that digest")
        elif len(held) % TOKEN_ID_BYTES:
            broken.add(f"the content {show(digest)} has {len(held)} bytes, which are no whole token ids")
    for requirement, wrong in (("ST-ART-007", other), ("ST-ART-004", broken)):
        if wrong.count:
            yield Finding(requirement, wrong.message, table="packs", count=wrong.count)


@dataclass
class _Counted:
    """Things that are wrong in one way: what is wrong with the first of them, and how many there are."""

    message: str = ""
    count: int = 0

    def add(self, message: str) -> None:
        self.message = self.message or message
        self.count += 1
