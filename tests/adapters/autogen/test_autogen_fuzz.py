"""Recordings with members changed, dropped, cut off and shuffled: always a valid trace or one clear error."""

from __future__ import annotations

import json
import os
import random

import pytest

from autogen_runs import EXAMPLES
from semtrace.check import check_trace
from semtrace.errors import SemtraceError
from semtrace_adapters.autogen import ADAPTER
from semtrace_adapters.base import ImportOptions

ROUNDS = int(os.environ.get("SEMTRACE_FUZZ_ROUNDS", "24"))
ODD = [None, 0, -1, 2**60, 1.5, True, "", "x", [], {}, [None], {"a": None}, "\u0000", "GroupChatStart"]
FILES = [
    ("events.jsonl",),
    ("spans.jsonl",),
    ("stream.jsonl",),
    ("events.jsonl", "spans.jsonl"),
    ("events.jsonl", "spans.jsonl", "stream.jsonl", "config.json"),
    ("stream.jsonl", "config.json"),
]


def changed(value, draw, share):
    if draw.random() < share:
        return draw.choice(ODD)
    if isinstance(value, dict):
        return {k: changed(v, draw, share) for k, v in value.items() if draw.random() >= share / 2}
    if isinstance(value, list):
        return [changed(v, draw, share) for v in value]
    if isinstance(value, str) and value.startswith("{") and draw.random() < 0.3:
        try:
            return json.dumps(changed(json.loads(value), draw, share))
        except ValueError:
            return value
    return value


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_anything_goes(tmp_path, seed):
    draw = random.Random(seed)
    folder = EXAMPLES / draw.choice(["graphflow", "agenttools", "nested", "swarm", "streaming", "graphloop"])
    share = draw.choice([0.0005, 0.002, 0.01, 0.05])
    for name in draw.choice(FILES):
        if not (folder / name).exists():
            continue
        text = (folder / name).read_text(encoding="utf-8")
        if name == "config.json":
            (tmp_path / name).write_text(json.dumps(changed(json.loads(text), draw, share)), encoding="utf-8")
            continue
        lines = []
        for line in text.splitlines():
            if draw.random() < share:
                continue
            lines.append(json.dumps(changed(json.loads(line), draw, share)))
            if draw.random() < share:
                lines.append(lines[-1])
            if draw.random() < share:
                lines[-1] = lines[-1][: draw.randrange(len(lines[-1]) + 1)]
        if draw.random() < 0.2:
            draw.shuffle(lines)
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    try:
        result = ADAPTER.read([tmp_path], ImportOptions())
    except SemtraceError as error:
        refused = error.code
    else:
        refused = None
    if refused is not None:
        assert refused in {"autogen.nothing", "autogen.no_run"}
        return
    assert [str(finding) for finding in check_trace(result.trace)] == []
