"""A tree of token strings: which of them begin alike, found run by run, not token by token.

A string is a list of runs. A run stands for consecutive *symbols*, one a token: tokens that are known by their ids
have these as symbols, all others have numbers from `OPAQUE` on, which follow each other inside of a content. Two strings
are equal as far as their symbols are; how they are cut into runs makes no difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.kernels import run

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPAQUE: Final = 1 << 33
"""The least symbol of a token whose id is not known. A run that begins below it is a place in the buffer of ids."""


@dataclass(frozen=True)
class Strings:
    """Strings in an order in which each comes after the one that it begins with.

    Attributes:
        holder: by string, the string that it begins with; -1 for none.
        kept: how many tokens of it; 0 without one.
        first: where the runs of each string begin, shape (strings + 1,); they follow what is kept.
        start: first symbol of each run, at least `OPAQUE`; or where its ids begin in `ids`.
        length: tokens of each run, at least 1.
        ids: token ids, the bits of uint32 as int32.
    """

    holder: NDArray[np.int64]
    kept: NDArray[np.int64]
    first: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    ids: NDArray[np.int32]


@dataclass(frozen=True)
class Tree:
    """Where strings lie in a tree. Strings that begin with the same n tokens are at the same place after them.

    Attributes:
        depth: by node, how many tokens lead to it.
        extent: by node, how many tokens it has.
        parent, branch: by node, where it leaves another one: after `branch` tokens of it. Node 0 is the root: it has no
            tokens, and leaves itself.
        label: by node, its first symbol, or where its ids begin, as the start of a run.
        first: where the parts of each string begin, shape (strings + 1,); what it keeps of its holder has none.
        at: by part, how many tokens of the string are before it.
        node: by part, the node that it lies in.
        level: by string, how many strings are before it in its chain of holders.
    """

    depth: NDArray[np.int64]
    extent: NDArray[np.int64]
    parent: NDArray[np.int64]
    branch: NDArray[np.int64]
    label: NDArray[np.int64]
    first: NDArray[np.int64]
    at: NDArray[np.int64]
    node: NDArray[np.int64]
    level: NDArray[np.int64]


def grow(strings: Strings) -> Tree:
    """The tree of strings."""
    runs, count = len(strings.start), len(strings.kept)
    nodes = [np.zeros(runs + 1, dtype=np.int64) for _ in range(6)]
    slots = np.zeros(1 << max(int(2 * runs + 1).bit_length(), 4), dtype=np.int64)
    first, level = np.zeros(count + 1, dtype=np.int64), np.zeros(count, dtype=np.int64)
    parts = [np.zeros(2 * runs + 1024, dtype=np.int64) for _ in range(3)]
    state = np.array([0, 0, 1], dtype=np.int64)
    given = (strings.holder, strings.kept, strings.first, strings.start, strings.length, strings.ids)
    while True:
        run(_insert, runs + len(strings.ids), *given, slots, *nodes, first, level, *parts, state)
        if state[0] == count:
            break
        parts = [np.concatenate([each, np.zeros_like(each)]) for each in parts]
    made, used = int(state[2]), int(state[1])
    parent, branch, _, label, extent, depth = (each[:made] for each in nodes)
    return Tree(depth, extent, parent, branch, label, first, parts[0][:used], parts[1][:used], level)


def _insert(
    holder: Any,
    kept: Any,
    first_run: Any,
    start: Any,
    length: Any,
    ids: Any,
    slots: Any,
    parent: Any,
    branch: Any,
    symbol: Any,
    label: Any,
    extent: Any,
    depth: Any,
    first: Any,
    level: Any,
    part_at: Any,
    part_node: Any,
    part_offset: Any,
    state: Any,
) -> None:
    """Insert strings from `state[0]` on, as far as there is room for their parts (arrays, or lists; see kernels).

    A node is a run as the first string had it that needed it. Where a later string leaves it, a child is attached to the
    place of the node: (parent, branch, symbol) are the node, the tokens of it that come before, the first symbol after.
    Places never change, so strings need not be looked at again. `state` is the next string, parts and nodes used.
    """
    mask = len(slots) - 1
    string, used, nodes = state[0], state[1], state[2]
    room = True
    while room and string < len(kept):
        first[string] = used
        node, offset, position = 0, 0, kept[string]
        if position > 0:
            above = holder[string]
            level[string] = level[above] + 1
            while position <= kept[above]:
                above = holder[above]
            low, high = first[above], first[above + 1]
            while high - low > 1:
                middle = (low + high) // 2
                if part_at[middle] < position:
                    low = middle
                else:
                    high = middle
            node, offset = part_node[low], part_offset[low] + position - part_at[low]
        for each in range(first_run[string], first_run[string + 1]):
            at, left = start[each], length[each]
            while room and left > 0:
                same = 0
                if offset < extent[node]:
                    most = min(left, extent[node] - offset)
                    there = label[node] + offset
                    if label[node] >= 8589934592:  # OPAQUE
                        if there == at:
                            same = most
                    elif at < 8589934592:
                        while same < most and ids[there + same] == ids[at + same]:
                            same += 1
                if same == 0:
                    key = at
                    if at < 8589934592:
                        key = ids[at]
                    mixed = (node * 2654435761 + offset * 2246822519 + key * 3266489917) & 4611686018427387903
                    mixed ^= mixed >> 29
                    mixed = (mixed * 2654435761) & 4611686018427387903
                    slot = (mixed ^ (mixed >> 32)) & mask
                    child = slots[slot]
                    while child != 0 and (
                        parent[child] != node or branch[child] != offset or symbol[child] != key
                    ):
                        slot = (slot + 1) & mask
                        child = slots[slot]
                    if child == 0:
                        child = nodes
                        nodes += 1
                        slots[slot] = child
                        parent[child], branch[child], symbol[child] = node, offset, key
                        label[child], extent[child], depth[child] = at, left, position
                    node, offset = child, 0
                    continue
                if used == first[string] or part_node[used - 1] != node:
                    if used == len(part_at):
                        room = False
                        continue
                    part_at[used], part_node[used], part_offset[used] = position, node, offset
                    used += 1
                offset += same
                position += same
                at += same
                left -= same
        if room:
            string += 1
            first[string] = used
    if not room:
        used = first[string]
    state[0], state[1], state[2] = string, used, nodes
