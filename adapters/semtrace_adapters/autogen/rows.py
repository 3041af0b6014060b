"""Rows of operations: model calls, tools, agents without a model, people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semtrace.errors import FormatError
from semtrace.records.chat import split_output
from semtrace.records.document import canonical_json
from semtrace.records.enums import EntityKind, Evidence, FinishReason, OperationKind, OperationStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace.build.builder import TraceBuilder
    from semtrace_adapters.autogen.config import TeamConfig
    from semtrace_adapters.autogen.facts import Call, ToolRun
    from semtrace_adapters.base import LossReport

_FINISH = {
    "stop": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_calls": FinishReason.TOOL_CALLS,
    "tool_use": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
}


@dataclass(frozen=True)
class CallRow:
    """A model call's operation, and what its request needs to be taken apart.

    Attributes:
        operation: its provisional id.
        call: the call.
        agent: name of the agent that made it.
        session: provisional id of its session.
        raw: the output as it is stored, None where there is none.
        after: place in the log at which everything that it could have been told was there.
        task_of: for the first call inside of a tool, the operation that asked for the tool.
    """

    operation: int
    call: Call
    agent: str
    session: int
    raw: str | None
    after: float
    task_of: int | None = None


@dataclass(frozen=True)
class ToolRow:
    """A tool's operation: its run, the operation that asked for it, and the agent's name."""

    operation: int
    run: ToolRun
    asked_by: int
    agent: str


@dataclass(frozen=True)
class TextRow:
    """An operation that returned a text without a model: an agent of another kind, or a person."""

    operation: int
    text: str
    agent: str
    order: float


@dataclass
class Rows:
    """Makes operations and keeps what they were made of; times are Unix nanoseconds less ``origin_ns``."""

    builder: TraceBuilder
    configs: Sequence[TeamConfig]
    origin_ns: int
    loss: LossReport
    calls: list[CallRow] = field(default_factory=list)
    tools: list[ToolRow] = field(default_factory=list)
    texts: list[TextRow] = field(default_factory=list)
    of_call: dict[int, int] = field(default_factory=dict)
    """Operation of a call, by the call's ``id()``."""
    of_tool: dict[int, int] = field(default_factory=dict)
    """Operation of a tool's run, by the run's ``id()``."""
    ends: dict[int, float] = field(default_factory=dict)
    """Place in the log at which each operation had ended."""

    def precedes(self, source: int, target: int) -> bool:
        """Whether an operation can be what another waits for: it had ended earlier in the log.

        A log whose lines contradict each other could else make operations wait in a circle.
        """
        return (self.ends[source], source) < (self.ends[target], target)

    def call(
        self,
        call: Call,
        agent: str,
        task: int,
        stage: int,
        session: int,
        after: float,
        ready_ns: int | None,
        task_of: int | None = None,
    ) -> int:
        """The operation of a model call.

        Args:
            call: the call.
            agent: name of its agent.
            task: its task.
            stage: its stage.
            session: its session.
            after: place in the log at which all that it waited for had ended.
            ready_ns: time of that; its start, where no source has one.
            task_of: the operation that asked for the tool whose first call it is.
        """
        if call.error is None and (call.prompt_tokens is None or call.output_tokens is None):
            self.loss.add(
                "tokens.unknown",
                "unknown",
                "a call's token counts are in no source (logged as 0)",
                where=call.where,
            )
        start, end = self._interval(call, ready_ns)
        model = call.model or self._configured(agent)[0]
        failed = call.error is not None
        evidence = Evidence.OBSERVED if call.start_seen and call.end_seen else Evidence.INFERRED
        duration = end - start if failed and start is not None and end is not None else None
        row = self.builder.operation(
            task,
            OperationKind.LLM,
            agent,
            stage=stage,
            session=session,
            model=None if model is None else self.builder.model(model),
            status=OperationStatus.ERROR if failed else OperationStatus.OK,
            started_ns=start,
            duration_ns=duration,
            duration_evidence=None if duration is None else evidence,
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            reasoning_tokens=call.reasoning_tokens,
            finish_reason=_FINISH.get(call.finish or ""),
            settings=self._settings(call, agent),
        )
        raw = self._output(row, call)
        if raw is None and not failed:
            self.loss.add(
                "output.unknown",
                "lost",
                "what a model answered is in a form that is not known",
                where=call.where,
            )
        if not call.start_seen and start is not None:
            self.loss.add(
                "times.start",
                "inferred",
                "the event log has no starts: a call is taken to start when what it waited for had ended",
            )
        seen = self.builder.observe
        seen(row, submitted_ns=start, evidence=Evidence.OBSERVED if call.start_seen else Evidence.INFERRED)
        seen(row, finished_ns=end, evidence=Evidence.OBSERVED if call.end_seen else Evidence.DERIVED)
        first = self._since(call.first_ns)
        if first is not None and (start is None or first >= start) and (end is None or first <= end):
            seen(
                row, first_token_ns=first, evidence=Evidence.OBSERVED if call.start_seen else Evidence.DERIVED
            )
        attempts = call.attempts if call.attempts > 1 else None
        seen(row, cached_tokens=call.cached_tokens, attempts=attempts, request_id=call.response_id)
        self.builder.annotate(EntityKind.OPERATION, row, "autogen/source", call.where)
        if call.span_id:
            self.builder.annotate(EntityKind.OPERATION, row, "autogen/span_id", call.span_id)
        if call.error is not None:
            self.builder.annotate(EntityKind.OPERATION, row, "autogen/error", call.error)
        if model is not None and self.builder.rows["sessions"][session]["model"] is None:
            self.builder.update_session(session, model=self.builder.model(model))
        self.ends[row] = call.order
        self.calls.append(CallRow(row, call, agent, session, raw, after, task_of))
        self.of_call[id(call)] = row
        return row

    def tool(self, run: ToolRun, agent: str, task: int, stage: int, session: int, asked_by: int) -> int:
        """The operation of a tool's run."""
        start, end = self._since(run.start_ns), self._since(run.end_ns)
        if start is not None and end is not None and end < start:
            start = end  # the log's order and its clock disagree by less than its resolution
        duration = None if start is None or end is None else end - start
        evidence = (
            Evidence.OBSERVED if run.times_seen else Evidence.DERIVED if run.end_exact else Evidence.INFERRED
        )
        if duration is None:
            self.loss.add("tools.duration", "unknown", "how long a tool ran is in no source", where=run.name)
        elif evidence is Evidence.INFERRED:
            self.loss.add(
                "tools.duration_bound",
                "estimated",
                "a tool's end is known only as the time at which its agent went on: an upper bound",
                where=run.name,
            )
        if run.result is None:
            self.loss.add("tools.result", "lost", "what a tool returned is in no source", where=run.name)
        row = self.builder.operation(
            task,
            OperationKind.TOOL,
            run.name,
            stage=stage,
            session=session,
            status=OperationStatus.ERROR if run.failed else OperationStatus.OK,
            started_ns=start,
            duration_ns=duration,
            duration_evidence=None if duration is None else evidence,
        )
        if run.result is not None:
            self.builder.output(row, run.result)
        seen = self.builder.observe
        seen(row, submitted_ns=start, evidence=Evidence.OBSERVED if run.times_seen else Evidence.DERIVED)
        seen(row, finished_ns=end, evidence=evidence)
        if run.call_id:
            self.builder.annotate(EntityKind.OPERATION, row, "autogen/tool_call_id", run.call_id)
        if run.span_id:
            self.builder.annotate(EntityKind.OPERATION, row, "autogen/span_id", run.span_id)
        asked = run.asked_by.order if run.asked_by else float("-inf")
        self.ends[row] = asked if run.end_order is None else run.end_order
        self.tools.append(ToolRow(row, run, asked_by, agent))
        self.of_tool[id(run)] = row
        return row

    def text(
        self,
        kind: OperationKind,
        agent: str,
        text: str | None,
        task: int,
        stage: int | None,
        session: int | None,
        start_ns: int | None,
        end_ns: int | None,
        order: float,
    ) -> int:
        """The operation of an agent that spoke without a model, or of a person."""
        start, end = self._since(start_ns), self._since(end_ns)
        duration = end - start if start is not None and end is not None and end >= start else None
        row = self.builder.operation(
            task,
            kind,
            agent,
            stage=stage,
            session=session,
            started_ns=start,
            duration_ns=duration,
            duration_evidence=None if duration is None else Evidence.DERIVED,
        )
        if text is not None:
            self.builder.output(row, text)
        self.builder.observe(row, submitted_ns=start, finished_ns=end, evidence=Evidence.DERIVED)
        self.ends[row] = order
        self.texts.append(TextRow(row, text or "", agent, order))
        return row

    def _since(self, time_ns: int | None) -> int | None:
        return None if time_ns is None else time_ns - self.origin_ns

    def _interval(self, call: Call, ready_ns: int | None) -> tuple[int | None, int | None]:
        if ready_ns is None or (call.seen_ns is not None and call.seen_ns < ready_ns):
            ready_ns = call.seen_ns
        start = self._since(call.start_ns if call.start_ns is not None else ready_ns)
        end = self._since(call.end_ns)
        if start is not None and end is not None and start > end:
            self.loss.add(
                "times.disordered",
                "repaired",
                "a call ends before what it waited for: taken as instant",
                where=call.where,
            )
            start = end
        return start, end

    def _output(self, row: int, call: Call) -> str | None:
        """Record a call's output; returns it as it is stored, None if it is not known or has no canonical form."""
        if call.output is None:
            return None
        try:
            content, media_type = split_output(call.output)
        except FormatError:
            return None
        self.builder.output(row, content, media_type)
        return content.decode()

    def _settings(self, call: Call, agent: str) -> dict[str, object] | None:
        """The call's generation settings, else those of its agent's config, if they have a canonical form."""
        settings = call.settings if call.settings is not None else self._configured(agent)[1]
        try:
            canonical_json(settings)
        except FormatError as error:
            self.loss.add(
                "settings.form", "lost", f"settings that cannot be kept: {error.message}", where=call.where
            )
            return None
        return settings

    def _configured(self, agent: str) -> tuple[str | None, dict[str, object] | None]:
        for config in self.configs:
            for participant in config.participants:
                if participant.name == agent:
                    return participant.model, participant.settings
        return None, None
