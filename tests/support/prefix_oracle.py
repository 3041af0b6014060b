"""Keys of blocks by the text of spec/prefix.md: every token a symbol, every block a tuple, every chain a pair."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from semtrace.records.enums import OperationKind, OperationStatus, SegmentScope

if TYPE_CHECKING:
    from semtrace.records.trace import Trace

Symbol = Any


class Oracle:
    """The strings of a valid trace, token by token."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.operations = trace.operations.data.to_pylist()
        self.segments = trace.segments.data.to_pylist()
        self.block_size = trace["trace"].row(0)["block_size"]
        self.sizes = trace["artifacts"].ints("size").tolist()
        self.own: list[list[int]] = [[] for _ in self.operations]
        for at, segment in enumerate(self.segments):
            self.own[segment["operation"]].append(at)
        self.length: dict[int, int | None] = {
            at: segment["tokens"] for at, segment in enumerate(self.segments)
        }
        self.pieces: list[list[tuple[str, int]]] = []
        self.prompt: list[list[Symbol]] = []
        self.total: list[int | None] = []
        self.exact: list[
            list[int | None]
        ] = []  # by operation, where its pieces end; None from the first unknown on
        for at in range(len(self.operations)):
            self._add(at)

    def _add(self, at: int) -> None:
        row, own = self.operations[at], self.own[at]
        base = row["context_base"]
        pieces: list[tuple[str, int]] = []
        symbols: list[Symbol] = []
        ends: list[int | None] = []
        exact = True
        if base is not None:
            count = row["context_segments"]
            context = [*self.pieces[base], ("out", base)]
            pieces = context[:count]
            ends = [*self.exact[base]][:count]
            if (
                count == len(self.pieces[base])
                and self.total[base] is not None
                and pieces[-1] != ("out", base)
            ):
                ends[-1:] = [self.total[base]]
            symbols, exact = self._inherited(at, base, count, ends)
        if row["kind"] not in {OperationKind.LLM, OperationKind.EMBED}:
            own = []
        settled = exact
        missing = [each for each in own if self.length[each] is None]
        prompt = row["prompt_tokens"]
        if exact and len(missing) == 1 and prompt is not None:
            left = prompt - len(symbols) - sum(self.length[each] or 0 for each in own)
            if left >= 0:
                self.length[missing[0]] = left
        for each in own:
            if self.length[each] is None:
                exact = False
            if exact:
                symbols = symbols + self._segment(each)
            ends.append(len(symbols) if exact else None)
        pieces = pieces + [("seg", each) for each in own]
        total = prompt
        if prompt is None and exact and pieces:
            total = len(symbols)
        if total is not None:
            left = own[sum(end is not None for end in ends[len(ends) - len(own) :]) :]
            listed = self._listed(left) if settled and left else None
            named = ("rest", at) if listed is None else ("rest", listed, total - len(symbols))
            symbols = symbols + [(named, place) for place in range(total - len(symbols))]
        self.pieces.append(pieces)
        self.exact.append(ends)
        self.total.append(total)
        self.prompt.append(symbols)

    def _listed(self, rows: list[int]) -> tuple[Any, ...] | None:
        """The contents of segments, if all are known and may be equal to others'."""
        listed = []
        for at in rows:
            segment = self.segments[at]
            content = (segment["artifact"], segment["envelope"])
            if segment["scope"] != SegmentScope.SHARED or content == (None, None):
                return None
            listed.append(content)
        return tuple(listed)

    def _inherited(self, at: int, base: int, count: int, ends: list[int | None]) -> tuple[list[Symbol], bool]:
        """What an operation inherits, and whether its end is known. `ends` gets the ends of outputs that are inherited."""
        row = self.operations[at]
        own = [self.length[each] for each in self.own[at]]
        left = None
        if row["prompt_tokens"] is not None and None not in own:
            left = row["prompt_tokens"] - sum(own)
        if count == len(self.pieces[base]) + 1:
            total, above = self.total[base], self.operations[base]
            output, reasoning = above["output_tokens"], above["reasoning_tokens"]
            said = None
            if output is not None and reasoning is not None:
                said = output - reasoning
            elif total is not None and left is not None and left >= total:
                said = left - total
            if total is None or said is None:
                known = total if total is not None else self._known(base)
                ends.append(None)
                return self.prompt[base][:known], False
            ends.append(total + said)
            if said == output:
                return self.prompt[base] + self.output(base), True
            return self.prompt[base] + [("said", base, said, place) for place in range(said)], True
        cut = ends[-1]
        if cut is None and left is not None and self.total[base] is not None and left <= self.total[base]:
            cut = left
        if cut is None:
            return self.prompt[base][: self._known(base)], False
        ends[-1] = cut
        return self.prompt[base][:cut], True

    def _known(self, base: int) -> int:
        """Up to where the pieces of an input are known."""
        known = 0
        for end in self.exact[base]:
            if end is None:
                break
            known = end
        return known

    def output(self, at: int) -> list[Symbol]:
        row = self.operations[at]
        count = row["output_tokens"] or 0
        if row["output_token_ids"] is not None and count:
            return self._ids(row["output_token_ids"], 0, count)
        return [("out", at, place) for place in range(count)]

    def _ids(self, artifact: int, start: int, count: int) -> list[Symbol]:
        content = self.trace.artifact(artifact)
        if content is None:
            return [("ids", artifact, start + place) for place in range(count)]
        return list(struct.unpack(f"<{len(content) // 4}I", content))[start : start + count]

    def _segment(self, at: int) -> list[Symbol]:
        segment = self.segments[at]
        count = self.length[at]
        assert count is not None
        if segment["scope"] != SegmentScope.SHARED:
            return [("segment", at, place) for place in range(count)]
        if segment["token_ids"] is not None:
            return self._ids(segment["token_ids"], segment["token_ids_start"], count)
        source = segment["source_operation"]
        if source is not None and self._repeats(segment, source, count):
            if count == self.operations[source]["output_tokens"]:
                return self.output(source)
            return [("said", source, count, place) for place in range(count)]
        names = ["artifact", "envelope"]
        if segment["artifact"] is None:
            names += ["source_operation", "source_start", "source_length"]
        content = tuple(segment[name] for name in names)
        if any(part is not None for part in content):
            return [("content", content, count, place) for place in range(count)]
        if segment["block_ids"] is not None:
            return self._blocks(at, segment, count)
        return [("segment", at, place) for place in range(count)]

    def _repeats(self, segment: dict[str, Any], source: int, count: int) -> bool:
        above = self.operations[source]
        if above["kind"] != OperationKind.LLM or above["output_tokens"] is None:
            return False
        if above["reasoning_tokens"] is not None:
            if count != above["output_tokens"] - above["reasoning_tokens"]:
                return False
        elif count > above["output_tokens"]:
            return False
        if segment["source_start"] is None:
            either = segment["artifact"] is None or above["output"] is None
            return either or segment["artifact"] == above["output"]
        size = None if above["output"] is None else self.sizes[above["output"]]
        return segment["source_start"] == 0 and segment["source_length"] == size

    def _blocks(self, at: int, segment: dict[str, Any], count: int) -> list[Symbol]:
        size, artifact = self.block_size, segment["block_ids"]
        content = self.trace.artifact(artifact)
        made: list[Symbol] = []
        for block in range(count // size):
            place = segment["block_ids_start"] + block
            named = (artifact, place) if content is None else struct.unpack_from("<Q", content, 8 * place)
            made += [("block", named, each) for each in range(size)]
        return made + [("segment", at, place) for place in range(len(made), count)]

    def runs(self, at: int) -> bool:
        row = self.operations[at]
        model = row["kind"] in {OperationKind.LLM, OperationKind.EMBED}
        return model and row["status"] in {OperationStatus.OK, OperationStatus.CANCELLED}

    def string(self, at: int) -> list[Symbol]:
        """Input and output of an operation that runs on a backend; nothing of others."""
        if not self.runs(at):
            return []
        made = self.output(at) if self.operations[at]["kind"] == OperationKind.LLM else []
        return self.prompt[at] + made

    def chains(self, size: int) -> list[list[int]]:
        """By operation, its full blocks: equal numbers for equal tokens after equal tokens."""
        known: dict[Any, int] = {}
        found = []
        for at in range(len(self.operations)):
            string, parent, keys = self.string(at), None, []
            for end in range(size, len(string) + 1, size):
                parent = known.setdefault((parent, tuple(string[end - size : end])), len(known))
                keys.append(parent)
            found.append(keys)
        return found
