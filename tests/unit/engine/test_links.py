"""Links share fairly: against processor sharing in fractions; tiers evict what was used least recently."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from semtrace.engine.links import Direction, LinkFigures
from semtrace.engine.tiers import MemoryTier


def run(direction: Direction, transfers: list[tuple[int, int, int]]) -> dict[int, int]:
    """When each transfer (start, bytes, runs) ends; they are sorted by start."""
    ends: dict[int, int] = {}
    left = list(enumerate(transfers))
    while left or direction.busy:
        now = direction.next_ns()
        if left and (now is None or left[0][1][0] < now):
            now = left[0][1][0]
        assert now is not None
        if direction.next_ns() == now:
            ends |= dict.fromkeys(direction.ended(now), now)
        while left and left[0][1][0] == now:
            number, (_, size, runs) = left.pop(0)
            direction.begin(now, number, size, runs)
    return ends


def fair(transfers: list[tuple[int, int]], bandwidth: int) -> dict[int, Fraction]:
    """When each transfer (start, bytes) ends if the direction is shared without rounding."""
    left = {number: Fraction(size) for number, (_, size) in enumerate(transfers)}
    now, ends = Fraction(0), {}
    rate = Fraction(bandwidth, 1_000_000_000)
    while left:
        flowing = [number for number in left if transfers[number][0] <= now]
        times = [Fraction(start) for start, _ in transfers if start > now]
        if flowing:
            times.append(now + min(left[number] for number in flowing) * len(flowing) / rate)
        then = min(times)
        for number in flowing:
            left[number] -= (then - now) * rate / len(flowing)
            if left[number] == 0:
                del left[number]
                ends[number] = then
        now = then
    return ends


def test_the_example_of_the_spec():
    """ST-LIF-029."""
    assert run(Direction(LinkFigures(1_000_000_000)), [(0, 100, 1), (50, 100, 1)]) == {0: 150, 1: 200}


def test_latency_and_runs_come_first():
    """ST-LIF-028: 3 + 2 · 10 before the bytes; then half the link for each."""
    direction = Direction(LinkFigures(1_000_000_000, latency_ns=3, per_run_ns=10))
    assert run(direction, [(0, 50, 1), (0, 50, 2)]) == {0: 13 + 10 + 80, 1: 13 + 100}
    assert LinkFigures(500_000_000, 3, 10).alone_ns(51, 2) == 23 + 102


@pytest.mark.parametrize("seed", range(30))
def test_links_share_as_they_should(seed: int):
    """ST-LIF-029: never earlier than without rounding, and later by at most the ns that roundings cost."""
    rng = Random(seed)
    bandwidth = rng.choice((3, 1_000_000_000, 700_000_001, 64_000_000_000)) * rng.choice((1, 7))
    scale = 1 if bandwidth > 100 else 1_000_000_000
    starts = sorted(scale * rng.randrange(40) for _ in range(rng.randint(1, 8)))
    sizes = [rng.randint(1, 200) for _ in starts]
    ends = run(Direction(LinkFigures(bandwidth)), [(*each, 1) for each in zip(starts, sizes, strict=True)])
    wanted = fair(list(zip(starts, sizes, strict=True)), bandwidth)
    assert ends.keys() == wanted.keys()
    for number, end in ends.items():
        assert wanted[number] <= end <= wanted[number] + len(starts) ** 2 + 1
    moved = 0
    for number in sorted(
        ends, key=lambda number: ends[number]
    ):  # from the first start on, no more than the link can
        moved += sizes[number]
        assert moved * 1_000_000_000 <= bandwidth * (ends[number] - starts[0])


def test_of_equal_transfers_the_first_ends_first():
    direction = Direction(LinkFigures(1_000_000_000))
    for number in (1, 2, 3):
        direction.begin(0, number, 10, 1)
    assert direction.next_ns() == 30
    assert direction.queued_bytes == 30
    assert direction.ended(30) == [1, 2, 3]
    assert direction.next_ns() is None


def test_a_tier_forgets_what_was_used_least_recently():
    """ST-LIF-025."""
    tier = MemoryTier(3)
    assert tier.take([7, 8, 9]) == ([0, 1, 2], [])
    assert tier.take([5]) is None  # all arrive
    tier.arrived([7, 8, 9])
    tier.touch([7])
    assert tier.take([5]) == ([1], [(1, 8)])
    assert not tier.readable(5)
    assert tier.keeps(5)
    assert tier.read([9]) == [2]
    assert tier.take([1, 2]) is None  # one arrives, one is read: nothing is evicted
    assert tier.readable(7)
    assert tier.drop(9) is None
    tier.was_read([9])
    assert tier.drop(9) == 2
    assert tier.free_count == 1
    assert tier.drop(9) is None
