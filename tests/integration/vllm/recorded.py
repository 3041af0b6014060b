"""Drives vLLM's own schedulers, recording, with the loads of drive.py: what they write down is what they do.

Cases come in as JSON lines; for each one goes out: what was compared, and the first difference.
"""

import json
import sys
from collections import Counter

import drive
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from semtrace.live.vllm.recorder import recording

records = []
drive.SYNCHRONOUS = drive.logging(recording(Scheduler, records.append))
drive.ASYNCHRONOUS = drive.logging(recording(AsyncScheduler, records.append))


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
            seen["yielded"] += sum(count for _, count in record["yielded"])
            seen["ended"] += len(record["ended"])
        elif record["kind"] == "aborted":
            seen["aborted"] += len(record["requests"])
    if flying or holds:
        return f"at the end {len(flying)} steps are in flight and {len(holds)} requests hold blocks", seen
    return None, seen


def main():
    init_none_hash(sha256)
    config = drive.base()
    for line in sys.stdin:
        records.clear()
        rows = drive.record(config, json.loads(line))
        wrong, seen = difference(rows)
        sys.stdout.write(json.dumps([wrong, seen]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
