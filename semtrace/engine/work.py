"""What a serving engine sees of a trace: token counts, and the blocks of every input and output by identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.engine.prefix import token_strings
from semtrace.engine.prefix_tree import grow
from semtrace.errors import ReplayError, UsageError
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind
from semtrace.replay.controller import runs_on_backend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.check.finding import Finding
    from semtrace.engine.prefix_tree import Strings, Tree
    from semtrace.records.trace import Trace

MOST_KEYS: Final = 1 << 32
"""Blocks that all operations together may have: each takes 8 bytes of memory."""


@dataclass(frozen=True)
class Work:
    """The model operations of a trace, in blocks.

    Attributes:
        block_size: tokens in a block.
        prompt_tokens, output_tokens: by operation; 0 where it does not run on a backend. An embedding has no output.
        key_start: where the keys of each operation begin, shape (operations + 1,).
        keys: the key of each full block of each operation's input and output: floor((prompt + output) / block_size)
            of them. Two keys are equal exactly if the blocks hold the same tokens after the same tokens.
        key_count: how many keys there are; they are 0 to key_count - 1.
        known_by: tokens of inputs by how they are told from others (`semtrace.engine.prefix.KINDS`, and `rest`: not
            at all); what operations inherit is not counted again.
        remarks: where less is known than could be, for people. They are no errors.
    """

    block_size: int
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    key_start: NDArray[np.int64]
    keys: NDArray[np.int64]
    key_count: int
    known_by: dict[str, int]
    remarks: tuple[Finding, ...]

    @classmethod
    def of(cls, trace: Trace, block_size: int) -> Work:
        """The work of a valid trace for an engine with blocks of this many tokens (spec, prefix.md).

        Raises:
            UsageError: the block size is not positive, or there would be more than `MOST_KEYS` blocks.
            ReplayError: an operation that runs on a backend has unknown token counts, or counts contradict each other.
            FormatError: token ids or block ids lie outside of their content.
        """
        if block_size < 1:
            raise UsageError("a block has at least one token", code="engine.block_size", path="block_size")
        made = token_strings(trace)
        runs = runs_on_backend(trace)
        generates = runs & (trace.operations.ints("kind") == OperationKind.LLM)
        prompt, output = trace.operations.ints("prompt_tokens"), trace.operations.ints("output_tokens")
        unknown = np.flatnonzero((runs & (prompt == NULL)) | (generates & (output == NULL)))
        if len(unknown):
            raise ReplayError(
                f"the token counts of {len(unknown)} operations that run on the backend are not known",
                code="engine.unknown",
                path=f"operations[{unknown[0]}]",
                requirement="ST-REL-011",
                hint="either the call never ended (semtrace show), or counts were not recorded: "
                "for streaming, include usage in the stream",
            )
        start, keys, count = _keys(made.strings, grow(made.strings), block_size)
        if not runs.all():
            start, keys, count = _only(runs, start, keys, count)
        return cls(
            block_size,
            np.where(runs, prompt, 0),
            np.where(generates, output, 0),
            start,
            keys,
            count,
            made.known_by,
            made.remarks,
        )


def _keys(strings: Strings, tree: Tree, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Keys of the full blocks of all strings: where they begin, the keys, and how many there are."""
    own = np.zeros(len(strings.kept), dtype=np.int64)
    np.add.at(own, np.repeat(np.arange(len(own)), np.diff(strings.first)), strings.length)
    inherited, full = strings.kept // size, (strings.kept + own) // size
    start = np.concatenate([[0], np.cumsum(full)])
    if float(full.sum(dtype=np.float64)) > MOST_KEYS:
        raise UsageError(
            f"the inputs and outputs have {int(full.sum()):,} blocks of {size} tokens, more than {MOST_KEYS:,}",
            code="engine.size",
            path="block_size",
            hint="use larger blocks, or a part of the trace",
        )
    # A node holds the ends of blocks that lie after its depth; each is one key.
    ends = (tree.depth + tree.extent) // size - tree.depth // size
    base = np.cumsum(ends) - ends
    owner = np.repeat(np.arange(len(own)), np.diff(tree.first))
    until = np.append(tree.at[1:], 0)
    last = tree.first[1:][np.diff(tree.first) > 0] - 1
    until[last] = (strings.kept + own)[owner[last]]
    before = tree.at // size
    count = until // size - before
    begin = base[tree.node] + before - tree.depth[tree.node] // size
    fresh = _ranges(begin, count)
    if not inherited.any():
        return start, fresh, int(ends.sum())
    keys = np.zeros(int(start[-1]), dtype=np.int64)
    keys[_ranges(start[:-1] + inherited, full - inherited)] = fresh
    for rows in _levels(tree.level, inherited):
        keys[_ranges(start[rows], inherited[rows])] = keys[
            _ranges(start[strings.holder[rows]], inherited[rows])
        ]
    return start, keys, int(ends.sum())


def _levels(level: NDArray[np.int64], inherited: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Strings that inherit blocks, level by level: a holder's keys are there before they are copied."""
    rows = np.flatnonzero(inherited)
    rows = rows[np.argsort(level[rows], kind="stable")]
    cuts = np.flatnonzero(np.diff(level[rows])) + 1
    yield from np.split(rows, cuts)


def _ranges(begin: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places from each beginning on, as many as counted, one after the other."""
    return np.repeat(begin - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))


def _only(
    runs: NDArray[np.bool_], start: NDArray[np.int64], keys: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """The keys of some operations, dense again."""
    full = np.diff(start)
    keys = keys[np.repeat(runs, full)]
    used = np.zeros(count, dtype=np.bool_)
    used[keys] = True
    dense = np.cumsum(used) - 1
    full = np.where(runs, full, 0)
    return np.concatenate([[0], np.cumsum(full)]), dense[keys], int(used.sum())
