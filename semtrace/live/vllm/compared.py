"""What vLLM says itself of its cache, its queues and its requests, held against the scheduler's record (spec, vllm.md).

vLLM's KV events name contents and no blocks, the record names blocks and no contents. Laid together they say what each block holds: so an event that
the record has no block for is found, and a block of the record without its event. vLLM's statistics are counts that the record must lead to.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_NAMED: Final = 5
"""Contradictions that are told in words."""


@dataclass
class Compared:
    """What was compared, in all.

    Attributes:
        stored: hashes of blocks that vLLM stored, each with the block of the record that holds it.
        removed: hashes of blocks that it removed, each with an eviction of the record.
        steps: steps with vLLM's own counts.
        requests: ended requests with what vLLM's front counted.
        contradictions: how often the two said different things.
        first: the first of these.
    """

    stored: int = 0
    removed: int = 0
    steps: int = 0
    requests: int = 0
    contradictions: int = 0
    first: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return dict(vars(self))


@dataclass
class _Request:
    """What the record says of a request so far."""

    prompt: int
    reads_cache: bool
    outputs: int = 0
    kept: int = 0  # known tokens of it that blocks are computed for, since it was admitted
    cached: int | None = None
    preemptions: int = 0
    holds: list[int] = field(default_factory=list)


class Comparer:
    """One run of a server, from its line `server` on (ST-VLM-020, ST-VLM-021).

    Args:
        compared: what is counted.
        server: the line.
    """

    def __init__(self, compared: Compared, server: Mapping[str, Any]) -> None:
        self._compared = compared
        self._blocks = bool(server["moves"])
        self._events = self._blocks and bool(server.get("kv_events")) and bool(server.get("prefix_caching"))
        self._size = int(server["block_size"])
        self._speculates = bool(server.get("speculative"))
        self._connector = bool(server.get("connector"))
        self._caches = bool(server.get("prefix_caching"))
        self._requests: dict[int, _Request] = {}
        self._waiting: set[int] = set()
        self._running: set[int] = set()
        self._holders: Counter[int] = Counter()
        self._used = 0
        self._content: dict[int, str] = {}
        self._lost: deque[tuple[int, str | None]] = deque()  # evicted, and not yet said to be removed
        self._found, self._again = [0] * 3, [0] * 3
        self._step: Any = None

    def take(self, kind: str, record: Mapping[str, Any]) -> None:
        """A line of the log."""
        if kind == "request":
            self._requests[record["n"]] = _Request(
                int(record["prompt_tokens"]), bool(record.get("reads_cache", True))
            )
            self._waiting.add(record["n"])
        elif kind == "step":
            self._scheduled(record)
        elif kind == "computed":
            self._step = record["step"]
            for number, count in record["yielded"]:
                mine = self._requests[number]
                mine.outputs += count
                if number in self._running:
                    mine.kept = max(mine.kept, mine.prompt + mine.outputs - 1)
            self._move(record)
            self._gone(
                number for number, _ in record["ended"]
            )  # a preempted one may end, by a step that was ahead
            if record.get("stats") is not None:
                self._count(record["stats"])
        elif kind == "aborted":
            self._move(record)
            self._gone(record["requests"])
        elif kind == "reset":
            if self._events and [event[0] for event in record.get("kv_events") or ()][-1:] != ["cleared"]:
                self._wrong("the cache was reset, and no event says that it is empty")
            self._blocks = self._events = False

    def ended(self, number: int, told: Mapping[str, Any]) -> None:
        """What vLLM's front counted of a request that has ended; that it ended it itself, by a stop string, the scheduler need not know."""
        mine = self._requests[number]
        self._compared.requests += 1
        pairs = {
            "prompt tokens": (told["prompt_tokens"], mine.prompt),
            "preemptions": (told["preemptions"], mine.preemptions),
        }
        if not self._connector and self._caches and mine.reads_cache:
            pairs["cached tokens"] = (told["cached_tokens"], mine.cached or 0)
        if told["reason"] != "stop":
            pairs["output tokens"] = (told["output_tokens"], mine.outputs)
        for what, (theirs, ours) in pairs.items():
            if theirs != ours:
                self._wrong(
                    f"request {told['id']!s:.60}: {what} {theirs} by vLLM's front, {ours} by the record"
                )

    # -- queues ------------------------------------------------------------------------------------------------

    def _scheduled(self, record: Mapping[str, Any]) -> None:
        self._step = record["step"]
        for number in record["preempted"]:
            self._running.discard(number)
            self._waiting.add(number)
            self._requests[number].preemptions += 1
        for number, kind, computed, tokens in record["entries"]:
            mine = self._requests[number]
            if kind != "running":
                self._waiting.discard(number)
                self._running.add(number)
                if mine.reads_cache and self._caches:
                    sums = self._again if mine.preemptions else self._found
                    for at, value in enumerate((1, mine.prompt + mine.outputs, computed)):
                        sums[at] += value
                if mine.cached is None:
                    mine.cached = computed
                mine.kept = 0
            mine.kept = max(
                mine.kept, min(computed + tokens, mine.prompt + mine.outputs)
            )  # steps ahead compute unknown tokens
        self._move(record, frozenset(record["preempted"]))

    def _gone(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._running.discard(number)
            self._waiting.discard(number)

    def _count(self, told: Mapping[str, Any]) -> None:
        self._compared.steps += 1
        pairs: dict[str, tuple[Any, Any]] = {
            "running": (told["running"], len(self._running)),
            "waiting": (told["waiting"], len(self._waiting)),
        }
        if self._blocks:
            pairs["used blocks"] = (told["used_blocks"], self._used)
        if not self._connector:
            pairs["found"] = (told["found"], self._found)
            pairs["found again"] = (told["found_again"], self._again)
        self._found, self._again = [0] * 3, [0] * 3
        for what, (theirs, ours) in pairs.items():
            if theirs != ours:
                self._wrong(f"{what} {theirs} by vLLM's statistics, {ours} by the record")

    # -- blocks ------------------------------------------------------------------------------------------------

    def _move(self, record: Mapping[str, Any], preempted: frozenset[int] = frozenset()) -> None:
        moves, events = record["moves"], record.get("kv_events")
        if not self._blocks or moves is None:
            self._blocks = self._events = False
            return
        waiting = deque(events or ())
        for at in range(len(moves) + 1):
            while waiting and waiting[0][1] <= at:
                self._hear(waiting.popleft())
            if at < len(moves):
                action, number, _, ranges = moves[at]
                blocks = [first + each for first, count in ranges for each in range(count)]
                self._moved(action, number, blocks, preempted=number in preempted)
        if self._events and self._lost:
            self._wrong(
                f"{len(self._lost)} blocks evicted, from {self._lost[0][0]} on, that no event removes"
            )
        self._lost.clear()

    def _moved(self, action: str, number: int, blocks: Sequence[int], *, preempted: bool) -> None:
        mine = self._requests[number]
        if action == "evict":
            self._lost.extend((block, self._content.pop(block, None)) for block in blocks)
            return
        if action == "free":
            if self._events:
                self._judge_filled(mine, number, preempted=preempted)
            for block in blocks:
                self._holders[block] -= 1
                self._used -= self._holders[block] == 0
            mine.holds = []
            return
        for block in blocks:
            if self._events and (block in self._content) != (action == "hit"):
                what = "found, and nothing was stored in it" if action == "hit" else "taken, and not evicted"
                self._wrong(f"block {block} is {what}")
            self._holders[block] += 1
            self._used += self._holders[block] == 1
        mine.holds += blocks

    def _judge_filled(self, mine: _Request, number: int, *, preempted: bool) -> None:
        """Of each block that a request filled before it gave it back, vLLM has said that it stored it."""
        if self._speculates:
            return
        filled = mine.kept // self._size
        # What was planned for a request in the step that preempts it is taken back, after it was stored.
        most = (mine.prompt + mine.outputs) // self._size if preempted else filled
        stored = sum(block in self._content for block in mine.holds)
        if not filled <= stored <= most:
            self._wrong(f"request {number} gives back {stored} stored blocks, and has filled {filled}")

    def _hear(self, event: Sequence[Any]) -> None:
        if not self._events:
            return
        what, _, number, *rest = event
        if what == "removed":
            for key in rest[0]:
                self._compared.removed += 1
                block, content = self._lost.popleft() if self._lost else (None, None)
                if content != key:
                    self._wrong(
                        f"{key} is removed, and no block is evicted"
                        if block is None
                        else f"{key} is removed, and evicted is block {block}, which holds {content}"
                    )
        elif what == "stored":
            self._stored(number, *rest)
        else:
            self._wrong(f"an event {what!s:.20} that nothing in the record goes with")

    def _stored(self, number: int | None, parent: str | None, keys: Sequence[str]) -> None:
        self._compared.stored += len(keys)
        held = [] if number is None else self._requests[number].holds
        at = next((place for place, block in enumerate(held) if block not in self._content), len(held))
        before = self._content[held[at - 1]] if at else None
        if parent != before:
            self._wrong(f"{keys[0]} is stored after {parent}, and request {number} has {before} there")
        if at + len(keys) > len(held):
            self._wrong(
                f"{len(keys)} blocks are stored of request {number}, which has {len(held) - at} to fill"
            )
        self._content.update(zip(held[at:], keys, strict=False))

    def _wrong(self, what: str) -> None:
        self._compared.contradictions += 1
        if len(self._compared.first) < _NAMED:
            self._compared.first.append(f"step {self._step}: {what}")
