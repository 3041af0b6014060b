"""Measures of KV memory: how much is held for how long, what is moved, and who waits for whom (spec, measures.md)."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.measure.block_moves import running
from semtrace.measure.stats import number, total
from semtrace.records.columns import NULL
from semtrace.records.enums import BlockAction, Direction, Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.measure.block_moves import BlockMoves
    from semtrace.measure.recorded_engine import Engine
    from semtrace.measure.slots import Slots
    from semtrace.measure.step_measures import StepMeasures

_SECOND: Final = 1_000_000_000


def byte_seconds(block_ns: int, block_bytes: int) -> int | float | None:
    """Blocks held for ns, in byte-seconds."""
    return number(Fraction(block_ns * block_bytes, _SECOND))


def device_block_ns(measures: StepMeasures, engine: Engine) -> int:
    """Sum over steps of the device blocks that somebody holds times the time of the step (ST-MEA-073)."""
    held = engine.settings.blocks - 1 - measures.steps.free_blocks
    return sum((held.astype(object) * measures.took_ns.astype(object)).tolist())


def _lasting(times: NDArray[np.int64], change: NDArray[np.int64], until: int) -> int:
    """The integral of a count that begins as 0, from its changes up to a time."""
    return total(change * (until - np.minimum(times, until)))


def tier_block_ns(moves: BlockMoves, tier: Tier, until: int) -> int:
    """Blocks that a tier keeps or fills, over time, of all servers (ST-MEA-073)."""
    mine = (moves.place & 0xFF) == tier
    gone = (moves.action == BlockAction.EVICT) | (moves.action == BlockAction.DROP)
    change = (moves.action == BlockAction.ALLOCATE).astype(np.int64) - gone
    return _lasting(moves.time_ns[mine], change[mine], until)


def idle_block_ns(moves: BlockMoves, until: int) -> int:
    """Device blocks that somebody holds, but no call, over time, of all servers (ST-MEA-074)."""
    own = moves.device & moves.because(None) & (moves.event != NULL)
    by_call = running(moves.group, np.where(own, moves.change, 0))
    idle = (moves.device & (moves.holders > 0) & (by_call == 0)).astype(np.int64)
    before = np.zeros(len(moves), dtype=np.int64)
    before[1:] = np.where(moves.group[1:] == moves.group[:-1], idle[:-1], 0)
    return _lasting(moves.time_ns, idle - before, until)


def moved_bytes(slots: Slots) -> dict[str, dict[str, int]]:
    """Bytes of transfers, by link and direction (ST-MEA-074)."""
    table = slots.execution["transfers"]
    links = np.array(table.strings("link"), dtype=np.str_)
    way, size = table.ints("direction"), table.ints("bytes")
    return {
        str(link): {
            each.name.lower(): total(size[(links == link) & (way == each)])
            for each in (Direction.OUT, Direction.IN)
        }
        for link in np.unique(links)
    }


def inversions(
    slots: Slots, measures: StepMeasures, engine: Engine, critical: NDArray[np.bool_]
) -> dict[str, int]:
    """Critical calls that waited while memory was short and calls that are not critical held some (ST-MEA-078)."""
    steps = measures.steps
    seen = (
        ~slots.fixed & (slots.submitted != NULL) & (slots.scheduled != NULL) & (slots.seen("server") != NULL)
    )
    server = slots.seen("server")
    size = engine.settings.block_size
    found = np.maximum(slots.seen("cached_tokens"), 0) + np.maximum(slots.seen("loaded_tokens"), 0)
    need = -(-slots.recorded("prompt_tokens") // size) - found // size
    inverted = waited = 0
    for own in np.unique(steps.server).tolist():
        low, high = np.searchsorted(steps.server, [own, own + 1])
        start = steps.start_ns[low:high]
        others = np.flatnonzero(seen & ~critical & (server == own) & (slots.finished != NULL))
        begun, ended = np.sort(slots.scheduled[others]), np.sort(slots.finished[others])
        resident = np.searchsorted(begun, start, side="right") - np.searchsorted(ended, start, side="right")
        # Blocks that are free in steps with others in them; in the rest nobody else is to blame.
        free = np.where(resident > 0, steps.free_blocks[low:high], np.iinfo(np.int64).max)
        mine = np.flatnonzero(seen & critical & (server == own))
        first = np.searchsorted(start, slots.submitted[mine], side="left")
        last = np.searchsorted(start, slots.scheduled[mine], side="left")
        wrong = range_minima(free, first, last) < need[mine]
        inverted += int(wrong.sum())
        waited += total((slots.scheduled[mine] - slots.submitted[mine])[wrong])
    return {"part": inverted, "whole": int((seen & critical).sum()), "waited_ns": waited}


def range_minima(
    values: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The least of values in each of many ranges [first, last); the greatest number there is for an empty one."""
    found = np.full(len(first), np.iinfo(np.int64).max, dtype=np.int64)
    length = last - first
    level, table = 1, values
    while len(table):
        mine = np.flatnonzero((length >= level) & (length < 2 * level))
        found[mine] = np.minimum(table[first[mine]], table[last[mine] - level])
        table = np.minimum(table[:-level], table[level:]) if len(table) > level else table[:0]
        level *= 2
    return found
