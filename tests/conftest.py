"""Fixtures that all tests share."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from semtrace.store import container

if TYPE_CHECKING:
    from collections.abc import Iterator

# Timing decides nothing: machines are slow and shared. `make test` draws the same examples every time; fuzzing
# (HYPOTHESIS_PROFILE=fuzz) draws many, new ones each time.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("test", _UNTIMED, max_examples=50, derandomize=True, database=None)
settings.register_profile("fuzz", _UNTIMED, max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))

# What a shell runs in the background ignores SIGINT, and so would the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks() -> Iterator[None]:
    """Thousands of small files are written: tests do not wait for the disk; one does, with the function itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(container, "_settle", lambda _path: None)
        patch.setattr(container, "_settle_folder", lambda _path: None)
        yield


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
