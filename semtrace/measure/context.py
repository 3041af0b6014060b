"""How much of what agents are given was there before: repeated tokens and rounds, from the trace alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from semtrace.errors import IntegrityError
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.records.trace import Trace


def repeated_tokens(trace: Trace) -> NDArray[np.int64]:
    """By operation, the prompt tokens that stood in its task before: inherited, delivered, or sent once already.

    They are the inherited tokens, and the tokens of own segments that repeat an earlier operation's output
    (`source_operation`) or have the content of an own segment of an earlier operation of the task. `NULL` where
    a number of tokens that it takes is not known; 0 for operations without a prompt.
    """
    operations, segments = trace.operations, trace.segments
    owner, tokens = segments.ints("operation"), segments.ints("tokens")
    own = np.zeros(operations.rows, dtype=np.int64)
    np.add.at(own, owner, np.maximum(tokens, 0))
    untold = np.zeros(operations.rows, dtype=np.bool_)
    untold[owner[tokens == NULL]] = True

    artifact = segments.ints("artifact")
    task = operations.ints("task")[owner] if segments.rows else owner
    key = task * (trace["artifacts"].rows + 1) + artifact
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    # Segments stand in order of operation, so the first of equal content is the earliest; more of it in the same
    # operation is no repetition of something earlier.
    again = (artifact != NULL) & (owner[first][inverse] != owner) if segments.rows else artifact != NULL
    again |= segments.ints("source_operation") != NULL

    repeated = np.zeros(operations.rows, dtype=np.int64)
    np.add.at(repeated, owner[again], np.maximum(tokens[again], 0))
    prompt = operations.ints("prompt_tokens")
    based = operations.ints("context_base") != NULL
    repeated += np.where(based, prompt - own, 0)
    return np.where(untold | (based & (prompt == NULL)), NULL, repeated)


@dataclass(frozen=True)
class Round:
    """LLM operations of one stage that no dependency orders, each with a prompt of its own.

    Attributes:
        task: their task.
        stage: the stage whose branches they are of; `NULL` where the task has no stages.
        depth: how many LLM operations are before them, on the longest path.
        operations: at least two, ascending.
        shared: tokens of content that all their prompts hold; None if not known.
        total: the sum of their prompt tokens; None if not known.
    """

    task: int
    stage: int
    depth: int
    operations: tuple[int, ...]
    shared: int | None
    total: int | None

    @property
    def repeated(self) -> int | None:
        """Shared tokens that are processed again: (N - 1) · S; None if not known."""
        return None if self.shared is None else (len(self.operations) - 1) * self.shared


def rounds(trace: Trace) -> Iterator[Round]:
    """The rounds of a trace (ST-MEA-041).

    The depth of an operation is the greatest number of LLM operations on a path of recorded edges to it. The scope
    of an LLM operation is its stage where LLM operations of two or more sessions are in it, else the stage that
    its stage is nested in. The LLM operations of one scope and one depth are a round, if they are two or more; no
    path leads from one to another.
    """
    operations = trace.operations
    is_llm = operations.ints("kind") == OperationKind.LLM
    stage, session = operations.ints("stage").tolist(), operations.ints("session").tolist()
    task, llm = operations.ints("task").tolist(), np.flatnonzero(is_llm).tolist()
    parent = [*trace["stages"].ints("parent").tolist(), NULL]
    sessions: dict[tuple[int, int], set[int]] = defaultdict(set)
    for operation in llm:
        sessions[task[operation], stage[operation]].add(session[operation])
    depth = _depths(trace, is_llm.tolist())
    found: dict[tuple[int, int, bool, int], list[int]] = defaultdict(list)
    for operation in llm:
        own, within = task[operation], stage[operation]
        nested = len(sessions[own, within]) < 2 and within != NULL
        scope = parent[within] if nested else within
        found[own, scope, nested, depth[operation]].append(operation)
    contents = _Contents(trace)
    prompt = operations.ints("prompt_tokens").tolist()
    for (own, scope, _, level), members in found.items():
        if len(members) > 1:
            counts = [prompt[operation] for operation in members]
            total = None if NULL in counts else sum(counts)
            yield Round(own, scope, level, tuple(members), contents.shared(members), total)


def _depths(trace: Trace, is_llm: list[bool]) -> list[int]:
    """By operation, the greatest number of LLM operations on a path to it."""
    depth = [0] * len(is_llm)
    edges = trace.edges
    for target, source in zip(edges.ints("target").tolist(), edges.ints("source").tolist(), strict=True):
        depth[target] = max(depth[target], depth[source] + is_llm[source])
    return depth


class _Contents:
    """The content of whole prompts: of each artifact how often it stands in them."""

    def __init__(self, trace: Trace) -> None:
        self._offsets = trace.segment_offsets.tolist()
        self._artifact = trace.segments.ints("artifact").tolist()
        self._tokens = trace.segments.ints("tokens").tolist()
        self._base = trace.operations.ints("context_base").tolist()
        self._inherited = trace.operations.ints("context_segments").tolist()
        self._output = trace.operations.ints("output").tolist()
        self._output_tokens = trace.operations.ints("output_tokens").tolist()
        self._reasoning = trace.operations.ints("reasoning_tokens").tolist()

    def _pieces(self, operation: int) -> list[tuple[int, int]]:
        """The whole input of an operation: (artifact, tokens) of each segment."""
        chain = [operation]
        while self._base[chain[-1]] != NULL:
            above = self._base[chain[-1]]
            if not 0 <= above < chain[-1]:  # else the walk might have no end
                raise IntegrityError(
                    f"context base {above} is not a lower row",
                    code="order.reference",
                    path=f"operations.context_base[{chain[-1]}]",
                    requirement="ST-ORD-002",
                )
            chain.append(above)
        pieces: list[tuple[int, int]] = []
        for at in reversed(chain):
            del pieces[self._inherited[at] :]
            own = range(self._offsets[at], self._offsets[at + 1])
            pieces.extend((self._artifact[row], self._tokens[row]) for row in own)
            if at != operation:
                tokens = self._output_tokens[at]
                if tokens != NULL:  # hidden reasoning is not sent on
                    tokens -= max(self._reasoning[at], 0)
                pieces.append((self._output[at], tokens))
        return pieces

    def shared(self, members: list[int]) -> int | None:
        """Tokens of the content that all prompts hold; None if a length is not known."""
        common: Counter[tuple[int, int]] | None = None
        for operation in members:
            held = Counter(piece for piece in self._pieces(operation) if piece[0] != NULL)
            common = held if common is None else common & held
        if not common:
            return 0
        if any(tokens == NULL for _, tokens in common):
            return None
        return sum(tokens * count for (_, tokens), count in common.items())
