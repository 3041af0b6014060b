"""Making a trace: what producers (adapters, generators, recorders) call, in any order.

A `TraceBuilder` hands out provisional ids. `build` gives the rows their canonical order, adds the edges that
segments, inherited context and state accesses imply, and returns the trace with its native execution.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from semtrace.build.assemble import assemble
from semtrace.build.entities import EntityRows, Row
from semtrace.build.requests import Repeated, Span, record_message, repeated
from semtrace.errors import FormatError
from semtrace.records import chat
from semtrace.records.enums import (
    ContentLevel,
    EdgeKind,
    EntityKind,
    EventOutcome,
    Evidence,
    FinishReason,
    OperationKind,
    OperationStatus,
    Role,
    SegmentScope,
    Trigger,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace.build.assemble import BuiltTrace
__all__ = ["TIMES", "Observed", "Row", "Span", "TraceBuilder"]

TIMES = ("ready", "released", "submitted", "scheduled", "first_token", "finished")


@dataclass
class Observed:
    """What was observed of one operation in the native run; times in ns from the trace's origin."""

    times: dict[str, tuple[int, Evidence]] = field(default_factory=dict)
    outcome: EventOutcome | None = None
    cached_tokens: int | None = None
    attempts: int | None = None
    request_id: str | None = None


