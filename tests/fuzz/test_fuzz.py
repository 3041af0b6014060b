"""A fixed part of the fuzzing, run with the other tests; `make fuzz` runs the long one."""

from __future__ import annotations

from fuzz.run import work


def test_mutated_bundles_and_streams_end_in_findings_or_errors(tmp_path):
    ended, failures = work(first=0, step=1, cases=600, seed=20_261_129, kept=tmp_path / "kept")
    assert not failures, failures
    assert sum(ended.values()) == 600
    kinds = {name.split()[1] for name in ended}
    assert {"error", "findings"} <= kinds
