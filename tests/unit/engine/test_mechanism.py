"""What each action of a policy does, by a policy that follows a script."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

import pytest

from semtrace.engine.contexts import Structure
from semtrace.errors import ReplayError
from semtrace.policies.interface import CallEnded, Demote, Hold, Keep, Policy, Question
from semtrace.records.enums import BlockAction, EventOutcome, Tier
from support.graphs import graph
from support.lifecycle import Ran, decisions, run_engine, times, transfers
from support.scripted import Scripted, installed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from semtrace.policies.interface import Action, Facts, Notice, View

FAST = {"out_bytes_per_s": 1_000_000_000, "in_bytes_per_s": 1_000_000_000}
BOTH = {"tiers": {"host": {"blocks": 9}, "remote": {"blocks": 9}}, "links": {"host": FAST, "remote": FAST}}


@pytest.fixture(autouse=True)
def _scripted() -> Iterator[None]:
    with installed(Scripted):
        yield


def call(name: str, prompt: int, output: int = 1, **members: Any) -> dict[str, Any]:
    return {"name": name, "kind": "llm", "prompt": prompt, "output": output, **members}


def play(
    operations: list[dict[str, Any]],
    script: dict[str, list[list[Any]]],
    *,
    wants: tuple[str, ...] = (),
    subject: int = 0,
    **engine: Any,
) -> Ran:
    short = {
        "blocks": 9,
        "block_size": 4,
        "cost": [10, 0, 1, 1, 0],
        "policy": {
            "name": "scripted",
            "settings": {"script": script, "wants": list(wants), "subject": subject},
        },
        **BOTH,
        **engine,
    }
    return run_engine(operations, short)


def told(ran: Ran) -> list[tuple[int, str]]:
    """What the policy was told, as far as its script speaks of it: time, and kind and ordinal."""
    return [
        (row["time_ns"], row["inputs"].split('"key":"')[1].split('"')[0])
        for row in ran.rows("decisions")
        if row["policy"] == "scripted"
    ]


def blocks(ran: Ran, action: BlockAction, tier: Tier = Tier.DEVICE) -> list[list[Any]]:
    """Rows of blocks: time, first block, how many, why."""
    return [
        [row["time_ns"], row["first_block"], row["blocks"], row["reason"]]
        for row in ran.rows("blocks")
        if row["action"] == action and row["tier"] == tier
    ]


AGENT = [
    call("a", 8, content="x", session="s"),
    {"name": "t", "duration_ns": 100, "after": ["a"]},
    call("b", 12, content="x", session="s", after=["t"]),
]
"""a: 0 to 18; t: 18 to 118; b: from 118, 14 ns if it finds its 2 blocks, else 22."""

# -- what is declared ----------------------------------------------------------------------------------------------------


def test_who_asked_for_a_tool():
    """ST-LIF-011: the last call before it, its own session first of all; through other tools; or nobody."""
    made = graph(
        {
            "operations": [
                call("p", 4, session="s"),
                call("q", 4, session="r"),
                {"name": "both", "duration_ns": 1, "after": ["p", "q"]},
                {"name": "mine", "duration_ns": 1, "after": ["p", "q"], "session": "s"},
                {"name": "then", "duration_ns": 1, "after": ["mine"]},
                {"name": "alone", "duration_ns": 1},
                {"name": "late", "duration_ns": 1, "after": ["alone"]},
                call("end", 4, session="s", after=["then", "both"]),
            ]
        }
    )
    structure = Structure(made.trace)
    names = {row: name for name, row in made.rows.items()} | {-1: None}
    asked = {name: names[structure.asked_by[row]] for name, row in made.rows.items()}
    assert asked == {
        "p": None, "q": None, "both": "q", "mine": "p", "then": "p", "alone": None, "late": None, "end": None,
    }  # fmt: skip
    assert structure.tools(made.rows["p"]) == ("mine", "then")
    assert structure.tools(made.rows["q"]) == ("both",)
    assert structure.tools(made.rows["end"]) == ()


def test_paths_and_sessions():
    """ST-LIF-010 and ST-LIF-012."""
    made = graph(
        {
            "operations": [
                call("p", 4, session="s"),
                {"name": "t", "duration_ns": 1, "after": ["p"]},
                call("q", 4, session="s", after=["t"]),
                call("r", 4, after=["p"]),
            ]
        }
    )
    structure = Structure(made.trace)
    assert {name: structure.path[row] for name, row in made.rows.items()} == {"p": 2, "t": 1, "q": 1, "r": 1}
    assert structure.calls_of_session[structure.session[made.rows["p"]]] == 2
    assert structure.calls_of_session[structure.session[made.rows["r"]]] == 1
    assert structure.paths(0).tolist() == [0, 2, 1]


def test_critical_calls():
    """ST-LIF-012: c begins a path of 2, and d one of 1 while there is a longer one."""
    calls = [call("c", 4), call("d", 4), call("e", 4, after=["c"]), call("f", 4, after=["d", "e"])]
    ran = play(calls, {}, wants=("CallReady",))
    critical = [
        "critical=True" in row["inputs"]
        for row in sorted(ran.rows("decisions"), key=lambda row: row["event"])
    ]
    assert critical == [True, False, True, True]


# -- instants --------------------------------------------------------------------------------------------------------------


def test_the_order_of_notices():
    """ST-LIF-014: at 18 a call ends, two tools start and one of no time ends, another call is ready, a timer comes."""
    operations = [
        call("a", 8, session="s"),
        {"name": "t", "duration_ns": 100, "after": ["a"]},
        {"name": "u", "duration_ns": 0, "after": ["a"]},
        call("b", 4, session="s", after=["a"]),
        call("z", 4, session="s", after=["t"]),
    ]
    script = {"CallReady 0": [["Wake", {"at_ns": 18}]]}
    ran = play(operations, script, wants=("CallEnded", "ToolStarted", "ToolEnded", "CallReady", "Timer"))
    assert [key for time, key in told(ran) if time == 18] == [
        "CallEnded 0", "ToolStarted 0", "ToolStarted 1", "ToolEnded 0", "CallReady 1", "Timer 0",
    ]  # fmt: skip


def test_a_timer_in_the_past_comes_at_once():
    """ST-LIF-038: and two of one time are one."""
    script = {"CallReady 0": [["Wake", {"at_ns": 0}], ["Wake", {"at_ns": 1}], ["Wake", {"at_ns": 7}]]}
    assert told(play(AGENT, script, wants=("Timer",)))[1:3] == [(1, "Timer 0"), (7, "Timer 1")]


def test_pressure_is_told_at_the_next_instant():
    """ST-LIF-015: c is not admitted at 0 and not at 18, beside d; it lacks 1 block, then 2."""
    ran = play([call("d", 8, 9), call("c", 25)], {}, wants=("Pressure",), subject=0, blocks=9)
    found = [
        (row["time_ns"], row["inputs"].split("missing=")[1].split(")")[0]) for row in ran.rows("decisions")
    ]
    assert found[:2] == [(18, "1"), (29, "2")]


# -- pins ------------------------------------------------------------------------------------------------------------------


def test_a_pin_goes_with_the_next_admission():
    """ST-LIF-020 and ST-LIF-021."""
    ran = play(AGENT, {"CallEnded 0": [["Keep", {}]]})
    assert blocks(ran, BlockAction.HIT) == [[18, 1, 2, "keep"], [118, 1, 2, None]]
    assert blocks(ran, BlockAction.FREE)[:2] == [[18, 1, 2, None], [118, 1, 2, "used"]]


def test_a_pin_is_released_kept_anew_and_lapses():
    """ST-LIF-020, ST-LIF-021 and ST-LIF-022."""
    script = {
        "CallEnded 0": [["Keep", {}], ["Keep", {"until_ns": 30}], ["Keep", {"until_ns": 18}]],
        "ToolEnded 0": [["Keep", {}], ["Release", {}]],
    }
    ran = play(AGENT, script)
    assert [each for each in blocks(ran, BlockAction.FREE) if each[3]] == [
        [18, 1, 2, "kept anew"], [30, 1, 2, "lapsed"], [118, 1, 2, "release"],
    ]  # fmt: skip
    assert [18, "engine", "not done"] in decisions(ran)  # a time that is over


def test_demote():
    """ST-LIF-024: c, which needs 6 of 8 blocks, would take the 6 that keep nothing; now the last of a's goes first."""
    c = call("c", 21, content="y", after=["a"])
    assert run_engine([*AGENT, c], {"blocks": 9, "block_size": 4, "cost": [10, 0, 1, 1, 0]}).event("b")[
        "cached_tokens"
    ] == 8  # fmt: skip
    ran = play([*AGENT, c], {"CallEnded 0": [["Demote", {}]]})
    assert blocks(ran, BlockAction.EVICT) == [[18, 2, 1, None], [18, 1, 1, None]]
    assert ran.event("b")["cached_tokens"] == 0


