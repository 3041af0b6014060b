"""What several traces share, once: models, artifacts, states and their versions."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semtrace.errors import IntegrityError
from semtrace.records.columns import NULL
from semtrace.records.enums import Availability, StateLifetime
from semtrace.store.digests import show

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from semtrace.records.trace import Trace


@dataclass(frozen=True)
class Shared:
    """Rows of one table of several traces, with those that are the same taken once.

    Attributes:
        taken: of each trace the rows that no earlier trace has.
        moved: of each trace the new id of each old one, with `NULL` for `NULL`.
    """

    taken: list[NDArray[np.int64]]
    moved: list[NDArray[np.int64]]

    @property
    def again(self) -> int:
        """How many rows an earlier trace had."""
        return sum(len(new) - 1 for new in self.moved) - sum(len(rows) for rows in self.taken)


def once(codes: Sequence[NDArray[np.int64]]) -> Shared:
    """Rows with the same code taken once, in the order of their first."""
    ends = np.cumsum([0, *(len(each) for each in codes)])
    everything = np.concatenate([*codes, np.zeros(0, dtype=np.int64)])
    _, first, inverse = np.unique(everything, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    new = rank[inverse.reshape(-1)]
    is_first = np.zeros(len(everything), dtype=np.bool_)
    is_first[first] = True
    spans = list(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
    return Shared(
        [np.flatnonzero(is_first[start:end]) for start, end in spans],
        [np.append(new[start:end], NULL) for start, end in spans],
    )


def share_models(traces: Sequence[Trace]) -> Shared:
    """Models that are equal in every column are the same; of one trace, two rows stay two."""
    known: dict[tuple[Any, ...], int] = {}
    codes = []
    for trace in traces:
        seen: dict[tuple[Any, ...], int] = defaultdict(int)
        rows = []
        for row in trace["models"].data.to_pylist():
            key = tuple(row.values())
            seen[key] += 1
            rows.append(known.setdefault((*key, seen[key]), len(known)))
        codes.append(np.array(rows, dtype=np.int64))
    return once(codes)


def share_artifacts(traces: Sequence[Trace], names: Sequence[str]) -> tuple[Shared, pa.Array]:
    """Artifacts of one digest and media type are the same; where one trace has the content, it is there.

    Returns:
        The artifacts, and the availability of each of those taken.

    Raises:
        IntegrityError: an artifact has two sizes.
    """
    tables = [trace["artifacts"] for trace in traces]
    parts = []
    for name in ("digest", "media_type"):
        column = pa.chunked_array([table.array(name) for table in tables]).combine_chunks()
        encoded = column.dictionary_encode()
        parts.append(encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64))
    digest, media_type = parts
    everything = (digest << np.int64(24)) | media_type
    ends = np.cumsum([0, *(table.rows for table in tables)])
    shared = once([everything[ends[at] : ends[at + 1]] for at in range(len(tables))])
    count = sum(len(rows) for rows in shared.taken)
    size = np.full(count, NULL, dtype=np.int64)
    best = np.full(count, int(Availability.WITHHELD), dtype=np.int64)
    for table, new, name in zip(tables, shared.moved, names, strict=True):
        place, mine = new[:-1], table.ints("size")
        other = np.flatnonzero((size[place] != NULL) & (size[place] != mine))
        if len(other):
            row = int(other[0])
            raise IntegrityError(
                f"{show(table.array('digest')[row].as_py())} has {mine[row]} bytes, elsewhere {size[place[row]]}",
                code="merge.artifact",
                path=f"{name}, artifacts.size[{row}]",
                requirement="ST-ART-006",
            )
        size[place] = mine
        best[place] = np.minimum(best[place], table.ints("availability"))
    return shared, pa.array(best.astype(np.uint8))


_Version = tuple[int, int, int, bool]  # place of its base in the state, mode, artifact, whether it is initial


@dataclass
class _Known:
    """A state of an earlier trace: its number, and the versions that are known of it."""

    code: int
    versions: list[_Version]


def share_states(traces: Sequence[Trace], artifacts: Sequence[NDArray[np.int64]]) -> tuple[Shared, Shared]:
    """States that are the same, and their versions.

    A state is the same as one of an earlier trace if namespace, name, scope and lifetime are equal, if it outlives
    tasks or nobody accesses either, and if the versions that both have are initial and the same; one may have more.

    Args:
        traces: the traces.
        artifacts: of each trace the new id of each artifact.

    Returns:
        The states, and the versions.
    """
    known: dict[tuple[Any, ...], list[_Known]] = defaultdict(list)
    state_codes, version_codes = [], []
    count = 0
    for at, trace in enumerate(traces):
        codes = np.arange(count, count + trace["states"].rows)
        count += trace["states"].rows
        earlier = {key: list(found) for key, found in known.items()}
        for state, key, versions in _eligible(trace, artifacts[at]):
            candidates = earlier.get(key, [])
            agreeing = (place for place, each in enumerate(candidates) if _agree(each.versions, versions))
            place = next(agreeing, None)
            if place is None:
                known[key].append(_Known(int(codes[state]), versions))
                continue
            found = candidates.pop(place)  # two states of one trace are never the same
            codes[state] = found.code
            found.versions = max(found.versions, versions, key=len)
        state_codes.append(codes)
        owner = trace["state_versions"].ints("state")
        version_codes.append((codes[owner] << np.int64(32)) | trace["state_versions"].ints("version"))
    return once(state_codes), once(version_codes)


def _eligible(
    trace: Trace, artifacts: NDArray[np.int64]
) -> Iterator[tuple[int, tuple[Any, ...], list[_Version]]]:
    """The states that can be the same as one of another trace: row, what must be equal, versions."""
    states, versions = trace["states"], trace["state_versions"]
    accessed = np.zeros(states.rows, dtype=np.bool_)
    accessed[versions.ints("state")[trace["state_accesses"].ints("state_version")]] = True
    lasting = states.ints("lifetime") == StateLifetime.LONG_TERM
    content = artifacts[versions.ints("artifact")]
    unknown = np.zeros(states.rows, dtype=np.bool_)
    unknown[versions.ints("state")[content == NULL]] = True
    starts = np.searchsorted(versions.ints("state"), np.arange(states.rows + 1))
    base, mode, writer = (versions.ints(name) for name in ("base", "mode", "writer"))
    # Content that is not known is not known to be the same: it matters only where somebody reads it.
    for state in np.flatnonzero(~accessed | (lasting & ~unknown)).tolist():
        row = states.row(state)
        first, end = int(starts[state]), int(starts[state + 1])
        listed = [
            (
                int(base[at]) - first if base[at] != NULL else NULL,
                int(mode[at]),
                int(content[at]),
                bool(writer[at] == NULL),
            )
            for at in range(first, end)
        ]
        yield state, (*row.values(), bool(lasting[state] and not unknown[state]), *listed[:1]), listed


def _agree(one: list[_Version], other: list[_Version]) -> bool:
    """Whether the versions that both have are the same and initial."""
    both = list(zip(one, other, strict=False))
    return all(first == second and first[3] for first, second in both)
