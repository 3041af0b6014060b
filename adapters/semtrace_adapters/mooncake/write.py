"""From a trace to the lines of a Mooncake trace: one for each model call, and a report of what they cannot say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind, OperationStatus
from semtrace.records.media import TEXT_TYPE
from semtrace.replay.controller import runs_on_backend
from semtrace_adapters.base import LossReport
from semtrace_adapters.mooncake.block_ids import LineIds, made_ids, no_ids, stored_ids
from semtrace_adapters.mooncake.losses import report_losses

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.trace import Trace
    from semtrace.store.manifest import Loss

_AT_ONCE: Final = 1 << 16
"""Lines that are put together at once."""


def write(
    trace: Trace, output: BinaryIO, block_size: int | None, default: int, *, outputs: bool = False
) -> list[Loss]:
    """Write a valid trace.

    Args:
        trace: the trace.
        output: where the lines go, in UTF-8.
        block_size: tokens in a block of `hash_ids`; if None, that of the trace's block ids, or else the default.
        default: see there.
        outputs: whether lines have the token ids of outputs, and an id by which a replay asks for them.

    Returns:
        What the lines do not say.

    Raises:
        ReplayError: block ids have to be made, and counts contradict each other.
    """
    lines = _Lines(trace, block_size, default, outputs=outputs)
    lines.write(output)
    report_losses(trace, lines.rows, lines.has_text, lines.loss)
    return lines.loss.items()


class _Lines:
    """The lines of a trace, by field."""

    def __init__(self, trace: Trace, block_size: int | None, default: int, *, outputs: bool) -> None:
        self.loss = LossReport()
        self._outputs = outputs
        self._trace = trace
        operations = trace.operations
        status = operations.ints("status")
        done = (status == OperationStatus.OK) | (status == OperationStatus.CANCELLED)
        called = (operations.ints("kind") == OperationKind.LLM) & done
        prompt, text = operations.ints("prompt_tokens"), self._texts()
        silent = called & (prompt == NULL) & (text == NULL)
        if silent.any():
            self.loss.add(
                "tokens.unknown",
                "lost",
                "a model call whose prompt has no known length, and is not a single text that is here: it has no line",
                count=int(silent.sum()),
            )
        self.rows = np.flatnonzero(called & ~silent)
        task = operations.ints("task")[self.rows]
        self._later = np.zeros(len(self.rows), dtype=np.bool_)
        self._later[1:] = task[1:] == task[:-1]
        self._length = prompt[self.rows].copy()
        self._text = np.where(self._length == NULL, text[self.rows], NULL)
        self.has_text = self._text != NULL
        self._ids = self._block_ids(block_size, default)

    def _texts(self) -> NDArray[np.int64]:
        """By operation, the artifact of its input where that is one text that is here; else `NULL`."""
        trace = self._trace
        found = np.full(trace.operations.rows, NULL, dtype=np.int64)
        alone = (np.diff(trace.segment_offsets) == 1) & (trace.operations.ints("context_base") == NULL)
        rows = np.flatnonzero(alone & (trace.operations.ints("prompt_tokens") == NULL))
        artifact = trace.segments.ints("artifact")[trace.segment_offsets[rows]]
        types = trace["artifacts"].strings("media_type")
        for row, each in zip(rows.tolist(), artifact.tolist(), strict=True):  # a row a text
            if each != NULL and types[each] == TEXT_TYPE and trace.artifact(each) is not None:
                found[row] = each
        return found

    # -- block ids --------------------------------------------------------------------------------------------

    def _block_ids(self, block_size: int | None, default: int) -> LineIds:
        trace, rows = self._trace, self.rows
        segments, base = trace.segments, trace.operations.ints("context_base")[rows]
        own = np.isin(segments.ints("operation"), rows)
        stated = int(trace["trace"].ints("block_size").max(initial=NULL))
        if bool((segments.ints("block_ids")[own] != NULL).any()) and block_size in {None, stated}:
            delta = self._deltas()
            ids = stored_ids(trace, rows, delta | (base == NULL), stated)
            if ids.lost:
                self.loss.add(
                    "blocks.lost",
                    "lost",
                    "a segment with block ids that are not here, or that do not follow whole blocks of the line's input",
                    count=ids.lost,
                )
            return ids
        names = ("artifact", "envelope", "token_ids", "source_operation", "block_ids")
        known = any(bool((segments.ints(name)[own] != NULL).any()) for name in names)
        if not known or self.has_text.all():
            self._deltas()
            return no_ids(len(rows))
        runs = runs_on_backend(trace)
        generates = runs & (trace.operations.ints("kind") == OperationKind.LLM)
        unknown = runs & (trace.operations.ints("prompt_tokens") == NULL)
        unknown |= generates & (trace.operations.ints("output_tokens") == NULL)
        if unknown.any():
            self.loss.add(
                "blocks.unknown",
                "lost",
                "a line without hash_ids: they can be made only where all token counts are known",
                count=len(rows),
            )
            return no_ids(len(rows))
        size = block_size or default
        self.loss.add(
            "blocks.made",
            "inferred",
            f"hash_ids, for blocks of {size} tokens, are made of what the trace knows of its inputs",
            count=len(rows),
        )
        return made_ids(trace, rows, size)

    def _deltas(self) -> NDArray[np.bool_]:
        """Which lines state what is new after the line before; their lengths become that of their own segments."""
        operations, segments = self._trace.operations, self._trace.segments
        offsets = self._trace.segment_offsets
        base, taken = operations.ints("context_base"), operations.ints("context_segments")
        pieces = np.append(taken + np.diff(offsets), 0)  # the last is of no operation
        before = np.append(NULL, self.rows[:-1])
        tokens = segments.ints("tokens")
        sums = np.append(0, np.cumsum(np.maximum(tokens, 0)))
        missing = np.append(0, np.cumsum(tokens == NULL))
        rows = self.rows
        delta: NDArray[np.bool_] = self._later & (base[rows] == before) & (base[rows] != NULL)
        delta &= taken[rows] == pieces[before] + 1
        delta &= missing[offsets[rows + 1]] == missing[offsets[rows]]
        self._length[delta] = (sums[offsets[rows + 1]] - sums[offsets[rows]])[delta]
        return delta

    # -- text -------------------------------------------------------------------------------------------------

    def write(self, output: BinaryIO) -> None:
        """Write all lines."""
        for begin in range(0, len(self.rows), _AT_ONCE):
            part = slice(begin, min(begin + _AT_ONCE, len(self.rows)))
            fields = [
                _field("session_id", self._sessions(part)),
                _field("timestamp", self._timestamps(part)),
                _field("delay", self._delays(part)),
                _field("input_length", _numbers(self._length[part])),
                _field("text_input", self._text_inputs(part)),
                _field(
                    "output_length",
                    _numbers(self._trace.operations.ints("output_tokens")[self.rows[part]]),
                ),
                _field("hash_ids", self._hash_ids(part)),
            ]
            if self._outputs:
                fields += [
                    _field("request_id", self._request_ids(part)),
                    _field("output_token_ids", self._output_ids(part)),
                ]
            joined = pc.binary_join_element_wise(*fields, ", ", null_handling="skip")
            lines = pc.binary_join_element_wise("{", joined, "}\n", "")
            output.write("".join(lines.to_pylist()).encode())

    def _sessions(self, part: slice) -> pa.Array:
        """The session of each line, as JSON: of operations whose task has its session's name, or that are several in a task."""
        trace, rows = self._trace, self.rows[part]
        operations = trace.operations
        session, task = operations.ints("session")[rows], operations.ints("task")[rows]
        name = pc.take(trace["sessions"].array("name"), pa.array(session, mask=session == NULL))
        own = pc.fill_null(pc.equal(name, pc.take(trace.tasks.array("name"), pa.array(task))), False)
        several = np.bincount(operations.ints("task")[self.rows], minlength=trace.tasks.rows)[task] > 1
        numbered = pc.binary_join_element_wise("task-", pc.cast(pa.array(task), pa.string()), "")
        chosen = pc.if_else(own, name, pc.if_else(pa.array(several), numbered, pa.scalar(None, pa.string())))
        coded = pc.dictionary_encode(chosen)
        quoted = pa.array(
            [json.dumps(each, ensure_ascii=False) for each in coded.dictionary.to_pylist()], pa.string()
        )
        return quoted.take(coded.indices)

    def _timestamps(self, part: slice) -> pa.Array:
        arrival = self._trace.tasks.ints("arrival_ns")[self._trace.operations.ints("task")[self.rows[part]]]
        return _milliseconds(np.where(self._later[part], NULL, arrival))

    def _delays(self, part: slice) -> pa.Array:
        delay = self._trace.operations.ints("external_delay_ns")[self.rows[part]]
        return _milliseconds(np.where(self._later[part] | (delay > 0), delay, NULL))

    def _text_inputs(self, part: slice) -> pa.Array:
        texts = [
            None if each == NULL else json.dumps(self._trace.artifact_text(each), ensure_ascii=False)
            for each in self._text[part].tolist()
        ]
        return pa.array(texts, pa.string())

    def _request_ids(self, part: slice) -> pa.Array:
        """The ids by which a replay on Dynamo's mocker asks for outputs: `semtrace-` and the operation's row."""
        rows = pc.cast(pa.array(self.rows[part]), pa.string())
        return pc.binary_join_element_wise('"semtrace-', rows, '"', "")

    def _output_ids(self, part: slice) -> pa.Array:
        artifacts = self._trace.operations.ints("output_token_ids")[self.rows[part]].tolist()
        found = [None if each == NULL else self._trace.artifact(each) for each in artifacts]
        unknown = sum(raw is None for raw in found)
        if unknown:
            self.loss.add(
                "outputs.unknown",
                "lost",
                "a line without output_token_ids: they are not in the trace",
                count=unknown,
            )
        lists = [
            None if raw is None else json.dumps(np.frombuffer(raw, dtype="<u4").tolist()) for raw in found
        ]
        return pa.array(lists, pa.string())

    def _hash_ids(self, part: slice) -> pa.Array:
        start = self._ids.start[part.start : part.stop + 1]
        held = np.diff(start)
        ids = pc.cast(pa.array(self._ids.ids[start[0] : start[-1]]), pa.string())
        lists = pa.ListArray.from_arrays(pa.array((start - start[0]).astype(np.int32)), ids)
        joined = pc.binary_join_element_wise("[", pc.binary_join(lists, ", "), "]", "")
        return pc.if_else(pa.array(held > 0), joined, pa.scalar(None, pa.string()))


def _field(name: str, values: pa.Array) -> pa.Array:
    """A member of a JSON object; null where it has no value."""
    return pc.binary_join_element_wise(f'"{name}": ', values, "")


def _numbers(values: NDArray[np.int64]) -> pa.Array:
    return pc.cast(pa.array(values, mask=values == NULL), pa.string())


def _milliseconds(values: NDArray[np.int64]) -> pa.Array:
    """Times in ns as decimal ms, without needless digits."""
    known = values != NULL
    whole = pc.cast(pa.array(np.where(known, values // 1_000_000, 0), mask=~known), pa.string())
    rest = np.where(known, values % 1_000_000, 0)
    if not rest.any():
        return whole
    digits = pc.utf8_lpad(pc.cast(pa.array(rest), pa.string()), 6, padding="0")
    fraction = pc.binary_join_element_wise(".", pc.utf8_rtrim(digits, "0"), "")
    return pc.binary_join_element_wise(whole, pc.if_else(pa.array(rest > 0), fraction, ""), "")
