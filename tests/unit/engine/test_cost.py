"""The cost of a step: the spec's examples, cases computed by hand, bounds, and one value compiled or not."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semtrace.engine.catalog import find_device, find_model
from semtrace.engine.cost import GEOMETRY, Limits, LinearCost, compile_cost, read_cost, step_ns
from semtrace.engine.roofline import RooflineCost
from semtrace.engine.settings import EngineSettings, SchedulerSettings
from semtrace.engine.steplog import step_geometry
from semtrace.engine.table import TableCost
from semtrace.errors import DocumentError, UsageError
from support.cost_oracle import time_ns

PAGE = Path(__file__).parents[3] / "spec" / "cost.md"
EXAMPLES = [
    json.loads(block)
    for block in re.findall(r"^```json example\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
]
LIMITS = Limits(requests=256, tokens=8192, length=1 << 20)
ROUND = {
    "name": "round",
    "bf16_flops": 10**15,
    "memory_bytes_per_s": 10**12,
    "memory_bytes": 1,
}  # 10^6 operations and 1,000 bytes per ns
LINEAR = {"kind": "linear", "c0_ps": 1, "c_seq_ps": 2, "c_prefill_ps": 3, "c_decode_ps": 4, "c_kv_ps": 5}
COMPILED = numba.njit(step_ns)


def time_of(cost: dict[str, Any], geometry, model=None, device=None) -> int:
    made = compile_cost(
        read_cost(cost),
        LIMITS,
        model=None if model is None else find_model(model),
        device=None if device is None else find_device(device),
    )
    plain = step_ns(made.kind, made.ints.tolist(), made.floats.tolist(), list(geometry))
    assert type(plain) is int
    assert plain == COMPILED(made.kind, made.ints, made.floats, np.array(geometry))
    return plain


def test_the_page_has_its_examples():
    assert len(EXAMPLES) == 6


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_examples_of_the_page(example):
    if "entries" in example:
        entries = example["entries"]
        columns = {
            "computed": np.array([entry["computed"] for entry in entries]),
            "tokens": np.array([entry["tokens"] for entry in entries]),
            "decode": np.array([entry["decode"] for entry in entries]),
            "yields": np.array([entry["yields"] for entry in entries]),
        }
        made = step_geometry(np.zeros(len(entries), dtype=np.int64), 1, **columns)
        assert made.tolist() == [example["geometry"]]
        return
    for step in example["steps"]:
        shown = time_of(example["cost"], step["geometry"], example.get("model"), example.get("device"))
        assert shown == step["ns"]


def test_dense_decode_by_hand():
    """Llama-3.1-8B, one sequence with a context of 1,024, 10^6 operations and 1,000 bytes per ns: memory decides."""
    qkv = 2 * 4096 * 6144 + 2 * (4096 + 6144)
    attention = 2 * 8 * 128 * 2 * (1024 + 1)
    out = 2 * 4096 * 4096 + 2 * (4096 + 4096)
    gate_up = 2 * 4096 * 28672 + 2 * (4096 + 28672)
    down = 2 * 14336 * 4096 + 2 * (14336 + 4096)
    assert (qkv, attention, out, gate_up, down) == (50352128, 4198400, 33570816, 234946560, 117477376)
    head = 2 * 4096 * 128256
    assert head == 1050673152
    ns = Fraction(32 * 440545280 + 1050673152, 1000)
    assert qkv + attention + out + gate_up + down == 440545280
    assert float(ns) == 15148122.112
    step = [1, 0, 1, 1, 0, 0, 1024, 1024]
    assert time_of({"kind": "roofline"}, step, "Llama-3.1-8B", ROUND) == 15148122
    # 161 operators of 3,000 ns; two devices do half each, and 64 all-reduces of 10,000 ns + 5 ns a token
    assert time_of({"kind": "roofline", "kernel_ns": 3000}, step, "Llama-3.1-8B", ROUND) == 15148122 + 483000
    split = {"kind": "roofline", "tensor_parallel": 2, "allreduce_ns": 10000, "allreduce_token_ns": 5}
    assert time_of(split, step, "Llama-3.1-8B", ROUND) == 7574061 + 640320
    # half of the memory's rate: twice the time; arithmetic does not matter
    slow = {"kind": "roofline", "memory_share": 0.5, "compute_share": 0.5, "c0_ps": 7000, "c_seq_ps": 1500}
    assert time_of(slow, step, "Llama-3.1-8B", ROUND) == 30296244 + 8


def test_dense_prefill_by_hand():
    """The same, a prompt of 4,096 tokens at once: arithmetic decides, but for the LM head, which sees one token."""
    operations = (
        2 * 4096 * 4096 * 6144,
        4 * 32 * 128 * (4096 * 4097 // 2),
        2 * 4096 * 4096 * 4096,
        2 * 4096 * 4096 * 28672,
        2 * 4096 * 14336 * 4096,
    )
    assert operations == (206158430208, 137472507904, 137438953472, 962072674304, 481036337152)
    assert sum(operations) == 1924178903040
    ns = Fraction(32 * 1924178903040, 10**6) + Fraction(1050673152, 1000)
    assert float(ns) == 62624398.04928
    step = [1, 4096, 0, 1, 8390656, 4096, 0, 0]
    assert time_of({"kind": "roofline"}, step, "Llama-3.1-8B", ROUND) == 62624398
    # a chunk that yields no token does without the LM head
    assert time_of({"kind": "roofline"}, [1, 4096, 0, 0, *step[4:]], "Llama-3.1-8B", ROUND) == 61573724


def test_mixture_decode_by_hand():
    """Qwen3-30B-A3B, two sequences with 512 tokens of context each: 15.5 of 128 experts are read, on average."""
    qkv = 2 * 2048 * 5120 + 2 * 2 * (2048 + 5120)
    attention = 2 * 4 * 128 * 2 * (1024 + 2)
    out = 2 * 4096 * 2048 + 2 * 2 * (4096 + 2048)
    experts = Fraction(3 * 2048 * 768 * 2) * 128 * (1 - Fraction(15, 16) ** 2)
    assert (qkv, attention, out, experts) == (21000192, 2101248, 16801792, 146276352)
    head = 2 * 2048 * 151936
    assert head == 622329856
    ns = (48 * (qkv + attention + out + experts) + head) / 1000
    assert float(ns) == 9558949.888
    step = [2, 0, 2, 2, 0, 0, 1024, 1024]
    assert time_of({"kind": "roofline"}, step, "Qwen3-30B-A3B", ROUND) == 9558949
    # 48 layers of 4 operators, and the LM head
    assert time_of({"kind": "roofline", "kernel_ns": 1000}, step, "Qwen3-30B-A3B", ROUND) == 9558949 + 193000


def test_shares_of_the_device_hold_where_the_cost_gives_none():
    step = [1, 0, 1, 1, 0, 0, 1024, 1024]
    device = {**ROUND, "memory_share": 0.5, "kernel_ns": 1000}
    assert time_of({"kind": "roofline"}, step, "Llama-3.1-8B", device) == 30296244 + 161000
    given_ = {"kind": "roofline", "memory_share": 1, "kernel_ns": 0}
    assert time_of(given_, step, "Llama-3.1-8B", device) == 15148122


def test_eight_bit_weights_and_cache_halve_the_traffic():
    base = find_model("Llama-3.1-8B").as_json()
    step = [1, 0, 1, 1, 0, 0, 1024, 1024]
    halved = {**base, "weight_bytes": 1, "kv_bytes": 1}
    assert time_of({"kind": "roofline"}, step, halved, ROUND) == 7574061
    cache_only = {**base, "kv_bytes": 1}  # 2,099.2 ns less in each of 32 layers
    assert time_of({"kind": "roofline"}, step, cache_only, ROUND) == 15080947


@st.composite
def geometries(draw):
    """Geometries of made-up sequences, so that the eight numbers belong together."""
    entries = draw(
        st.lists(
            st.tuples(st.integers(0, 1 << 19), st.integers(1, 2048), st.booleans(), st.booleans()),
            min_size=1,
            max_size=12,
        )
    )
    computed, tokens, decode, yields = (np.array(column) for column in zip(*entries, strict=True))
    tokens = np.where(decode, 1, tokens)
    made = step_geometry(
        np.zeros(len(entries), dtype=np.int64),
        1,
        computed=computed,
        tokens=tokens,
        decode=decode,
        yields=yields,
    )
    return made[0].tolist()


SHARES = ["compute_share", "memory_share", "kernel_ns"]


@st.composite
def costs(draw):
    """Any cost document that fits `LIMITS`, as what `read_cost` takes."""
    kind = draw(st.sampled_from(["linear", "roofline", "table"]))
    small = st.integers(0, 10**6)
    if kind == "linear":
        return {key: draw(small) if key != "kind" else kind for key in LINEAR}
    if kind == "roofline":
        shares = st.floats(1e-3, 1)
        made = {
            "kind": kind,
            "c0_ps": draw(small),
            "compute_share": draw(shares),
            "memory_share": draw(shares),
        }
        ways = draw(st.sampled_from([1, 2, 4]))
        if ways > 1:
            made |= {"tensor_parallel": ways, "allreduce_ns": draw(st.floats(0, 1e6))}
            made["allreduce_token_ns"] = draw(st.floats(0, 100))
        given_ = {
            key: value for key, value in made.items() if key not in draw(st.sets(st.sampled_from(SHARES)))
        }
        return {**given_, "c_seq_ps": draw(small)}
    axes = [[0, *sorted(draw(st.sets(st.integers(1, most), max_size=4)))] for most in (10000, 12, 1 << 23)]
    size = len(axes[0]) * len(axes[1]) * len(axes[2])
    times = iter(draw(st.lists(st.integers(1, 10**9), min_size=size, max_size=size)))
    return {
        "kind": kind,
        **dict(zip(("prefill_tokens", "decode_tokens", "context"), axes, strict=True)),
        "ns": [[[next(times) for _ in axes[2]] for _ in axes[1]] for _ in axes[0]],
        "beyond_prefill_ps": draw(small),
        "beyond_decode_ps": draw(small),
        "beyond_context_ps": draw(small),
    }


MODELS = ["Qwen3-4B", "Qwen3-30B-A3B", "Llama-3.1-70B"]


@given(costs(), geometries(), st.sampled_from(MODELS), st.sampled_from(["H100-SXM", "round"]))
def test_a_step_takes_what_the_text_of_the_standard_says_compiled_and_plain(cost, geometry, model, device):
    """ST-COST-003, and the formulas of each kind."""
    card = ROUND if device == "round" else find_device(device).as_json()
    found = time_of(cost, geometry, model, card)
    assert found == time_ns(cost, geometry, find_model(model).as_json(), card)
    assert found >= 1


@given(costs(), geometries(), st.sampled_from(MODELS), st.integers(0, 7), st.integers(1, 1000))
def test_more_work_never_takes_less_time(cost, geometry, model, column, more):
    if cost["kind"] == "table":
        times = iter(sorted(time for plane in cost["ns"] for line in plane for time in line))
        cost["ns"] = [[[next(times) for _ in line] for line in plane] for plane in cost["ns"]]
    greater = [number + more * (at == column) for at, number in enumerate(geometry)]
    assert time_of(cost, greater, model, "A100") >= time_of(cost, geometry, model, "A100")


@given(geometries(), st.lists(st.integers(0, 1 << 20), min_size=5, max_size=5))
def test_linear_is_the_floor_of_the_sum(geometry, terms):
    """ST-COST-004, ST-COST-001."""
    step = dict(zip(GEOMETRY, geometry, strict=True))
    c0, c_seq, c_prefill, c_decode, c_kv = terms
    ps = c0 + c_seq * step["requests"] + c_prefill * step["prefill_tokens"] + c_decode * step["decode_tokens"]
    ps += c_kv * (step["prefill_context"] + step["decode_context"])
    names = [name for name in LINEAR if name != "kind"]
    assert time_of({"kind": "linear", **dict(zip(names, terms, strict=True))}, geometry) == max(1, ps // 1000)


def test_a_table_gives_its_own_times_at_its_points():
    """ST-COST-030, ST-COST-031."""
    cost = next(example["cost"] for example in EXAMPLES if example.get("cost", {}).get("kind") == "table")
    for i, prefill in enumerate(cost["prefill_tokens"]):
        for j, decode in enumerate(cost["decode_tokens"]):
            for k, context in enumerate(cost["context"]):
                step = [1, prefill, decode, 1, 0, 0, context, context]
                assert time_of(cost, step) == cost["ns"][i][j][k]


def test_a_table_of_one_time_is_constant_until_beyond():
    """ST-COST-032."""
    cost = {
        "kind": "table", "prefill_tokens": [0], "decode_tokens": [0], "context": [0], "ns": [[[500]]],
        "beyond_prefill_ps": 0, "beyond_decode_ps": 2000, "beyond_context_ps": 3,
    }  # fmt: skip
    assert time_of(cost, [7, 9, 7, 7, 9, 9, 700, 700]) == 500 + 14 + 2


# Refusals


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"c_kv_ps": -3}, "c_kv_ps: is -3, must be from 0"),
        ({"c_kv_ps": 1 << 53}, "c_kv_ps"),
        ({"c_kv_ps": 1.5}, "c_kv_ps"),
        ({"c_kv_ps": True}, "c_kv_ps"),
        ({"c_kv_ps": None}, "c_kv_ps"),
        ({"c_kv": 1}, "did you mean 'c_kv_ps'?"),
        ({"kind": "quadratic"}, "must be one of linear, roofline, table"),
        ({"kind": ["linear"]}, "must be one of"),
        ({"format": "semtrace-plan"}, "format"),
    ],
)
def test_a_linear_cost_that_is_none_is_refused_by_field(change, said):
    """ST-COST-002."""
    with pytest.raises(DocumentError, match="ST-COST-002") as caught:
        read_cost({**LINEAR, **change})
    assert said in str(caught.value)


@pytest.mark.parametrize("left_out", [name for name in LINEAR if name != "kind"])
def test_no_coefficient_of_a_linear_cost_may_be_left_out(left_out):
    with pytest.raises(DocumentError, match=f"{left_out}: is missing"):
        read_cost({name: value for name, value in LINEAR.items() if name != left_out})


TABLE = {
    "kind": "table", "prefill_tokens": [0], "decode_tokens": [0, 5], "context": [0], "ns": [[[500], [600]]],
    "beyond_prefill_ps": 0, "beyond_decode_ps": 0, "beyond_context_ps": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"decode_tokens": [1, 5]}, "decode_tokens: must ascend from 0"),
        ({"decode_tokens": [0, 0]}, "decode_tokens: must ascend from 0"),
        ({"decode_tokens": []}, "decode_tokens"),
        ({"ns": [[[500]]]}, "must be 1 lists of 2 lists of 1 times"),
        ({"ns": [[[500], [0]]]}, "ns: has 0"),
        ({"ns": [[[500], [1 << 53]]]}, "times must be from 1"),
        ({"context": list(range(1 << 16))}, "more than 65,536 times"),
        ({"beyond_context_ps": -1}, "beyond_context_ps: is -1"),
    ],
)
def test_a_table_that_is_none_is_refused(change, said):
    with pytest.raises(DocumentError, match=re.escape(said)):
        read_cost({**TABLE, **change})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tensor_parallel": 2}, "allreduce_ns is needed"),
        ({"allreduce_ns": 5}, "one device has no all-reduce"),
        ({"allreduce_token_ns": 5.0}, "one device has no all-reduce"),
        ({"compute_share": 0}, "compute_share: is 0"),
        ({"memory_share": 1.5}, "memory_share: is 1.5"),
        ({"kernel_ns": -1}, "kernel_ns: is -1"),
        ({"kernel_ns": float("nan")}, "kernel_ns: is nan"),
        ({"c0_ps": -1}, "c0_ps: is -1"),
    ],
)
def test_a_roofline_that_is_none_is_refused(change, said):
    """ST-COST-020, ST-COST-012."""
    with pytest.raises(DocumentError, match=re.escape(said)):
        read_cost({"kind": "roofline", **change})


def test_a_roofline_needs_a_model_and_a_device_that_it_can_use():
    """ST-COST-023."""
    model, device = find_model("Qwen3-30B-A3B"), find_device(ROUND)
    cost = RooflineCost()
    for have in ({"model": model}, {"device": device}):
        with pytest.raises(DocumentError, match="a roofline needs") as caught:
            compile_cost(cost, LIMITS, **have)
        assert caught.value.requirement == "ST-COST-023"
    with pytest.raises(DocumentError, match="bf16_flops of Ascend-950DT is not known"):
        compile_cost(cost, LIMITS, model=model, device=find_device("Ascend-950DT"))
    with pytest.raises(DocumentError, match="4 kv_heads cannot be split evenly over 8 devices"):
        compile_cost(RooflineCost(tensor_parallel=8, allreduce_ns=1), LIMITS, model=model, device=device)


@pytest.mark.parametrize(
    ("cost", "limits"),
    [
        (LinearCost(c0_ps=0, c_seq_ps=0, c_prefill_ps=0, c_decode_ps=0, c_kv_ps=1 << 40), LIMITS),
        (LinearCost(c0_ps=0, c_seq_ps=0, c_prefill_ps=1 << 50, c_decode_ps=0, c_kv_ps=0), LIMITS),
        (
            LinearCost(c0_ps=0, c_seq_ps=0, c_prefill_ps=0, c_decode_ps=0, c_kv_ps=0),
            Limits(1, 1 << 30, 1 << 40),
        ),
        (TableCost(**{**TABLE, "beyond_context_ps": 1 << 40}), LIMITS),
        (
            TableCost(**{**TABLE, "ns": [[[(1 << 53) - 1], [(1 << 53) - 1]]], "beyond_decode_ps": 1 << 49}),
            LIMITS,
        ),
        (RooflineCost(c_seq_ps=(1 << 53) - 1), Limits(1 << 12, 8192, 1 << 20)),
        (RooflineCost(kernel_ns=1e15), LIMITS),
    ],
    ids=str,
)
def test_what_could_overflow_is_refused(cost, limits):
    """ST-COST-005."""
    with pytest.raises(DocumentError, match=r"must be below 2\^63") as caught:
        compile_cost(cost, limits, model=find_model("Qwen3-8B"), device=find_device("H200"))
    assert caught.value.requirement == "ST-COST-005"
    assert caught.value.hint


def test_the_greatest_step_within_the_bound_is_computed_without_overflow():
    cost = LinearCost(
        c0_ps=0, c_seq_ps=0, c_prefill_ps=0, c_decode_ps=0, c_kv_ps=(1 << 63) // (2 * 256 << 20) - 1
    )
    made = compile_cost(cost, LIMITS)
    greatest = LIMITS.greatest()
    exact = cost.c_kv_ps * 2 * greatest[5] // 1000
    assert exact > 1 << 53
    assert COMPILED(made.kind, made.ints, made.floats, np.array(greatest)) == exact


def test_limits_are_those_of_the_settings():
    scheduler = SchedulerSettings(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=1000)
    assert Limits.of(EngineSettings(scheduler, blocks=10, block_size=16)) == Limits(8, 64, 160)
    assert Limits.of(EngineSettings(scheduler, blocks=100, block_size=16)) == Limits(8, 64, 1000)


def test_costs_are_read_from_files_beside_the_document(tmp_path):
    (tmp_path / "cost.yaml").write_text(
        "kind: linear\nc0_ps: 1\nc_seq_ps: 2\nc_prefill_ps: 3\nc_decode_ps: 4\nc_kv_ps: 5\n"
    )
    assert read_cost("cost.yaml", folder=tmp_path) == read_cost(LINEAR)
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(DocumentError, match=r"list\.json"):
        read_cost("list.json", folder=tmp_path)
    with pytest.raises(UsageError, match=r"no\.yaml"):
        read_cost("no.yaml", folder=tmp_path)
    with pytest.raises(DocumentError, match="no path of a cost document"):
        read_cost("fast")
