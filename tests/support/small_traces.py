"""Small valid traces in which much is equal, and nothing is aligned: for tests of what prompts have in common."""

from __future__ import annotations

import random
import struct

from semtrace.build import TraceBuilder
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
                    count = rng.choice([count, said[columns["source"]]])  # type: ignore[index]  # it was said for the source, which is lower
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
