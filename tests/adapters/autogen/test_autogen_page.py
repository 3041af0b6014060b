"""docs/autogen.md names the versions that the project's own recordings are made with."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_versions_on_the_page_are_those_of_the_tests():
    page = (ROOT / "docs/autogen.md").read_text("utf-8")
    named = set(re.findall(r"'([a-z\[\]-]+==[0-9.]+)'", page))
    kept = (ROOT / "tests/integration/requirements-autogen.txt").read_text("utf-8").split("\n")
    assert len(named) == 5
    assert named <= set(kept)
