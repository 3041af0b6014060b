"""Block ids for the lines of a trace: those that it has, or made of what it knows of its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semtrace.engine.work import Work
from semtrace.records.columns import NULL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.trace import Trace


@dataclass(frozen=True)
class LineIds:
    """Ids by line: where they begin in `ids`, shape (lines + 1,); none where nothing is known."""

    start: NDArray[np.int64]
    ids: NDArray[np.uint64]
    lost: int = 0
    """Segments whose ids have no place in a line."""


def no_ids(lines: int) -> LineIds:
    """No line has ids."""
    return LineIds(np.zeros(lines + 1, dtype=np.int64), np.zeros(0, dtype=np.uint64))


def stored_ids(trace: Trace, rows: NDArray[np.int64], begins: NDArray[np.bool_], size: int) -> LineIds:
    """The ids of the own segments of operations, as far as these follow each other in whole blocks.

    A segment shorter than a block names the place of the partial block's id, if it has one: an id that no whole block has.

    Args:
        trace: the trace.
        rows: the operation of each line.
        begins: whether a line begins with the operation's first own segment.
        size: tokens in a block.
    """
    segments, artifacts = trace.segments, trace["artifacts"].rows
    offsets = trace.segment_offsets
    line = np.full(trace.operations.rows, NULL, dtype=np.int64)
    line[rows[begins]] = np.flatnonzero(begins)
    owner = segments.ints("operation")
    tokens, artifact, place = (segments.ints(name) for name in ("tokens", "block_ids", "block_ids_start"))
    begin, held = np.zeros(artifacts + 1, dtype=np.int64), np.zeros(artifacts + 1, dtype=np.int64)
    contents, filled = [np.zeros(0, dtype=np.uint64)], 0
    for each in np.unique(artifact[artifact != NULL]).tolist():
        content = trace.artifact(each)
        if content is not None:
            begin[each], held[each] = filled, len(content) // 8
            contents.append(np.frombuffer(content, dtype="<u8", count=len(content) // 8))
            filled += len(content) // 8
    ids = np.concatenate(contents)
    named = (artifact != NULL) & (held[artifact] > 0)
    whole = np.where(named, tokens // size, 0)
    partial = named & (tokens > 0) & (tokens < size) & (place < held[artifact])
    at = begin[artifact] + np.where(named, place, 0)
    taken = ids[_ranges(at, whole)]
    partial[partial] = ~np.isin(ids[at[partial]], taken)
    # A segment counts if those of its operation before it all end with a whole block.
    broken = np.cumsum(~named | (tokens % size != 0)) - (~named | (tokens % size != 0))
    usable = named & (line[owner] != NULL) & (broken == broken[offsets[owner]])
    counts = np.where(usable, whole + partial, 0)
    chosen = np.flatnonzero(counts)
    made = ids[_ranges(at[chosen], counts[chosen])]
    of_line = np.bincount(line[owner[chosen]], counts[chosen], len(rows)).astype(np.int64)
    lost = int(((artifact != NULL) & (counts == 0) & (tokens > 0)).sum())
    return LineIds(np.concatenate([[0], np.cumsum(of_line)]), made, lost)


def made_ids(trace: Trace, rows: NDArray[np.int64], size: int) -> LineIds:
    """Ids that say what blocks of the inputs are the same (spec, prefix.md), by first use; a partial block has one of its own.

    Raises:
        ReplayError: token counts are unknown, or contradict each other.
    """
    work = Work.of(trace, size)
    length = work.prompt_tokens[rows]
    whole, held = length // size, -(-length // size)
    ends = np.cumsum(held)
    keys = np.zeros(int(held.sum()), dtype=np.int64)
    keys[_ranges(ends - held, whole)] = work.keys[_ranges(work.key_start[rows], whole)]
    tail = held > whole
    keys[ends[tail] - 1] = work.key_count + np.arange(int(tail.sum()))
    _, first, again = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.uint64)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.uint64)
    return LineIds(np.concatenate([[0], ends]), rank[again.reshape(-1)])


def _ranges(begin: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places from each beginning on, as many as counted, one after the other."""
    return np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
