"""Random loads for a scheduler, and what ours does with them, in the form in which vLLM's own is recorded.

A case is plain JSON. Content is written as runs `[stream, start, length]`: the tokens `start …` of an endless stream of
tokens that occur nowhere else, so loads that share prefixes stay short. Each tick of a case adds and aborts requests,
schedules a step and then updates the oldest steps in flight, until fewer than `in_flight` are left (1 is synchronous, 2
asynchronous, more is what pipelines do); a tick without a step updates the oldest. Ticks go on after the last one written
until no request is left, or for `limit` ticks: by priority, requests of one instant can preempt each other for ever.
"""

from __future__ import annotations

import json
import lzma
import random
from collections import deque
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semtrace.engine.scheduler import Request, Scheduler
from semtrace.engine.settings import SchedulerSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEDULES = Path(__file__).parents[1] / "differential" / "vllm_schedules" / "schedules.jsonl.xz"


def tokens_of(runs: list[list[int]]) -> list[tuple[int, int]]:
    return [(stream, at) for stream, start, length in runs for at in range(start, start + length)]


def cut(runs: list[list[int]], length: int) -> list[list[int]]:
    """The first tokens of some runs."""
    kept = []
    for stream, start, has in runs:
        take = min(has, length)
        if take:
            kept.append([stream, start, take])
        length -= take
    return kept


