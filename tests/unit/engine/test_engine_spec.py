"""The examples of spec/engine.md give what they say, and what an engine document must not say is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from semtrace.engine.document import parse_engine, read_engine, ready_documents, settings_of
from semtrace.errors import DocumentError, ReplayError, UsageError
from semtrace.graph.plan import dag
from semtrace.records.columns import NULL
from semtrace.records.enums import EventOutcome, Phase
from semtrace.replay.run import replay
from semtrace.replay.scenario import Scenario
from support.graphs import graph

PAGE = (Path(__file__).parents[3] / "spec" / "engine.md").read_text("utf-8")
EXAMPLES = [
    json.loads(block) for block in re.findall(r"^```json example\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
]
COEFFICIENTS = ("c0_ps", "c_seq_ps", "c_prefill_ps", "c_decode_ps", "c_kv_ps")
TIMES = ("submitted_ns", "scheduled_ns", "first_token_ns", "finished_ns")
STEPS = ("start_ns", "end_ns", "tokens", "requests", "free_blocks")
RUNS = ("first_step", "count", "start_position", "tokens_per_step")


def engine(short: dict[str, Any]) -> dict[str, Any]:
    """An engine document whose cost is five numbers in ns."""
    cost = {name: 1000 * value for name, value in zip(COEFFICIENTS, short["cost"], strict=True)}
    return {**short, "cost": {"kind": "linear", **cost}}


def run(short: dict[str, Any]) -> tuple[Any, dict[str, int]]:
    made = graph(short)
    scenario = Scenario.parse(
        {"backend": {"name": "engine", "settings": engine(short["engine"])}, **short.get("scenario", {})},
        path="scenario",
    )
    plan = dag(made.work)
    fast = replay(made.trace, plan, scenario, detail=["steps"])
    step = replay(made.trace, plan, scenario, detail=["steps"], simulator="step")
    for table in ("instances", "events", "steps", "step_runs"):
        assert fast[table].data.equals(step[table].data), f"the two forms of the engine differ in {table}"
    return step, made.rows


def columns(table: Any, names: tuple[str, ...], row: int) -> list[int | None]:
    values = [int(table.ints(name)[row]) for name in names]
    return [None if value == NULL else value for value in values]


def test_examples_are_found():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example: dict[str, Any]):
    assert set(example) <= {"engine", "operations", "events", "runs", "steps", "cached", "preempted"}
    execution, rows = run(example)
    events, runs, steps = (execution[name] for name in ("events", "step_runs", "steps"))
    found = {name: columns(events, TIMES, row) for name, row in rows.items()}
    assert found == example["events"]
    assert [columns(steps, STEPS, row) for row in range(steps.rows)] == example["steps"]
    for name, wanted in example.get("runs", {}).items():
        of_event = [row for row in range(runs.rows) if runs.ints("event")[row] == rows[name]]
        phases = [Phase(int(runs.ints("phase")[row])).name.lower() for row in of_event]
        found_runs = [columns(runs, RUNS, row) for row in of_event]
        assert [[*run, phase] for run, phase in zip(found_runs, phases, strict=True)] == wanted
    for name, wanted in example.get("cached", {}).items():
        assert int(events.ints("cached_tokens")[rows[name]]) == wanted
    for name, wanted in example.get("preempted", {}).items():
        assert columns(events, ("preemptions", "preempted_ns"), rows[name]) == wanted


# -- documents ----------------------------------------------------------------------------------------------------

SMALL = engine({"blocks": 9, "block_size": 4, "cost": [10, 0, 1, 1, 0]})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"blocks": 0}, "blocks"),
        ({"blocks": 1}, "blocks"),
        ({"kv_tokens": 5}, "exactly one of blocks, kv_tokens and kv_bytes"),
        ({"blocks": None, "kv_bytes": 5}, "kv_bytes needs a model"),
        ({"scheduler": {"order": "sjf"}}, "order"),
        ({"scheduler": {"max_num_seqs": 0}}, "max_num_seqs"),
        ({"scheduler": {"watermark": 1.5}}, "watermark"),
        ({"schedular": {}}, "did you mean 'scheduler'?"),
        ({"cost": {**SMALL["cost"], "c0_ps": -1}}, "c0_ps"),
        ({"cost": {"kind": "quadratic"}}, "linear"),
        ({"routing": "random"}, "round_robin"),
        ({"model": "Qwen3-8C"}, "Qwen3-8B"),
    ],
)
def test_wrong_documents_are_refused(change: dict[str, Any], says: str):
    """ST-ENG-001 to ST-ENG-003."""
    values = {key: value for key, value in {**SMALL, **change}.items() if value is not None}
    with pytest.raises(DocumentError) as caught:
        parse_engine(values, path="engine")
    assert says in str(caught.value)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(DocumentError) as caught:
        parse_engine({**SMALL, "blocks": 0, "servers": 0, "routing": "random"}, path="engine")
    assert all(name in str(caught.value) for name in ("blocks", "servers", "routing"))


@pytest.mark.parametrize(
    ("size", "blocks"),
    [
        ({"blocks": 9}, 9),
        ({"kv_tokens": 9}, 3),
        ({"kv_bytes": 17_179_869_184, "block_size": 1}, 116_508 + 1),
        ({"kv_bytes": 42_949_672_960, "block_size": 1}, 291_271 + 1),
    ],
)
def test_the_size_of_the_cache(size: dict[str, int], blocks: int):
    """ST-ENG-003; a token of Qwen3-8B takes 147,456 bytes, and 16 GiB hold 116,508 of them."""
    values = {key: value for key, value in SMALL.items() if key != "blocks"}
    document = parse_engine({**values, "model": "Qwen3-8B", **size}, path="engine")
    assert settings_of(document).blocks == blocks


def test_a_cache_of_less_than_a_block_is_refused():
    values = {key: value for key, value in SMALL.items() if key != "blocks"}
    with pytest.raises(DocumentError, match="0 blocks"):
        settings_of(parse_engine({**values, "kv_tokens": 3}, path="engine"))


@pytest.mark.parametrize("name", ready_documents())
def test_ready_documents(name: str):
    document = read_engine(name, {})
    assert document.name == name
    assert document.source
    assert settings_of(document).blocks > 5_000


# -- requests that do not fit ---------------------------------------------------------------------------------------

LARGE = {
    "operations": [
        {"name": "a", "kind": "llm", "prompt": 33, "output": 1},
        {"name": "b", "kind": "llm", "prompt": 32, "output": 1},
        {"name": "c", "kind": "llm", "prompt": 3, "output": 31, "after": ["a"]},
    ]
}


def with_engine(**change: Any) -> dict[str, Any]:
    short = {"blocks": 9, "block_size": 4, "cost": [10, 0, 1, 1, 0], **change}
    return {**LARGE, "engine": short}


def test_what_no_server_can_hold_is_refused_before_the_run():
    """ST-ENG-011: 8 blocks of 4 hold 32 tokens, and the last token of all is never computed."""
    with pytest.raises(ReplayError) as caught:
        run(with_engine())
    assert "operation 0 has 33 prompt" in str(caught.value)
    assert "operations.prompt_tokens[0, 2]" in str(caught.value)


def test_what_no_server_can_hold_can_be_an_outcome():
    """ST-ENG-011: it ends when it is submitted, and what waits for it goes on."""
    execution, rows = run(with_engine(oversized="outcome"))
    outcome = execution.events.ints("outcome").tolist()
    assert [outcome[rows[name]] for name in "abc"] == [
        EventOutcome.REFUSED,
        EventOutcome.OK,
        EventOutcome.REFUSED,
    ]
    assert columns(execution.events, ("submitted_ns", "scheduled_ns", "finished_ns", "server"), rows["c"]) == [
        0, None, 0, None,
    ]  # fmt: skip


def test_an_empty_prompt_is_refused():
    """ST-ENG-010."""
    with pytest.raises(ReplayError, match="empty prompt"):
        run({**with_engine(), "operations": [{"name": "a", "kind": "llm", "prompt": 0, "output": 1}]})


def test_an_embedding_ends_with_its_prompt():
    """ST-ENG-010."""
    execution, rows = run({**with_engine(), "operations": [{"name": "a", "kind": "embed", "prompt": 8}]})
    assert columns(execution.events, (*TIMES, "output_tokens"), rows["a"]) == [0, 0, None, 18, None]


# -- routing, order, two in flight ------------------------------------------------------------------------------------


def many(count: int, **members: Any) -> list[dict[str, Any]]:
    return [{"name": f"o{at}", "kind": "llm", "prompt": 4, "output": 2, **members} for at in range(count)]


def servers(operations: list[dict[str, Any]], routing: str) -> list[int]:
    execution, rows = run(
        {
            "engine": {
                "blocks": 9,
                "block_size": 4,
                "servers": 3,
                "routing": routing,
                "cost": [10, 0, 1, 1, 0],
            },
            "operations": operations,
        }
    )
    return [int(execution.events.ints("server")[rows[each["name"]]]) for each in operations]


def test_routing():
    """ST-ENG-015."""
    assert servers(many(5), "round_robin") == [0, 1, 2, 0, 1]
    busy = {"name": "long", "kind": "llm", "prompt": 4, "output": 20}
    later = {"name": "later", "kind": "llm", "prompt": 4, "output": 2, "after": ["o0"]}
    assert servers([busy, *many(2), later], "round_robin")[-1] == 0
    assert servers([busy, *many(2), later], "least_loaded")[-1] == 1
    first = {"name": "first", "kind": "llm", "prompt": 8, "output": 2, "content": "x"}
    again = {
        "name": "again",
        "kind": "llm",
        "prompt": 8,
        "output": 2,
        "content": "x",
        "after": ["first", "o1"],
    }
    assert servers([*many(2), first, again], "least_loaded")[-1] == 0
    assert servers([*many(2), first, again], "prefix_aware")[-1] == 2
    sessions = [
        {"name": "s0", "kind": "llm", "prompt": 4, "output": 2, "session": "p"},
        {"name": "s1", "kind": "llm", "prompt": 4, "output": 2, "session": "q"},
        {"name": "s2", "kind": "llm", "prompt": 4, "output": 2, "session": "p", "after": ["s0"]},
        {"name": "s3", "kind": "llm", "prompt": 4, "output": 2, "session": "r", "after": ["s2"]},
    ]
    assert servers(sessions, "session_sticky") == [0, 1, 0, 2]


def finish(operations: list[dict[str, Any]], **scheduler: Any) -> list[str]:
    execution, rows = run(
        {
            "engine": {
                "blocks": 199, "block_size": 4, "cost": [10, 0, 1, 1, 0],
                "scheduler": {"max_num_seqs": 1, **scheduler},
            },
            "operations": operations,
        }
    )  # fmt: skip
    ends = execution.events.ints("finished_ns")
    return sorted(
        (each["name"] for each in operations if each.get("kind")), key=lambda name: int(ends[rows[name]])
    )


def test_critical_path_goes_first():
    """ST-ENG-020, ST-ENG-021 and ST-ENG-025: most calls follow `c`, counted through a tool; most tokens, as only an oracle knows, `e`."""
    operations = [
        *many(2),
        {"name": "c", "kind": "llm", "prompt": 4, "output": 2},
        {"name": "t", "duration_ns": 1, "after": ["c"]},
        {"name": "d", "kind": "llm", "prompt": 4, "output": 2, "after": ["t"]},
        {"name": "e", "kind": "llm", "prompt": 40, "output": 2},
    ]
    assert finish(operations) == ["o0", "o1", "c", "e", "d"]
    assert finish(operations, order="critical_path") == ["c", "o0", "o1", "e", "d"]
    assert finish(operations, order="critical_path_oracle") == ["e", "c", "o0", "o1", "d"]


def turns(order: str) -> list[str]:
    """Calls in the order in which they are first scheduled, one at a time: `a1` and `a2` of one session with a tool between,
    `s1` of another session of that instance, `b1` and `b2` of another instance; `a2`, `s1` and `b2` come while `b1` runs."""
    call = {"kind": "llm", "prompt": 4, "output": 9}
    short = {
        "engine": {
            "blocks": 99, "block_size": 4, "cost": [10, 0, 1, 1, 0], "scheduler": {"max_num_seqs": 1, "order": order},
        },
        "tasks": [{"arrival_ns": 0}, {"arrival_ns": 1}],
        "operations": [
            {"name": "a1", "task": 0, "session": "a", **call},
            {"name": "t", "task": 0, "duration_ns": 30, "after": ["a1"]},
            {"name": "late", "task": 0, "duration_ns": 10, "after": ["a1"]},
            {"name": "s1", "task": 0, "session": "s", **call, "after": ["late"]},
            {"name": "a2", "task": 0, "session": "a", **call, "after": ["t"]},
            {"name": "b1", "task": 1, "session": "b", **call},
            {"name": "b2", "task": 1, "session": "b", **call},
        ],
    }  # fmt: skip
    execution, rows = run(short)
    scheduled = execution.events.ints("scheduled_ns")
    names = [each["name"] for each in short["operations"] if each.get("kind")]
    return sorted(names, key=lambda name: int(scheduled[rows[name]]))


def test_the_program_that_was_served_least_goes_first():
    """ST-ENG-022: the other calls of the first task wait for those of the second, of which none has ended."""
    assert turns("fcfs") == ["a1", "b1", "b2", "s1", "a2"]
    assert turns("plas") == ["a1", "b1", "b2", "s1", "a2"]


def test_the_instance_that_came_first_goes_on_first():
    """ST-ENG-023: both sessions of the first instance go before the second call of the second one."""
    assert turns("instance_fcfs") == ["a1", "b1", "s1", "a2", "b2"]


def test_the_session_that_came_first_goes_on_first():
    """ST-ENG-024: a session that began late has no place by its instance."""
    assert turns("session_fcfs") == ["a1", "b1", "a2", "b2", "s1"]


def test_a_static_batch_takes_nobody_until_all_have_ended():
    """ST-ENG-032."""
    operations = [
        {"name": "short", "kind": "llm", "prompt": 4, "output": 2},
        {"name": "long", "kind": "llm", "prompt": 4, "output": 9},
        {"name": "next", "kind": "llm", "prompt": 4, "output": 2, "after": ["short"]},
    ]
    assert finish(operations, max_num_seqs=4) == ["short", "next", "long"]
    assert finish(operations, max_num_seqs=4, batching="static") == ["short", "long", "next"]


def test_two_steps_in_flight():
    """ST-ENG-050: the second step is scheduled with the first; it is computed when that ends."""
    short = {
        "engine": {
            "blocks": 9,
            "block_size": 4,
            "cost": [10, 0, 1, 1, 0],
            "scheduler": {"async_scheduling": True},
        },
        "operations": [{"name": "a", "kind": "llm", "prompt": 4, "output": 3}],
    }
    execution, rows = run(short)
    assert columns(execution.events, TIMES, rows["a"]) == [0, 0, 14, 36]
    steps = execution["steps"]
    assert [columns(steps, STEPS[:3], row) for row in range(steps.rows)] == [
        [0, 14, 4],
        [0, 25, 1],
        [14, 36, 1],
    ]


@pytest.mark.parametrize(
    ("change", "field"), [({"blocks": 10**9}, "blocks"), ({"blocks": 10**8, "servers": 9}, "servers")]
)
def test_an_engine_of_too_many_blocks_names_the_field(change: dict[str, int], field: str):
    call = {"name": "c", "kind": "llm", "prompt": 8, "output": 1}
    with pytest.raises(UsageError, match="too much for this engine") as caught:
        run({"operations": [call], "engine": {"block_size": 4, "cost": [1, 0, 1, 1, 0], **change}})
    assert (caught.value.path, caught.value.requirement) == (f"backend.settings.{field}", "ST-ENG-003")
    assert "smaller kv_bytes" in str(caught.value.hint)
