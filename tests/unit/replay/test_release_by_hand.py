"""Replays of small graphs against times computed by hand, to the nanosecond.

An event is `[ready, released, first token, finished]`. Model operations take 100 + prompt ns to their first token and
10 ns for each further one. Each case says in its comments how its times come about.
"""

from __future__ import annotations

from typing import Any

import pytest

from semtrace.graph.barrier import barrier
from semtrace.graph.resolve import resolve
from semtrace.records.enums import EventOutcome
from semtrace.replay.run import replay
from support.graphs import events, graph, scenario

Case = dict[str, Any]


def tool(name: str, duration: int, *after: Any, **columns: Any) -> Case:
    return {"name": name, "duration_ns": duration, "after": list(after), **columns}


def llm(name: str, prompt: int, output: int, *after: Any, **columns: Any) -> Case:
    return {"name": name, "kind": "llm", "prompt": prompt, "output": output, "after": list(after), **columns}


def start(source: str, lag: int = 0) -> Case:
    return {"source": source, "trigger": "start", "lag_ns": lag}


def token(source: str, lag: int = 0) -> Case:
    return {"source": source, "trigger": "first_token", "lag_ns": lag}


def finish(source: str, lag: int) -> Case:
    return {"source": source, "lag_ns": lag}


CASES: dict[str, Case] = {
    # 100 + 20 to the first token, four more tokens; the tool waits for the end.
    "a call and its tool": {
        "operations": [llm("call", 20, 5), tool("search", 33, "call")],
        "events": [{"call": [0, 0, 120, 160], "search": [160, 160, None, 193]}],
    },
    # Arrival 7. The join is ready when the slower branch is done (7 + 104), not the faster one (7 + 50).
    "a fork and a join after an arrival": {
        "tasks": [{"arrival_ns": 7}],
        "operations": [llm("left", 4, 1), tool("right", 50), tool("join", 1, "left", "right")],
        "events": [{"left": [7, 7, 111, 111], "right": [7, 7, None, 57], "join": [111, 111, None, 112]}],
    },
    # The lag of the early edge (10 + 95 = 105) outweighs the end of the late one (100).
    "the later of two constraints is not that of the later end": {
        "operations": [tool("a", 10), tool("b", 100), tool("c", 1, finish("a", 95), "b")],
        "events": [{"a": [0, 0, None, 10], "b": [0, 0, None, 100], "c": [105, 105, None, 106]}],
    },
    # The start of `a` is its submission at 30, after its delay, not its ready time (ST-REL-002, ST-REL-007).
    "a start trigger counts from the submission": {
        "operations": [tool("a", 10, delay_ns=30), tool("b", 1, start("a", 2), delay_ns=5)],
        "events": [{"a": [0, 30, None, 40], "b": [32, 37, None, 38]}],
    },
    # b starts with a and ends long before it; c waits for b only.
    "a start trigger lets operations overlap": {
        "operations": [llm("a", 0, 21), tool("b", 3, start("a")), tool("c", 3, "b")],
        "events": [{"a": [0, 0, 100, 300], "b": [0, 0, None, 3], "c": [3, 3, None, 6]}],
    },
    # ST-REL-003. First tokens at 110 with three outputs (end 130), with one (end 110); without any the end (110) stands for it.
    "first tokens of three, one and no output": {
        "operations": [
            llm("three", 10, 3),
            llm("one", 10, 1),
            llm("none", 10, 0),
            tool("x", 1, token("three")),
            tool("y", 1, token("one", 4)),
            tool("z", 1, token("none")),
        ],
        "events": [
            {
                "three": [0, 0, 110, 130],
                "one": [0, 0, 110, 110],
                "none": [0, 0, None, 110],
                "x": [110, 110, None, 111],
                "y": [114, 114, None, 115],
                "z": [110, 110, None, 111],
            }
        ],
    },
    # A tool has no tokens: its end stands for the first one. So does that of an embedding: 100 + 5.
    "first tokens of what yields none": {
        "operations": [
            tool("a", 9),
            {"name": "b", "kind": "embed", "prompt": 5},
            tool("c", 1, token("a")),
            tool("d", 1, token("b")),
        ],
        "events": [
            {
                "a": [0, 0, None, 9],
                "b": [0, 0, None, 105],
                "c": [9, 9, None, 10],
                "d": [105, 105, None, 106],
            }
        ],
    },
    # What failed is not sent to the backend: it takes its 40 ns though it has counts. It ends as it did (ST-REL-014), and
    # the retry follows at 40 + 15 (ST-REL-015).
    "a failed call and its retry": {
        "operations": [
            llm("call", 500, 90, status="error", duration_ns=40),
            llm("retry", 500, 1, finish("call", 15)),
            tool("late", 1, token("call")),
        ],
        "events": [
            {
                "call": [0, 0, None, 40],
                "retry": [55, 55, 655, 655],
                "late": [40, 40, None, 41],
            }
        ],
        "outcomes": ["ERROR", "OK", "OK"],
    },
    # A cancelled call runs on the backend with the two tokens that it had; a cancelled tool takes its duration.
    "cancelled and timed out": {
        "operations": [
            llm("call", 0, 2, status="cancelled"),
            tool("tool", 8, status="cancelled"),
            tool("slow", 60, status="timeout"),
            tool("after", 1, "call", "tool", "slow"),
        ],
        "events": [
            {
                "call": [0, 0, 100, 110],
                "tool": [0, 0, None, 8],
                "slow": [0, 0, None, 60],
                "after": [110, 110, None, 111],
            }
        ],
        "outcomes": ["CANCELLED", "CANCELLED", "TIMEOUT", "OK"],
    },
    # Everything of a chain without duration happens at 12, the delay of 0 included.
    "a chain of zero duration at one instant": {
        "operations": [
            tool("a", 12),
            tool("b", 0, "a"),
            tool("c", 0, start("b")),
            tool("d", 0, token("c"), "a"),
        ],
        "events": [
            {
                "a": [0, 0, None, 12],
                "b": [12, 12, None, 12],
                "c": [12, 12, None, 12],
                "d": [12, 12, None, 12],
            }
        ],
    },
    # Ends and a release meet at 20; which of them is found first makes no difference.
    "ties": {
        "operations": [
            tool("a", 20),
            tool("b", 5, delay_ns=15),
            llm("c", 0, 0, "a", "b"),
            tool("d", 0, start("b", 5), "a"),
        ],
        "events": [
            {
                "a": [0, 0, None, 20],
                "b": [0, 15, None, 20],
                "c": [20, 20, None, 120],
                "d": [20, 20, None, 20],
            }
        ],
    },
    # Two edges from one operation with triggers of their own: 0 + 70 and 100; the start's lag does not decide.
    "two edges between the same operations": {
        "operations": [tool("a", 100), tool("b", 1, start("a", 70), finish("a", 0))],
        "events": [{"a": [0, 0, None, 100], "b": [100, 100, None, 101]}],
    },
    # Both copies of both tasks arrive with their task (ST-REL-006) and do not touch each other (ST-REL-009).
    "copies keep apart": {
        "tasks": [{"arrival_ns": 3}, {"arrival_ns": 1}],
        "operations": [
            tool("a", 2, task=0),
            tool("b", 2, "a", task=0),
            llm("c", 1, 1, task=1),
        ],
        "scenario": {"copies": 2},
        "events": [
            {"a": [3, 3, None, 5], "b": [5, 5, None, 7]},
            {"a": [3, 3, None, 5], "b": [5, 5, None, 7]},
            {"c": [1, 1, 102, 102]},
            {"c": [1, 1, 102, 102]},
        ],
    },
    # The group opens at 30, the end of its last wait operation; `e` is held by its recorded edge for longer.
    "a barrier beside recorded edges": {
        "operations": [
            tool("a", 10),
            tool("b", 30),
            tool("c", 44),
            tool("d", 1, "a", delay_ns=2),
            tool("e", 1, "c"),
        ],
        "plan": {"groups": [{"wait": ["a", "b"], "hold": ["d", "e"]}]},
        "events": [
            {
                "a": [0, 0, None, 10],
                "b": [0, 0, None, 30],
                "c": [0, 0, None, 44],
                "d": [30, 32, None, 33],
                "e": [44, 44, None, 45],
            }
        ],
    },
    # Added edges may lead from a higher to a lower operation, and have triggers and lags: a starts 6 after c.
    "an added edge from a higher to a lower operation": {
        "operations": [tool("a", 10), tool("b", 1, "a"), llm("c", 0, 2, delay_ns=4)],
        "plan": {"edges": [{"source": "c", "target": "a", "trigger": "start", "lag_ns": 6}]},
        "events": [{"a": [10, 10, None, 20], "b": [20, 20, None, 21], "c": [0, 4, 104, 114]}],
    },
    # Nested stages in chain: the whole of `inner` (two sessions, serialised in their turn) before `other`.
    #   p: 0–5 · q waits for p by the chain of `inner` (sessions p | q): 5–12 · r waits for both: 12–16 · end 16
    "nested stages one after the other": {
        "stages": [
            {"name": "outer"},
            {"name": "inner", "parent": "outer"},
            {"name": "other", "parent": "outer"},
        ],
        "operations": [
            tool("p", 5, stage="inner", session="p"),
            tool("q", 7, stage="inner", session="q"),
            tool("r", 4, stage="other", session="p"),
            tool("end", 1, "p", "q", "r"),
        ],
        "barrier": {"rule": "chain"},
        "events": [
            {
                "p": [0, 0, None, 5],
                "q": [5, 5, None, 12],
                "r": [12, 12, None, 16],
                "end": [16, 16, None, 17],
            }
        ],
    },
    # Without its control edge `b` starts at once; the data edge into `c` stays.
    "work only": {
        "operations": [tool("a", 10), tool("b", 4, "a"), tool("c", 1, "a", data=["b"])],
        "plan": {"base": "work-only"},
        "events": [{"a": [0, 0, None, 10], "b": [0, 0, None, 4], "c": [4, 4, None, 5]}],
    },
    # One user. A task without operations is answered as it arrives; the next follows after the think time of 2.
    "a closed loop with an empty task": {
        "tasks": [{}, {}, {}],
        "operations": [tool("a", 5, task=0), tool("c", 5, task=2)],
        "scenario": {"arrivals": {"kind": "closed_loop", "users": 1, "think_ns": 2}},
        "arrivals": [0, 7, 9],
        "events": [{"a": [0, 0, None, 5]}, {}, {"c": [9, 9, None, 14]}],
    },
    # Both users are answered at 5: the third and the fourth task arrive together. The fifth follows the fourth (6).
    "users answered at one instant": {
        "tasks": [{}, {}, {}, {}, {}],
        "operations": [tool(name, 5 if name != "d" else 1, task=at) for at, name in enumerate("abcde")],
        "scenario": {"arrivals": {"kind": "closed_loop", "users": 2}},
        "arrivals": [0, 0, 5, 5, 6],
        "events": [
            {"a": [0, 0, None, 5]},
            {"b": [0, 0, None, 5]},
            {"c": [5, 5, None, 10]},
            {"d": [5, 5, None, 6]},
            {"e": [6, 6, None, 11]},
        ],
    },
    # More users than instances: all at 0.
    "more users than tasks": {
        "operations": [tool("a", 5)],
        "scenario": {"copies": 2, "arrivals": {"kind": "closed_loop", "users": 9, "think_ns": 4}},
        "arrivals": [0, 0],
        "events": [{"a": [0, 0, None, 5]}, {"a": [0, 0, None, 5]}],
    },
}


@pytest.mark.parametrize("name", CASES)
def test_times_are_those_computed_by_hand(name: str):
    case = CASES[name]
    made = graph(case)
    plan = barrier(made.trace, **case["barrier"]) if "barrier" in case else made.plan(case.get("plan"))
    execution = replay(made.trace, plan, scenario(case.get("scenario")), analysis=plan.base == "work-only")
    assert events(made, execution) == case["events"]
    if "arrivals" in case:
        assert execution.instances.ints("arrival_ns").tolist() == case["arrivals"]
    if "outcomes" in case:
        outcomes = [EventOutcome(number).name for number in execution.events.ints("outcome")]
        assert outcomes == case["outcomes"]


def test_a_group_that_names_an_operation_twice_waits_for_it_once():
    made = graph({"operations": [tool("a", 3), tool("b", 1)]})
    plan = made.plan({"groups": [{"wait": ["a", "a"], "hold": ["b", "b"]}]})
    assert resolve(made.trace, plan).in_degree.tolist() == [0, 1]
    assert events(made, replay(made.trace, plan, scenario())) == [
        {"a": [0, 0, None, 3], "b": [3, 3, None, 4]}
    ]