def make_case(seed: int, *, asynchronous: bool, requests: int = 24, limit: int = 2000) -> dict[str, Any]:
    """A load with shared prefixes on a small pool, with any settings."""
    rng = random.Random(f"{seed} {asynchronous}")
    block_size = rng.choice([2, 4, 8, 16])
    longest_prompt, longest_output = rng.choice([(24, 24), (60, 30), (100, 12), (30, 70)])
    wanted = []
    for number in range(requests):
        prompt: list[list[int]] = []
        if wanted and rng.random() < 0.8:
            base = rng.choice(wanted[-6:])
            before = base["prompt"] + base["output"]
            have = sum(run[2] for run in before)
            length = rng.randint(1, have)
            if rng.random() < 0.5:
                length = max(length // block_size, 1) * block_size
            prompt = cut(before, min(length, longest_prompt))
        has = sum(run[2] for run in prompt)
        if not prompt or rng.random() < 0.6:
            fresh = rng.randint(1, max(longest_prompt - has, 1))
            prompt.append([2 * number, 0, fresh])
        wanted.append(
            {
                "prompt": prompt,
                "output": [[2 * number + 1, 0, rng.randint(1, longest_output)]],
                "priority": rng.randint(0, 2),
                "salt": rng.choice([None, None, None, None, None, "a", "b"]),
            }
        )
    most = max(sum(run[2] for run in each["prompt"] + each["output"]) for each in wanted)
    chunked = rng.random() < 0.75
    least = -(-most // block_size) + 1
    blocks = least + rng.randint(0, least if rng.random() < 0.8 else 6 * least)
    settings = {
        "order": rng.choice(["fcfs", "priority"]),
        "max_num_seqs": rng.randint(1, 8),
        "max_num_batched_tokens": rng.randint(*rng.choice([(1, 8), (4, 70), (4, 70)]))
        if chunked
        else most + rng.randint(0, 9),
        "max_model_len": most + 3,
        "chunked_prefill": chunked,
        "prefix_caching": rng.random() < 0.8,
        "long_prefill_token_threshold": rng.choice([0, 0, rng.randint(1, 10), rng.randint(1, 40)]),
        "threshold_always": rng.random() < 0.4,
        "watermark_blocks": rng.choice([0, 0, rng.randint(1, blocks // 3)]),
        "reserve_full_isl": rng.random() < 0.6,
        "asynchronous": asynchronous,
    }
    pace = rng.choice([0.15, 0.4, 1.0, 3.0])
    ticks: list[dict[str, Any]] = []
    number = 0
    while number < requests:
        tick: dict[str, Any] = {}
        arrive = int(rng.expovariate(1 / pace)) if pace >= 1 else int(rng.random() < pace)
        if arrive:
            tick["add"] = list(range(number, min(number + arrive, requests)))
            for each in tick["add"]:
                wanted[each]["arrival"] = len(ticks) // 4
            number += len(tick["add"])
        for when in ("abort", "meanwhile"):  # before the step is scheduled, while it is computed
            if number and rng.random() < 0.03:
                tick[when] = [rng.randrange(max(number - 8, 0), number)]
        if asynchronous and rng.random() < 0.1:
            tick["in_flight"] = 1
        ticks.append(tick)
    return {
        "settings": settings,
        "blocks": blocks,
        "block_size": block_size,
        "in_flight": rng.choice([2, 2, 3]) if asynchronous else 1,
        "limit": limit,
        "requests": wanted,
        "ticks": ticks,
    }


def requests_of(case: dict[str, Any]) -> list[Request]:
    """The requests of a case, their content as keys."""
    known: dict[Any, int] = {}
    size = case["block_size"]
    made = []
    for number, each in enumerate(case["requests"]):
        tokens = tokens_of(each["prompt"] + each["output"])
        chain: Any = each["salt"]
        keys = []
        for start in range(0, len(tokens) - size + 1, size):
            chain = known.setdefault((chain, tuple(tokens[start : start + size])), len(known))
            keys.append(chain)
        made.append(
            Request(
                id=number,
                prompt_tokens=len(tokens_of(each["prompt"])),
                max_tokens=len(tokens_of(each["output"])),
                keys=keys,
                priority=each["priority"],
                arrival=each["arrival"],
            )
        )
    return made


def record(case: dict[str, Any]) -> Iterator[list[Any]]:
    """What our scheduler does: per tick the step, the queues and the pool after it was scheduled, and who ended."""
    scheduler = Scheduler(SchedulerSettings(**case["settings"]), case["blocks"], case["block_size"])
    requests = requests_of(case)
    flying: deque[Any] = deque()
    ticks = deque(case["ticks"])
    for _ in range(case["limit"]):
        if not (ticks or scheduler.running or scheduler.waiting or flying):
            return
        tick = ticks.popleft() if ticks else {}
        for number in tick.get("add", ()):
            scheduler.add(requests[number])
        for number in tick.get("abort", ()):
            scheduler.abort(requests[number])
        step = scheduler.schedule()
        row = [
            [
                [entry.request.id, entry.kind, entry.computed, entry.tokens, [*entry.hits, *entry.blocks]]
                for entry in step.entries
            ],
            [request.id for request in step.preempted],
            [eviction.block for eviction in step.evicted],
            [request.id for request in scheduler.running],
            [request.id for request in scheduler.waiting],
            scheduler.pool.free_order(),
            sum(key is not None for key in scheduler.pool.keys),
        ]
        if step.entries:
            flying.append(step)
        for number in tick.get("meanwhile", ()):
            scheduler.abort(requests[number])
        ended = []
        while flying and (len(flying) >= tick.get("in_flight", case["in_flight"]) or not step.entries):
            ended += [request.id for request in scheduler.update(flying.popleft())]
            if not step.entries:
                break
        yield [*row, ended]


def difference(case: dict[str, Any], theirs: list[list[Any]]) -> str | None:
    """The first tick in which our scheduler did otherwise."""
    names = ("entries", "preempted", "evicted", "running", "waiting", "free", "kept", "ended")
    for tick, (our, their) in enumerate(zip_longest(record(case), theirs)):
        if our is None or their is None:
            return f"tick {tick}: {'vLLM goes on' if our is None else 'ours goes on'}"
        for name, mine, other in zip(names, our, their, strict=True):
            if mine != other:
                return f"tick {tick}: {name}: ours {mine}, vLLM's {other}"
    return None


@cache
def golden() -> list[tuple[dict[str, Any], list[list[Any]]]]:
    """Loads, and what vLLM did with them."""
    return [json.loads(line) for line in lzma.decompress(SCHEDULES.read_bytes()).splitlines()]


def counts(rows: list[list[Any]]) -> dict[str, int]:
    """How much happened."""
    return {
        "steps": sum(bool(row[0]) for row in rows),
        "entries": sum(len(row[0]) for row in rows),
        "preemptions": sum(len(row[1]) for row in rows),
        "hits": sum(entry[1] != "running" and entry[2] > 0 for row in rows for entry in row[0]),
        "evictions": sum(len(row[2]) for row in rows),
    }
