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

OF_VLLM = {
    "--additional-config",
    "--disable-log-stats",
    "--enable-auto-tool-choice",
    "--enable-scale-out",
    "--enable-trace-replay",
    "--exclude-tools-when-tool-choice-none",
    "--kv-events-config",
    "--logits-processors",
    "--middleware",
    "--override-generation-config",
    "--scheduler-cls",
    "--tool-call-parser",
}
"""Options of `vllm serve` that pages name."""


def commands(text):
    """The commands of semtrace that a text shows: on lines of their own, continuation lines joined, and inside of sentences."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = re.findall(r"^(?: {4,}|\$ |    \$ )(?:\.venv/bin/)?semtrace (\S+)(.*)$", joined, re.MULTILINE)
    shells = re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", joined, re.MULTILINE | re.DOTALL)
    fenced = re.findall(r"^(?:\$ )?semtrace (\S+)(.*)$", "\n".join(shells), re.MULTILINE)
    return [*lines, *fenced, *re.findall(r"`semtrace ([^\s`]+)([^`\n]*)`", joined)]


OPTION = r"(?<![\w/-])(--[a-z][a-z-]*|-[a-z])(?![\w-])"


@pytest.fixture(scope="module")
def helps():
    """The help of each command, with those that it has, by its words."""
    found = {"": run("--help").out}

    def of(*words):
        key = " ".join(words)
        if key not in found:
            found[key] = run(*words, "--help").out
        return found[key]

    return of


def named(told):
    """The commands that a help lists."""
    return re.findall(r"^│ ([a-z][a-z-]*) ", told.partition("─ Commands ")[2], re.MULTILINE)


@pytest.mark.parametrize("page", TYPED, ids=str)
def test_commands_and_options_exist(page, helps):
    for name, rest in commands(page.read_text()):
        if name.startswith("-"):
            assert name in {"--help", "--version"}, f"{page}: no option {name}"
            continue
        words = [name]
        assert name in named(helps("")), f"{page}: no command {name}"
        given = rest.split("#")[0].partition(" -- ")[0]  # what follows is somebody else's command
        if below := named(helps(name)):
            first = given.split()[0] if given.split() else None
            if first is None:
                continue
            assert first in below, f"{page}: {name} has no {first}"
            words.append(first)
        known = re.findall(OPTION, helps(*words))
        for option in re.findall(OPTION, given):
            assert option in known, f"{page}: {' '.join(words)} has no {option}"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *(ROOT / "docs").glob("*.md")], ids=lambda page: page.name
)
def test_options_that_sentences_name_are_of_some_command(page, helps):
    known = set(re.findall(OPTION, helps("")))
    for name in named(helps("")):
        for told in (helps(name), *(helps(name, each) for each in named(helps(name)))):
            known.update(re.findall(OPTION, told))
    prose = re.sub(r"```.*?```|^ {4,}[^\n]*$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    said = {
        option
        for span in re.findall(r"`(-[^`\n]*)`", prose)
        for option in re.findall(OPTION, span.partition(" ")[0])
    }
    assert said - known <= OF_VLLM, "no command has it; if vLLM does, add it to those of vLLM"


def test_the_readme_shows_the_commands_of_the_main_job():
    named = {name for name, _ in commands((ROOT / "README.md").read_text())}
    assert {"import", "info", "check", "show", "plan", "replay", "audit", "measure", "compare"} <= named


GROUPS = {
    "bundles.md": {"import", "export", "info", "check", "show", "pack", "unpack"},
    "calibrate.md": {"calibrate"},
    "conformance.md": {"certify", "certificate"},
    "engine.md": {"engines", "compare-policies"},
    "experiments.md": {"experiment"},
    "live.md": {"doctor", "join"},
    "measure.md": {"audit", "measure", "compare"},
    "policies.md": {"policies"},
    "record.md": {"record", "seal", "convert"},
    "replay.md": {"plan", "replay"},
    "tools.md": {"filter", "sample", "merge", "renumber", "redact", "diff", "artifacts", "sweep"},
}
"""The page of each group of commands."""


def test_every_group_of_commands_has_a_page(helps):
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(named(helps("")))
    index = (ROOT / "docs" / "README.md").read_text()
    for page, group in GROUPS.items():
        told = (ROOT / "docs" / page).read_text()
        assert f"[{page}]" in index
        assert [name for name in group if not re.search(rf"semtrace {name}(?![\w-])|`{name}\b", told)] == []


def test_every_option_is_told_of(helps):
    told = "".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    known = set(re.findall(OPTION, told))
    for name in named(helps("")):
        options = set(re.findall(r"(?<![\w/-])--[a-z][a-z-]*", helps(name).partition("─ Options ")[2]))
        assert options - known - {"--help", "--output"} == set(), name


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
