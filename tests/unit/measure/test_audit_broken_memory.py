"""Engines whose memory is broken in one place trip exactly the rule on it: pools, tiers and copies that give or read what they must not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engine_runs import found

from semtrace.engine import transfers
from semtrace.engine.pool import BlockPool, Eviction
from semtrace.engine.scheduler import Scheduler
from semtrace.engine.step_state import StepState
from semtrace.engine.tiers import MemoryTier
from semtrace.engine.transfers import Saving, Transfers
from support.lifecycle import Ran, run_engine
from support.scripted import Scripted, installed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LINK = {"out_bytes_per_s": 10**9, "in_bytes_per_s": 10**9, "latency_ns": 2}
AGENT = [
    {"name": "a", "kind": "llm", "prompt": 30, "output": 9, "content": "x", "session": "s"},
    {"name": "b", "kind": "llm", "prompt": 12, "output": 60, "content": "y"},
    {"name": "c", "kind": "llm", "prompt": 17, "output": 40, "content": "x"},
    {"name": "t", "duration_ns": 400, "after": ["a"]},
    {"name": "d", "kind": "llm", "prompt": 42, "output": 3, "content": "x", "session": "s", "after": ["t"]},
    {"name": "u", "duration_ns": 410, "after": ["a"]},
    {"name": "e", "kind": "llm", "prompt": 41, "output": 3, "content": "x", "after": ["u"]},
]
"""An agent whose call `d` goes on after a tool, and calls of others: `c` and `e` begin as it does."""
ENGINE = {
    "blocks": 60,
    "block_size": 4,
    "scheduler": {"max_num_batched_tokens": 64},
    "cost": [10, 2, 1, 3, 1],
    "tiers": {"host": {"blocks": 30}, "remote": {"blocks": 30}},
    "links": {"host": LINK, "remote": LINK},
}


@pytest.fixture(autouse=True)
def scripted() -> Iterator[None]:
    with installed(Scripted):
        yield


def run(script: dict[str, list[list[Any]]], operations: list[dict[str, Any]] = AGENT, **engine: Any) -> Ran:
    """The agent under a policy that does what the script says."""
    policy = {"name": "scripted", "settings": {"script": script}}
    return run_engine(operations, {**ENGINE, "policy": policy, **engine})


OUT: dict[str, list[list[Any]]] = {"CallEnded 0": [["Offload", {"tier": "host", "drop": True}]]}
"""What `a` has made is copied to host memory, and forgotten on the device."""
BACK: dict[str, list[list[Any]]] = {
    **OUT,
    "ToolEnded 0": [["Prefetch", {}]],
    "CallEnded 1": [["Release", {}]],
}
"""And copied back when the tool has ended; `d` does not wait for it, and lets it go at its end."""


@pytest.mark.parametrize("script", [{}, OUT, BACK])
def test_the_sound_engine_is_clean(script):
    assert found(run(script)) == {}


# ST-AUD-071: blocks that there are.


def test_a_tier_that_gives_blocks_that_it_has_not(monkeypatch):
    monkeypatch.setattr(transfers, "MemoryTier", lambda blocks: MemoryTier(blocks + 20))
    assert set(found(run(OUT, tiers={"host": {"blocks": 3}, "remote": {"blocks": 3}}))) == {"ST-AUD-071"}


def test_a_pool_that_gives_the_null_block(monkeypatch):
    begin = BlockPool.__init__

    def with_null(self: BlockPool, blocks: int, caching: bool) -> None:
        begin(self, blocks, caching)
        self._free[0] = None
        self._free.move_to_end(0, last=False)

    monkeypatch.setattr(BlockPool, "__init__", with_null)
    assert set(found(run({}))) == {"ST-AUD-071"}


# ST-AUD-072: nothing is taken that is held, nothing given back that is not.


def test_a_pool_that_gives_what_others_hold(monkeypatch):
    """What two share is free as soon as one of them has ended."""
    release = BlockPool.release

    def early(self: BlockPool, blocks: Sequence[int]) -> None:
        release(self, blocks)
        for block in blocks:
            if self.holders[block] > 0:
                self._free[block] = None
                self._free.move_to_end(block, last=False)

    monkeypatch.setattr(BlockPool, "release", early)
    assert set(found(run({}))) == {"ST-AUD-072"}


def test_a_scheduler_that_gives_a_block_back_twice(monkeypatch):
    free = Scheduler._free

    def twice(self: Scheduler, request: Any) -> None:
        request.blocks.append(request.blocks[-1])
        free(self, request)

    monkeypatch.setattr(Scheduler, "_free", twice)
    assert set(found(run({}))) == {"ST-AUD-072"}


# ST-AUD-073: what is given up was kept, and nobody holds it.


def test_a_drop_of_what_others_hold(monkeypatch):
    """The device forgets a context after a copy, with the blocks of it that another call holds."""
    release = StepState.release

    def careless(self: StepState, blocks: Sequence[int], *, drop: bool = False) -> list[int]:
        if not drop:
            return release(self, blocks)
        self._pool.forget(blocks)
        release(self, blocks)
        return list(blocks)

    monkeypatch.setattr(StepState, "release", careless)
    assert set(found(run(OUT))) == {"ST-AUD-073"}


def test_a_tier_that_forgets_what_is_read(monkeypatch):
    drop = MemoryTier.drop

    def careless(self: MemoryTier, key: int) -> int | None:
        return self._block[key] if key in self._readers else drop(self, key)

    script = {**BACK, "ToolEnded 0": [["Prefetch", {}], ["Drop", {"tier": "host"}]]}
    assert found(run(script)) == {}
    monkeypatch.setattr(MemoryTier, "drop", careless)
    assert set(found(run(script))) == {"ST-AUD-073"}


def test_a_pool_that_evicts_what_keeps_nothing(monkeypatch):
    take = BlockPool.take

    def all_evicted(self: BlockPool, count: int) -> Any:
        taken, _ = take(self, count)
        return taken, [Eviction(block, 0) for block in taken]

    monkeypatch.setattr(BlockPool, "take", all_evicted)
    assert set(found(run({}))) == {"ST-AUD-073"}


# ST-AUD-077: bytes.


def test_copies_of_half_the_bytes(monkeypatch):
    """An engine that squeezes what it moves, and does not say so."""
    begin = Transfers.__init__
    monkeypatch.setattr(
        Transfers,
        "__init__",
        lambda self, tiers, links, size, *rest: begin(self, tiers, links, size // 2, *rest),
    )
    assert set(found(run(BACK))) == {"ST-AUD-077"}


# ST-AUD-081: what is copied out stays until that has ended.


def test_a_copy_whose_source_is_free_meanwhile(monkeypatch):
    save, let_go = Transfers.save, Transfers.let_go
    early: list[Sequence[int]] = []

    def hasty(self: Transfers, now_ns: int, held: Any, tier: Any, *, drop: bool) -> str | None:
        why_not = save(self, now_ns, held, tier, drop=drop)
        for each in self._under_way.values():
            if isinstance(each.job, Saving) and each.job.held is held:
                let_go(self, now_ns, each.job.server, each.job.event, each.job.blocks, reason="offloaded")
                early.append(each.job.blocks)
        return why_not

    def unless_early(self: Transfers, now: int, server: int, event: int, blocks: Any, **how: Any) -> None:
        if not any(blocks is each for each in early):
            let_go(self, now, server, event, blocks, **how)

    monkeypatch.setattr(Transfers, "save", hasty)
    monkeypatch.setattr(Transfers, "let_go", unless_early)
    assert set(found(run(OUT))) == {"ST-AUD-081"}
    assert early


def test_a_copy_that_ends_in_the_log_before_it_has(monkeypatch):
    """The link says that it is done at once, and the transfer goes on."""
    begin = Transfers._begin

    def at_once(self: Transfers, now_ns: int, what: Any, blocks: Any, *, inwards: bool) -> None:
        begin(self, now_ns, what, blocks, inwards=inwards)
        if not inwards:
            self._note(now_ns, what.job, transfers.Tier.DEVICE, transfers.BlockAction.OFFLOAD, blocks)

    monkeypatch.setattr(Transfers, "_begin", at_once)
    assert set(found(run(OUT))) == {"ST-AUD-081"}


# ST-AUD-082: what is copied in is not read before that has ended.


def test_blocks_that_are_found_while_they_are_filled(monkeypatch):
    """`e` is admitted while what it finds is still on its way back for `d`."""
    load = Transfers.load

    def early(self: Transfers, *given: Any, **more: Any) -> Any:
        made = load(self, *given, **more)
        if not isinstance(made, str):
            for part in made.parts:
                self._states[made.server].register(part.blocks, part.keys)
        return made

    monkeypatch.setattr(Transfers, "load", early)
    assert set(found(run(BACK))) == {"ST-AUD-082"}


def test_a_tier_that_is_read_before_its_content_has_come(monkeypatch):
    """Another server reads from remote memory what the first is still copying there."""
    slow = {**LINK, "out_bytes_per_s": 10**8}
    operations = [
        {"name": "a", "kind": "llm", "prompt": 30, "output": 3, "content": "x", "session": "s"},
        {"name": "t", "duration_ns": 40, "after": ["a"]},
        {"name": "b", "kind": "llm", "prompt": 29, "output": 3, "content": "x", "after": ["t"]},
    ]
    script = {"CallEnded 0": [["Offload", {"tier": "remote"}]], "CallReady 1": [["Prefetch", {}]]}
    more: dict[str, Any] = {"servers": 2, "links": {"host": slow, "remote": slow}}
    assert found(run(script, operations, **more)) == {}
    monkeypatch.setattr(MemoryTier, "readable", MemoryTier.keeps)
    assert set(found(run(script, operations, **more))) == {"ST-AUD-082"}
