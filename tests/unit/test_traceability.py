"""Every requirement is checked by something, or says why not; every id that is cited exists."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from semtrace_conformance.requirements import cited, read_exclusions, read_page, read_requirements

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "spec"
SOURCES = ("semtrace", "adapters", "conformance", "tests")
REQUIREMENTS = read_requirements(SPEC)
IDS = {requirement.id for requirement in REQUIREMENTS}


def citations() -> dict[str, list[str]]:
    """The files that cite each id; this one is none of them."""
    found: dict[str, list[str]] = {}
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path != Path(__file__):
                for each in cited(path.read_text("utf-8")):
                    found.setdefault(each, []).append(str(path.relative_to(ROOT)))
    return found


def test_ids_are_given_once():
    twice = [each for each, count in Counter(each.id for each in REQUIREMENTS).items() if count > 1]
    assert twice == []


def test_every_requirement_is_checked_or_excluded():
    checked = citations().keys() | {each.id for each in REQUIREMENTS if each.has_example}
    excluded = read_exclusions(SPEC)
    open_ = [
        f"{each.file}:{each.line} {each.id}"
        for each in REQUIREMENTS
        if each.id not in checked | set(excluded)
    ]
    assert open_ == []


def test_every_cited_id_is_in_the_standard():
    unknown = {each: files for each, files in citations().items() if each not in IDS}
    assert unknown == {}


def test_pages_cite_what_there_is():
    for page in (*SPEC.rglob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")):
        unknown = cited(page.read_text("utf-8")) - IDS
        assert unknown == set(), page.name


def test_exclusions_are_of_requirements_and_have_reasons():
    excluded = read_exclusions(SPEC)
    assert set(excluded) <= IDS
    assert all(len(reason) > 30 for reason in excluded.values())


def test_requirements_say_something():
    assert len(REQUIREMENTS) > 200
    for each in REQUIREMENTS:
        assert len(each.text) > 20, each.id
        assert each.text.endswith((".", ":", ";", ")", "|")) or each.level == "definition", each.id


def test_a_page_is_read_as_it_is_written():
    page = "# Title\n\n**[ST-ONE-001]** One MUST be\ntwo.\nStill.\n\nNo more.\n- **[ST-ONE-002]** It SHOULD.\n- **[ST-ONE-003]** It is.\n\n```json example\n{}\n```\n"  # fmt: skip
    one, two, three = read_page("a.md", page)
    assert (one.id, one.level, one.text, one.line) == ("ST-ONE-001", "must", "One MUST be two. Still.", 3)
    assert (two.level, two.text, two.line) == ("should", "It SHOULD.", 8)
    assert (three.level, three.has_example) == ("definition", True)
    assert not one.has_example
