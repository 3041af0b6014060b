"""The steps of a server and what happened to its blocks, from its step log to the tables of an execution."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from semtrace.engine.log import detail_tables
from semtrace.records.enums import BlockAction, Phase, Tier
from semtrace.records.execution_tables import EXECUTION_TABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_ACTIONS: Final = {
    "allocate": BlockAction.ALLOCATE,
    "hit": BlockAction.HIT,
    "free": BlockAction.FREE,
    "evict": BlockAction.EVICT,
}
NOBODY: Final = -1


def _columns(*names: str) -> dict[str, array[int]]:
    return {name: array("q") for name in names}


@dataclass
class Steps:
    """What all engines of a server did, in the order in which they wrote it down; calls by a number of their own.

    Attributes:
        steps: by step its server, start, end (-1 while it is not computed) and blocks free after scheduling.
        entries: by request in a step: the step, the call, tokens computed before, tokens computed, and the phase.
        moves: by run of blocks: the time, the server, the action, the call or `NOBODY`, the first block, how many, and the ordinal of the first, or -1.
        has_moves: whether all moves of blocks were written down.
    """

    steps: dict[str, array[int]] = field(
        default_factory=lambda: _columns("server", "start_ns", "end_ns", "free_blocks")
    )
    entries: dict[str, array[int]] = field(
        default_factory=lambda: _columns("step", "call", "start_position", "tokens", "phase")
    )
    moves: dict[str, array[int]] = field(
        default_factory=lambda: _columns(
            "time_ns", "server", "action", "call", "first_block", "blocks", "position"
        )
    )
    has_moves: bool = True

    def begin(self, server: int, at_ns: int, free_blocks: int) -> int:
        """A step is scheduled.

        Returns:
            its number among all.
        """
        for name, value in (
            ("server", server),
            ("start_ns", at_ns),
            ("end_ns", -1),
            ("free_blocks", free_blocks),
        ):
            self.steps[name].append(value)
        return len(self.steps["server"]) - 1

    def enter(self, step: int, call: int, position: int, tokens: int, *, decode: bool) -> None:
        """A call gets tokens in a step."""
        phase = Phase.DECODE if decode else Phase.PREFILL
        for name, value in zip(self.entries, (step, call, position, tokens, int(phase)), strict=True):
            self.entries[name].append(value)

    def move(
        self, at_ns: int, server: int, moves: Sequence[Sequence[Any]] | None, calls: dict[int, int]
    ) -> None:
        """Blocks were moved; None if it was not written down.

        Args:
            at_ns: when.
            server: whose blocks.
            moves: action, the request's number, the ordinal of the first block or None, and runs of blocks.
            calls: by number, the call.
        """
        if moves is None:
            self.has_moves = False
            return
        for action, number, position, runs in moves:
            place = -1 if position is None else int(position)
            for first, count in runs:
                values = (
                    at_ns,
                    server,
                    int(_ACTIONS[action]),
                    calls.get(number, NOBODY),
                    first,
                    count,
                    place,
                )
                for name, value in zip(self.moves, values, strict=True):
                    self.moves[name].append(value)
                place = place + count if place >= 0 else -1


@dataclass(frozen=True)
class Tables:
    """The detail tables of an execution.

    Attributes:
        tables: by name.
        prefill: by event, its tokens in steps that were prefill.
        left_out: entries of calls that are not in the trace, or that computed for nothing, and steps that were never computed.
        told: whether steps can be told at all: a decode of several tokens cannot.
    """

    tables: dict[str, pa.Table]
    prefill: NDArray[np.int64]
    left_out: int
    told: bool


def tables(
    log: Steps,
    event: NDArray[np.int64],
    total: NDArray[np.int64],
    events: int,
    origin_ns: int,
    block_bytes: int | None,
) -> Tables:
    """The tables `steps`, `step_runs` and, where it was written down, `blocks`.

    Args:
        log: what the engines did.
        event: by call, its row in the events, or -1.
        total: by call, the tokens that it computed: prompt and outputs but the last.
        events: how many events there are.
        origin_ns: time 0, in the log's time.
        block_bytes: bytes of a block, None if unknown.
    """
    step, call, position, tokens, phase = (_array(log.entries[name]) for name in log.entries)
    server, start, end, free = (_array(log.steps[name]) for name in log.steps)
    kept = event[call] >= 0 if len(call) else np.zeros(0, dtype=np.bool_)
    kept &= (end[step] >= 0) & (position + tokens <= total[call])
    told = not bool((kept & (phase == Phase.DECODE) & (tokens > 1)).any())
    made: dict[str, pa.Table] = {}
    prefill = np.zeros(events, dtype=np.int64)
    left_out = int((~kept).sum())
    if told:
        step, call, position, tokens, phase = (each[kept] for each in (step, call, position, tokens, phase))
        np.add.at(prefill, event[call], np.where(phase == Phase.PREFILL, tokens, 0))
        used, dense = np.unique(step, return_inverse=True)
        index = np.zeros(len(used), dtype=np.int64)
        for each in np.unique(server[used]):
            mine = server[used] == each
            index[mine] = np.arange(int(mine.sum()))
        columns = {
            "server": server[used],
            "index": index,
            "start_ns": start[used] - origin_ns,
            "end_ns": end[used] - origin_ns,
            "tokens": np.bincount(dense, tokens, len(used)).astype(np.int64),
            "requests": np.bincount(dense, minlength=len(used)).astype(np.int64),
            "free_blocks": free[used],
        }
        made = detail_tables(columns, _runs(event[call], index[dense], position, tokens, phase))
    if log.has_moves and block_bytes is not None and len(log.moves["time_ns"]):
        made["blocks"] = _blocks(log, event, origin_ns, block_bytes)
    return Tables(made, prefill, left_out, told)


def _runs(
    event: NDArray[np.int64],
    step: NDArray[np.int64],
    position: NDArray[np.int64],
    tokens: NDArray[np.int64],
    phase: NDArray[np.int64],
) -> dict[str, NDArray[np.int64]]:
    """Maximal runs of steps of one event with as many tokens in one phase, at consecutive positions (ST-ENG-062)."""
    order = np.lexsort((step, event))
    event, step, position, tokens, phase = (each[order] for each in (event, step, position, tokens, phase))
    begins = np.ones(len(event), dtype=np.bool_)
    begins[1:] = (
        (event[1:] != event[:-1])
        | (step[1:] != step[:-1] + 1)
        | (tokens[1:] != tokens[:-1])
        | (phase[1:] != phase[:-1])
        | (position[1:] != position[:-1] + tokens[:-1])
    )
    at = np.flatnonzero(begins)
    return {
        "event": event[at],
        "first_step": step[at],
        "count": np.diff(np.append(at, len(event))),
        "start_position": position[at],
        "tokens_per_step": tokens[at],
        "phase": phase[at],
    }


def _blocks(log: Steps, event: NDArray[np.int64], origin_ns: int, block_bytes: int) -> pa.Table:
    """The table `blocks`, in the order of time; of one instant in the order in which it was written down."""
    time, server, action, call, first, count, place = (_array(log.moves[name]) for name in log.moves)
    order = np.argsort(time, kind="stable")
    time, server, action, call, first, count, place = (
        each[order] for each in (time, server, action, call, first, count, place)
    )
    rows = np.arange(len(time))
    begins = np.ones(len(time), dtype=np.bool_)
    begins[1:] = time[1:] != time[:-1]
    sequence = rows - np.maximum.accumulate(np.where(begins, rows, 0))
    owner = np.where(call == NOBODY, NOBODY, event[call])
    schema = EXECUTION_TABLE["blocks"].arrow
    values: dict[str, pa.Array] = {
        "time_ns": time - origin_ns,
        "sequence": sequence,
        "server": server,
        "tier": np.full(len(time), int(Tier.DEVICE)),
        "action": action,
        "event": pa.array(owner, mask=owner < 0),
        "blocks": count,
        "bytes": count * block_bytes,
        "first_block": first,
        "position": pa.array(place, mask=place < 0),
    }
    return pa.Table.from_arrays(
        [
            pa.array(values[field.name]).cast(field.type)
            if field.name in values
            else pa.nulls(len(time), field.type)
            for field in schema
        ],
        schema=schema,
    )


def _array(values: array[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)
