"""What happens to blocks, what is moved and what is decided, as it is remembered; and the detail tables made of it (ST-LIF-050, ST-LIF-051)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from semtrace.records.enums import Direction, Tier
from semtrace.records.execution_tables import EXECUTION_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from semtrace.engine.log import Detail
    from semtrace.policies.interface import TierName
    from semtrace.records.enums import BlockAction

TIERS: Final = {"host": Tier.HOST, "remote": Tier.REMOTE}
"""The number of each tier below the device."""


def runs_of(blocks: Sequence[int]) -> list[int]:
    """Where the runs of consecutive ids begin, and the number of blocks at the end."""
    breaks = [at for at, (one, two) in enumerate(pairwise(blocks), 1) if two != one + 1]
    return [0, *breaks, len(blocks)] if blocks else [0]


@dataclass
class Sent:
    """A transfer, as the log has it; `end_ns` is there when it has ended.

    Attributes:
        server: the server.
        tier: the tier at the other end of its link.
        inwards: whether it comes into the device.
        start_ns: when it began.
        end_ns: when it ended.
        bytes: its bytes.
        blocks: its blocks.
        event: the call that it is for.
    """

    server: int
    tier: TierName
    inwards: bool
    start_ns: int
    end_ns: int
    bytes: int
    blocks: int
    event: int


@dataclass
class LifecycleLog:
    """The tables `blocks`, `transfers` and `decisions`, as far as they are kept.

    Attributes:
        kept: what to keep.
        block_bytes: bytes of a block; None where the model is not known, and then `blocks` cannot be kept.
    """

    kept: Detail
    block_bytes: int | None
    _blocks: list[tuple[object, ...]] = field(default_factory=list)
    _transfers: list[Sent] = field(default_factory=list)
    _decisions: list[tuple[object, ...]] = field(default_factory=list)

    def block_rows(
        self,
        now_ns: int,
        server: int,
        tier: Tier,
        action: BlockAction,
        event: int | None,
        blocks: Sequence[int],
        *,
        position: int | None = None,
        reason: str | None = None,
        transfer: int | None = None,
    ) -> None:
        """Something happened to blocks: a row for each run of consecutive ids.

        Args:
            now_ns: when.
            server: where.
            tier: in which tier.
            action: what.
            event: for which call.
            blocks: their ids in the tier.
            position: ordinal of the first of them among the blocks of the call, if they follow each other there.
            reason: why.
            transfer: number of the transfer that moves them.
        """
        if not self.kept.blocks or not blocks:
            return
        size = self.block_bytes or 0
        for first, last in pairwise(runs_of(blocks)):
            count = last - first
            at = None if position is None else position + first
            self._blocks.append(
                (
                    now_ns,
                    server,
                    tier,
                    action,
                    event,
                    count,
                    count * size,
                    reason,
                    blocks[first],
                    at,
                    transfer,
                )
            )

    def transfer(self, sent: Sent) -> int:
        """A transfer begins: its number, by which rows of `blocks` refer to it."""
        self._transfers.append(sent)
        return len(self._transfers) - 1

    def decision(self, now_ns: int, policy: str, event: int | None, inputs: str, choice: str) -> None:
        """Something was decided."""
        if self.kept.decisions:
            self._decisions.append((now_ns, policy, event, inputs, choice))

    def tables(self) -> dict[str, pa.Table]:
        """The tables that are kept."""
        found: dict[str, pa.Table] = {}
        order = sorted(range(len(self._transfers)), key=lambda at: (*_transfer_key(self._transfers[at]), at))
        if self.kept.blocks:
            place: dict[object, int] = {}  # of transfers by number; without their table nothing refers to it
            if self.kept.transfers:
                place = {number: row for row, number in enumerate(order)}
            rows = [
                (row[0], sequence, *row[1:-1], place.get(row[-1]))
                for row, sequence in zip(self._blocks, _sequence(self._blocks), strict=True)
            ]
            found["blocks"] = _table("blocks", rows)
        if self.kept.transfers:
            sent = [self._transfers[at] for at in order]
            found["transfers"] = _table(
                "transfers",
                [
                    (
                        *(each.server, each.tier.value, _direction(each), each.start_ns, each.end_ns),
                        *(each.bytes, each.event, each.blocks),
                    )
                    for each in sent
                ],
            )
        if self.kept.decisions:
            decided = zip(self._decisions, _sequence(self._decisions), strict=True)
            found["decisions"] = _table(
                "decisions", [(row[0], sequence, *row[1:]) for row, sequence in decided]
            )
        return found


def _direction(sent: Sent) -> Direction:
    return Direction.IN if sent.inwards else Direction.OUT


def _transfer_key(sent: Sent) -> tuple[int, int, str, int, int]:
    return sent.start_ns, sent.server, sent.tier.value, _direction(sent), sent.end_ns


def _sequence(rows: Sequence[tuple[object, ...]]) -> list[int]:
    """Ordinal of each row among those of its instant."""
    times = np.array([row[0] for row in rows], dtype=np.int64)
    first = np.flatnonzero(np.diff(times, prepend=-1))
    counts = np.diff(np.append(first, len(times)))
    made: list[int] = (np.arange(len(times)) - np.repeat(first, counts)).tolist()
    return made


def _table(name: str, rows: Iterable[tuple[object, ...]]) -> pa.Table:
    schema = EXECUTION_TABLE[name].arrow
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.Table.from_arrays(
        [pa.array(values, type=kind) for values, kind in zip(columns, schema.types, strict=True)],
        schema=schema,
    )
