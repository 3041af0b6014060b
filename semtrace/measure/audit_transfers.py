"""Audit rules on transfers between memory tiers: what links can carry, and that content is neither read early nor lost."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import numpy as np

from semtrace.engine.tier_document import LinksDocument, link_facts
from semtrace.measure.block_moves import LOST, UNTOLD, before
from semtrace.measure.recorded_engine import recorded
from semtrace.policies.interface import TierName
from semtrace.records.columns import NULL
from semtrace.records.enums import BlockAction, Direction, Tier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from semtrace.measure.audit_blocks import BlockCase
    from semtrace.measure.audit_events import Case
    from semtrace.measure.recorded_engine import Engine

_SECOND: Final = 1_000_000_000
OF_BLOCKS: Final = ("ST-AUD-081", "ST-AUD-082", "ST-AUD-083")
"""Rules that need the table `blocks` too."""
NUMBERS: Final = {TierName.HOST.value: Tier.HOST, TierName.REMOTE.value: Tier.REMOTE}


def judge_transfers(case: Case, engine: Engine | None, blocks: BlockCase | None) -> None:
    """All rules on transfers (ST-AUD-080 to ST-AUD-083), where an engine recorded them."""
    if engine is None or not recorded(case.slots.execution, "transfers"):
        return
    reported = {found.table for found in case.ledger.findings if found.requirement == "ST-AUD-007"}
    if "transfers" in reported:
        for rule in ("ST-AUD-080", *OF_BLOCKS):
            case.ledger.skip(rule, "the table is not well formed, which is reported")
        return
    _judge_links(case, engine)
    if blocks is None or any(case.ledger.violated(rule) for rule in ("ST-AUD-077", "ST-AUD-080")):
        for rule in OF_BLOCKS:
            case.ledger.skip(rule, "blocks were not recorded, or they or their transfers are reported")
        return
    _judge_sources(blocks)
    _judge_arrivals(blocks)
    _judge_restored(blocks)


def overfull(jobs: Iterable[tuple[int, int, int]], bytes_per_s: int) -> int | None:
    """The first transfer that a link cannot have ended by then, whatever the order in which it carries bytes; None if it can.

    More bytes than bandwidth · time lie in some interval exactly if serving the earliest end first is late for one.

    Args:
        jobs: of each transfer when its bytes can begin to flow and when it ended, both in ns, and its bytes.
        bytes_per_s: bandwidth.
    """
    given = sorted((flows, end, size, at) for at, (flows, end, size) in enumerate(jobs))
    waiting: list[
        tuple[int, int, int]
    ] = []  # (end, transfer, work left); work and time in units of 1 / bandwidth ns
    now = at = 0
    while waiting or at < len(given):
        if not waiting:
            now = max(now, given[at][0] * bytes_per_s)
        while at < len(given) and given[at][0] * bytes_per_s <= now:
            _, end, size, number = given[at]
            heapq.heappush(waiting, (end * bytes_per_s, number, size * _SECOND))
            at += 1
        end, number, left = waiting[0]
        until = given[at][0] * bytes_per_s if at < len(given) else now + left
        served = min(left, until - now)
        now += served
        if now > end:
            return number
        if served == left:
            heapq.heappop(waiting)
        else:
            heapq.heapreplace(waiting, (end, number, left - served))
    return None


def _judge_links(case: Case, engine: Engine) -> None:
    """No link carries more than its bandwidth in any time (ST-AUD-080)."""
    table, ledger = case.slots.execution["transfers"], case.ledger
    names = np.array(table.strings("link"), dtype=np.str_)
    figures = link_facts(engine.document.links or LinksDocument())
    known = np.isin(names, [name.value for name in figures])
    rows = np.flatnonzero(~known | (table.ints("server") >= engine.settings.servers))
    ledger.judge(
        "ST-AUD-080",
        np.ones(len(rows), dtype=np.bool_),
        lambda i: (
            f"transfer {rows[i]} is over link {names[rows[i]]} of server {table.ints('server')[rows[i]]}, which there is not"
        ),
        rows=rows,
        table="transfers",
        column="link",
    )
    start, end, size = (table.ints(name) for name in ("start_ns", "end_ns", "bytes"))
    for name, link in figures.items():
        # Host memory is each server's own, remote memory and its link are shared by all.
        server = table.ints("server") if name is TierName.HOST else np.zeros(table.rows, dtype=np.int64)
        for way, band in ((Direction.OUT, link.out_bytes_per_s), (Direction.IN, link.in_bytes_per_s)):
            mine = np.flatnonzero((names == name.value) & (table.ints("direction") == way))
            for own in np.unique(server[mine]).tolist():
                at = mine[server[mine] == own]
                flows = start[at] + link.latency_ns + link.per_run_ns
                jobs = zip(flows.tolist(), end[at].tolist(), size[at].tolist(), strict=True)
                late = overfull(jobs, band)
                wrong = np.zeros(len(at), dtype=np.bool_)
                if late is not None:
                    wrong[late] = True
                ledger.judge(
                    "ST-AUD-080",
                    wrong,
                    lambda i, a=at, n=name, b=band: (  # type: ignore[misc]  # mypy cannot infer a lambda with a default
                        f"transfer {a[i]} ended at {end[a[i]]} ns: with what link {n.value} carried beside it, that is more than "
                        f"{b:,} bytes a second"
                    ),
                    rows=at,
                    table="transfers",
                    column="end_ns",
                )


def _of_transfer(
    judged: BlockCase, at: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Start and end of the transfers of entries, and whether the entries name them rightly."""
    moves, table = judged.moves, judged.case.slots.execution["transfers"]
    transfer = moves.column("transfer")[at]
    if not table.rows:
        nothing = np.zeros(len(at), dtype=np.int64)
        return nothing, nothing, np.zeros(len(at), dtype=np.bool_)
    row = np.where(transfer == NULL, 0, transfer)
    way = np.where(moves.action[at] == BlockAction.OFFLOAD, Direction.OUT, Direction.IN)
    right = (transfer != NULL) & (table.ints("direction")[row] == way)
    right &= table.ints("server")[row] == moves.place[at] >> 8
    right &= table.ints("end_ns")[row] == moves.time_ns[at]
    return table.ints("start_ns")[row], table.ints("end_ns")[row], right


