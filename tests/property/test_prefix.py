"""Keys of blocks are those of an oracle that compares token by token, for random traces of every kind."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semtrace.build import TraceBuilder
from semtrace.check import check_trace
from semtrace.engine import prefix_tree
from semtrace.engine.work import Work
from semtrace.errors import ReplayError
from semtrace.records.columns import Columns
from semtrace.records.enums import (
    Availability,
    ContentLevel,
    OperationKind,
    OperationStatus,
    Role,
    SegmentScope,
)
from semtrace.records.media import BLOCK_IDS_TYPE, TOKEN_IDS_TYPE
from semtrace.records.trace import MemoryContent, Trace
from semtrace.testing.traces import TraceShape, random_trace
from support.prefix_oracle import Oracle


def compare(trace: Trace, size: int) -> Work:
    """The work of a trace, after a comparison with the oracle: a one-to-one mapping of keys."""
    work = Work.of(trace, size)
    chains = Oracle(trace).chains(size)
    expected, lengths = [key for keys in chains for key in keys], [len(keys) for keys in chains]
    assert np.diff(work.key_start).tolist() == lengths
    pairs = set(zip(work.keys.tolist(), expected, strict=True))
    assert len(pairs) == len({key for key, _ in pairs}) == len({key for _, key in pairs})
    assert sorted({key for key, _ in pairs}) == list(range(work.key_count))
    total = work.prompt_tokens + work.output_tokens
    assert (total // size).tolist() == lengths
    return work


def small(seed: int) -> Trace:
    """Operations with few contents, few token ids, and short blocks: much is equal, nothing is aligned."""
    rng = random.Random(seed)
    b = TraceBuilder(block_size=rng.choice([2, 3, 4]), hash_scope="test/scope")
    vocabulary = rng.choice([2, 3])
    pool = [rng.randrange(vocabulary) for _ in range(40)]
    for name in range(rng.randint(1, 2)):
        task, made = b.task(f"task {name}"), []
        lengths: dict[int, int] = {}
        said: dict[int, int] = {}
        for _ in range(rng.randint(1, 7)):
            failed = rng.randrange(8) == 0
            at = b.operation(
                task, OperationKind.LLM, "call",
                status=OperationStatus.ERROR if failed else OperationStatus.OK,
                duration_ns=1 if failed else None,
            )  # fmt: skip
            if made and rng.randrange(3):
                base = rng.choice(made)
                most = len(b.context(base)) + 1
                b.inherit(at, base, rng.choice([most, rng.randint(1, most)]))
            for _ in range(rng.randint(0 if made else 1, 3)):
                count = rng.randint(0, 7)
                columns: dict[str, object] = {}
                text = None
                style = rng.randrange(6)
                if style <= 1:
                    start = rng.randrange(30)
                    ids = b.artifact(struct.pack("<40I", *pool), TOKEN_IDS_TYPE)
                    columns = {"token_ids": ids, "token_ids_start": start}
                elif style == 2:
                    text = rng.choice(["one", "two"])
                elif style == 3 and made:
                    columns = {"source": rng.choice(made)}
                    count = rng.choice([count, said[columns["source"]]])  # type: ignore[index]
                elif style == 4:
                    size = b.header["block_size"]
                    ids = b.artifact(struct.pack("<6Q", 1, 2, 1 << 60, 3, 1, 2), BLOCK_IDS_TYPE)
                    columns = {"block_ids": ids, "block_ids_start": rng.randrange(6 - count // size)}
                row = b.segment(
                    at, Role.USER, text, tokens=count,
                    scope=rng.choice([SegmentScope.SHARED] * 4 + [SegmentScope.PRIVATE]), **columns,
                )  # fmt: skip
                lengths[row] = count
                if style in {2, 3, 5} and rng.randrange(4) == 0:
                    b.rows["segments"][row]["tokens"] = None
            row = b.rows["operations"][at]
            reasoning = rng.choice([0, 0, rng.randint(0, 4)])
            said[at] = rng.randint(0, 7)
            pieces = b.context(at)
            prompt = sum(said[each[0]] if isinstance(each, tuple) else lengths[each] for each in pieces)
            row.update(
                prompt_tokens=prompt if not failed or rng.randrange(2) else None,
                output_tokens=said[at] + reasoning if not failed or rng.randrange(2) else None,
                reasoning_tokens=reasoning if rng.randrange(3) else None,
                tokens_evidence=1,
            )
            if row["output_tokens"] is None:
                row["reasoning_tokens"] = None
                if row["prompt_tokens"] is None:
                    row["tokens_evidence"] = 4
            if row["output_tokens"] is not None and rng.randrange(3) == 0:
                ids = [rng.randrange(vocabulary) for _ in range(row["output_tokens"])]
                row["output_token_ids"] = b.artifact(struct.pack(f"<{len(ids)}I", *ids), TOKEN_IDS_TYPE)
            made.append(at)
    trace = b.build().trace
    if rng.randrange(4) == 0:
        trace = withheld(trace)
    return trace


def withheld(trace: Trace) -> Trace:
    """The trace at content level `shape`, with the digests that it has (a keyed digest serves as well)."""
    artifacts = trace["artifacts"].data
    at = artifacts.schema.get_field_index("availability")
    hidden = Columns.of(
        trace["artifacts"].spec,
        {
            **{name: artifacts.column(name).to_pylist() for name in artifacts.schema.names},
            "availability": [int(Availability.WITHHELD)] * artifacts.num_rows,
        },
    )
    assert at >= 0
    header = {name: [value] for name, value in trace["trace"].row(0).items()}
    header["content_level"] = [int(ContentLevel.SHAPE)]
    tables = {**trace.tables, "artifacts": hidden, "trace": Columns.of(trace["trace"].spec, header)}
    return Trace(tables, MemoryContent())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9))
def test_keys_are_those_of_the_oracle(seed: int, size: int):
    trace = small(seed)
    assert check_trace(trace) == []
    compare(trace, size)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_keys_of_traces_of_every_kind(seed: int, size: int):
    trace = random_trace(seed, TraceShape(tasks=2, operations=10)).trace
    try:
        Work.of(trace, size)
    except ReplayError as error:
        assert error.requirement == "ST-REL-011"  # noqa: PT017  # most such traces have unknown counts somewhere
        return
    compare(trace, size)


@pytest.mark.parametrize("seed", range(3))
def test_compiled_or_not_the_keys_are_the_same(seed: int, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("numba")
    trace = small(seed)
    plain = Work.of(trace, 2)
    monkeypatch.setattr("semtrace.kernels.WORTH_COMPILING", 0)
    compiled = Work.of(trace, 2)
    assert compiled.keys.tolist() == plain.keys.tolist()
    assert prefix_tree.OPAQUE == 1 << 33
