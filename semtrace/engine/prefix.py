"""Which tokens of inputs and outputs are the same: one symbol a token, equal where the tokens are (spec, prefix.md)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.check.finding import Finding, found
from semtrace.engine.inputs import Layout, lay_out
from semtrace.engine.prefix_tree import OPAQUE, Strings, grow
from semtrace.errors import FormatError, ReplayError
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind, SegmentScope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from semtrace.records.trace import Trace

KINDS: Final = ("token_ids", "repeated_output", "content", "block_ids", "unique")
"""How the tokens of a segment are told from others: the first of these that applies (ST-PFX-020 to ST-PFX-025)."""
_IDS, _REPEATED, _CONTENT, _BLOCKS, _UNIQUE = range(5)
_MOST: Final = 1 << 61
"""Symbols that there may be."""


@dataclass(frozen=True)
class TokenStrings:
    """What every operation gives a model and gets from it, as strings of symbols.

    Attributes:
        strings: by operation, input and output; one that is not known in full is shorter, or empty.
        prompt_tokens: by operation; `NULL` if unknown.
        known_by: tokens of own segments by how they are told from others, with the names in `KINDS`; under `rest`
            tokens of inputs of which nothing is known.
        remarks: what is less exact than it could be, for people.
    """

    strings: Strings
    prompt_tokens: NDArray[np.int64]
    known_by: dict[str, int]
    remarks: tuple[Finding, ...]


def token_strings(trace: Trace) -> TokenStrings:
    """The strings of a valid trace.

    Raises:
        ReplayError: token counts contradict each other, or there are too many tokens.
        FormatError: token ids or block ids lie outside of their content.
    """
    return _TokenStrings(trace, lay_out(trace)).result()


@dataclass(frozen=True)
class _Runs:
    """Runs of tokens, in order of their owners: by run its owner, first symbol, and tokens."""

    owner: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]


class _Symbols:
    """Hands out numbers for tokens whose ids are not known."""

    def __init__(self) -> None:
        self._next = OPAQUE

    def take(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first of as many consecutive numbers as each content has tokens.

        Raises:
            ReplayError: there are not so many.
        """
        if float(lengths.sum(dtype=np.float64)) + self._next >= _MOST:
            raise ReplayError(
                "inputs and outputs have more tokens than can be told apart",
                code="engine.tokens",
                path="operations.prompt_tokens",
                hint="look for a count of tokens that is off by orders of magnitude",
            )
        ends = self._next + np.cumsum(lengths)
        if len(ends):
            self._next = int(ends[-1])
        made: NDArray[np.int64] = ends - lengths
        return made

    def equal(self, lengths: NDArray[np.int64], *columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same, with the same numbers for rows that are equal in all columns, which must tell their lengths apart."""
        _, first, again = np.unique(_as_one(*columns), return_index=True, return_inverse=True)
        return self.take(lengths[first])[again.reshape(-1)]


def _as_one(*columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number a row, equal where all columns are."""
    code, span = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        low = int(column.min(initial=0))
        width = int(column.max(initial=0)) - low + 1
        if span * width >= 1 << 62:
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
            span = len(code) + 1
        if span * width >= 1 << 62:
            column = np.unique(column, return_inverse=True)[1].reshape(-1)  # noqa: PLW2901
            low, width = 0, len(column) + 1
        code, span = code * width + (column - low), span * width
    return code


class _TokenStrings:
    """Makes the strings of one trace."""

    def __init__(self, trace: Trace, layout: Layout) -> None:
        self._trace, self._layout = trace, layout
        self._symbols = _Symbols()
        operations, segments = trace.operations, trace.segments
        is_llm = operations.ints("kind") == OperationKind.LLM
        self._output = np.where(is_llm, operations.ints("output_tokens"), NULL)
        self._operation = segments.ints("operation")
        place = np.arange(segments.rows) - trace.segment_offsets[:-1][self._operation]
        self._placed = place < layout.placed[self._operation]
        self._tokens = np.where(self._placed, layout.tokens, 0)
        self._kind = np.full(segments.rows, _UNIQUE)
        self._start = np.zeros(segments.rows, dtype=np.int64)
        self._buffer: list[NDArray[np.int32]] = [np.zeros(0, dtype=np.int32)]
        self._away = np.zeros(trace["artifacts"].rows, dtype=np.bool_)

    def result(self) -> TokenStrings:
        """The strings."""
        layout, operations = self._layout, self._trace.operations.rows
        self._by_ids()
        output = self._outputs()
        said = self._by_source(output)
        self._by_content()
        own = self._with_blocks()
        rest = np.flatnonzero(layout.rest > 0)
        made = np.flatnonzero((self._output > 0) & (layout.total != NULL))
        runs = _joined(
            _in_order(
                operations,
                said,
                own,
                _Runs(rest, self._rests(rest), layout.rest[rest]),
                _Runs(made, output[made], self._output[made]),
            )
        )
        first = np.searchsorted(runs.owner, np.arange(operations + 1)).astype(np.int64)
        ids = np.concatenate(self._buffer)
        sums = np.bincount(self._kind, self._tokens, len(KINDS)).astype(np.int64).tolist()
        return TokenStrings(
            Strings(layout.holder, layout.kept, first, runs.start, runs.length, ids),
            layout.total,
            {**dict(zip(KINDS, sums, strict=True)), "rest": int(layout.rest.sum())},
            tuple(self._remarks()),
        )

    def _left(self) -> NDArray[np.bool_]:
        """Segments that may be equal to others, and are not settled."""
        shared = self._trace.segments.ints("scope") == SegmentScope.SHARED
        return np.asarray(self._placed & shared & (self._kind == _UNIQUE))

    # -- token ids --------------------------------------------------------------------------------------------

    @cached_property
    def _ids_at(self) -> NDArray[np.int64]:
        """By artifact, where its token ids begin: in the buffer, or as symbols where they are not here; else `NULL`."""
        trace = self._trace
        rows = np.flatnonzero(self._left())
        named = [trace.segments.ints("token_ids")[rows], trace.operations.ints("output_token_ids")]
        used = np.unique(np.concatenate(named))
        used = used[used != NULL]
        at = np.full(trace["artifacts"].rows, NULL, dtype=np.int64)
        self._ids_in = np.zeros(trace["artifacts"].rows, dtype=np.int64)
        held = 0
        for row in used.tolist():
            content = trace.artifact(row)
            if content is None:
                self._away[row] = True
                continue
            ids = np.frombuffer(content, dtype="<i4", count=len(content) // 4)
            at[row], self._ids_in[row] = held, len(ids)
            self._buffer.append(ids)
            held += len(ids)
        away = np.flatnonzero(self._away)
        self._ids_in[away] = trace["artifacts"].ints("size")[away] // 4
        at[away] = self._symbols.take(self._ids_in[away])
        return at

    def _by_ids(self) -> None:
        segments, at = self._trace.segments, self._ids_at
        artifact = segments.ints("token_ids")
        rows = np.flatnonzero(self._left() & (artifact != NULL))
        begin = segments.ints("token_ids_start")[rows]
        _inside(begin, self._tokens[rows], self._ids_in[artifact[rows]], rows, "token_ids", "ST-SEG-006")
        self._kind[rows] = _IDS
        self._start[rows] = at[artifact[rows]] + begin

    # -- outputs ----------------------------------------------------------------------------------------------

    def _outputs(self) -> NDArray[np.int64]:
        """The first symbol of each output: where its ids are, or a number of its own."""
        ids = self._trace.operations.ints("output_token_ids")
        rows = np.flatnonzero((ids != NULL) & (self._output > 0))
        wrong = rows[self._ids_in[ids[rows]] != self._output[rows]]
        if len(wrong):
            raise FormatError(
                f"{self._ids_in[ids[wrong[0]]]} ids, {self._output[wrong[0]]} output tokens",
                code="engine.ids",
                path=f"operations.output_token_ids[{wrong[0]}]",
                requirement="ST-SEG-012",
            )
        start = np.zeros(len(ids), dtype=np.int64)
        start[rows] = self._ids_at[ids[rows]]
        own = np.flatnonzero((ids == NULL) & (self._output > 0))
        start[own] = self._symbols.take(self._output[own])
        return start

    def _by_source(self, output: NDArray[np.int64]) -> _Runs:
        """Segments that repeat a whole output of a model; and the runs of outputs that are inherited without reasoning."""
        layout, segments = self._layout, self._trace.segments
        rows = np.flatnonzero(self._left() & (segments.ints("source_operation") != NULL))
        source, tokens = segments.ints("source_operation")[rows], self._tokens[rows]
        visible = self._trace.operations.ints("reasoning_tokens")[source]
        visible = np.where(visible == NULL, NULL, self._output[source] - visible)
        fits = np.where(visible == NULL, tokens <= self._output[source], tokens == visible)
        fits &= self._is_whole(rows, source)
        rows, source, tokens = rows[fits], source[fits], tokens[fits]
        self._kind[rows] = _REPEATED
        said = np.flatnonzero(layout.spoken > 0)
        all_said = tokens == self._output[source]
        self._start[rows[all_said]] = output[source[all_said]]
        rows, source, tokens = rows[~all_said], source[~all_said], tokens[~all_said]
        sources = np.concatenate([layout.holder[said], source])
        lengths = np.concatenate([layout.spoken[said], tokens])
        made = self._symbols.equal(lengths, sources, lengths)
        self._start[rows] = made[len(said) :]
        return _Runs(said, made[: len(said)], layout.spoken[said])

    def _is_whole(self, rows: NDArray[np.int64], source: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these segments repeat all of their source's output."""
        segments, output = self._trace.segments, self._trace.operations.ints("output")[source]
        begin, artifact = segments.ints("source_start")[rows], segments.ints("artifact")[rows]
        size = np.append(self._trace["artifacts"].ints("size"), NULL)[output]
        spans = (begin == 0) & (segments.ints("source_length")[rows] == size)
        same = (artifact == output) | (artifact == NULL) | (output == NULL)
        return np.asarray((output != NULL) & spans | (begin == NULL) & same)

    # -- contents ---------------------------------------------------------------------------------------------

    def _by_content(self) -> None:
        segments = self._trace.segments
        artifact, envelope = segments.ints("artifact"), segments.ints("envelope")
        source = np.where(artifact == NULL, segments.ints("source_operation"), NULL)
        rows = np.flatnonzero(self._left() & ((artifact != NULL) | (envelope != NULL) | (source != NULL)))
        spans = [
            np.where(source == NULL, NULL, segments.ints(name))[rows]
            for name in ("source_start", "source_length")
        ]
        self._kind[rows] = _CONTENT
        self._start[rows] = self._symbols.equal(
            self._tokens[rows], artifact[rows], envelope[rows], self._tokens[rows], source[rows], *spans
        )

    def _rests(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first symbol of what is left of these inputs: equal for equal lists of contents with as many tokens (ST-PFX-013)."""
        segments, layout = self._trace.segments, self._layout
        artifact, envelope = segments.ints("artifact"), segments.ints("envelope")
        has_content = (segments.ints("scope") == SegmentScope.SHARED) & (
            (artifact != NULL) | (envelope != NULL)
        )
        is_left = np.zeros(self._trace.operations.rows, dtype=np.bool_)
        is_left[rows] = layout.settled[rows]
        left = np.flatnonzero(is_left[self._operation] & ~self._placed)
        is_left[self._operation[left[~has_content[left]]]] = False
        left = left[is_left[self._operation[left]]]
        owner, counts = np.unique(self._operation[left], return_counts=True)
        start = OPAQUE + _as_one(artifact[left], envelope[left])
        none = np.full(len(owner), NULL, dtype=np.int64)
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        ids = np.zeros(0, dtype=np.int32)
        tree = grow(Strings(none, np.zeros_like(none), first, start, np.ones_like(start), ids))
        listed = np.full(self._trace.operations.rows, NULL, dtype=np.int64)
        listed[owner] = tree.node[tree.first[1:] - 1]
        same = listed[rows] != NULL
        made = np.zeros(len(rows), dtype=np.int64)
        length = layout.rest[rows]
        made[~same] = self._symbols.take(length[~same])
        made[same] = self._symbols.equal(length[same], listed[rows[same]], length[same])
        return made

    # -- block ids --------------------------------------------------------------------------------------------

    def _with_blocks(self) -> _Runs:
        """The runs of all placed segments: each one, but those with block ids, which have one for each block, and a tail."""
        segments = self._trace.segments
        size = max(int(self._trace["trace"].ints("block_size").max(initial=1)), 1)
        rows = np.flatnonzero(self._left() & (segments.ints("block_ids") != NULL))
        self._kind[rows] = _BLOCKS
        whole = np.zeros(segments.rows, dtype=np.int64)
        whole[rows] = self._tokens[rows] // size
        symbols = self._block_symbols(rows, whole[rows], size)
        alone = np.flatnonzero(self._placed & ((self._kind == _UNIQUE) | (self._kind == _BLOCKS)))
        tail = self._tokens - whole * size
        self._start[alone] = self._symbols.take(tail[alone])
        has_tail = (tail > 0) & self._placed
        runs = whole + has_tail
        end = np.cumsum(runs)
        start, length = np.zeros(runs.sum(), dtype=np.int64), np.full(runs.sum(), size)
        at = np.repeat(end - runs, whole) + _count_up(whole)
        start[at] = symbols
        last = end[has_tail] - 1
        start[last], length[last] = self._start[has_tail], tail[has_tail]
        return _Runs(np.repeat(self._operation, runs), start, length)

    def _block_symbols(
        self, rows: NDArray[np.int64], whole: NDArray[np.int64], size: int
    ) -> NDArray[np.int64]:
        """The first symbol of each block of these segments, one after the other."""
        trace = self._trace
        artifact, begin = (trace.segments.ints(name)[rows] for name in ("block_ids", "block_ids_start"))
        at = np.zeros(trace["artifacts"].rows, dtype=np.int64)
        held = trace["artifacts"].ints("size") // 8  # a new array
        lost = np.zeros(len(held), dtype=np.bool_)
        contents: list[NDArray[np.uint64]] = [np.zeros(0, dtype=np.uint64)]
        filled = 0
        for row in np.unique(artifact).tolist():
            content = trace.artifact(row)
            if content is None:
                lost[row] = True
                continue
            ids = np.frombuffer(content, dtype="<u8", count=len(content) // 8)
            at[row], held[row] = filled, len(ids)  # the content decides, not what the table says
            contents.append(ids)
            filled += len(ids)
        self._away |= lost
        _inside(begin, whole, held[artifact], rows, "block_ids", "ST-SEG-009")
        here = np.repeat(~lost[artifact], whole)
        place = np.repeat(begin, whole) + _count_up(whole)
        made = np.zeros(len(place), dtype=np.int64)
        ids = np.concatenate(contents)[(np.repeat(at[artifact], whole) + place)[here]]
        least = int(ids.min(initial=np.iinfo(np.uint64).max)) if len(ids) else 0
        if len(ids) and int(ids.max()) - least < 1 << 32:  # they serve as they are
            codes, count = (ids - np.uint64(least)).astype(np.int64), int(ids.max()) - least + 1
        else:
            distinct, again = np.unique(ids, return_inverse=True)
            codes, count = again.reshape(-1).astype(np.int64), len(distinct)
        made[here] = self._symbols.take(np.array([count * size]))[0] + codes * size
        base = np.zeros(len(held), dtype=np.int64)
        base[lost] = self._symbols.take(held[lost] * size)
        made[~here] = (np.repeat(base[artifact], whole) + place * size)[~here]
        return made

    # -- remarks ----------------------------------------------------------------------------------------------

    def _remarks(self) -> Iterator[Finding]:
        layout, trace = self._layout, self._trace
        pieces = layout.kept + layout.spoken + np.diff(trace.segment_offsets)
        hidden = layout.rest > 0
        yield from found(
            "ST-PFX-012",
            hidden & (pieces > 0),
            lambda row: (
                f"of the {layout.total[row]} prompt tokens of operation {row} the last {layout.rest[row]} are "
                "of pieces of unknown length: they are the same only where all of these pieces are"
            ),
            table="operations",
            column="prompt_tokens",
            hint="segments with token counts, or token ids, make prefixes known",
        )
        yield from found(
            "ST-PFX-012",
            hidden & (pieces == 0),
            "operation {row} has a prompt and no pieces: no other prompt is found equal to it",
            table="operations",
            column="prompt_tokens",
            hint="an input as segments makes its prefix known",
        )
        yield from found(
            "ST-PFX-021",
            self._away,
            "the ids in artifact {row} are not here: they are compared by artifact, not one by one",
            table="artifacts",
            hint="embed the content of the trace",
        )


def _inside(
    begin: NDArray[np.int64],
    count: NDArray[np.int64],
    held: NDArray[np.int64],
    rows: NDArray[np.int64],
    column: str,
    requirement: str,
) -> None:
    """Refuse segments whose ids end after their artifact does."""
    wrong = np.flatnonzero(begin + count > held)
    if len(wrong):
        at = wrong[0]
        raise FormatError(
            f"ids {begin[at]} to {begin[at] + count[at]} of an artifact that holds {held[at]}",
            code="engine.ids",
            path=f"segments.{column}[{rows[at]}]",
            requirement=requirement,
        )


def _count_up(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, … for each count."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def _in_order(owners: int, *parts: _Runs) -> _Runs:
    """The runs of all parts by owner; of one owner those of an earlier part come first."""
    counts = [np.bincount(part.owner, minlength=owners) for part in parts]
    sums: Any = np.sum(counts, axis=0)
    place = np.cumsum(sums) - sums
    start, length = np.zeros(int(sums.sum()), dtype=np.int64), np.zeros(int(sums.sum()), dtype=np.int64)
    for part, count in zip(parts, counts, strict=True):
        at = np.repeat(place, count) + _count_up(count)
        start[at], length[at] = part.start, part.length
        place = place + count
    return _Runs(np.repeat(np.arange(owners), sums), start, length)


def _joined(runs: _Runs) -> _Runs:
    """Runs of one owner that follow each other as one; runs without tokens left out."""
    some = runs.length > 0
    owner, start, length = runs.owner[some], runs.start[some], runs.length[some]
    if not len(owner):
        return _Runs(owner, start, length)
    begins = np.ones(len(owner), dtype=np.bool_)
    begins[1:] = (owner[1:] != owner[:-1]) | (start[1:] != start[:-1] + length[:-1])
    at = np.flatnonzero(begins)
    return _Runs(owner[at], start[at], np.add.reduceat(length, at))