class TraceBuilder(EntityRows):
    """Collects the rows of a trace; ids that it hands out are provisional until `build`."""

    def __init__(
        self,
        *,
        origin_unix_ns: int | None = None,
        content_level: ContentLevel = ContentLevel.TEXT,
        block_size: int | None = None,
        hash_scope: str | None = None,
    ) -> None:
        super().__init__()
        self.header: Row = {
            "origin_unix_ns": origin_unix_ns,
            "content_level": content_level,
            "block_size": block_size,
            "hash_scope": hash_scope,
        }
        self.started_ns: list[int | None] = []
        self.observed: dict[int, Observed] = {}
        self._own: dict[int, list[int]] = defaultdict(list)
        self._edges: dict[tuple[int, int, int, int], Row] = {}
        self._sent: set[int] = set()

    # -- operations -----------------------------------------------------------------------------------------

    def operation(
        self,
        task: int,
        kind: OperationKind,
        name: str,
        *,
        stage: int | None = None,
        session: int | None = None,
        model: int | None = None,
        status: OperationStatus = OperationStatus.OK,
        started_ns: int | None = None,
        external_delay_ns: int = 0,
        duration_ns: int | None = None,
        duration_evidence: Evidence | None = None,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        reasoning_tokens: int | None = None,
        tokens_evidence: Evidence | None = None,
        finish_reason: FinishReason | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> int:
        """Add an operation.

        Args:
            task: its task.
            kind: what it is.
            name: the tool or the agent.
            stage: its innermost stage.
            session: its session.
            model: the model called.
            status: how it ended.
            started_ns: observed start, in ns from the trace's origin; decides its place in the order.
            external_delay_ns: delay between ready and release that no operation explains.
            duration_ns: measured duration; of non-LLM and of failed LLM operations.
            duration_evidence: how it is known; `observed` if left out and there is a duration.
            prompt_tokens: tokens of the whole input.
            output_tokens: tokens of the output.
            reasoning_tokens: hidden tokens among them.
            tokens_evidence: how the counts are known; `observed` if left out and there is one.
            finish_reason: why the model stopped.
            settings: generation settings.
        """
        known = prompt_tokens is not None or output_tokens is not None
        tokens = tokens_evidence or (Evidence.OBSERVED if known else Evidence.MISSING)
        duration = duration_evidence or (Evidence.MISSING if duration_ns is None else Evidence.OBSERVED)
        self.started_ns.append(started_ns)
        return self._add(
            "operations",
            {
                "task": task,
                "stage": stage,
                "session": session,
                "kind": kind,
                "name": name,
                "model": model,
                "status": status,
                "external_delay_ns": external_delay_ns,
                "duration_ns": duration_ns,
                "context_base": None,
                "context_segments": 0,
                "prompt_tokens": prompt_tokens,
                "output_tokens": output_tokens,
                "reasoning_tokens": reasoning_tokens,
                "finish_reason": finish_reason,
                "settings": None if settings is None else self.json_artifact(settings),
                "output": None,
                "output_envelope": None,
                "output_token_ids": None,
                "tokens_evidence": tokens,
                "duration_evidence": duration,
            },
        )

    def update_operation(self, operation: int, *, started_ns: int | None = None, **columns: object) -> None:
        """Set columns of an operation that became known later."""
        self._update("operations", operation, columns)
        if started_ns is not None:
            self.started_ns[operation] = started_ns

    def output(
        self, operation: int, message: Mapping[str, Any] | str | bytes, media_type: str | None = None
    ) -> None:
        """Record what an operation returned: an assistant message of a model, or the text of a tool's result."""
        if isinstance(message, (str, bytes)):
            row = self.artifact(message, media_type)
        else:
            row = self.artifact(*chat.split_output(message))
        if operation in self._sent and self.rows["operations"][operation]["output"] != row:
            raise ValueError(f"operation {operation} cannot return something else: later inputs repeat it")
        self.rows["operations"][operation]["output"] = row

    def segment(
        self,
        operation: int,
        role: Role,
        text: str | None = None,
        *,
        message: int | None = None,
        envelope: bytes | None = None,
        source: int | None = None,
        source_start: int | None = None,
        source_length: int | None = None,
        tokens: int | None = None,
        scope: SegmentScope = SegmentScope.SHARED,
        **columns: object,
    ) -> int:
        """Append a segment to an operation's own input; a message of its own unless `message` says otherwise."""
        own = self._own[operation]
        if message is None:
            message = self.rows["segments"][own[-1]]["message"] + 1 if own else 0
        row = {
            "operation": operation,
            "role": role,
            "message": message,
            "envelope": None if envelope is None else self.artifact(envelope, chat.JSON_TYPE),
            "artifact": None if text is None else self.artifact(text),
            "tokens": tokens,
            "source_operation": source,
            "source_start": source_start,
            "source_length": source_length,
            "scope": scope,
            **columns,
        }
        own.append(self._add("segments", row))
        return own[-1]

    def inherit(self, operation: int, base: int, segments: int) -> None:
        """Let an operation's input begin with the first segments of another's context (its input, then its output)."""
        length = len(self.context(base))
        if not 0 <= segments <= length + 1:
            raise ValueError(f"the context of operation {base} has {length + 1} segments, not {segments}")
        self.rows["operations"][operation].update(context_base=base, context_segments=segments)
        if segments > length:
            self._sent.add(base)

    def is_sent(self, operation: int) -> bool:
        """Whether a later input inherits the operation's output, which settles how it is sent."""
        return operation in self._sent

    def context(self, operation: int) -> list[int | tuple[int]]:
        """The whole input of an operation: segments by provisional id, and inherited outputs as `(operation,)`.

        Raises:
            FormatError: the operation inherits its own context.
        """
        chain = [operation]
        operations = self.rows["operations"]
        while (base := operations[chain[-1]]["context_base"]) is not None:
            if base in chain[:1] or len(chain) > len(operations):
                raise FormatError(
                    f"operation {operation} inherits its own context",
                    code="order.cycle",
                    requirement="ST-ORD-002",
                )
            chain.append(base)
        pieces: list[int | tuple[int]] = []
        for position, at in enumerate(reversed(chain)):
            if position:
                del pieces[operations[at]["context_segments"] :]
            pieces.extend(self._own[at])
            if at != operation:
                pieces.append((at,))
        return pieces

    def request(
        self,
        operation: int,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[object] | None = None,
        *,
        base: int | None = None,
        sources: Mapping[int, int | Sequence[Span]] | None = None,
    ) -> None:
        """Record the chat request that an operation sent.

        Args:
            operation: the operation.
            messages: the messages, as on the wire.
            tools: the definitions of the tools on offer, None if the request had no such member.
            base: an earlier operation of the same conversation; as much of its context as the request repeats is
                inherited and not stored again. It becomes a data dependency.
            sources: by position of a message, the operation whose output the whole message repeats, or the spans of
                its first text that repeat outputs. Not used for messages that are inherited.

        Raises:
            FormatError: a message has no role that a wire format has.
            ValueError: the operation has an input already, or a span is empty or reaches past the text.
        """
        if self._own[operation] or self.rows["operations"][operation]["context_base"] is not None:
            raise ValueError(f"operation {operation} has its input already")
        tools_row = None if tools is None else self.json_artifact(list(tools))
        known = Repeated() if base is None else repeated(self, base, messages, tools_row)
        if base is not None and known.segments:
            self.inherit(operation, base, known.segments)
        if tools_row is not None and not known.tools:
            self.segment(operation, Role.TOOLS, artifact=tools_row)
        for index in range(known.messages, len(messages)):
            record_message(self, operation, messages[index], (sources or {}).get(index, ()))

    # -- edges, annotations, observations ---------------------------------------------------------------------

    def edge(
        self,
        target: int,
        source: int,
        *,
        kind: EdgeKind = EdgeKind.CONTROL,
        trigger: Trigger = Trigger.FINISH,
        lag_ns: int = 0,
        evidence: Evidence = Evidence.OBSERVED,
        confidence: int | None = None,
    ) -> None:
        """Add a dependency; of two with the same ends, kind and trigger the better known one is kept.

        Data and state edges are not added by hand: segments, inherited context and accesses imply them.
        """
        if kind in {EdgeKind.DATA, EdgeKind.STATE}:
            raise ValueError("data and state edges follow from segments, inherited context and accesses")
        if target == source:
            raise FormatError(
                "an operation cannot depend on itself", code="edge.self", requirement="ST-EDGE-002"
            )
        key = (target, source, int(kind), int(trigger))
        row = {
            "target": target,
            "source": source,
            "kind": kind,
            "trigger": trigger,
            "lag_ns": lag_ns,
            "evidence": evidence,
            "confidence": confidence,
        }
        known = self._edges.get(key)
        if known is None or known["evidence"] > evidence:
            self._edges[key] = row

    def has_edge(self, target: int, source: int) -> bool:
        """Whether an edge with trigger finish was added by hand between the two."""
        return any((target, source, int(kind), int(Trigger.FINISH)) in self._edges for kind in EdgeKind)

    def annotate(self, kind: EntityKind, entity: int, key: str, value: str) -> None:
        """Add a remark under a namespaced key (`adapter/key`)."""
        if "/" not in key:
            raise ValueError(f"annotation key {key!r} has no namespace")
        if kind is EntityKind.EDGE:
            raise ValueError("an edge has no id before the trace is built: annotate an operation")
        self._add("annotations", {"entity_kind": kind, "entity": entity, "key": key, "value": value})

    def observe(
        self,
        operation: int,
        *,
        evidence: Evidence = Evidence.OBSERVED,
        outcome: EventOutcome | None = None,
        cached_tokens: int | None = None,
        attempts: int | None = None,
        request_id: str | None = None,
        **times_ns: int | None,
    ) -> None:
        """Record what was seen of an operation in the native run.

        Args:
            operation: the operation.
            evidence: how the times of this call are known.
            outcome: its terminal state; follows from its status if left out.
            cached_tokens: prompt tokens found in a cache.
            attempts: how often it was submitted.
            request_id: its id in the server's log.
            times_ns: any of `ready_ns`, `released_ns`, `submitted_ns`, `scheduled_ns`, `first_token_ns`, `finished_ns`,
                from the trace's origin.
        """
        seen = self.observed.setdefault(operation, Observed())
        for column, value in times_ns.items():
            name = column.removesuffix("_ns")
            if name not in TIMES or name == column:
                raise ValueError(f"no such time: {column}")
            if value is not None:
                seen.times[name] = (value, evidence)
        seen.outcome = outcome if outcome is not None else seen.outcome
        seen.cached_tokens = cached_tokens if cached_tokens is not None else seen.cached_tokens
        seen.attempts = attempts if attempts is not None else seen.attempts
        seen.request_id = request_id if request_id is not None else seen.request_id

    def edges(self) -> list[Row]:
        """The edges added by hand so far."""
        return list(self._edges.values())

    def build(self) -> BuiltTrace:
        """Order the rows canonically, add implied edges, and make the trace and its native execution.

        Raises:
            FormatError: references form a cycle or leave their task.
        """
        return assemble(self)
