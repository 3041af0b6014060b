"""Memory tiers, the links to them, and what is under way: blocks copied out of the device and back (spec, lifecycle.md)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress, takewhile
from typing import TYPE_CHECKING

from semtrace.engine.lifecycle_log import TIERS, Sent, runs_of
from semtrace.engine.links import Direction, LinkFigures
from semtrace.engine.tiers import MemoryTier
from semtrace.policies.interface import TierName
from semtrace.records.enums import BlockAction, Tier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace.engine.contexts import Held
    from semtrace.engine.kv_state import KvState
    from semtrace.engine.lifecycle_log import LifecycleLog
    from semtrace.policies.interface import LinkFacts

_SECOND = 1_000_000_000


@dataclass
class Part:
    """Blocks that come from one tier.

    Attributes:
        tier: the tier.
        keys: their contents, in the order of their tokens.
        blocks: device blocks that they are copied to.
    """

    tier: TierName
    keys: Sequence[int]
    blocks: list[int]


@dataclass
class Load:
    """A context on its way back to the device.

    Attributes:
        held: the context.
        event: the call that it is for, or the context's last one.
        server: where to.
        until_ns: until when to hold it then, None for ever.
        hits: blocks that were there, held meanwhile.
        parts: what comes.
        left: transfers that have not ended.
    """

    held: Held
    event: int
    server: int
    until_ns: int | None
    hits: list[int]
    parts: list[Part]
    left: int


@dataclass
class Saving:
    """A context on its way out of the device.

    Attributes:
        held: the context.
        event: its last call.
        server: where from.
        tier: where to.
        drop: whether the device is to forget it then.
        blocks: its device blocks, held meanwhile.
        moved: those that are copied.
        keys: their contents.
    """

    held: Held
    event: int
    server: int
    tier: TierName
    drop: bool
    blocks: list[int]
    moved: list[int]
    keys: list[int]


@dataclass(frozen=True)
class Ended:
    """A transfer that has ended.

    Attributes:
        job: what it was a part of.
        tier: the tier at the other end.
        part: which part of a load it was.
        number: its number in the log.
    """

    job: Load | Saving
    tier: TierName
    part: Part | None
    number: int


class Transfers:
    """All tiers and links of an engine. Host memory is each server's own, with its own link; remote memory and its link are shared.

    Args:
        tiers: blocks of each tier that there is.
        links: the link to each.
        block_bytes: bytes of a block.
        states: the servers.
        log: the log.
    """

    def __init__(
        self,
        tiers: Mapping[TierName, int],
        links: Mapping[TierName, LinkFacts],
        block_bytes: int,
        states: Sequence[KvState],
        log: LifecycleLog,
    ) -> None:
        self._bytes = block_bytes
        self._states = states
        self._log = log
        self._tiers: dict[tuple[TierName, int], MemoryTier] = {}
        self._directions: dict[tuple[TierName, int, bool], Direction] = {}
        self._under_way: dict[int, Ended] = {}
        self._sent: dict[int, Sent] = {}
        self._busy = [0] * len(states)
        for tier, blocks in tiers.items():
            for server in range(len(states)) if tier is TierName.HOST else (0,):
                self._tiers[tier, server] = MemoryTier(blocks)
                for inwards in (False, True):
                    link = links[tier]
                    band = link.in_bytes_per_s if inwards else link.out_bytes_per_s
                    self._directions[tier, server, inwards] = Direction(
                        LinkFigures(band, link.latency_ns, link.per_run_ns)
                    )

    # What there is.

    def tier(self, tier: TierName, server: int) -> MemoryTier | None:
        """The memory that a server reaches there, None if there is no such tier."""
        return self._tiers.get((tier, server if tier is TierName.HOST else 0))

    def under_way(self, server: int) -> bool:
        """Whether a transfer from or to this server is under way."""
        return self._busy[server] > 0

    def chain(self, server: int, keys: Sequence[int]) -> list[tuple[TierName, Sequence[int]]]:
        """What of these keys can be read below the device: a run in host memory, and one after it in remote memory (ST-LIF-031)."""
        found: list[tuple[TierName, Sequence[int]]] = []
        start = 0
        for name in TierName:
            tier = self.tier(name, server)
            if tier is not None:
                end = start + sum(1 for _ in takewhile(tier.readable, keys[start:]))
                if end > start:
                    found.append((name, keys[start:end]))
                start = end
        return found

    def estimate_ns(self, server: int, tier: TierName, blocks: int, *, inwards: bool) -> int:
        """Time that moving so many blocks in one run would take, after all that is under way on the direction."""
        direction = self._directions[tier, server if tier is TierName.HOST else 0, inwards]
        figures = direction.figures
        size = direction.queued_bytes + blocks * self._bytes
        return figures.alone_ns(size, 1)

    # Time.

    def next_ns(self) -> int | None:
        """When a transfer ends, or begins to flow."""
        times = [each for direction in self._directions.values() if (each := direction.next_ns()) is not None]
        return min(times, default=None)

    def ended(self, now_ns: int) -> list[Ended]:
        """The transfers that end now, as they began; their blocks can be read and used where they are now."""
        numbers: list[int] = []
        for direction in self._directions.values():
            due = direction.next_ns()
            if due is not None and due <= now_ns:
                numbers += direction.ended(now_ns)
        found = []
        for number in sorted(numbers):
            each = self._under_way.pop(number)
            self._sent.pop(number).end_ns = now_ns
            self._busy[each.job.server] -= 1
            self._settle(now_ns, each)
            found.append(each)
        return found

    def _settle(self, now_ns: int, ended: Ended) -> None:
        job, tier = ended.job, self._tier(ended.tier, ended.job.server)
        state = self._states[job.server]
        if isinstance(job, Saving):
            tier.arrived(job.keys)
            self._note(now_ns, job, Tier.DEVICE, BlockAction.OFFLOAD, job.moved, transfer=ended.number)
            self.let_go(now_ns, job.server, job.event, job.blocks, drop=job.drop, reason="offloaded")
            return
        part = ended.part
        assert part is not None  # noqa: S101  # a load's transfers have a part each
        tier.was_read(part.keys)
        state.register(part.blocks, part.keys)
        self._note(now_ns, job, Tier.DEVICE, BlockAction.UPLOAD, part.blocks, transfer=ended.number)
        self._note(now_ns, job, TIERS[part.tier], BlockAction.FREE, tier.places(part.keys), reason="loaded")
        job.left -= 1

    # Out and in.

    def save(self, now_ns: int, held: Held, tier_name: TierName, *, drop: bool) -> str | None:
        """Copy a context's device blocks to a tier; then let them go (ST-LIF-026, ST-LIF-030).

        Returns:
            why it is not done; None if it is.
        """
        tier, state = self.tier(tier_name, held.server), self._states[held.server]
        if tier is None:
            return f"no tier {tier_name.value}"
        if held.loading:
            return "a load of the context is under way"
        blocks = state.find(held.keys)
        if not blocks:
            return "nothing of the context is on the device"
        keys = list(held.keys[: len(blocks)])
        away = tier.lacks(keys)
        moved = list(compress(keys, away))
        job = Saving(
            held, held.event, held.server, tier_name, drop, blocks, list(compress(blocks, away)), moved
        )
        tier.touch(filter(tier.readable, keys))
        got = tier.take(moved, besides=keys)  # what is there of the chain makes no room for the rest of it
        if got is None:
            return f"no room in tier {tier_name.value}"
        tier.touch(reversed(keys))  # so that the first block is the last to be forgotten
        taken, evicted = got
        state.share(blocks)
        self._note(now_ns, job, Tier.DEVICE, BlockAction.HIT, blocks, position=0, reason="offload")
        if not moved:
            self.let_go(now_ns, job.server, job.event, blocks, drop=drop, reason="offloaded")
            return None
        self._note(now_ns, job, TIERS[tier_name], BlockAction.EVICT, [block for block, _ in evicted])
        self._note(now_ns, job, TIERS[tier_name], BlockAction.ALLOCATE, taken)
        self._begin(now_ns, Ended(job, tier_name, None, 0), job.moved, inwards=False)
        return None

    def load(
        self,
        now_ns: int,
        held: Held,
        event: int,
        server: int,
        keys: Sequence[int],
        until_ns: int | None,
        *,
        leave: int,
    ) -> Load | str:
        """Copy what follows a chain's device blocks back, and hold all of it (ST-LIF-031, ST-LIF-032).

        Args:
            now_ns: now.
            held: the context.
            event: the call that it is for.
            server: where to.
            keys: the chain.
            until_ns: until when to hold it.
            leave: free blocks that it must leave.

        Returns:
            the load, or why there is none.
        """
        state = self._states[server]
        hits = state.find(keys)
        chain = self.chain(server, keys[len(hits) :])
        count = sum(len(part) for _, part in chain)
        if count == 0:
            return "nothing to load"
        if count + state.idle(hits) + leave > state.free_count:
            return NO_ROOM
        state.share(hits)
        taken, evicted = state.take(count)
        parts = []
        for tier_name, part in chain:
            parts.append(Part(tier_name, part, taken[: len(part)]))
            taken = taken[len(part) :]
        job = Load(held, event, server, until_ns, hits, parts, len(parts))
        self._note(now_ns, job, Tier.DEVICE, BlockAction.HIT, hits, position=0, reason="load")
        self._note(now_ns, job, Tier.DEVICE, BlockAction.EVICT, evicted)
        position = len(hits)
        for each in parts:
            tier = self._tier(each.tier, server)
            places = tier.read(each.keys)
            tier.touch(reversed(each.keys))
            self._note(now_ns, job, TIERS[each.tier], BlockAction.HIT, places, reason="load")
            self._note(
                now_ns, job, Tier.DEVICE, BlockAction.ALLOCATE, each.blocks, position=position, reason="load"
            )
            position += len(each.blocks)
            self._begin(now_ns, Ended(job, each.tier, each, 0), each.blocks, inwards=True)
        return job

    def forget(self, now_ns: int, held: Held, tier_name: TierName) -> None:
        """Let a tier forget a context's blocks, but those that arrive or are read (ST-LIF-027)."""
        tier = self.tier(tier_name, held.server)
        if tier is not None:
            dropped = [place for key in held.keys if (place := tier.drop(key)) is not None]
            self._log.block_rows(
                now_ns, held.server, TIERS[tier_name], BlockAction.DROP, held.event, dropped, reason="policy"
            )

    def let_go(
        self, now_ns: int, server: int, event: int, blocks: Sequence[int], *, drop: bool = False, reason: str
    ) -> None:
        """One holder less for device blocks; with `drop` those that nobody holds then keep nothing."""
        dropped = set(self._states[server].release(blocks, drop=drop))
        if not self._log.kept.blocks:
            return
        for first, last in _alike([block in dropped for block in blocks]):
            action = BlockAction.DROP if blocks[first] in dropped else BlockAction.FREE
            self._log.block_rows(
                now_ns, server, Tier.DEVICE, action, event, blocks[first:last], position=first, reason=reason
            )

    def _tier(self, tier: TierName, server: int) -> MemoryTier:
        return self._tiers[tier, server if tier is TierName.HOST else 0]

    def _begin(self, now_ns: int, what: Ended, blocks: Sequence[int], *, inwards: bool) -> None:
        job = what.job
        size = len(blocks) * self._bytes
        sent = Sent(job.server, what.tier, inwards, now_ns, now_ns, size, len(blocks), job.event)
        number = self._log.transfer(sent)
        self._sent[number] = sent
        self._under_way[number] = Ended(job, what.tier, what.part, number)
        self._busy[job.server] += 1
        direction = self._directions[what.tier, job.server if what.tier is TierName.HOST else 0, inwards]
        direction.begin(now_ns, number, size, len(runs_of(blocks)) - 1)

    def _note(
        self,
        now_ns: int,
        job: Load | Saving,
        tier: Tier,
        action: BlockAction,
        blocks: Sequence[int],
        *,
        position: int | None = None,
        reason: str | None = None,
        transfer: int | None = None,
    ) -> None:
        self._log.block_rows(
            now_ns,
            job.server,
            tier,
            action,
            job.event,
            blocks,
            position=position,
            reason=reason,
            transfer=transfer,
        )


NO_ROOM = "no room on the device"
"""Why a load may be tried again later."""


def _alike(marks: Sequence[bool]) -> list[tuple[int, int]]:
    """Where runs of equal marks begin and end."""
    cuts = [at for at in range(1, len(marks)) if marks[at] != marks[at - 1]]
    return list(zip([0, *cuts], [*cuts, len(marks)], strict=True)) if marks else []