def _judge_sources(judged: BlockCase) -> None:
    """What is copied out is held, and stays what it is, until that has ended (ST-AUD-081)."""
    moves = judged.moves
    at = np.flatnonzero(moves.device & (moves.action == BlockAction.OFFLOAD))
    start, _, right = _of_transfer(judged, at)
    above = moves.held_before[at]
    kept = (above != NULL) & (moves.action[above] == BlockAction.ALLOCATE) & (moves.time_ns[above] <= start)
    free = before(moves.group, moves.holders == 0)[at]
    free_since = np.where(free == NULL, start, moves.time_ns[free])
    held = (moves.holders[at] > 0) & (free_since <= start)

    def told(i: int) -> str:
        if not right[i]:
            return "it names no transfer out of this device that ended then"
        return "it was free meanwhile" if kept[i] else "other content was put there meanwhile"

    judged.judge("ST-AUD-081", at, ~(right & kept & held), told)


def _judge_arrivals(judged: BlockCase) -> None:
    """What is copied into a block is not read before that has ended (ST-AUD-082)."""
    moves = judged.moves
    filled = moves.action == BlockAction.UPLOAD
    loads = moves.device & (moves.action == BlockAction.ALLOCATE) & moves.because("load")
    at = np.flatnonzero(filled)
    start, _, right = _of_transfer(judged, at)
    previous = np.where(at > 0, at - 1, 0)
    fresh = (at > 0) & loads[previous] & (moves.group[previous] == moves.group[at])
    fresh &= moves.time_ns[previous] == start
    judged.judge(
        "ST-AUD-082",
        at,
        ~(right & fresh),
        lambda i: (
            "it was used meanwhile" if right[i] else "it names no transfer into this device that ended then"
        ),
    )
    # Taken for a load, and used before anything came.
    taken = np.flatnonzero(loads)
    follows = taken + 1
    inside = follows < len(moves)
    there = np.where(inside, follows, 0)
    early = inside & (moves.group[there] == moves.group[taken]) & ~filled[there]
    judged.judge("ST-AUD-082", taken, early, lambda i: f"{judged.name(int(there[i]))} came first")
    # Read from a tier before it had come there.
    reads = np.flatnonzero(~moves.device & (moves.action == BlockAction.HIT))
    number = _arrivals(judged)
    above = moves.held_before[reads]
    arrives = np.where(above == NULL, NULL, number[above])
    table = judged.case.slots.execution["transfers"]
    ends = table.ints("end_ns")[arrives] if table.rows else np.zeros(len(reads), dtype=np.int64)
    known = arrives != NULL
    judged.judge(
        "ST-AUD-082",
        reads[known],
        ends[known] > moves.time_ns[reads[known]],
        lambda i: f"its content came at {ends[known][i]} ns",
    )


