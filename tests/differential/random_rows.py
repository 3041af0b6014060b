"""Random values for every declared column; not traces, as references lead anywhere: digests do not ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semtrace.records.schema import Column, Physical, Table

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

ALPHABET = "ab é\U0001f600\0\n"


def value(column: Column, rng: random.Random) -> Any:
    """A value of the column's type, its extremes among them."""
    if column.enum is not None:
        return int(rng.choice(list(column.enum)))
    match column.type:
        case Physical.U8:
            return rng.choice([0, 1, 100, 255])
        case Physical.U32:
            return rng.choice([0, 1, rng.randrange(2**32), 2**32 - 1])
        case Physical.U64:
            return rng.choice([0, rng.randrange(2**64), 2**64 - 1])
        case Physical.I64:
            return rng.choice([0, 1, -1, rng.randrange(2**63), -(2**63), 2**63 - 1])
        case Physical.STRING:
            return "".join(rng.choices(ALPHABET, k=rng.randrange(6)))
        case Physical.BYTES32:
            return rng.choice([bytes(32), rng.randbytes(32), b"\xff" * 32])


def rows(table: Table, rng: random.Random, count: int) -> dict[str, list[Any]]:
    """A table of so many rows; a nullable column has values in some rows, in none or in all."""
    made = {}
    for column in table.columns:
        nulls = rng.choice([0.0, 0.3, 1.0]) if column.nullable else 0.0
        made[column.name] = [None if rng.random() < nulls else value(column, rng) for _ in range(count)]
    return made


def many(tables: Sequence[Table], rng: random.Random, most: int = 20) -> dict[str, dict[str, list[Any]]]:
    """Tables by name; some are empty."""
    return {table.name: rows(table, rng, rng.choice([0, 1, rng.randrange(most)])) for table in tables}