# -- tiers ------------------------------------------------------------------------------------------------------------------


def test_offload_and_drop():
    """ST-LIF-026, ST-LIF-027 and ST-LIF-030: 32 bytes in 32 ns; then the device has forgotten them, and later the host too."""
    script = {
        "CallEnded 0": [["Offload", {"tier": "host"}]],
        "ToolEnded 0": [["Drop", {"tier": "host"}]],
        "CallReady 1": [["Prefetch", {}]],
    }
    ran = play(AGENT, script)
    assert transfers(ran) == [["host", "out", 18, 50, 2]]
    assert blocks(ran, BlockAction.DROP) == [[50, 1, 2, "offloaded"]]
    assert blocks(ran, BlockAction.DROP, Tier.HOST) == [[118, 0, 2, "policy"]]
    assert decisions(ran)[-1] == [118, "engine", "not done"]
    assert times(ran, "b") == [118, 118, 140, 140]


def test_what_the_tier_has_is_not_copied_again():
    """ST-LIF-026: the second time nothing is copied, and the device forgets at once."""
    script = {
        "CallEnded 0": [["Offload", {"tier": "host", "drop": False}]],
        "ToolEnded 0": [["Offload", {"tier": "host"}]],
    }
    ran = play(AGENT, script)
    assert len(transfers(ran)) == 1
    assert blocks(ran, BlockAction.DROP) == [[118, 1, 2, "offloaded"]]


