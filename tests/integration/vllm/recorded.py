"""Drives vLLM's own schedulers, recording, with the loads of drive.py: what they write down is what they do.

Cases come in as JSON lines; for each one goes out: the first difference, what was compared, what vLLM's own events and statistics were held against,
and how many of the records with one thing left out were found out by them.
"""

import copy
import json
import random
import sys
from collections import Counter

import drive
from vllm.config.kv_events import KVEventsConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from semtrace.live.vllm.compared import Compared, Comparer
from semtrace.live.vllm.recorder import recording

records = []


def counting(scheduler):
    """The scheduler that records, and keeps vLLM's statistics."""
    made = drive.logging(recording(scheduler, records.append))
    return lambda **named: made(**(named | {"log_stats": True}))


drive.SYNCHRONOUS, drive.ASYNCHRONOUS = counting(Scheduler), counting(AsyncScheduler)


def blocks_of(moves, number, *actions):
    return [
        block
        for action, of, _, ranges in moves
        if of == number and action in actions
        for first, count in ranges
        for block in range(first, first + count)
    ]


def difference(rows):
    """How the records differ from what the driver saw, tick by tick; None if they do not."""
    names, seen, flying, holds = {}, Counter(), {}, {}
    steps = [record for record in records if record["kind"] == "step"]
    ticks = [row for row in rows if row[0] or row[1]]
    if len(steps) != len(ticks):
        return f"{len(steps)} steps for {len(ticks)}", seen
    for record in records[1:]:  # after what the scheduler says of itself
        if record["kind"] == "request":
            names[record["n"]] = int(record["id"])
        for action, number, position, ranges in record.get("moves") or ():
            count = sum(each for _, each in ranges)
            if action in ("hit", "allocate"):
                if position != holds.get(number, 0):
                    return f"{action} at {position} of a request that holds {holds.get(number, 0)}", seen
                holds[number] = holds.get(number, 0) + count
            elif action == "free" and holds.pop(number) != count:
                return "a request frees other than it holds", seen
        if record["kind"] == "step":
            row = ticks[seen["ticks"]]
            seen["ticks"] += 1
            mine = [
                [
                    names[number],
                    kind,
                    computed,
                    tokens,
                    blocks_of(record["moves"], number, "hit", "allocate"),
                ]
                for number, kind, computed, tokens in record["entries"]
            ]
            evicted = [
                block
                for action, _, _, ranges in record["moves"]
                if action == "evict"
                for first, count in ranges
                for block in range(first, first + count)
            ]
            told = [mine, [names[number] for number in record["preempted"]], evicted, record["free_blocks"]]
            true = [*row[:3], len(row[5])]
            if told != true:
                return f"step {record['step']}: {told}, was {true}", seen
            seen["entries"] += len(mine)
            seen["preemptions"] += len(row[1])
            seen["evictions"] += len(evicted)
            if record["entries"]:
                flying[record["step"]] = len(record["entries"])
        elif record["kind"] == "computed":
            flying.pop(record["step"])
            seen["steps"] += 1
            seen["yielded"] += sum(count for _, count in record["yielded"])
            seen["ended"] += len(record["ended"])
        elif record["kind"] == "aborted":
            seen["aborted"] += len(record["requests"])
    if flying or holds:
        return f"at the end {len(flying)} steps are in flight and {len(holds)} requests hold blocks", seen
    return None, seen


def compared_with(told):
    """What vLLM's own events and statistics say to records."""
    compared = Compared()
    comparer = Comparer(compared, told[0])
    for record in told[1:]:
        comparer.take(record["kind"], record)
    return compared


def mutations(rng):
    """Records with one thing left out that they have: what it was, and they."""
    for name, member, kind in (
        ("stored", "kv_events", "stored"),
        ("removed", "kv_events", "removed"),
        ("evict", "moves", "evict"),
        ("hit", "moves", "hit"),
        ("preempted", "preempted", None),
    ):
        places = [
            (at, place)
            for at, record in enumerate(records)
            for place, each in enumerate(record.get(member) or () if record["kind"] != "server" else ())
            if kind is None or each[0] == kind
        ]
        if places:
            at, place = rng.choice(places)
            made = list(records)
            made[at] = copy.deepcopy(records[at])
            del made[at][member][place]
            for event in made[at]["kv_events"] if member == "moves" else ():
                event[1] -= event[1] > place
            yield name, made


def main():
    init_none_hash(sha256)
    config = drive.base()
    config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    for line in sys.stdin:
        records.clear()
        case = json.loads(line)
        case["settings"]["threshold_always"] = False  # it counts a request that is not there
        wrong, seen = difference(drive.record(config, case))
        found = {}
        for name, made in mutations(random.Random(len(records))):
            found[name] = int(compared_with(made).contradictions > 0)
        sys.stdout.write(json.dumps([wrong, seen, compared_with(records).as_dict(), found]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