def _arrivals(judged: BlockCase) -> NDArray[np.int64]:
    """By entry, the transfer that fills a tier's block, of those that are taken for one; `NULL` for others and where two may."""
    moves, table = judged.moves, judged.case.slots.execution["transfers"]
    number = np.full(len(moves), NULL, dtype=np.int64)
    taken = np.flatnonzero(~moves.device & (moves.action == BlockAction.ALLOCATE))
    out = (
        np.flatnonzero(table.ints("direction") == Direction.OUT)
        if table.rows
        else np.zeros(0, dtype=np.int64)
    )
    if not len(taken) or not len(out):
        return number
    tier = np.array([NUMBERS.get(str(name), 0) for name in table.strings("link")], dtype=np.int64)
    server = judged.case.slots.execution["blocks"].ints("server")[moves.row[taken]]
    ours = np.stack([server, moves.place[taken] & 0xFF, moves.time_ns[taken], moves.event[taken]])
    theirs = np.stack(
        [table.ints("server")[out], tier[out], table.ints("start_ns")[out], table.ints("event")[out]]
    )
    _, alike = np.unique(np.concatenate([ours, theirs], axis=1), axis=1, return_inverse=True)
    of_ours, of_theirs = alike[: len(taken)], alike[len(taken) :]
    which = np.full(int(alike.max()) + 1, NULL, dtype=np.int64)
    which[of_theirs] = out
    twice = np.bincount(of_theirs, minlength=len(which)) > 1
    which[twice] = NULL
    number[taken] = which[of_ours]
    return number


def _judge_restored(judged: BlockCase) -> None:
    """What is loaded is what was copied out (ST-AUD-083)."""
    moves, keys, ledger = judged.moves, judged.moves.keys, judged.case.ledger
    loads = np.flatnonzero(moves.device & (moves.action == BlockAction.ALLOCATE) & moves.because("load"))
    if keys is None:
        ledger.skip("ST-AUD-083", "the keys of blocks are not known", len(loads))
        return
    content = np.full(len(moves), UNTOLD, dtype=np.int64)
    # Device blocks that a transfer copies out, and the tier's blocks that were taken for it, are in the same order.
    sources = np.flatnonzero(moves.device & (moves.action == BlockAction.OFFLOAD))
    targets = np.flatnonzero(_arrivals(judged) != NULL)
    source_of, target_of = moves.column("transfer")[sources], _arrivals(judged)[targets]
    above = moves.held_before[sources]
    held = np.where(above == NULL, LOST, keys.find(moves.event[above], moves.position[above]))
    one, two = _in_order(moves.row, sources, source_of), _in_order(moves.row, targets, target_of)
    width = max(len(sources), len(targets)) + 1
    from_key, to_key = source_of[one[0]] * width + one[1], target_of[two[0]] * width + two[1]
    at = np.searchsorted(from_key, to_key)
    inside = at < len(from_key)
    inside[inside] = from_key[at[inside]] == to_key[inside]
    at = np.where(inside, at, NULL)
    known = at != NULL
    content[targets[two[0][known]]] = held[one[0][at[known]]]
    # Blocks of tiers that a load reads, and device blocks that were taken for it, are too.
    reads = np.flatnonzero(~moves.device & (moves.action == BlockAction.HIT) & moves.because("load"))
    server = judged.case.slots.execution["blocks"].ints("server")
    both = np.concatenate([reads, loads])
    _, alike = np.unique(
        np.stack([server[moves.row[both]], moves.time_ns[both], moves.event[both]]),
        axis=1,
        return_inverse=True,
    )
    read, load = (
        _in_order(moves.row, reads, alike[: len(reads)]),
        _in_order(moves.row, loads, alike[len(reads) :]),
    )
    if len(reads) != len(loads) or not np.array_equal(
        alike[: len(reads)][read[0]], alike[len(reads) :][load[0]]
    ):
        ledger.fact(
            "ST-AUD-083",
            f"{len(reads)} blocks of tiers were read, and {len(loads)} blocks taken to load them",
            table="blocks",
            column="action",
        )
        return
    reads, loads = reads[read[0]], loads[load[0]]
    above = moves.held_before[reads]
    was = np.where(above == NULL, LOST, content[above])
    wanted = keys.find(moves.event[loads], moves.position[loads])
    untold = (was == UNTOLD) | (wanted == UNTOLD)
    ledger.skip("ST-AUD-083", "what was copied out is not told", int(untold.sum()))
    loads, was, wanted = loads[~untold], was[~untold], wanted[~untold]
    judged.judge(
        "ST-AUD-083",
        loads,
        (was != wanted) | (wanted == LOST),
        lambda i: f"what is read is not block {moves.position[loads[i]]} of event {moves.event[loads[i]]}",
    )


def _in_order(
    row: NDArray[np.int64], entries: NDArray[np.int64], group: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Entries of groups in the order of the table: their places in `entries`, and the ordinal of each in its group."""
    # Entries of one row stand in order of block, and blocks of a row ascend.
    order = np.lexsort((entries, row[entries], group))
    first = np.flatnonzero(np.diff(group[order], prepend=NULL - 1))
    sizes = np.diff(np.append(first, len(order)))
    return order, np.arange(len(order), dtype=np.int64) - np.repeat(first, sizes)