def test_a_chain_comes_from_host_and_then_from_remote_memory():
    """ST-LIF-031 and ST-LIF-034: the first block is in host memory only, and the second in remote memory only."""
    one = call("one", 5, content="x", session="h")
    operations = [
        one,
        call("two", 12, content="x", session="r", after=["one"]),
        {"name": "t", "duration_ns": 100, "after": ["two"]},
        call("b", 13, content="x", session="r", after=["t"]),
    ]
    script = {
        "CallEnded 0": [["Offload", {"tier": "host"}]],
        "CallEnded 1": [["Offload", {"tier": "remote"}]],
        "CallReady 2": [["Prefetch", {}]],
    }
    ran = play(operations, script)
    coming = [each for each in transfers(ran) if each[1] == "in"]
    end = times(ran, "b")[0] or 0
    assert coming == [["host", "in", end, end + 16, 1], ["remote", "in", end, end + 32, 2]]
    assert times(ran, "b")[1] == end + 32
    assert [
        ran.event("b")[name] for name in ("cached_tokens", "loaded_tokens", "computed_prompt_tokens")
    ] == [0, 12, 1]


def test_a_call_waits_for_the_load_of_its_context():
    """ST-LIF-013 and ST-LIF-032: prefetched when the tool ends, and asked for again when the call is ready."""
    script = {
        "CallEnded 0": [["Offload", {"tier": "host"}]],
        "ToolEnded 0": [["Prefetch", {}], ["Prefetch", {}], ["Offload", {"tier": "host"}]],
        "CallReady 1": [["Prefetch", {}]],
    }
    ran = play(AGENT, script)
    assert transfers(ran)[1:] == [["host", "in", 118, 150, 2]]
    assert [each for each in decisions(ran) if each[1] == "engine"] == [[118, "engine", "not done"]] * 2
    assert times(ran, "b") == [118, 150, 164, 164]


def test_loads_do_not_overtake():
    """ST-LIF-032 and ST-LIF-033: at 119 3 blocks are free, and c, which waits before b, needs 5; at 161 d has ended, and there are 8."""
    late = [{**each, "delay_ns": 1} if each["name"] == "b" else each for each in AGENT]
    operations = [*late, call("d", 12, 12, content="d", after=["a"]), call("c", 17, content="c", after=["t"])]
    ran = play(
        operations, {"CallEnded 0": [["Offload", {"tier": "host"}]], "CallReady 3": [["Prefetch", {}]]}
    )
    assert decisions(ran)[1:] == [[119, "scripted", "prefetch()"], [119, "engine", "not done"]]
    assert transfers(ran)[1:] == [["host", "in", 161, 193, 2]]
    assert times(ran, "c") == [118, 161, 188, 188]
    assert times(ran, "b") == [119, 193, 207, 207]
    assert ran.event("b")["loaded_tokens"] == 8


def test_runs_of_blocks():
    """ST-LIF-028: p takes block 3 between the two of a, 2 and 4, which are two runs: 1 + 2 · 7 ns before 32 bytes."""
    operations = [
        call("p", 4, 20, content="p"),
        call("a", 8, content="x", session="s"),
        {"name": "t", "duration_ns": 500, "after": ["a"]},
        call("b", 12, content="x", session="s", after=["t"]),
    ]
    links = {"host": {**FAST, "per_run_ns": 7, "latency_ns": 1}, "remote": FAST}
    script = {"CallEnded 0": [["Offload", {"tier": "host"}]]}
    ran = play(operations, script, links=links, scheduler={"max_num_batched_tokens": 8})
    assert blocks(ran, BlockAction.OFFLOAD) == [[80, 2, 1, None], [80, 4, 1, None]]
    assert transfers(ran)[0] == ["host", "out", 33, 80, 2]


