"""Token lock in vLLM: a logits processor that leaves each request no choice but the ids that it brings with it.

A request asks for it with its extra arguments (`vllm_xargs` over HTTP): `{"semtrace_output_ids": [ids]}`. Other requests are not touched.

It runs in vLLM's worker processes and needs vLLM alone, with the V1 model runner. (The V2 runner has trace replay of its own.) The
environment is not asked. The server may be told, by its `--additional-config`, to count the positions at which the model would
have chosen another id: `{"semtrace_choices_log": PATH}`. That costs an argmax for each.
"""

from __future__ import annotations

import json
import os
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vllm.logger import init_logger
from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate

IDS: Final = "semtrace_output_ids"
"""The extra argument that holds a request's ids."""
CHOICES_LOG: Final = "semtrace_choices_log"
"""The member of vLLM's additional configuration that names the file of choices."""

logger = init_logger("vllm.semtrace.forced")


class Choices(NamedTuple):
    """What was forced so far.

    Attributes:
        positions: output positions at which an id was forced and given out.
        differing: those at which the model would have chosen another id; counted only where that is asked for.
        mismatched: those at which another id was given out all the same: something after this processor changed it.
    """

    positions: int
    differing: int
    mismatched: int


class _Row:
    """A request in the batch.

    Attributes:
        ids: the ids that it must give.
        given: the ids that it has given; vLLM's own list, which grows.
        checked: how many of them were compared.
        pending: the position that is forced in the step at hand, None for none.
        differs: whether the model would have chosen another id there.
    """

    __slots__ = ("checked", "differs", "given", "ids", "pending")

    def __init__(self, ids: list[int], given: list[int]) -> None:
        self.ids = ids
        self.given = given
        self.checked = 0
        self.pending: int | None = None
        self.differs = False


class ForcedTokens(LogitsProcessor):  # type: ignore[misc]  # vLLM gives it no type
    """Forces the ids of requests that bring some, position by position, and checks what was given.

    A position is the number of outputs so far, so a request that was preempted goes on where it was. What a prompt found in the
    prefix cache makes no difference, and neither do ids that would end it: whether they do is up to the request's own parameters.
    """

    last: weakref.ref[ForcedTokens] | None = None
    """The one made last in this process."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse ids that are none, and outputs that would go on after them.

        Raises:
            ValueError: what is wrong; vLLM answers with status 400.
        """
        extra = sampling_params.extra_args or {}
        ids = extra.get(IDS)
        if ids is None:
            return
        if not isinstance(ids, list) or not ids:
            raise ValueError(f"{IDS} must be a list of token ids that is not empty, not {type(ids).__name__}")
        wrong = next((at for at, each in enumerate(ids) if type(each) is not int or each < 0), None)
        if wrong is not None:
            raise ValueError(f"{IDS}[{wrong}] must be a token id, an integer not below 0")
        most = sampling_params.max_tokens
        if most is None or most > len(ids):
            raise ValueError(f"max_tokens must be at most {len(ids)}, the number of {IDS}, is {most}")
        if sampling_params.n != 1:
            raise ValueError(f"n must be 1 with {IDS}, is {sampling_params.n}")

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        del device, is_pin_memory
        self._rows: dict[int, _Row] = {}
        self._vocabulary = vllm_config.model_config.get_vocab_size()
        self._totals = [0, 0, 0]
        config: Any = vllm_config.additional_config
        path = config.get(CHOICES_LOG) if isinstance(config, dict) else None
        self._compares = path is not None
        self._file: int | None = None
        if path and vllm_config.parallel_config.rank == 0:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._told = (0, 0, 0)
        type(self).last = weakref.ref(self)

    def is_argmax_invariant(self) -> bool:
        """It decides which id is the greatest."""
        return False

    @property
    def choices(self) -> Choices:
        """What was forced in all steps that are computed."""
        for row in self._rows.values():
            self._settle(row)
        return Choices(*self._totals)

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Rows join, leave and move; before each step."""
        rows = self._rows
        for row in rows.values():
            self._settle(row)
        if self._file is not None and tuple(self._totals) != self._told:
            self._tell(self._file)
        if batch_update is None:
            return
        for index in batch_update.removed:
            rows.pop(index, None)
        for index, params, _, given in batch_update.added:
            rows.pop(index, None)
            ids = (params.extra_args or {}).get(IDS)
            if ids is not None:
                rows[index] = _Row(self._within(ids), given)
        for one, two, how in batch_update.moved:
            first, second = rows.pop(one, None), rows.pop(two, None)
            if first is not None:
                rows[two] = first
            if second is not None and how == MoveDirectionality.SWAP:
                rows[one] = second

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Leave each row of a request with ids only the one that is next."""
        at: list[int] = []
        forced: list[int] = []
        of: list[_Row] = []
        for index, row in self._rows.items():
            position = len(row.given)
            row.pending = None
            if position < len(row.ids):
                row.pending = position
                at.append(index)
                forced.append(row.ids[position])
                of.append(row)
        if not at:
            return logits
        if self._compares:
            chosen = logits[at].argmax(dim=-1).tolist()
            for row, one, other in zip(of, chosen, forced, strict=True):
                row.differs = one != other
        logits[at] = float("-inf")
        logits[at, forced] = 0.0
        return logits

    def _within(self, ids: list[int]) -> list[int]:
        """The ids, unless one is beyond the vocabulary: that cannot be forced, and must not end the worker."""
        if max(ids) >= self._vocabulary:
            logger.error(
                "%s holds ids beyond the vocabulary of %d; they are cut off there", IDS, self._vocabulary
            )
            ids = ids[: next(at for at, each in enumerate(ids) if each >= self._vocabulary)]
        return ids

    def _settle(self, row: _Row) -> None:
        """Look at what the last step gave: what a chunk of a prompt yields is thrown away, and counts for nothing."""
        given = row.given
        if row.pending is not None and len(given) > row.pending:
            self._totals[0] += 1
            self._totals[1] += row.differs
            row.pending = None
        stop = min(len(given), len(row.ids))
        while row.checked < stop and given[row.checked] >= 0:  # an id not known yet is -1
            if given[row.checked] != row.ids[row.checked]:
                self._totals[2] += 1
                logger.error("%s: at position %d the id is not the one that was forced", IDS, row.checked)
            row.checked += 1

    def _tell(self, file: int) -> None:
        self._told = (self._totals[0], self._totals[1], self._totals[2])
        line = dict(zip(Choices._fields, self._told, strict=True))
        os.write(file, json.dumps(line).encode() + b"\n")
