"""Every fenced block of the standard is of a page and a kind that a test executes: none is there that nobody tries.

A requirement with an example counts as checked (test_traceability.py), so an example on a page that no test reads would make one
look checked that is not.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "spec"
UNIT = ROOT / "tests" / "unit"
EXECUTED = {
    ("audit.md", "example"): "measure/test_measure_spec.py",
    ("audit.md", "steps"): "measure/test_audit_steps.py",
    ("audit.md", "blocks"): "measure/test_audit_blocks.py",
    ("cost.md", "example"): "engine/test_cost.py",
    ("engine.md", "example"): "engine/test_engine_spec.py",
    ("lifecycle.md", "example"): "engine/test_lifecycle_spec.py",
    ("measures.md", "engine"): "measure/test_engine_measures.py",
    ("measures.md", "example"): "measure/test_measure_spec.py",
    ("measures.md", "run"): "measure/spec_runs.py",
    ("plans.md", "example"): "replay/test_release_examples.py",
    ("prefix.md", "example"): "engine/test_prefix_spec.py",
    ("prompts.md", "example"): "live/test_prompts_spec.py",
    ("release.md", "example"): "replay/test_release_examples.py",
    ("scenario.md", "example"): "replay/test_release_examples.py",
    ("stream.md", "example"): "stream/test_stream_frames.py",
}
"""By page and kind of block, what executes all blocks of that kind on that page."""


def fences(text: str) -> list[tuple[str, str]]:
    """The words after each opening fence of a page, and what stands in it."""
    return re.findall(r"^ *(?:```|~~~)([^\n]*)\n(.*?)^ *(?:```|~~~)$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", sorted([*SPEC.glob("*.md"), *SPEC.glob("vectors/*.md")]), ids=lambda page: page.name
)
def test_every_block_is_of_a_kind_that_is_executed(page):
    text = page.read_text("utf-8")
    assert len(fences(text)) * 2 == len(re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE))
    for words, content in fences(text):
        language, _, kind = words.partition(" ")
        assert language == "json", f"{page.name}: a block of {words!r}, which no test executes"
        assert (page.name, kind) in EXECUTED, f"{page.name}: no test executes its blocks of kind {kind!r}"
        json.loads(content)


def test_what_executes_them_reads_the_page():
    there = {
        (page.name, words.partition(" ")[2])
        for page in SPEC.glob("*.md")
        for words, _ in fences(page.read_text())
    }
    assert there == set(EXECUTED), "and nothing is said to be executed that is not there"
    for (page, kind), module in EXECUTED.items():
        assert kind in (UNIT / module).read_text("utf-8"), f"{module} takes no {kind} of {page}"
        folder = "".join(path.read_text("utf-8") for path in (UNIT / module).parent.glob("*.py"))
        assert page in folder, f"{module} does not name {page}"


def test_a_block_is_found_however_it_is_fenced():
    assert fences("```json example\n{}\n```\n\n  ~~~yaml\na: 1\n  ~~~\n") == [
        ("json example", "{}\n"),
        ("yaml", "a: 1\n"),
    ]
