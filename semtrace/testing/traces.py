"""Random valid traces, made through the builder: everything that a trace can say, in small."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from semtrace.build import Span, TraceBuilder
from semtrace.records.enums import (
    EdgeKind,
    EntityKind,
    Evidence,
    FinishReason,
    OperationKind,
    OperationStatus,
    Outcome,
    Role,
    SegmentScope,
    StageTemplate,
    StateLifetime,
    StateScope,
    Trigger,
    VersionMode,
)
from semtrace.records.media import BLOCK_IDS_TYPE, TEXT_TYPE, TOKEN_IDS_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace.build import BuiltTrace

BLOCK_SIZE: Final = 16
MS: Final = 1_000_000
_WORDS: Final = [
    "plan",
    "the",
    "query",
    "of",
    "every",
    "sensor",
    "and",
    "report",
    "what",
    "was",
    "read",
    "there:",
    "größer,",
    "数据,",
    "🙂",
    "or",
    "none",
]
_KNOWN: Final = (Evidence.OBSERVED, Evidence.DERIVED, Evidence.INFERRED)
_FAILED: Final = (OperationStatus.ERROR, OperationStatus.TIMEOUT)


@dataclass(frozen=True)
class TraceShape:
    """How large a random trace is.

    Attributes:
        tasks: number of tasks.
        operations: operations of each task.
        sessions: sessions of each task.
        stages: stages of each task.
        states: states of each task, besides one that all tasks read.
    """

    tasks: int = 3
    operations: int = 16
    sessions: int = 3
    stages: int = 4
    states: int = 2


def random_trace(seed: int, shape: TraceShape | None = None) -> BuiltTrace:
    """A random valid trace with its native execution.

    It has nested stages, sessions spawned by operations, inherited and pruned contexts, tools, messages of every form,
    token and block ids, states of both modes, edges of every kind, trigger and evidence, lags, delays, failures,
    and counts and times that are unknown.

    Args:
        seed: decides everything; the same seed and shape make the same trace.
        shape: how large it is.
    """
    return _Generator(seed, shape or TraceShape()).build()


def random_requests(
    seed: int, shape: TraceShape | None = None
) -> tuple[BuiltTrace, dict[int, dict[str, Any]]]:
    """The trace of `random_trace`, and the chat requests that it was made of, by operation.

    A request has `messages`, and `tools` if there were any: what `semtrace.records.chat.rebuild_request` must give.
    """
    generator = _Generator(seed, shape or TraceShape())
    built = generator.build()
    final = built.ids["operations"]
    return built, {final[at]: request for at, request in generator.requests.items()}


@dataclass
class _Session:
    """A session while it grows: its messages so far, its operations, what it has read."""

    row: int
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[Any] | None = None
    last: int | None = None
    read: dict[int, int] = field(default_factory=dict)  # by state, how many of its versions
    reader: int | None = None  # the operation that read last


class _Generator:
    """Makes one trace."""

    def __init__(self, seed: int, shape: TraceShape) -> None:
        self.rng = random.Random(seed)  # noqa: S311  # test data, which must be reproducible
        self.shape = shape
        origin = self.rng.choice([None, 1_700_000_000 * 1000 * MS])
        self.b = TraceBuilder(origin_unix_ns=origin, block_size=BLOCK_SIZE, hash_scope="example.org/model")
        self.tokens: dict[int, int] = {}  # true length of each segment
        self.visible: dict[int, int] = {}  # true length of each output, without hidden reasoning
        self.texts: dict[int, str] = {}  # plain outputs
        self.requests: dict[int, dict[str, Any]] = {}
        self.at_ns = 0

    # -- parts ------------------------------------------------------------------------------------------------

    def chance(self, percent: int) -> bool:
        return self.rng.randrange(100) < percent

    def text(self, least: int = 1, most: int = 9) -> str:
        return " ".join(self.rng.choices(_WORDS, k=self.rng.randint(least, most)))

    def build(self) -> BuiltTrace:
        self.models = [self.b.model("small-7b", layers=4, vocab_size=1000), self.b.model("large-70b")]
        self.library = self.b.state(
            "memory", "library", scope=StateScope.EXTERNAL, lifetime=StateLifetime.LONG_TERM
        )
        self.book = self.b.version(self.library, self.text())
        for number in range(self.shape.tasks):
            self.task(number)
        self.b.annotate(EntityKind.TRACE, 0, "testing/generator", "random_trace")
        return self.b.build()

    def task(self, number: int) -> None:
        arrival = self.rng.choice([None, number * 10 * MS])
        scored = self.chance(30)
        self.row = self.b.task(
            f"task {number}",
            arrival_ns=arrival,
            deadline_ns=self.rng.choice([None, (arrival or 0) + 900 * MS]),
            input=self.text() if self.chance(80) else None,
            output=self.text() if self.chance(50) else None,
            outcome=self.rng.choice(list(Outcome)),
            priority=self.rng.choice([None, -1, 3]),
            tenant=self.rng.choice([None, "blue"]),
            metric="exact" if scored else None,
            score_ppm=self.rng.randint(-5, 10**6) if scored else None,
        )
        self.exact = self.chance(60)  # whether all counts of the task are known
        self.operations: list[int] = []
        self.stages: list[int] = []
        for at in range(self.shape.stages):
            self.stages.append(self.stage(at))
        self.sessions = [self.session(at) for at in range(self.shape.sessions)]
        self.states = [
            self.b.state("memory", f"state {at}", scope=self.rng.choice(list(StateScope)), task=self.row)
            for at in range(self.shape.states)
        ]
        self.versions: dict[int, list[int]] = {state: [] for state in self.states}
        self.modes = {state: self.rng.choice(list(VersionMode)) for state in self.states}
        for state in self.states:
            if self.chance(70):
                self.version(state, None)
        for _ in range(self.shape.operations):
            self.operation()
        if self.operations and self.chance(70):
            self.b.update_task(self.row, answer_operation=self.rng.choice(self.operations))
        self.b.annotate(EntityKind.TASK, self.row, "testing/number", str(number))

    def stage(self, at: int) -> int:
        template = self.rng.choice(list(StageTemplate))
        extended = template is StageTemplate.UNKNOWN and self.chance(50)
        return self.b.stage(
            self.row,
            f"stage {at}",
            template=template,
            template_extension="example.org/auction" if extended else None,
            parent=self.rng.choice([None, *self.stages]),
            iteration=self.rng.randrange(3),
        )

    def session(self, at: int) -> _Session:
        row = self.b.session(
            self.row,
            agent=self.rng.choice([None, f"agent {at}"]),
            model=self.rng.choice([None, *self.models]),
            name=self.rng.choice([None, f"session {at}"]),
        )
        tools = [{"type": "function", "function": {"name": "search"}}] if self.chance(40) else None
        return _Session(row, [{"role": "system", "content": self.text()}], tools)

    # -- operations -------------------------------------------------------------------------------------------

    def operation(self) -> None:
        kind = self.rng.choice([OperationKind.LLM] * 5 + list(OperationKind))
        status = self.rng.choice([OperationStatus.OK] * 6 + list(OperationStatus))
        session = self.rng.choice([None, *self.sessions, *self.sessions])
        timed = kind is not OperationKind.LLM or status in _FAILED
        known = kind is OperationKind.LLM or self.chance(80)
        duration = self.rng.randint(0, 40 * MS) if timed and known else None
        self.at_ns += self.rng.randint(0, 20 * MS)
        operation = self.b.operation(
            self.row,
            kind,
            self.rng.choice(["search", "writer", "judge"]),
            stage=self.rng.choice([None, *self.stages]),
            session=session.row if session else None,
            model=self.rng.choice([None, *self.models]) if kind is OperationKind.LLM else None,
            status=status,
            started_ns=self.rng.choice([None, self.at_ns]),
            external_delay_ns=self.rng.choice([0, 0, self.rng.randint(1, 9 * MS)]),
            duration_ns=duration,
            duration_evidence=None if duration is None else self.rng.choice(_KNOWN),
        )
        if session and session.last is None and self.operations and self.chance(50):
            self.b.update_session(session.row, parent_operation=self.rng.choice(self.operations))
        if kind is OperationKind.LLM:
            self.call(operation, session)
        elif kind is OperationKind.EMBED:
            self.embed(operation)
        else:
            self.tool(operation)
        self.edges(operation)
        if session:
            self.memory(operation, session)
            if session.last is not None and not self.chance(20):
                self.b.edge(operation, session.last, evidence=Evidence.DERIVED)
            session.last = operation
        self.observe(operation)
        self.operations.append(operation)
        if self.chance(30):
            self.b.annotate(EntityKind.OPERATION, operation, "testing/id", f"op {operation}")

    def call(self, operation: int, session: _Session | None) -> None:
        before = len(self.b.rows["segments"])
        style = self.rng.randrange(10)
        if session is None or style == 0:
            self.by_ids(operation)
        elif style > 1:
            self.chat(operation, session)
        for row in range(before, len(self.b.rows["segments"])):
            true = self.tokens.setdefault(row, self.rng.randint(1, 40))
            ids = self.b.rows["segments"][row]
            if self.exact or ids.get("token_ids") is not None or ids.get("block_ids") is not None:
                ids["tokens"] = true
            elif self.chance(60):
                ids["tokens"] = self.rng.choice([None, true])
        self.answer(operation, session)

    def chat(self, operation: int, session: _Session) -> None:
        messages, sources = session.messages, {}
        if len(messages) > 3 and self.chance(15):
            del messages[1:3]  # a pruned history: less of it is inherited
        for _ in range(self.rng.randint(1, 2)):
            told = [at for at in self.operations if self.texts.get(at)]
            if told and self.chance(60):
                source = self.rng.choice(told)
                said = self.texts[source]
                sources[len(messages)] = [Span(4, 4 + len(said), source, self.rng.choice([None, 0]))]
                messages.append({"role": "user", "content": f"see {said} and go on"})
            else:
                messages.append(self.message())
        base = session.last if session.last in self.visible and self.chance(85) else None
        self.b.request(operation, messages, session.tools, base=base, sources=sources)
        self.requests[operation] = {"messages": list(messages)}
        if session.tools is not None:
            self.requests[operation]["tools"] = session.tools

    def message(self) -> dict[str, Any]:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}
        forms: list[dict[str, Any]] = [
            {"role": "user", "content": self.text()},
            {"role": "user", "content": "", "name": "planner"},
            {"role": "user", "content": [{"type": "text", "text": self.text()}, image]},
            {"role": "tool", "content": self.text(), "tool_call_id": "call_1"},
            {"role": "developer", "content": self.text()},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "call_2", "type": "function"}]},
            {"role": "assistant", "content": self.text()},
        ]
        return self.rng.choice(forms)

    def by_ids(self, operation: int) -> None:
        """An input known by its token ids or block ids only, with tokens of the chat template before it."""
        length = self.rng.randint(1, 3 * BLOCK_SIZE)
        self.tokens[self.b.segment(operation, Role.TEMPLATE, tokens=4)] = 4
        columns: dict[str, Any] = {"tokens": length, "scope": self.rng.choice(list(SegmentScope))}
        if self.chance(50):
            ids = self.b.artifact(struct.pack(f"<{length + 2}I", *range(length + 2)), TOKEN_IDS_TYPE)
            columns |= {"token_ids": ids, "token_ids_start": self.rng.randrange(3)}
        else:
            ids = self.b.artifact(
                struct.pack("<4Q", *(self.rng.getrandbits(64) for _ in range(4))), BLOCK_IDS_TYPE
            )
            columns |= {"block_ids": ids, "block_ids_start": self.rng.randrange(2)}
        self.tokens[self.b.segment(operation, Role.USER, **columns)] = length

    def answer(self, operation: int, session: _Session | None) -> None:
        row = self.b.rows["operations"][operation]
        reasoning, spoken = self.rng.choice([0, 0, 30]), self.rng.randint(0, 50)
        self.visible[operation] = spoken
        pieces = self.b.context(operation)
        prompt = sum(self.visible[at[0]] if isinstance(at, tuple) else self.tokens[at] for at in pieces) or 7
        counted = self.exact or self.chance(70)
        row["prompt_tokens"] = prompt if counted else None
        row["output_tokens"] = reasoning + spoken if counted or self.chance(30) else None
        row["reasoning_tokens"] = reasoning if self.chance(60) or (reasoning and self.exact) else None
        if row["prompt_tokens"] is not None or row["output_tokens"] is not None:
            row["tokens_evidence"] = self.rng.choice(_KNOWN)
        row["finish_reason"] = self.rng.choice([None, *FinishReason])
        if self.chance(30):
            row["settings"] = self.b.json_artifact({"temperature": 0.5, "max_tokens": spoken})
        if row["output_tokens"] is not None and self.chance(20):
            count = row["output_tokens"]
            row["output_token_ids"] = self.b.artifact(
                struct.pack(f"<{count}I", *range(count)), TOKEN_IDS_TYPE
            )
        if row["status"] != OperationStatus.OK and self.chance(50):
            return
        message: dict[str, Any] = {"role": "assistant", "content": self.text(2)}
        if self.chance(25):
            message = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "index": 0}]}
        else:
            self.texts[operation] = message["content"]
        self.b.output(operation, message)
        if session:
            session.messages.append(message | ({"name": "writer"} if self.chance(20) else {}))

    def embed(self, operation: int) -> None:
        length = self.rng.randint(1, 20)
        row = self.b.rows["operations"][operation]
        self.b.segment(operation, Role.USER, self.text(), tokens=length)
        row["prompt_tokens"], row["tokens_evidence"] = length, Evidence.OBSERVED

    def tool(self, operation: int) -> None:
        told = [at for at in self.operations if self.texts.get(at)]
        if told and self.chance(60):
            source = self.rng.choice(told)
            self.b.segment(operation, Role.USER, self.texts[source], source=source)
        if self.chance(80):
            self.texts[operation] = self.text(2)
            self.b.output(operation, self.texts[operation], TEXT_TYPE)

    # -- edges, state, what was observed ----------------------------------------------------------------------

    def edges(self, operation: int) -> None:
        for source in self.rng.sample(self.operations, k=min(len(self.operations), self.rng.randrange(3))):
            evidence = self.rng.choice(_KNOWN)
            inferred = evidence is Evidence.INFERRED
            self.b.edge(
                operation,
                source,
                kind=self.rng.choice([EdgeKind.CONTROL, EdgeKind.UNKNOWN]),
                trigger=self.rng.choice(list(Trigger)),
                lag_ns=self.rng.choice([0, self.rng.randint(1, 5 * MS)]),
                evidence=evidence,
                confidence=self.rng.choice([None, self.rng.randint(0, 100)]) if inferred else None,
            )

    def version(self, state: int, writer: int | None) -> None:
        held = self.versions[state]
        base: int | None = self.rng.choice([None, *held])
        mode = VersionMode.REPLACE
        if held and self.modes[state] is VersionMode.APPEND:
            base, mode = held[-1], VersionMode.APPEND
        content = self.text() if self.chance(80) else None
        held.append(self.b.version(state, content, base=base, mode=mode, writer=writer))

    def memory(self, operation: int, session: _Session) -> None:
        """Read what is new in states, all that was read before being known to the session's last operation; write."""
        if self.chance(20):
            self.b.read(operation, self.book)
        for state in self.states:
            held = self.versions[state]
            if held and self.chance(40):
                self.read(operation, session, state, held)
            if self.chance(30):
                self.version(state, operation)

    def read(self, operation: int, session: _Session, state: int, held: Sequence[int]) -> None:
        if self.modes[state] is VersionMode.REPLACE:
            self.b.read(operation, self.rng.choice(held))
            return
        if session.reader not in {None, operation}:  # its reads are before this one only if an edge says so
            self.b.edge(operation, session.reader, trigger=self.rng.choice(list(Trigger)))
        known = session.read.get(state, 0)
        seen = self.rng.randint(known, len(held))
        for version in held[known:seen]:
            self.b.read(operation, version)
        session.read[state], session.reader = seen, operation

    def observe(self, operation: int) -> None:
        if self.chance(40):
            return
        row = self.b.rows["operations"][operation]
        names = ["ready", "released", "submitted", "scheduled", "first_token", "finished"]
        if row["kind"] != OperationKind.LLM:
            names.remove("first_token")
        at, times = self.at_ns, {}
        for name in names:
            at += self.rng.randint(0, 3 * MS)
            times[f"{name}_ns"] = self.rng.choice([at, at, None])
        cached = row["prompt_tokens"] // 2 if row["prompt_tokens"] is not None and self.chance(50) else None
        self.b.observe(
            operation,
            evidence=self.rng.choice([Evidence.OBSERVED, Evidence.INFERRED]),
            cached_tokens=cached,
            attempts=self.rng.choice([None, 1, 2]),
            request_id=self.rng.choice([None, f"req-{operation}"]),
            outcome=None,
            **times,
        )
