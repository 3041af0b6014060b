"""Fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Timing decides nothing: machines are slow and shared. `make test` draws the same examples every time; fuzzing
# (HYPOTHESIS_PROFILE=fuzz) draws many, new ones each time.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("test", _UNTIMED, max_examples=50, derandomize=True, database=None)
settings.register_profile("fuzz", _UNTIMED, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of fetched sample recordings; the test is skipped, saying so, where they are absent."""
    named = os.environ.get("SEMTRACE_SAMPLES")
    if not named:
        pytest.skip("SEMTRACE_SAMPLES is not set: the fetched sample recordings are not here")
    folder = Path(named)
    if not (folder / "autogen").is_dir():
        pytest.fail(f"SEMTRACE_SAMPLES={named} has no folder autogen/")
    return folder
