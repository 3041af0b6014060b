"""Ready times, schedules and critical paths on small graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from semtrace.errors import ReplayError
from semtrace.graph.critical import critical_path
from semtrace.graph.ready import UNKNOWN, ready_times, schedule
from semtrace.graph.resolve import Constraints, resolve
from support.graphs import Graph, graph

SHORT = {
    "operations": [
        {"name": "a", "duration_ns": 10, "delay_ns": 2},
        {"name": "b", "duration_ns": 3, "after": [{"source": "a", "trigger": "start", "lag_ns": 4}]},
        {"name": "c", "duration_ns": 5, "after": [{"source": "a", "trigger": "first_token"}, "b"]},
        {"name": "d", "duration_ns": 1},
    ],
}


def held(made: Graph, plan: dict[str, Any] | None = None) -> Constraints:
    return resolve(made.trace, made.plan(plan))


def array(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def test_ready_times_from_observed_ones():
    constraints = held(graph(SHORT), {"groups": [{"wait": ["b", "c"], "hold": ["d"]}]})
    arrival = array(7, 7, 7, 7)
    submitted, token, finished = (
        array(9, 13, 20, 40),
        array(15, UNKNOWN, UNKNOWN, UNKNOWN),
        array(19, 16, 30, 41),
    )
    # a: the arrival · b: 9 + 4 · c: first token of a (15) and end of b (16) · d: ends of b (16) and c (30)
    assert ready_times(constraints, arrival, submitted, token, finished).tolist() == [7, 13, 16, 30]
    # Without a first token the end stands for it; without a submission too.
    none = array(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
    assert ready_times(constraints, arrival, none, none, finished).tolist() == [7, 23, 19, 30]


def test_ready_times_that_depend_on_what_is_not_known():
    constraints = held(graph(SHORT), {"groups": [{"wait": ["b", "c"], "hold": ["d"]}]})
    arrival, submitted, token = array(7, 7, 7, 7), array(9, 13, 20, 40), array(15, UNKNOWN, UNKNOWN, UNKNOWN)
    found = ready_times(constraints, arrival, submitted, token, array(19, UNKNOWN, 30, 41))
    assert found.tolist() == [7, 13, UNKNOWN, UNKNOWN]
    unknown = array(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
    assert ready_times(constraints, unknown, submitted, token, array(19, 16, 30, 41))[0] == UNKNOWN


def test_schedule_without_limits():
    made = graph(SHORT)
    constraints = held(made, {"groups": [{"wait": ["b", "c"], "hold": ["d"]}]})
    operations = made.trace.operations
    found = schedule(
        constraints, array(7, 7, 7, 7), operations.ints("external_delay_ns"), operations.ints("duration_ns")
    )
    # a is released at 9 and ends at 19, its first token with it · b: 9 + 4 to 16 · c: 19 to 24 · d: 24
    assert found.ready_ns.tolist() == [7, 13, 19, 24]
    assert found.released_ns.tolist() == [9, 13, 19, 24]
    assert found.finished_ns.tolist() == [19, 16, 24, 25]
    early = schedule(
        constraints,
        array(7, 7, 7, 7),
        operations.ints("external_delay_ns"),
        operations.ints("duration_ns"),
        array(1, 0, 0, 0),
    )
    assert early.ready_ns.tolist() == [7, 13, 16, 21]  # c waits for b now, which ends at 16


def test_what_is_on_or_behind_a_circle_is_never_ready():
    made = graph({"operations": [{"name": name, "duration_ns": 1} for name in "abcd"]})
    constraints = held(
        made,
        {
            "edges": [{"source": "a", "target": "b"}, {"source": "c", "target": "b"}],
            "groups": [{"wait": ["b"], "hold": ["c", "d"]}],
        },
    )
    zero = array(0, 0, 0, 0)
    found = schedule(constraints, zero, zero, array(1, 1, 1, 1))
    for times in (found.ready_ns, found.released_ns, found.finished_ns):
        assert (times == UNKNOWN).tolist() == [False, True, True, True]
    with pytest.raises(ReplayError) as caught:
        critical_path(made.trace, constraints, 0, array(1, 1, 1, 1))
    assert (caught.value.code, caught.value.requirement) == ("graph.cycle", "ST-PLAN-012")


def test_times_beyond_63_bits_are_refused():
    """ST-REL-001."""
    made = graph(SHORT)
    zero = array(0, 0, 0, 0)
    with pytest.raises(ReplayError) as caught:
        schedule(held(made), zero, zero, array(1 << 61, 1 << 61, 0, 0))
    assert (caught.value.code, caught.value.requirement) == ("graph.overflow", "ST-REL-001")


def test_an_empty_trace_has_an_empty_schedule():
    made = graph({"operations": []})
    none = array()
    assert schedule(held(made), none, none, none).ready_ns.tolist() == []
    assert ready_times(held(made), none, none, none, none).tolist() == []
    with pytest.raises(ReplayError) as caught:
        critical_path(made.trace, held(made), 0, none)
    assert caught.value.code == "graph.empty"


# a 0–10 · b and c wait for a: 10–40 each · d waits for both, with a lag of 5 on c: 45–46 · e is detached: 10–110
PATHS = {
    "operations": [
        {"name": "a", "duration_ns": 10},
        {"name": "b", "duration_ns": 30, "after": ["a"]},
        {"name": "c", "duration_ns": 30, "after": ["a"]},
        {"name": "d", "duration_ns": 1, "after": ["b", {"source": "c", "lag_ns": 5}]},
        {"name": "e", "duration_ns": 100, "after": ["a"]},
    ]
}


@pytest.mark.parametrize(
    ("answer", "plan", "path", "length"),
    [
        (None, None, "ae", 110),
        ("d", None, "acd", 46),
        ("b", None, "ab", 40),
        # c after b: 40–70, then d at 75.
        ("d", {"edges": [{"source": "b", "target": "c"}]}, "abcd", 76),
        # d waits for e too, by a barrier: 110–111.
        ("d", {"groups": [{"wait": ["b", "e"], "hold": ["d"]}]}, "aed", 111),
    ],
)
def test_critical_paths(answer: str | None, plan: dict[str, Any] | None, path: str, length: int):
    """ST-REL-040."""
    made = graph({**PATHS, "tasks": [{"answer": answer} if answer else {}]})
    found = critical_path(made.trace, held(made, plan), 0, made.trace.operations.ints("duration_ns"))
    assert ("".join(made.names(found.operations)), found.length_ns) == (path, length)


def test_of_equal_predecessors_the_lowest_is_on_the_path():
    made = graph(
        {"operations": [*PATHS["operations"][:3], {"name": "d", "duration_ns": 1, "after": ["b", "c"]}]}
    )
    found = critical_path(made.trace, held(made), 0, made.trace.operations.ints("duration_ns"))
    assert "".join(made.names(found.operations)) == "abd"


def test_paths_through_starts_and_first_tokens():
    made = graph(
        {
            "operations": [
                {"name": "a", "kind": "llm", "prompt": 0, "output": 9, "delay_ns": 3},
                {"name": "b", "duration_ns": 60, "after": [{"source": "a", "trigger": "first_token"}]},
                {"name": "c", "duration_ns": 50, "after": [{"source": "a", "trigger": "start", "lag_ns": 1}]},
            ]
        }
    )
    # a is released at 3, its first token is there at 23, its end at 43 · b 23–83 · c 4–54
    found = critical_path(made.trace, held(made), 0, array(40, 60, 50), array(20, 60, 50))
    assert ("".join(made.names(found.operations)), found.length_ns) == ("ab", 83)
    # With nothing known of the first token, it is taken to come with the end.
    late = critical_path(made.trace, held(made), 0, array(40, 60, 50))
    assert late.length_ns == 103
