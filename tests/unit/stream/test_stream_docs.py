"""The recorder in docs/record.md works as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from semtrace.check import check_trace
from semtrace.stream.seal import seal

PAGE = Path(__file__).parents[3] / "docs/record.md"


def test_the_recorder_in_the_guide_records(tmp_path, monkeypatch):
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
        if "StreamWriter" in block
    ]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(PAGE), "exec"), {})  # noqa: S102  # our own page
    sealed = seal([tmp_path / "run.stsl"])
    assert check_trace(sealed.trace) == []
    assert sealed.trace.operations.row(0)["output_tokens"] == 7
    assert sealed.execution.events.row(0)["finished_ns"] == 900000
