"""Token ids for tokens whose ids are not known: two strings begin with the same ids as far as they have the same tokens.

Strings lie in a tree (`semtrace.engine.prefix_tree`), and each place in it gets one id, so that what is the same has the same
ids. Where strings part, the first ids of all that go on are made to differ; everywhere else an id is a keyed hash of the
token's symbol. Where more go on than there are ids, those that share one are told apart at the next token, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from semtrace.engine.prefix_tree import OPAQUE
from semtrace.errors import UsageError
from semtrace.live.prompt_parts import Chains

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.engine.prefix_tree import Strings, Tree
    from semtrace.live.settings import Vocabulary

ANY: Final = -1
"""The group of what is the same in all groups."""
_FREE: Final = -1
_DEEP: Final = 32
"""Tokens within which strings that had to begin alike are told apart, at most."""
_WIDE: Final = 1 << 32
"""More ids than there are."""
_MASK: Final = (1 << 64) - 1


class Roots(NamedTuple):
    """Which nodes of a tree strings of which group begin with: pairs, each once.

    Attributes:
        group: the group, from 0.
        node: a node that leaves the root.
    """

    group: NDArray[np.int64]
    node: NDArray[np.int64]


class _Rows(NamedTuple):
    """Tokens that go on at places of a tree, in order of places: by token the place, its group, node, and offset in it."""

    place: NDArray[np.int64]
    group: NDArray[np.int64]
    node: NDArray[np.int64]
    offset: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> _Rows:
        return _Rows(*(each[rows] for each in self))


@dataclass(frozen=True)
class Crowd:
    """What there are too few ids for.

    Attributes:
        places: how many places in the tree more strings leave than there are ids.
        tokens: by how many tokens two strings have more in common there than they should, at most; 32 stands for more, too.
    """

    places: int
    tokens: int


class Synthetic:
    """The ids of all strings.

    Args:
        strings: the strings.
        tree: where they lie.
        vocabulary: the ids for tokens whose own are not known, two or more: from `first` to `size` - 1.
        key: decides which ids are chosen; 64 bits.
        roots: what the strings of each group begin with: two of different groups begin with different ids, unless both
            begin with tokens whose ids are known and kept.
        keep: whether tokens with known ids have these; if not, all ids are made up.
    """

    def __init__(
        self,
        strings: Strings,
        tree: Tree,
        vocabulary: Vocabulary,
        key: int,
        roots: Roots,
        *,
        keep: bool,
    ) -> None:
        self._ids, self._tree, self._key = strings.ids, tree, key & _MASK
        self._least, self._count = vocabulary.first, vocabulary.size - vocabulary.first
        own = np.bincount(
            np.repeat(np.arange(len(strings.kept)), np.diff(strings.first)),
            strings.length,
            minlength=len(strings.kept),
        ).astype(np.int64)
        self.length = strings.kept + own
        self._chains = Chains(strings.holder, strings.kept, tree.first, tree.at, self.length)
        self._known = tree.label < OPAQUE
        self._fixed = self._known & keep
        self._fixed[0] = False
        self._points()
        self._consumed = np.zeros(len(self._point_node) + 1, dtype=np.bool_)
        self._places = self._most = 0
        self._first = np.full(len(tree.depth), _FREE, dtype=np.int64)
        self._over: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        groups = int(roots.group.max(initial=0)) + 2
        if groups * len(tree.depth) >= 1 << 57:
            raise UsageError(
                f"{groups - 1:,} groups of instances, and {len(tree.depth):,} places where prompts part, are too many",
                code="prompts.size",
                path="scenario.copies",
                hint="replay fewer copies, or with salt: none",
            )
        self._spread_roots(roots)
        self._spread_points()
        none = np.zeros(0, dtype=np.int64)
        keys, ids = (np.concatenate([none, *(each[at] for each in self._over)]) for at in (0, 1))
        order = np.argsort(keys, kind="stable")
        self._over_keys, self._over_ids = keys[order], ids[order].astype(np.int32)
        self._over_nodes = np.zeros(len(tree.depth), dtype=np.bool_)
        self._over_nodes[(self._over_keys // _DEEP) % len(tree.depth)] = True
        del self._over, self._point_of

    @property
    def crowd(self) -> Crowd:
        """Where ids did not suffice to tell strings apart at once."""
        return Crowd(self._places, self._most)

    def ids(self, string: int, begin: int, end: int, group: int) -> NDArray[np.int32]:
        """The ids of a string of a group from token `begin` to `end`, as far as it has them."""
        stretch = self._chains.stretch(string, begin, end)
        node = self._tree.node[stretch.run]
        offset = stretch.offset + self._tree.at[stretch.run] - self._tree.depth[node]
        places = stretch._replace(offset=offset).places(self._tree.label[node])
        fixed = self._fixed[node]
        if fixed.all():
            return self._ids[places]
        known = np.repeat(self._known[node], stretch.length)
        symbols = np.where(known, 0, places)
        symbols[known] = self._ids[places[known]]
        made = self._natural(symbols)
        if fixed.any():
            kept = np.repeat(fixed, stretch.length)
            made[kept] = self._ids[places[kept]]
        starts = np.cumsum(stretch.length) - stretch.length
        chosen = np.flatnonzero((offset == 0) & ~fixed)
        made[starts[chosen]] = self._first[node[chosen]]
        for part in np.flatnonzero(self._over_nodes[node] & (offset < _DEEP)).tolist():
            for of in (ANY, group):
                base = self._over_key(of, int(node[part]), 0)
                bounds = [
                    base + int(offset[part]),
                    base + min(int(offset[part] + stretch.length[part]), _DEEP),
                ]
                low, high = np.searchsorted(self._over_keys, bounds).tolist()
                at_tokens = self._over_keys[low:high] - base - offset[part] + starts[part]
                made[at_tokens] = self._over_ids[low:high]
        return made

    # -- ids ------------------------------------------------------------------------------------------------------

    def _natural(self, symbols: NDArray[np.int64]) -> NDArray[np.int32]:
        """The id of each symbol where nothing is to be told apart."""
        mixed = _mixed(symbols, self._key)
        return ((mixed >> np.uint64(32)) * np.uint64(self._count) >> np.uint64(32)).astype(
            np.int32
        ) + np.int32(self._least)

    def _token(self, node: NDArray[np.int64], offset: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids at places inside of nodes: those that are known, else those of their symbols."""
        symbol = self._tree.label[node] + offset
        known, fixed = self._known[node], self._fixed[node]
        symbol[known] = self._ids[symbol[known]]
        made = self._natural(symbol).astype(np.int64)
        made[fixed] = symbol[fixed]
        return made

    def _over_key(self, group: int, node: int, offset: int) -> int:
        return ((group + 1) * len(self._tree.depth) + node) * _DEEP + offset

    # -- places where strings part ----------------------------------------------------------------------------------

    def _points(self) -> None:
        """Find the places that nodes leave others at, the root left out: `point_*`, and the point that each node leaves."""
        parent, branch = self._tree.parent, self._tree.branch
        child = 1 + np.flatnonzero(parent[1:] != 0)
        child = child[np.lexsort((branch[child], parent[child]))]
        begins = np.ones(len(child), dtype=np.bool_)
        begins[1:] = (np.diff(parent[child]) != 0) | (np.diff(branch[child]) != 0)
        at = np.flatnonzero(begins)
        self._child, self._point_start = child, np.append(at, len(child))
        self._point_node, self._point_offset = parent[child[at]], branch[child[at]]
        self._point_of = np.cumsum(begins) - 1

    def _find(self, node: NDArray[np.int64], offset: NDArray[np.int64]) -> NDArray[np.int64]:
        """The point at each place; `len(points)` if nothing leaves there."""
        low = np.searchsorted(self._point_node, node, "left")
        end = np.searchsorted(self._point_node, node, "right")
        high = end.copy()
        while (low < high).any():
            middle = (low + high) // 2
            open_ = low < high
            less = open_ & (self._point_offset[np.minimum(middle, len(self._point_node) - 1)] < offset)
            low = np.where(less, middle + 1, low)
            high = np.where(open_ & ~less, middle, high)
        there = low < end
        there[there] = self._point_offset[low[there]] == offset[there]
        return np.where(there, low, len(self._point_node))

    def _going_on(self, cursors: _Rows) -> _Rows:
        """All tokens that come next at these places."""
        stays = np.flatnonzero(cursors.offset < self._tree.extent[cursors.node])
        point = self._find(cursors.node, cursors.offset)
        counts = np.append(np.diff(self._point_start), 0)[point]
        leaving = np.repeat(np.arange(len(point)), counts)
        within = np.arange(len(leaving)) - np.repeat(np.cumsum(counts) - counts, counts)
        child = self._child[self._point_start[point[leaving]] + within]
        one, two = (
            cursors.take(stays),
            cursors.take(leaving)._replace(node=child, offset=np.zeros_like(child)),
        )
        rows = _Rows(*(np.concatenate(each) for each in zip(one, two, strict=True)))
        return rows.take(np.argsort(rows.place, kind="stable"))

    # -- choosing ids ---------------------------------------------------------------------------------------------

    def _spread_roots(self, roots: Roots) -> None:
        """First ids of all strings: different for different groups and beginnings, but where they are known."""
        known = self._fixed[roots.node]
        group = np.concatenate([np.zeros(0, dtype=np.int64), roots.group[~known]])
        fixed = np.unique(roots.node[known])
        node = np.concatenate([fixed, roots.node[~known]])
        group = np.concatenate([np.full(len(fixed), ANY), group])
        self.known_roots = len(fixed) > 0
        zeros = np.zeros_like(node)
        self._tell_apart(_Rows(zeros, group, node, zeros), deep=True)

    def _spread_points(self) -> None:
        """First ids of what leaves each place in the tree, in order of nodes."""
        points = len(self._point_node)
        stays = self._point_offset < self._tree.extent[self._point_node]
        free = np.bincount(self._point_of, ~self._fixed[self._child], minlength=points)
        crowded = np.flatnonzero(np.diff(self._point_start) + stays > self._count)
        depth = self._tree.depth[self._point_node] + self._point_offset
        for point in crowded[np.argsort(depth[crowded], kind="stable")].tolist():
            if self._consumed[point]:
                continue
            self._consumed[point] = True
            zero = np.zeros(1, dtype=np.int64)
            at = _Rows(zero, zero + ANY, self._point_node[[point]], self._point_offset[[point]])
            self._tell_apart(self._going_on(at), deep=True)
        left = np.flatnonzero(~self._consumed[:points] & (free > 0))
        kept = np.zeros(points + 1, dtype=np.bool_)
        kept[left] = True
        child = np.flatnonzero(kept[self._point_of])
        goes = left[stays[left]]
        rows = _Rows(
            np.concatenate([goes, self._point_of[child]]),
            np.full(len(goes) + len(child), ANY),
            np.concatenate([self._point_node[goes], self._child[child]]),
            np.concatenate([self._point_offset[goes], np.zeros(len(child), dtype=np.int64)]),
        )
        rows = rows.take(np.argsort(rows.place, kind="stable"))
        self._tell_apart(rows, deep=False)

    def _tell_apart(self, rows: _Rows, *, deep: bool) -> None:
        """Choose ids for what goes on at some places, so that all at one place differ; where they cannot, further on.

        Args:
            rows: what goes on.
            deep: whether ids may not suffice. If not, first tokens of nodes alone are chosen, for all groups.
        """
        level = 0
        while len(rows.place):
            choose = ~self._fixed[rows.node] & ((rows.offset < _DEEP) if deep else (rows.offset == 0))
            fixed = np.where(choose, _FREE, self._token(rows.node, rows.offset))
            ids = self._choose(rows.place, choose, fixed, level)
            chosen = rows.take(np.flatnonzero(choose))
            if not deep:
                self._first[chosen.node] = ids[choose]
                return
            keys = ((chosen.group + 1) * len(self._tree.depth) + chosen.node) * _DEEP + chosen.offset
            self._over.append((keys, ids[choose]))
            pairs = rows.place * _WIDE + ids
            _, place, counts = np.unique(pairs, return_inverse=True, return_counts=True)
            place = place.reshape(-1)
            shared = np.flatnonzero(counts[place] > 1)
            if not len(shared):
                return
            if level == 0:
                self._places += len(np.unique(rows.place[shared]))
            level += 1
            self._most = max(self._most, level)
            if level == _DEEP:
                return
            at = rows.take(shared)._replace(place=place[shared], offset=rows.offset[shared] + 1)
            everywhere = at.group == ANY
            self._consumed[self._find(at.node[everywhere], at.offset[everywhere])] = True
            rows = self._going_on(at)

    def _choose(
        self, place: NDArray[np.int64], free: NDArray[np.bool_], fixed: NDArray[np.int64], level: int
    ) -> NDArray[np.int64]:
        """Ids for the free tokens of places: different from each other and from the fixed ones, as far as there are so many.

        Args:
            place: by token its place, ascending.
            free: whether its id is to be chosen.
            fixed: its id, if not.
            level: how many times these were not told apart before.
        """
        first, count = self._least, self._count
        begins = np.ones(len(place), dtype=np.bool_)
        begins[1:] = place[1:] != place[:-1]
        dense = np.cumsum(begins) - 1
        places = int(dense[-1]) + 1
        inside = ~free & (fixed >= first) & (fixed < first + count)
        taken_by, taken = np.divmod(np.unique(dense[inside] * _WIDE + fixed[inside] - first), _WIDE)
        n_taken = np.bincount(taken_by, minlength=places)
        before = np.searchsorted(taken_by, np.arange(places))
        serial = np.cumsum(free) - 1
        rank = serial - np.append(0, np.cumsum(free))[np.flatnonzero(begins)][dense]
        salt = (_mixed(place[begins], self._key ^ (level + 1)) >> np.uint64(2)).astype(np.int64)
        left = count - n_taken
        left[left == 0] = count
        number = (salt[dense] + rank) % left[dense]
        ids = np.where(free, number, fixed)
        # the number-th id that is not taken
        one = free & (n_taken[dense] == 1) & (left[dense] < count)
        if one.any():
            ids[one] += ids[one] >= taken[before[dense[one]]]
        some_free = np.bincount(dense, free, minlength=places) > 0
        for at in np.flatnonzero((n_taken > 1) & (left < count) & some_free).tolist():
            low, high = np.searchsorted(dense, [at, at + 1]).tolist()
            mine = low + np.flatnonzero(free[low:high])
            used = taken[before[at] : before[at] + n_taken[at]]
            ids[mine] += np.searchsorted(used - np.arange(len(used)), ids[mine], "right")
        ids[free] += first
        return ids


def _mixed(values: NDArray[np.int64], key: int) -> NDArray[np.uint64]:
    """A hash of each value under a key (the finaliser of SplitMix64, Steele, Lea and Flood 2014)."""
    mixed = values.astype(np.uint64)
    mixed += np.uint64(key & _MASK)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
