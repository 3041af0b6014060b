"""What prompts repeat of earlier requests, found by token ids: whole conversations, and outputs as runs of tokens."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_STRIDE: Final = 32
"""Tokens after which beginnings of prompts are compared by a hash."""
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Said:
    """A request as matching sees it.

    Attributes:
        row: whose it is.
        begins_ns: when it came.
        ends_ns: when all of its output was there; None if that is not known.
        prompt: token ids; None if they are not known.
        output: token ids; None if they are not known.
    """

    row: int
    begins_ns: int
    ends_ns: int | None
    prompt: NDArray[np.int32] | None
    output: NDArray[np.int32] | None


@dataclass(frozen=True)
class Run:
    """Tokens of a prompt that repeat an output.

    Attributes:
        begin: the first of them in the prompt.
        tokens: how many.
        source: the request whose output it is.
    """

    begin: int
    tokens: int
    source: int


@dataclass
class Matches:
    """What a prompt repeats.

    Attributes:
        base: the request whose prompt and output it begins with; None for none.
        kept: how many tokens these have.
        runs: outputs in what follows, in its order.
        ambiguous: how many of them are the output of several requests.
    """

    base: int | None = None
    kept: int = 0
    runs: list[Run] = field(default_factory=list)
    ambiguous: int = 0


def match(requests: Sequence[Said], least: int) -> dict[int, Matches]:
    """What each request repeats of those that had ended when it came.

    A prompt that begins with the whole prompt and output of another, and goes on, continues that conversation: of several the longest,
    of equal ones the last to end. In what follows, whole outputs are looked for as runs of tokens, the longest first; a token is of one run
    at most. The last token of an output may be missing: many templates do not repeat the token that ended it.

    Args:
        requests: the requests, in the order of `begins_ns`.
        least: tokens that an output must have to be looked for.

    Returns:
        by row, for those that repeat something.
    """
    found: dict[int, Matches] = {}
    ended = sorted(
        (
            each
            for each in requests
            if each.ends_ns is not None and each.output is not None and len(each.output)
        ),
        key=lambda each: (each.ends_ns, each.row),
    )
    whole, outputs, at = _Whole(), _Outputs(least), 0
    for request in requests:
        while at < len(ended) and (ended[at].ends_ns or 0) <= request.begins_ns:
            whole.add(ended[at])
            outputs.add(ended[at])
            at += 1
        if request.prompt is None:
            continue
        made = whole.find(request.prompt) or Matches()
        made.runs, made.ambiguous = outputs.find(request.prompt, made.kept)
        if made.base is not None or made.runs:
            found[request.row] = made
    return found


class _Whole:
    """Prompts with their outputs, by the hashes of their beginnings."""

    def __init__(self) -> None:
        self._by_hash: dict[int, list[Said]] = defaultdict(list)

    def add(self, request: Said) -> None:
        if request.prompt is None or request.output is None:
            return
        hashes = _beginnings(np.concatenate([request.prompt, request.output]))
        self._by_hash[hashes[-1] if hashes else 0].append(request)

    def find(self, prompt: NDArray[np.int32]) -> Matches | None:
        """The longest string that a prompt begins with, and goes on after."""
        for key in reversed([0, *_beginnings(prompt)]):
            best: Matches | None = None
            for each in self._by_hash.get(key, ()):
                if each.prompt is None or each.output is None:
                    continue
                middle, end = len(each.prompt), len(each.prompt) + len(each.output)
                if end < len(prompt) and (best is None or end >= best.kept):
                    same = np.array_equal(prompt[:middle], each.prompt)
                    if same and np.array_equal(prompt[middle:end], each.output):
                        best = Matches(each.row, end)
            if best is not None:
                return best
        return None


class _Outputs:
    """Outputs, by the hash of their first tokens."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._by_hash: dict[int, list[tuple[int, NDArray[np.int32]]]] = defaultdict(list)
        self._hashes: list[int] = []
        self._sorted = np.zeros(0, dtype=np.uint64)

    def add(self, request: Said) -> None:
        output = request.output
        if output is None or len(output) < self._least:
            return
        key = int(_windows(output[: self._least], self._least)[0])
        if key not in self._by_hash:
            self._hashes.append(key)
        self._by_hash[key].append((request.row, output))

    def find(self, prompt: NDArray[np.int32], begin: int) -> tuple[list[Run], int]:
        """The outputs that a prompt repeats from a token on, and how many of them are of several requests."""
        rest = prompt[begin:]
        if not self._hashes or len(rest) < self._least:
            return [], 0
        if len(self._sorted) != len(self._hashes):
            self._sorted = np.sort(np.array(self._hashes, dtype=np.uint64))
        windows = _windows(rest, self._least)
        slot = np.searchsorted(self._sorted, windows)
        slot[slot == len(self._sorted)] = 0
        candidates: list[tuple[int, int, int]] = []  # tokens, place, row
        for place in np.flatnonzero(self._sorted[slot] == windows).tolist():
            for row, output in self._by_hash[int(windows[place])]:
                for tokens in (len(output), len(output) - 1):
                    if tokens >= self._least and np.array_equal(
                        rest[place : place + tokens], output[:tokens]
                    ):
                        candidates.append((tokens, place, row))
                        break
        return self._choose(candidates, len(rest), begin)

    @staticmethod
    def _choose(candidates: list[tuple[int, int, int]], length: int, begin: int) -> tuple[list[Run], int]:
        """The longest first; of equal ones at one place the last to end, which comes last in the list."""
        taken = np.zeros(length, dtype=np.bool_)
        runs: list[Run] = []
        several: dict[tuple[int, int], int] = defaultdict(int)
        for tokens, place, _ in candidates:
            several[tokens, place] += 1
        ambiguous = 0
        order = sorted(range(len(candidates)), key=lambda at: (-candidates[at][0], candidates[at][1], -at))
        for at in order:
            tokens, place, row = candidates[at]
            if taken[place : place + tokens].any():
                continue
            taken[place : place + tokens] = True
            runs.append(Run(begin + place, tokens, row))
            ambiguous += several[tokens, place] > 1
        return sorted(runs, key=lambda run: run.begin), ambiguous


def _beginnings(string: NDArray[np.int32]) -> list[int]:
    """A hash of the first 32, 64, 96 … tokens."""
    blocks = len(string) // _STRIDE
    made, state = [], 0
    raw = string[: blocks * _STRIDE].tobytes()
    size = _STRIDE * 4
    for block in range(blocks):
        state = hash((state, raw[block * size : (block + 1) * size]))
        made.append(state)
    return made


def _windows(ids: NDArray[np.int32], width: int) -> NDArray[np.uint64]:
    """A hash of each run of `width` tokens, by the place where it begins."""
    values = ids.view(np.uint32).astype(np.uint64) + np.uint64(1)
    count = len(values) - width + 1
    made = np.zeros(count, dtype=np.uint64)
    for at in range(width):
        made = made * _FACTOR + values[at : at + count]
        made ^= made >> np.uint64(29)
    return made
