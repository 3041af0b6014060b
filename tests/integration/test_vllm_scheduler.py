"""Our scheduler and vLLM's own, the same loads, step by step: every entry, block, queue and eviction."""

from collections import Counter

import pytest

from support.schedules import counts, difference, make_case
from support.vllm_driver import recorded

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("asynchronous", "cases", "least"),
    [
        (False, 780, {"steps": 200_000, "preemptions": 5_000, "hits": 7_000, "evictions": 100_000}),
        (True, 400, {"steps": 100_000, "preemptions": 2_500, "hits": 3_500, "evictions": 50_000}),
    ],
    ids=["synchronous", "asynchronous"],
)
def test_schedules_are_equal(asynchronous, cases, least):
    seen = Counter()
    differences = []
    loads = [make_case(seed, asynchronous=asynchronous) for seed in range(cases)]
    for seed, (case, theirs) in enumerate(recorded(loads)):
        found = difference(case, theirs)
        if found:
            differences.append(f"seed {seed}: {found}")
        seen.update(counts(theirs))
    assert differences == []
    assert {name: count for name, count in least.items() if seen[name] < count} == {}, seen
