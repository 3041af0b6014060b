"""The token ids that a trace has recorded of prompts and outputs, those of private segments, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from semtrace.engine.inputs import lay_out
from semtrace.kernels import run
from semtrace.live.prompt_parts import Chains
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.records.trace import Trace


class Recorded:
    """The ids of inputs and outputs as they were recorded.

    Args:
        trace: a valid trace.

    Attributes:
        prompt_tokens: by operation; `NULL` if unknown.
        complete: by operation, whether all ids of its prompt are known.
        output: by operation, whether all ids of its output are known (also of an empty one).

    Raises:
        ReplayError: the pieces of an input have more tokens than its prompt.
    """

    def __init__(self, trace: Trace) -> None:
        layout, operations, segments = lay_out(trace), trace.operations, trace.segments
        count = operations.rows
        at, self._ids = self._contents(trace)
        artifact = segments.ints("token_ids")
        owner = segments.ints("operation")
        place = np.arange(segments.rows) - trace.segment_offsets[:-1][owner]
        tokens = np.where(place < layout.placed[owner], layout.tokens, 0)
        start = np.where(artifact == NULL, NULL, at[artifact])
        start = np.where(start == NULL, NULL, start + segments.ints("token_ids_start"))
        made = operations.ints("output_token_ids")
        output = np.where(operations.ints("kind") == OperationKind.LLM, operations.ints("output_tokens"), 0)
        output_start = np.where(made == NULL, NULL, at[made])
        every, nothing = np.arange(count), np.full(count, NULL, dtype=np.int64)
        owners = np.concatenate([every, owner, every, every])
        lengths = np.concatenate(
            [
                layout.spoken,
                tokens,
                layout.rest,
                np.where((output == NULL) | (layout.total == NULL), 0, output),
            ]
        )
        starts = np.concatenate([nothing, start, nothing, output_start])
        order = np.argsort(owners, kind="stable")
        order = order[lengths[order] > 0]
        owners, lengths, self._start = owners[order], lengths[order], starts[order]
        first = np.searchsorted(owners, np.arange(count + 1)).astype(np.int64)
        ends = np.append(0, np.cumsum(lengths))
        begins = layout.kept[owners] + ends[:-1] - ends[first[owners]]
        length = layout.kept + ends[first[1:]] - ends[first[:-1]]
        self._chains = Chains(layout.holder, layout.kept, first, begins, length)
        lead = length.copy()  # tokens up to the first own one of unknown id
        unknown = np.flatnonzero(self._start == NULL)[::-1]
        lead[owners[unknown]] = begins[unknown]
        known = np.zeros(count, dtype=np.int64)
        run(_known, count, layout.holder, layout.kept, lead, known)
        self.prompt_tokens = layout.total
        self.complete: NDArray[np.bool_] = (layout.total != NULL) & (known >= layout.total)
        self.output: NDArray[np.bool_] = (output == 0) | (output > 0) & (output_start != NULL)
        self._output_start, self._output_tokens = output_start, output
        self._owners, self._lengths = owners, lengths

    @staticmethod
    def _contents(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """By artifact, where its ids begin among all; `NULL` of those that are not token ids, or not here."""
        at = np.full(trace["artifacts"].rows + 1, NULL, dtype=np.int64)  # the last one stands for null
        used = np.unique(
            np.concatenate([trace.segments.ints("token_ids"), trace.operations.ints("output_token_ids")])
        )
        parts, held = [np.zeros(0, dtype=np.int32)], 0
        for row in used[used != NULL].tolist():
            content = trace.artifact(row)
            if content is not None:
                ids = np.frombuffer(content, dtype="<i4", count=len(content) // 4)
                at[row] = held
                parts.append(ids)
                held += len(ids)
        return at, np.concatenate(parts)

    def outside(self, size: int) -> NDArray[np.bool_]:
        """By operation, whether an id of its own segments or its output is none of a vocabulary of this size."""
        wrong = np.zeros(len(self.complete), dtype=np.bool_)
        ids = self._ids.view(np.uint32)
        if int(ids.max(initial=0)) >= size:
            beyond = np.append(0, np.cumsum(ids >= size))
            runs = np.flatnonzero(self._start != NULL)
            begin = self._start[runs]
            some = beyond[begin + self._lengths[runs]] > beyond[begin]
            wrong[self._owners[runs[some]]] = True
        return wrong

    def prompt(self, operation: int) -> NDArray[np.int32]:
        """The ids of a prompt that is complete."""
        stretch = self._chains.stretch(operation, 0, int(self.prompt_tokens[operation]))
        made: NDArray[np.int32] = self._ids[stretch.places(self._start[stretch.run])]
        return made

    def output_ids(self, operation: int) -> NDArray[np.int32]:
        """The ids of an output that is complete."""
        begin = int(self._output_start[operation])
        made: NDArray[np.int32] = self._ids[begin : begin + int(self._output_tokens[operation])]
        return made


def _known(holder: Any, kept: Any, lead: Any, known: Any) -> None:
    """Up to where all ids of each string are known (arrays, or lists; see kernels). `lead` is so for own ones."""
    for row in range(len(kept)):
        known[row] = lead[row]
        if holder[row] >= 0 and kept[row] > known[holder[row]]:
            known[row] = known[holder[row]]
