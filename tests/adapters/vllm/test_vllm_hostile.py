"""A real step log with something changed in it: it is read, or refused with an error of ours, never a traceback."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from semtrace.check import check_execution, check_trace
from semtrace.errors import SemtraceError
from semtrace_adapters.base import ImportOptions
from semtrace_adapters.vllm import ADAPTER

REAL = Path(__file__).parents[2] / "data" / "vllm" / "steps.jsonl"
VALUES = [
    None,
    -1,
    0,
    1,
    1 << 31,
    1 << 40,
    1 << 62,
    1 << 63,
    1 << 70,
    1.5,
    True,
    "x",
    "",
    [],
    {},
    [1],
    [[0, 1]],
    {"a": 1},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places in a JSON value, of long lists those in their first elements."""
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    )
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def changed(seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    lines = [json.loads(line) for line in REAL.read_text("utf-8").splitlines()]
    for _ in range(rng.choice([1, 1, 2])):
        at, how = rng.randrange(len(lines)), rng.randrange(10)
        if how == 0:
            del lines[at]
        elif how == 1:
            lines.insert(at, lines[rng.randrange(len(lines))])
        else:
            *path, last = rng.choice(places(lines[at])[1:])
            inner: Any = lines[at]
            for key in path:
                inner = inner[key]
            inner[last] = rng.choice(VALUES)
    return lines


@pytest.mark.parametrize("seed", range(48))
def test_a_changed_log_is_read_or_refused(seed: int, tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in changed(seed)), "utf-8")
    try:
        result = ADAPTER.read([path], ImportOptions(values={"tasks": ("hints", "one", "matched")[seed % 3]}))
    except SemtraceError as error:
        assert error.code.startswith(("vllm.", "table."))  # noqa: PT017  # many logs end without an error
        return
    check_trace(result.trace)
    assert result.execution is not None
    check_execution(result.execution, result.trace)
