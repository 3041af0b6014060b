"""Which artifacts have their content here, beside what a dictionary says of it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semtrace.check import held
from semtrace.check.held import Held, first_alike
from semtrace.records.columns import NULL
from semtrace.records.enums import Availability
from semtrace.records.trace import MemoryContent

EMBEDDED, WITHHELD = int(Availability.EMBEDDED), int(Availability.WITHHELD)


def words(rng, count, values):
    """Digests of which many are equal, or equal in some of their words."""
    return rng.integers(0, values, (count, 4)).astype(np.uint64)


@pytest.mark.parametrize("values", [1, 2, 3, 1 << 40])
@pytest.mark.parametrize("count", [0, 1, 2, 700])
def test_the_first_that_is_alike(count, values):
    given = words(np.random.default_rng(count), count, values)
    seen = {}
    assert first_alike(given).tolist() == [
        seen.setdefault(word.tobytes(), at) for at, word in enumerate(given)
    ]


@pytest.mark.parametrize("block", [1, 7, 1 << 17])
def test_places_are_those_that_a_dictionary_has(block, monkeypatch):
    monkeypatch.setattr(held, "BLOCK", block)
    rng = np.random.default_rng(5)
    known = [word.tobytes() for word in words(rng, 200, 3)]
    content = MemoryContent(dict.fromkeys(known[:20], b""))
    availability = rng.choice(np.array([EMBEDDED, WITHHELD], dtype=np.uint8), 200)
    found = Held(pa.array(known, pa.binary(32)), availability, content)
    number = {digest: at for at, digest in enumerate(content)}
    assert found.places.tolist() == [
        number.get(digest, NULL) if where == EMBEDDED else NULL
        for digest, where in zip(known, availability.tolist(), strict=True)
    ]
    assert set(found.unnamed.tolist()) == set(range(len(content))) - set(found.places.tolist())
    assert [found.digest(at) for at in range(len(content))] == list(content)


def test_nothing_is_here():
    found = Held(pa.array([bytes(32)], pa.binary(32)), np.array([EMBEDDED], dtype=np.uint8), MemoryContent())
    assert found.places.tolist() == [NULL]
    assert not len(found.unnamed)
