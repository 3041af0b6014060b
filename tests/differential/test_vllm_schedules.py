"""Our scheduler does what vLLM's own did, tick by tick, on recorded loads with every setting.

Holds ST-ENG-030, ST-ENG-031, ST-ENG-032, ST-ENG-033, ST-ENG-034, ST-ENG-035, ST-ENG-036, ST-ENG-040, ST-ENG-041, ST-ENG-042,
ST-ENG-051 and ST-ENG-052; each has faults in test_scheduler_mutants.py.
"""

from collections import Counter

from support.schedules import counts, difference, golden


def test_schedules_are_equal():
    assert [found for case, rows in golden() if (found := difference(case, rows))] == []


def test_the_loads_have_every_setting_and_event():
    seen, settings = Counter(), Counter()
    for case, rows in golden():
        asynchronous = case["settings"]["asynchronous"]
        settings.update((asynchronous, *each) for each in case["settings"].items())
        settings.update(
            (asynchronous, "abort", when in tick) for tick in case["ticks"] for when in ("abort", "meanwhile")
        )
        seen.update({(asynchronous, name): count for name, count in counts(rows).items()})
    for asynchronous in (False, True):
        for name in ("chunked_prefill", "prefix_caching", "threshold_always", "reserve_full_isl", "abort"):
            for value in (False, True):
                assert settings[asynchronous, name, value] >= 5, (asynchronous, name, value)
        for order in ("fcfs", "priority"):
            assert settings[asynchronous, "order", order] >= 20
        for name in ("long_prefill_token_threshold", "watermark_blocks"):
            others = sum(
                count for key, count in settings.items() if key[:2] == (asynchronous, name) and key[2] != 0
            )
            assert others >= 10, name
        least = {"steps": 8000, "preemptions": 100, "hits": 200, "evictions": 3000}
        assert {
            name: seen[asynchronous, name] for name in least if seen[asynchronous, name] < least[name]
        } == {}