def test_no_room():
    """ST-LIF-026 and ST-LIF-042: host memory has 1 block, and 2 are wanted: it stays as it is, and that is written down."""
    tiers = {"host": {"blocks": 1}, "remote": {"blocks": 9}}
    ran = play(AGENT, {"CallEnded 0": [["Keep", {}], ["Offload", {"tier": "host"}]]}, tiers=tiers)
    row = next(row for row in ran.rows("decisions") if row["policy"] == "engine")
    assert (
        row["inputs"]
        == '{"action":"offload(tier=host, drop=true)","context":0,"reason":"no room in tier host"}'
    )
    assert row["choice"] == "not done"
    assert transfers(ran) == []
    assert ran.event("b")["cached_tokens"] == 8


# -- requests ---------------------------------------------------------------------------------------------------------------


def test_hold_and_unhold():
    """ST-LIF-036: b is passed over, c behind it is not."""
    operations = [
        call("a", 4, 9),
        call("b", 4, 1, after=[{"source": "a", "trigger": "first_token"}]),
        call("c", 4, 1, after=[{"source": "a", "trigger": "first_token"}]),
    ]
    ran = play(operations, {"CallReady 1": [["Hold", {}]]}, wants=("CallEnded",))
    assert times(ran, "c")[1] == 14
    assert times(ran, "b")[1] == times(ran, "a")[3]  # when nothing else is to do
    assert decisions(ran)[-1][1:] == ["engine", "unhold()"]


def test_reuse():
    """ST-LIF-037: b begins with 5 of 12 tokens; its blocks are not found by c; the step takes 100 ns longer."""
    operations = [
        call("a", 12, content="x"),
        call("b", 12, content="y", after=["a"]),
        call("c", 12, content="y", after=["b"]),
    ]
    ran = play(operations, {"CallReady 1": [["Reuse", {"tokens": 5, "extra": 1, "charge_ns": 100}]]})
    assert times(ran, "b") == [22, 22, 22 + 10 + 7 + 100, 139]
    assert [
        ran.event("b")[name] for name in ("cached_tokens", "reused_tokens", "computed_prompt_tokens")
    ] == [0, 5, 7]
    assert [row["free_blocks"] for row in ran.rows("steps")] == [5, 4, 5]
    assert ran.event("c")["cached_tokens"] == 0


def test_reuse_of_borrowed_blocks():
    """ST-LIF-037: b shares 2 blocks of a and takes 1; what is reused leaves a token to compute."""
    operations = [
        call("a", 12, content="x", session="s"),
        call("b", 12, content="y", after=["a"]),
        call("c", 12, content="x", session="s", after=["b"]),
    ]
    reuse = {"tokens": 99, "borrow": 2, "lender": 0, "first": 1}
    ran = play(operations, {"CallReady 1": [["Reuse", reuse]]})
    assert ran.event("b")["computed_prompt_tokens"] == 1
    assert [row["free_blocks"] for row in ran.rows("steps")] == [5, 5, 5]
    assert [each for each in blocks(ran, BlockAction.FREE) if each[3]] == [[22, 2, 2, "borrowed"]]
    assert ran.event("c")["cached_tokens"] == 8


def test_reuse_is_taken_back_so_that_nothing_hangs():
    """ST-LIF-023: b asks for more beside its tokens than there is."""
    operations = [call("a", 4), call("b", 12, after=["a"])]
    ran = play(operations, {"CallReady 1": [["Reuse", {"tokens": 5, "extra": 8}]]})
    assert decisions(ran)[-1] == [14, "engine", "no reuse"]
    assert ran.event("b")["reused_tokens"] == 0
    assert times(ran, "b") == [14, 14, 36, 36]


# -- policies that are wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ({"CallEnded 0": [["Hold", {}]]}, "answers hold(): it answers what only a question about a call"),
        ({"CallEnded 0": [["Reserve", {"blocks": 3}]]}, "asked about no server"),
        ({"CallReady 0": [["Reuse", {"tokens": 0}]]}, "reuses 0 tokens"),
    ],
)
def test_what_makes_no_sense_is_an_error(script: dict[str, Any], says: str):
    """ST-LIF-040."""
    with pytest.raises(ReplayError) as caught:
        play(AGENT, script)
    assert says in str(caught.value)
    assert "policy scripted" in str(caught.value)


