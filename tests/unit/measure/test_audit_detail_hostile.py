"""Whatever stands in the tables of steps, blocks, transfers and decisions, an audit and a report of measures come to an end."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from engine_runs import base

from semtrace.measure.audit import audit
from semtrace.measure.metrics import measure
from semtrace.measure.report import Verdict
from semtrace.records.columns import Columns
from semtrace.records.execution import Execution

TEXTS = (
    "",
    "nothing",
    "keep(until_ns=5)",
    "reserve(blocks=3)",
    f"keep(until_ns={10**30})",
    '{"a":1}',
    "host",
    "remote",
)


def cell(rng: Random, kind: pa.DataType) -> Any:
    """A value of a type, often one that no engine writes."""
    if pa.types.is_string(kind):
        return rng.choice(TEXTS)
    signed = pa.types.is_signed_integer(kind)
    low, high = (
        (-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)
        if signed
        else (0, (1 << kind.bit_width) - 1)
    )
    return rng.choice((low, high, high // 2, 0, 1, 2, 3, rng.randint(0, 60)))


@pytest.mark.parametrize("name", ["steps", "blocks"])
def test_any_values_are_audited_and_measured(name):
    ran = base(name)
    verdicts = set()
    for seed in range(40):
        rng = Random(seed)
        tables = {each: table.data.to_pylist() for each, table in ran.execution.tables.items()}
        for _ in range(rng.choice((1, 1, 2, 4))):
            table = rng.choice([each for each, rows in tables.items() if rows and each != "instances"])
            field = rng.choice(list(ran.execution[table].spec.arrow))
            if rng.random() < 0.1:
                del tables[table][rng.randrange(len(tables[table]))]
            else:
                empty = field.nullable and rng.random() < 0.2
                rng.choice(tables[table])[field.name] = None if empty else cell(rng, field.type)
        made = {
            each: Columns.of(
                ran.execution[each].spec,
                {column: [row[column] for row in rows] for column in ran.execution[each].spec.by_name},
            ).data
            for each, rows in tables.items()
        }
        execution = Execution.from_arrow(ran.execution.header, made, ran.execution.content)
        verdicts.add(audit(ran.trace, execution).verdict)
        assert measure(ran.trace, execution).as_dict()["engine"]["calls"] <= len(ran.names)
    assert Verdict.VIOLATIONS in verdicts
