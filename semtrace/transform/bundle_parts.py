"""What the tools take and give: all that is in a bundle, the trace sound."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from semtrace.check.executions import check_execution
from semtrace.check.trace import check_trace
from semtrace.errors import FormatError
from semtrace.records.trace import Content, Trace
from semtrace.store.bundle import Bundle, BundleInfo

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from semtrace.check.finding import Finding
    from semtrace.records.execution import Execution
    from semtrace.transform.lineage import Step


@dataclass(frozen=True)
class Parts:
    """A trace with the executions and the remarks that a bundle keeps beside it.

    Attributes:
        trace: the trace.
        executions: by name.
        info: sources, loss report, lineage and remarks.
        name: what it is called in messages.
    """

    trace: Trace
    executions: Mapping[str, Execution] = field(default_factory=dict)
    info: BundleInfo = field(default_factory=BundleInfo)
    name: str = "the trace"

    @classmethod
    def of(cls, bundle: Bundle) -> Parts:
        """All that is in a bundle.

        Raises:
            UsageError: it has no trace.
            FormatError, IntegrityError: it cannot be read.
        """
        executions = {name: bundle.execution(name) for name in bundle.manifest.executions}
        return cls(bundle.trace, executions, bundle.info, str(bundle.path))

    def with_step(self, step: Step) -> BundleInfo:
        """The remarks, with one more step of lineage."""
        return replace(self.info, lineage=[*self.info.lineage, step.as_json()])


class ContentOf(Content):
    """The content of some of the artifacts that other content holds."""

    def __init__(self, contents: Collection[Content], digests: Collection[bytes]) -> None:
        self._contents = contents
        self._digests = dict.fromkeys(digests)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._digests)

    def get(self, digest: bytes) -> bytes | None:
        """The content with this digest, None if it is not one of those, or is not here."""
        if digest not in self._digests:
            return None
        found = (content.get(digest) for content in self._contents)
        return next((content for content in found if content is not None), None)


def sound(parts: Parts, *, tolerated: Collection[str] = ()) -> Parts:
    """The same, after a check of all tables.

    Args:
        parts: a trace with its executions.
        tolerated: requirements of which violations are let through, and with them what cannot be judged after.

    Raises:
        FormatError: the trace or an execution is not valid.
    """
    refuse(check_trace(parts.trace, content=False), parts.name, tolerated)
    for name, execution in parts.executions.items():
        refuse(check_execution(execution, parts.trace), f"{parts.name}#{name}", tolerated)
    return parts


def refuse(findings: list[Finding], name: str, tolerated: Collection[str] = ()) -> None:
    """Stop at findings, naming the first.

    Raises:
        FormatError: there is one that is not tolerated.
    """
    wrong = [finding for finding in findings if finding.requirement not in tolerated]
    if wrong:
        more = f", and {len(wrong) - 1} more findings" if len(wrong) > 1 else ""
        where = str(wrong[0]).removesuffix(f" [{wrong[0].requirement}]")
        raise FormatError(
            f"not valid: {where}{more}",
            code="trace.invalid",
            path=name,
            requirement=wrong[0].requirement,
            hint="semtrace check names every finding",
        )
