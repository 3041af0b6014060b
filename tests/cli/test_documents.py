"""What the README and the pages tell people to type exists, and the files that they link to do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from cli.conftest import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / name
    for name in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
]
TYPED = [page for page in PAGES if page.parent in {ROOT, ROOT / "docs"} or "examples" in page.parts]


def commands(text):
    """The commands of semtrace on lines of their own, continuation lines joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return re.findall(r"^(?: {4,}|\$ |    \$ )(?:\.venv/bin/)?semtrace (\S+)(.*)$", joined, re.MULTILINE)


@pytest.mark.parametrize("page", TYPED, ids=str)
def test_commands_and_options_exist(page):
    known = run("--help").out
    for name, rest in commands(page.read_text()):
        if name.startswith("-"):
            continue
        words = [name]
        assert re.search(rf"│ {re.escape(name)} ", known), f"{page}: no command {name}"
        if name in {"certificate", "artifacts"}:
            words.append(rest.split()[0])
        told = run(*words, "--help").out
        for option in re.findall(r"(?<!\S)(--[a-z-]+|-[a-z])(?![\w-])", rest.split("#")[0]):
            assert option in told, f"{page}: {' '.join(words)} has no {option}"


def test_the_readme_shows_the_commands_of_the_main_job():
    named = {name for name, _ in commands((ROOT / "README.md").read_text())}
    assert {"import", "info", "check", "show", "plan", "replay", "audit", "measure", "compare"} <= named


def test_every_command_stands_on_a_page():
    told = "".join(page.read_text() for page in TYPED)
    names = re.findall(r"^│ ([a-z]+) ", run("--help").out, re.MULTILINE)
    assert len(names) > 20
    assert [name for name in names if not re.search(rf"semtrace {name}\b|`{name}\b", told)] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    prose = re.sub(r"```.*?```|^ {4,}[^\n]*$|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)#\s]+)", prose):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"
