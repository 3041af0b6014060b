"""Every rule on executions: one thing is broken in a well-formed execution, and exactly that is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from semtrace.check import check_execution
from semtrace.records.columns import Columns
from semtrace.records.enums import BlockAction, Direction, Phase, Tier
from semtrace.records.execution import Execution
from semtrace.records.execution_tables import EXECUTION_TABLE
from semtrace.records.trace import MemoryContent
from semtrace.store.digests import show
from unit.check.example import example, put

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from semtrace.records.trace import Trace

DETAIL: dict[str, list[dict[str, Any]]] = {
    "steps": [
        {"server": server, "index": index, "start_ns": 10 * index, "end_ns": 10 * index + 9, "tokens": 5}
        | {"requests": 1, "free_blocks": 7}
        for server, index in ((0, 0), (0, 1), (2, 0))
    ],
    "step_runs": [
        {"event": 0, "first_step": 0, "count": 1, "start_position": 0, "tokens_per_step": 16, "phase": Phase.PREFILL},
        {"event": 0, "first_step": 1, "count": 8, "start_position": 16, "tokens_per_step": 1, "phase": Phase.DECODE},
    ],
    "blocks": [
        {"time_ns": time, "sequence": sequence, "server": 0, "tier": Tier.DEVICE, "action": BlockAction.ALLOCATE}
        | {"blocks": 1, "bytes": 64}
        for time, sequence in ((3, 0), (3, 1), (9, 0))
    ],
    "transfers": [
        {"server": 0, "link": link, "direction": Direction.OUT, "start_ns": start, "end_ns": 9, "bytes": 64}
        for start, link in ((1, "pcie"), (2, "nvlink"), (2, "pcie"))
    ],
    "decisions": [
        {"time_ns": 4, "sequence": sequence, "policy": "keep", "inputs": '{"a":1}', "choice": "keep"}
        for sequence in (0, 1)
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def built() -> tuple[Trace, Execution]:
    made = example()
    native = made.execution
    assert native is not None
    tables = dict(native.tables)
    for name, rows in DETAIL.items():
        spec = EXECUTION_TABLE[name]
        tables[name] = Columns.of(
            spec, {column: [row.get(column) for row in rows] for column in spec.by_name}
        )
    header = native.header.model_copy(update={"detail": list(DETAIL)})
    content = MemoryContent({bytes(32): b"", b"\1" * 32: b""})
    return made.trace, Execution(header, tables, content)


def changed(table: str, column: str, values: Mapping[int, Any]) -> Callable[[Execution], Execution]:
    def change(execution: Execution) -> Execution:
        made = put(table, column, values)(execution)  # type: ignore[arg-type]  # only tables and content are used
        return Execution(execution.header, made.tables, execution.content)

    return change


def header(**values: Any) -> Callable[[Execution], Execution]:
    return lambda execution: Execution(
        execution.header.model_copy(update=values), execution.tables, execution.content
    )


Case = tuple[str, "Callable[[Execution], Execution]", str, str, str | None, tuple[int, ...]]

CASES: list[Case] = [
    ("another work", header(work_digest=show(bytes(32))), "ST-EXE-001", "header", "work_digest", ()),
    ("task out of range", changed("instances", "task", {1: 2}), "ST-TAB-006", "instances", "task", (1,)),
    ("operation out of range", changed("events", "operation", {8: 9}), "ST-TAB-006", "events", "operation", (8,)),
    ("event out of range", changed("step_runs", "event", {1: 9}), "ST-TAB-006", "step_runs", "event", (1,)),
    ("outcome of nothing", changed("events", "outcome", {8: 0}), "ST-ENUM-001", "events", "outcome", (8,)),
    ("before the beginning", changed("events", "ready_ns", {0: -5}), "ST-VAL-001", "events", "ready_ns", (0,)),
    ("time without end", changed("events", "finished_ns", {8: 1 << 62}), "ST-VAL-003", "events", "finished_ns", (8,)),
    ("copy that is none", changed("instances", "instance", {1: 1}), "ST-EXE-002", "instances", "instance", (1,)),
    ("event twice", changed("events", "operation", {1: 0}), "ST-EXE-003", "events", None, (1,)),
    ("operation of another task", changed("events", "instance", {5: 1}), "ST-EXE-004", "events", "operation", (5,)),
    ("finished before the first token", changed("events", "finished_ns", {0: 7}), "ST-EXE-005", "events", "finished_ns", (0,)),
    ("submitted before it was ready", changed("events", "submitted_ns", {0: 4}), "ST-EXE-005", "events", "submitted_ns", (0,)),
    ("evidence of no time", changed("events", "ready_evidence", {3: 1}), "ST-EXE-006", "events", "ready_evidence", (3,)),
    ("time of no evidence", changed("events", "finished_evidence", {8: 4}), "ST-EXE-006", "events", "finished_evidence", (8,)),
    ("more cached than read", changed("events", "cached_tokens", {0: 17}), "ST-EXE-007", "events", "cached_tokens", (0,)),
    ("detail not declared", header(detail=list(DETAIL)[1:]), "ST-EXE-008", "header", "detail", ()),
    ("detail of nothing", header(detail=[*DETAIL, "weather"]), "ST-EXE-009", "header", "detail", ()),
    ("ids of nowhere", changed("events", "output_ids", {0: 2}), "ST-EXE-010", "events", "output_ids", (0,)),
    ("a step is skipped", changed("steps", "index", {1: 2}), "ST-EXE-011", "steps", "index", (1,)),
    ("steps by server", changed("steps", "server", {0: 1, 1: 1, 2: 0}), "ST-EXE-011", "steps", "index", (2,)),
    ("step that ends early", changed("steps", "end_ns", {1: 9}), "ST-EXE-012", "steps", "end_ns", (1,)),
    ("transfer that ends early", changed("transfers", "end_ns", {0: 0}), "ST-EXE-012", "transfers", "end_ns", (0,)),
    ("run twice", changed("step_runs", "first_step", {1: 0}), "ST-EXE-013", "step_runs", None, (1,)),
    ("run of nothing", changed("step_runs", "count", {1: 0}), "ST-EXE-014", "step_runs", "count", (1,)),
    ("a moment is skipped", changed("blocks", "sequence", {1: 2}), "ST-EXE-015", "blocks", "sequence", (1,)),
    ("decisions by time", changed("decisions", "time_ns", {1: 3}), "ST-EXE-015", "decisions", "sequence", (1,)),
    ("transfers by start", changed("transfers", "start_ns", {1: 0}), "ST-EXE-016", "transfers", None, (1,)),
    ("transfers by link", changed("transfers", "link", {2: "eth"}), "ST-EXE-016", "transfers", None, (2,)),
    ("inputs not canonical", changed("decisions", "inputs", {0: '{"a": 1}'}), "ST-EXE-017", "decisions", "inputs", (0,)),
    ("inputs no JSON", changed("decisions", "inputs", {1: "{"}), "ST-EXE-017", "decisions", "inputs", (1,)),
]  # fmt: skip


def test_the_example_is_well_formed(built: tuple[Trace, Execution]) -> None:
    trace, execution = built
    assert check_execution(execution, trace) == []
    assert check_execution(execution, None) == []
    assert check_execution(changed("events", "output_ids", {0: 1})(execution), trace) == []


@pytest.mark.parametrize(
    ("change", "requirement", "table", "column", "rows"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_exactly_what_is_broken_is_found(
    built: tuple[Trace, Execution],
    change: Callable[[Execution], Execution],
    requirement: str,
    table: str,
    column: str | None,
    rows: tuple[int, ...],
) -> None:
    trace, execution = built
    findings = check_execution(change(execution), trace)
    assert [(each.requirement, each.table, each.column, each.rows) for each in findings] == [
        (requirement, table, column, rows)
    ]
    assert f"[{requirement}]" in str(findings[0])


AT_THE_EDGE = [
    ("all cached", changed("events", "cached_tokens", {0: 16})),
    ("step of no time", changed("steps", "end_ns", {1: 10})),
    ("all at one instant", changed("events", "finished_ns", {0: 8})),
    ("nothing cached", changed("events", "cached_tokens", {0: 0})),
]


@pytest.mark.parametrize("change", [case[1] for case in AT_THE_EDGE], ids=[case[0] for case in AT_THE_EDGE])
def test_what_is_just_allowed_is_allowed(
    built: tuple[Trace, Execution], change: Callable[[Execution], Execution]
) -> None:
    assert check_execution(change(built[1]), built[0]) == []


def test_without_its_trace_an_execution_is_not_judged_by_it(built: tuple[Trace, Execution]) -> None:
    execution = changed("events", "operation", {8: 99})(built[1])
    assert check_execution(execution, None) == []