class Stumbles(Scripted):
    """Asks about what there is not, asks with what is no JSON, or fails."""

    name = "stumbles"
    notices = frozenset({CallEnded})

    def __init__(self, settings: Any, facts: Facts) -> None:
        Policy.__init__(self, settings, facts)

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        del view, notice
        inputs: dict[str, Any] = {
            "deep": {"value": 1 << 60},
            "other": {},
            "key": {"key": "x"},
            "none": {"key": "none"},
            "words": {"key": "words"},
            "leaves": {"key": "leaves"},
            "nowhere": {"server": 3},
            "elsewhere": {"server": 1},
        }[self.settings.script["what"][0][0]]
        yield Question(7 if not inputs else 0, inputs, server={3: 3, 1: 0}.get(inputs.get("server", 9)))

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Action]:
        if inputs["key"] == "leaves":
            sys.exit(0)
        if inputs["key"] == "words":
            return cast("Any", ("keep",))
        return inputs["missing"] if inputs["key"] == "x" else (Keep(), Demote(), Hold())


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("deep", "stumbles asks with inputs of no canonical JSON form"),
        ("other", "stumbles asks about context 7, which there is not"),
        ("key", "stumbles fails: KeyError: 'missing'"),
        ("none", "stumbles answers hold()"),
        ("words", "stumbles answers 'keep', which is no action"),
        ("leaves", "stumbles fails: SystemExit: 0"),
        ("nowhere", "stumbles asks about server 3, which there is not"),
        ("elsewhere", "stumbles asks about server 0 with another one in its inputs"),
    ],
)
def test_a_policy_that_fails_is_told_of(what: str, says: str):
    """ST-LIF-040: it is an error with the policy's name, and no traceback."""
    document = {"name": "stumbles", "settings": {"script": {"what": [[what]]}}}
    with installed(Stumbles), pytest.raises(ReplayError) as caught:
        run_engine(AGENT, {"blocks": 9, "block_size": 4, "cost": [10, 0, 1, 1, 0], "policy": document})
    assert says in str(caught.value)


class Unborn(Stumbles):
    """Fails when it is made."""

    name = "unborn"

    def __init__(self, settings: Any, facts: Facts) -> None:
        super().__init__(settings, facts)
        raise RuntimeError(facts.block_size)


class Deaf(Policy):
    """Does not say what it wants to be told of."""

    name = "deaf"
    rule = "None."
    source = "this test"

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        del notice, view
        return ()

    def choose(self, inputs: Mapping[str, Any]) -> Sequence[Action]:
        del inputs
        return ()


@pytest.mark.parametrize(
    ("policy", "says"), [(Unborn, "RuntimeError: 4"), (Deaf, "AttributeError: .* no attribute 'notices'")]
)
def test_a_policy_that_cannot_be_made_is_told_of(policy: type[Policy], says: str):
    document = {"blocks": 9, "block_size": 4, "cost": [10, 0, 1, 1, 0], "policy": {"name": policy.name}}
    with installed(policy), pytest.raises(ReplayError, match=f"policy {policy.name} cannot be made: {says}"):
        run_engine(AGENT, document)


def test_calls_that_are_refused_end_a_pin():
    """ST-LIF-021: the next call of the context is longer than any server holds."""
    operations = [*AGENT[:2], call("b", 99, content="x", session="s", after=["t"])]
    ran = play(operations, {"CallEnded 0": [["Keep", {}]]}, oversized="outcome")
    assert ran.event("b")["outcome"] == EventOutcome.REFUSED
    assert [118, 1, 2, "refused"] in blocks(ran, BlockAction.FREE)


def test_a_request_alone_is_not_preempted_for_ever_by_what_a_pin_holds():
    """ST-LIF-023: 8 blocks, of which the pin holds 5, admit the first part of a prompt of 6 blocks and no more."""
    operations = [
        call("kept", 20, session="a"),
        {"name": "tool", "duration_ns": 1000, "session": "a", "after": ["kept"]},
        call("long", 24, session="b", after=["kept"]),
        call("again", 20, session="a", after=["tool"]),
    ]
    scheduler = {"max_num_batched_tokens": 4, "reserve_full_isl": False}
    ran = run_engine(
        operations,
        {
            "blocks": 9, "block_size": 4, "cost": [10, 0, 1, 1, 0], "scheduler": scheduler,
            "policy": {"name": "keep"},
        },
    )  # fmt: skip
    outcome = ran.execution.events.ints("outcome").tolist()
    assert outcome == [EventOutcome.OK] * len(operations)
    forced = [row for row in ran.rows("decisions") if row["policy"] == "engine"]
    assert [row["choice"] for row in forced] == ["release()"]
