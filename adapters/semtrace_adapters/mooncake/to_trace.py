"""From lines to a trace, column by column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from semtrace.errors import FormatError
from semtrace.records.columns import Columns
from semtrace.records.enums import (
    Availability,
    ContentLevel,
    EdgeKind,
    Evidence,
    OperationKind,
    OperationStatus,
    Outcome,
    Role,
    SegmentScope,
    Trigger,
)
from semtrace.records.media import BLOCK_IDS_TYPE, TEXT_TYPE
from semtrace.records.trace import MemoryContent, Trace
from semtrace.records.trace_tables import TRACE_TABLES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace_adapters.base import LossReport
    from semtrace_adapters.mooncake.lines import Lines

TURNS: Final = ("auto", "cumulative", "delta")
"""Whether lengths of later turns of a session count its history, or not; or whether to judge by the ids."""
_IDS_IN_ARTIFACT: Final = 1 << 17
"""Block ids in one artifact, about."""
_PLACES: Final = 10


def to_trace(lines: Lines, block_size: int, turns: str, scope: str, name: str, loss: LossReport) -> Trace:
    """The trace of the lines of a file.

    Args:
        lines: its usable lines.
        block_size: tokens in a block of `hash_ids`.
        turns: one of `TURNS`.
        scope: the scope in which equal ids are equal.
        name: the file's name, for the report.
        loss: what is lost or assumed is added here.

    Raises:
        FormatError: most lines have ids for blocks of another size.
    """
    return _ToTrace(lines, block_size, turns, scope, name, loss).trace()


@dataclass(frozen=True)
class _Blocks:
    """Block ids by line: how many whole blocks have one, whether the partial block after them has, where they begin in `ids`."""

    whole: NDArray[np.int64]
    tail: NDArray[np.bool_]
    start: NDArray[np.int64]
    ids: NDArray[np.uint64]

    @property
    def kept(self) -> NDArray[np.int64]:
        """How many ids of each line are kept."""
        return self.whole + self.tail


class _ToTrace:
    def __init__(
        self, lines: Lines, block_size: int, turns: str, scope: str, name: str, loss: LossReport
    ) -> None:
        self._name, self._loss = name, loss
        self._block_size, self._scope = block_size, scope
        lines = self._grouped(lines)
        self._lines, self._count = lines, len(lines.number)
        self._input = lines.ints("input_length")
        self._output = lines.ints("output_length")
        self._blocks = self._block_ids()
        self._delta = self._deltas(turns)

    def _report(self, code: str, effect: Any, message: str, which: NDArray[np.bool_]) -> None:
        """Report lines."""
        rows = np.flatnonzero(which)
        if not len(rows):
            return
        named = np.sort(self._lines.number[rows])[:_PLACES].tolist()
        for at in named:
            self._loss.add(code, effect, message, where=f"{self._name}:{at}")
        if len(rows) > len(named):
            self._loss.add(code, effect, message, count=len(rows) - len(named))

    # -- tasks and turns --------------------------------------------------------------------------------------

    def _grouped(self, lines: Lines) -> Lines:
        """The lines by task: a session's turns follow each other, up to the next that has a time of its own."""
        count = len(lines.number)
        coded = pc.dictionary_encode(lines.table.column("session_id").chunk(0))
        session: NDArray[np.int64] = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)
        session = session.astype(np.int64)
        starts = np.ones(count, dtype=np.bool_)
        if (session >= 0).any():
            order = np.argsort(session, kind="stable")
            later = np.zeros(count, dtype=np.bool_)
            later[order[1:]] = (session[order[1:]] == session[order[:-1]]) & (session[order[1:]] >= 0)
            timed = lines.known("timestamp") & ~lines.known("delay")
            starts = ~later | timed
            # Each turn joins the task that its session began last.
            begun = np.where(starts[order], np.arange(count), 0)
            task = np.zeros(count, dtype=np.int64)
            task[order] = order[np.maximum.accumulate(begun)]
            place = np.argsort(task, kind="stable")
            if (place[1:] < place[:-1]).any():
                self._loss.add(
                    "sessions.mixed",
                    "lost",
                    "lines of several sessions lie between each other: in the trace a session's turns follow each other, and "
                    "how the lines lay is not kept",
                )
            lines = type(lines)(lines.table.take(pa.array(place)).combine_chunks(), lines.number[place])
            session, starts = session[place], starts[place]
        self._session, self._starts = session, starts
        self._task = np.cumsum(starts) - 1
        return lines

    def _deltas(self, turns: str) -> NDArray[np.bool_]:
        """Which turns state what is new, and not the whole input."""
        later = ~self._starts
        if not later.any() or turns == "cumulative":
            return np.zeros(self._count, dtype=np.bool_)
        if turns == "delta":
            return later
        start, ids = self._blocks.start, self._blocks.ids
        some = np.flatnonzero(self._blocks.kept)
        _, first = np.unique(ids[start[some]], return_inverse=True)
        pairs = self._task[some] * (len(some) + 1) + first.reshape(-1)
        again = np.ones(len(some), dtype=np.bool_)
        again[np.unique(pairs, return_index=True)[1]] = (
            False  # the first turn of its task that begins with its id
        )
        cumulative = np.bincount(self._task[some], again, self._task[-1] + 1) > 0
        delta: NDArray[np.bool_] = later & ~cumulative[self._task]
        for which, what in ((later & ~delta, "the whole input"), (delta, "what is new, after the history")):
            self._report(
                "turns.judged",
                "inferred",
                f"whether the length of a later turn counts the history is not stated: by the ids, {what}",
                which,
            )
        return delta

    # -- blocks -----------------------------------------------------------------------------------------------

    def _block_ids(self) -> _Blocks:
        column = self._lines.table.column("hash_ids").chunk(0)
        known = self._lines.known("hash_ids")
        held: NDArray[np.int64] = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        held = held.astype(np.int64)
        ids: NDArray[np.uint64] = pc.list_flatten(column).to_numpy(zero_copy_only=False)
        start = np.cumsum(held) - held
        length = np.maximum(self._input, 0)
        whole, most = length // self._block_size, -(-length // self._block_size)
        self._other_size(known, held, length, whole, most)
        tail = known & (held >= most) & (most > whole) & ~self._lines.known("text_input")
        kept = np.where(known, np.minimum(whole, held), 0)
        taken = ids[np.repeat(start - (np.cumsum(kept) - kept), kept) + np.arange(int(kept.sum()))]
        both = np.zeros(self._count, dtype=np.bool_)
        both[tail] = np.isin(ids[(start + whole)[tail]], taken)
        self._report(
            "blocks.tail_whole", "lost", "a partial block has the id of a whole one: its id is not kept", both
        )
        tail &= ~both
        tail_ids = ids[(start + whole)[tail]]
        self._report(
            "blocks.few",
            "unknown",
            "a line with fewer ids than its input has blocks: the rest of the input is private",
            known & (held < whole),
        )
        self._report(
            "blocks.many", "lost", "a line with more ids than its input has blocks", known & (held > most)
        )
        self._report("blocks.unknown", "unknown", "a line without hash_ids: its input is private", ~known)
        self._report(
            "blocks.tail",
            "lost",
            "sharing of the last, partial block of an input: its id is kept for an export, and no engine finds the block",
            tail,
        )
        distinct = len(np.unique(tail_ids))
        if distinct < len(tail_ids):
            self._loss.add(
                "blocks.tail_again",
                "lost",
                "a partial block has the id of an earlier one: the trace does not say that they are equal",
                count=len(tail_ids) - distinct,
            )
        return _Blocks(kept, tail, start, ids)

    def _other_size(
        self,
        known: NDArray[np.bool_],
        held: NDArray[np.int64],
        length: NDArray[np.int64],
        whole: NDArray[np.int64],
        most: NDArray[np.int64],
    ) -> None:
        """Refuse ids of which most are for blocks of another size: a trace of them would be another workload."""
        judged = known & (self._input >= 0) & (held > 0)
        wrong = judged & ((held < whole) | (held > most))
        if 2 * int(wrong.sum()) <= int(judged.sum()):
            return
        fitting = [
            size
            for size in (2**power for power in range(14))
            if (held[judged] == -(-length[judged] // size)).mean() > 0.99
        ]
        rows = np.flatnonzero(wrong)
        at = int(rows[0])
        raise FormatError(
            f"{len(rows)} of {int(judged.sum())} lines have not as many ids as blocks of {self._block_size} tokens: the first "
            f"has {held[at]} ids for {length[at]} tokens",
            code="mooncake.block_size",
            path=f"{self._name}:{self._lines.number[at]}",
            hint=f"say the size of a block: --set block_size={fitting[-1] if fitting else 'TOKENS'}",
        )

    # -- the trace --------------------------------------------------------------------------------------------

    def trace(self) -> Trace:
        """Make it."""
        content = MemoryContent()
        artifacts, text, block = self._artifacts(content)
        has_text, has_ids = bool((text >= 0).any()), bool((block >= 0).any())
        level = ContentLevel.BLOCK_HASHES if has_ids else ContentLevel.SHAPE
        columns: dict[str, dict[str, Any]] = {
            "trace": {
                "content_level": [int(ContentLevel.TEXT if has_text else level)],
                "block_size": [self._block_size if has_ids else None],
                "hash_scope": [self._scope if has_ids else None],
            },
            "tasks": self._tasks(),
            "sessions": self._sessions(),
            "segments": self._segments(text, block),
            "edges": self._edges(),
            "artifacts": artifacts,
        }
        columns["operations"] = self._operations()
        tables = {
            spec.name: Columns.of(spec, columns[spec.name])
            if spec.name in columns
            else Columns(spec, spec.empty())
            for spec in TRACE_TABLES
        }
        self._report_rest()
        return Trace(tables, content)

    def _artifacts(
        self, content: MemoryContent
    ) -> tuple[dict[str, Any], NDArray[np.int64], NDArray[np.int64]]:
        """The artifacts, and by line those of its text and of its block ids (-1: none), numbered by first use."""
        blocks = self._blocks
        text, block = (np.full(self._count, -1, dtype=np.int64) for _ in range(2))
        used = np.cumsum(blocks.kept) - blocks.kept
        group = np.where(blocks.kept > 0, used // _IDS_IN_ARTIFACT, -1)
        rows: dict[tuple[bytes, str], int] = {}

        def add(raw: bytes, media_type: str) -> int:
            digest = blake3(raw).digest()
            content[digest] = raw
            return rows.setdefault((digest, media_type), len(rows))

        self._place = np.zeros(self._count, dtype=np.int64)
        events = [
            (at, "text") for at in np.flatnonzero(self._lines.known("text_input")).tolist()
        ]  # a row a text
        groups, firsts = np.unique(group, return_index=True)
        events += [(int(at), "ids") for each, at in zip(groups, firsts, strict=True) if each >= 0]
        texts = self._lines.table.column("text_input").chunk(0)
        for at, what in sorted(events, key=lambda each: (each[0], each[1] == "ids")):
            if what == "text":
                text[at] = add(texts[at].as_py().encode(), TEXT_TYPE)
                continue
            members = np.flatnonzero(group == group[at])
            sizes = blocks.kept[members]
            self._place[members] = np.cumsum(sizes) - sizes
            take = np.repeat(blocks.start[members] - self._place[members], sizes) + np.arange(sizes.sum())
            block[members] = add(blocks.ids[take].astype("<u8").tobytes(), BLOCK_IDS_TYPE)
        return (
            {
                "digest": [digest for digest, _ in rows],
                "size": [len(content[digest]) for digest, _ in rows],
                "media_type": [media_type for _, media_type in rows],
                "availability": [int(Availability.EMBEDDED)] * len(rows),
            },
            text,
            block,
        )

    def _tasks(self) -> dict[str, Any]:
        first = np.flatnonzero(self._starts)
        number = pc.cast(pa.array(np.arange(len(first))), pa.string())
        name = pc.binary_join_element_wise(pa.scalar("request"), number, " ")
        session = self._lines.table.column("session_id").chunk(0).take(pa.array(first))
        arrival = self._lines.nanoseconds("timestamp")[first]
        return {
            "name": pc.coalesce(session, name),
            "arrival_ns": pa.array(arrival, mask=arrival < 0),
            "outcome": np.full(len(first), Outcome.UNKNOWN),
        }

    def _sessions(self) -> dict[str, Any]:
        first = np.flatnonzero(self._starts & (self._session >= 0))
        return {
            "task": self._task[first],
            "name": self._lines.table.column("session_id").chunk(0).take(pa.array(first)),
        }

    def _operations(self) -> dict[str, Any]:
        count, later = self._count, ~self._starts
        has_session = self._session >= 0
        session = np.cumsum(self._starts & has_session) - 1
        own = self._segment_counts()
        prompt = self._input.copy()
        unknown_output = self._output < 0
        if self._delta.any():
            prompt = self._histories(prompt)
        pieces = self._pieces_before(own)
        derived = np.where(self._delta & (prompt >= 0), Evidence.DERIVED, Evidence.OBSERVED)
        return {
            "task": self._task,
            "session": pa.array(session, mask=~has_session),
            "kind": np.full(count, OperationKind.LLM),
            "name": pa.array(["request"]).take(pa.array(np.zeros(count, dtype=np.int64))),
            "status": np.full(count, OperationStatus.OK),
            "external_delay_ns": np.maximum(self._lines.nanoseconds("delay"), 0),
            "context_base": pa.array(np.arange(count) - 1, pa.int64(), mask=~(later & self._delta)),
            "context_segments": pieces,
            "prompt_tokens": pa.array(prompt, mask=prompt < 0),
            "output_tokens": pa.array(self._output, mask=unknown_output),
            "tokens_evidence": np.where((prompt < 0) & unknown_output, Evidence.MISSING, derived),
            "duration_evidence": np.full(count, Evidence.MISSING),
        }

    def _histories(self, new: NDArray[np.int64]) -> NDArray[np.int64]:
        """The length of whole inputs: of a turn that states what is new, that and all before it, outputs too."""
        added = new.copy()
        added[1:] += np.where(self._delta[1:], self._output[:-1], 0)
        missing = (new < 0) | (self._delta & (np.append(-1, self._output[:-1]) < 0))
        chain = np.cumsum(~self._delta) - 1
        first = np.flatnonzero(~self._delta)[chain]
        sums, gaps = np.cumsum(np.where(missing, 0, added)), np.cumsum(missing)
        total = sums - sums[first] + np.where(missing[first], 0, added[first])
        unknown = gaps - gaps[first] + missing[first] > 0
        return np.where(unknown, -1, total)

    def _segment_counts(self) -> NDArray[np.int64]:
        """How many segments each input has of its own: a second for a partial block with an id, or for what has none."""
        rest = self._input - self._blocks.whole * self._block_size
        self._two = (self._blocks.whole > 0) & (self._blocks.tail | (rest >= self._block_size))
        return 1 + self._two.astype(np.int64)

    def _pieces_before(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many pieces each turn inherits: those of the turn before, and its output."""
        chain = np.cumsum(~self._delta) - 1
        first = np.flatnonzero(~self._delta)[chain]
        sums = np.cumsum(own + 1)
        before = sums - own - 1
        return np.where(self._delta, before - before[first], 0)

    def _segments(self, text: NDArray[np.int64], block: NDArray[np.int64]) -> dict[str, Any]:
        counts, blocks = self._segment_counts(), self._blocks
        operation = np.repeat(np.arange(self._count), counts)
        second = np.zeros(len(operation), dtype=np.bool_)
        second[np.cumsum(counts)[self._two] - 1] = True
        whole = blocks.whole[operation]
        with_ids = np.where(second, blocks.tail[operation], blocks.kept[operation] > 0)
        covered, tokens = whole * self._block_size, self._input[operation]
        tokens = np.where(second, tokens - covered, np.where(self._two[operation], covered, tokens))
        artifact = np.where(second, -1, text[operation])
        shared = (~second & (whole > 0)) | (artifact >= 0)
        return {
            "operation": operation,
            "role": np.full(len(operation), Role.USER),
            "message": np.zeros(len(operation), dtype=np.int64),
            "artifact": pa.array(artifact, mask=artifact < 0),
            "block_ids": pa.array(block[operation], mask=~with_ids),
            "block_ids_start": pa.array(self._place[operation] + np.where(second, whole, 0), mask=~with_ids),
            "tokens": pa.array(tokens, mask=tokens < 0),
            "scope": np.where(shared, SegmentScope.SHARED, SegmentScope.PRIVATE),
        }

    def _edges(self) -> dict[str, Any]:
        target = np.flatnonzero(~self._starts)
        return {
            "target": target,
            "source": target - 1,
            "kind": np.where(self._delta[target], EdgeKind.DATA, EdgeKind.CONTROL),
            "trigger": np.full(len(target), Trigger.FINISH),
            "lag_ns": np.zeros(len(target), dtype=np.int64),
            "evidence": np.full(len(target), Evidence.OBSERVED),
        }

    # -- what is not there ------------------------------------------------------------------------------------

    def _report_rest(self) -> None:
        lines = self._lines
        timed, delayed, later = lines.known("timestamp"), lines.known("delay"), ~self._starts
        reports: list[tuple[str, str, str, NDArray[np.bool_]]] = [
            ("arrival.unknown", "unknown", "a request without a timestamp", self._starts & ~timed),
            (
                "delay.unknown",
                "unknown",
                "a later turn of a session without a delay: sent as soon as the turn before has ended",
                later & ~delayed,
            ),
            (
                "timestamp.ignored",
                "ignored",
                "a later turn of a session with a delay and a timestamp: the delay counts",
                later & timed,
            ),
            ("tokens.unknown", "unknown", "a line without input_length", self._input < 0),
            ("tokens.unknown", "unknown", "a line without output_length", self._output < 0),
        ]
        for code, effect, message, which in reports:
            self._report(code, effect, message, which)
        without = ~lines.known("text_input")
        if without.any():
            self._loss.add(
                "content.unknown",
                "unknown",
                "what was asked and answered, by which model and with which settings, is not in the source",
                count=int(without.sum()),
            )
