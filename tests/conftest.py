"""Fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


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
