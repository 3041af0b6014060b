"""The suite, and testees that answer in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from semtrace_conformance.suite import Suite, find_suite

CONFORMANCE = Path(__file__).parents[3] / "conformance"
sys.path[:0] = [str(CONFORMANCE / "fakes"), str(CONFORMANCE / "testees")]


@pytest.fixture(scope="session")
def suite() -> Suite:
    return find_suite()
