"""A policy of a package of its own, built as a wheel and installed by pip: the one of docs/policies.md, and two that break the rules."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from semtrace.store.bundle import open_bundle, write_bundle
from support.graphs import graph

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"
WRONG = """
from typing import ClassVar

from semtrace.policies.interface import CallEnded, Keep, Policy, Question


class Leaks(Policy):
    name = "leaks"
    rule = "Every context is held, those of sessions that have ended too."
    source = "a test"
    notices: ClassVar = frozenset({CallEnded})

    def on(self, notice, view):
        yield Question(notice.context, {"now": view.now_ns})

    def choose(self, inputs):
        return (Keep(),)


class LooksAhead(Leaks):
    name = "looks-ahead"
    rule = "A context is held while short answers are to come: how long they are is in the engine, not in the view."

    def on(self, notice, view):
        requests = view._states[0]._requests.values()
        longest = max((each.max_tokens for each in requests), default=0)
        yield Question(notice.context, {"last": notice.last, "longest": longest})

    def choose(self, inputs):
        return () if inputs["last"] or inputs["longest"] > 4 else (Keep(),)
"""
TESTS = """
from semtrace.testing.policies import PolicyTests


class TestLeaks(PolicyTests):
    policy = "leaks"


class TestLooksAhead(PolicyTests):
    policy = "looks-ahead"
"""


def listing(name: str) -> str:
    """A file of the page, by the comment with its name."""
    found = re.search(rf"```\w+\n# {re.escape(name)}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the package."""
    folder = tmp_path_factory.mktemp("package")
    package = tomllib.loads(listing("pyproject.toml"))
    project = package["project"]
    entries = "".join(
        f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in named.items())
        for group, named in project["entry-points"].items()
    )
    assert (project["name"], project["version"]) == ("mine", "1.0")
    files = {
        **{f"{module}.py": listing(f"{module}.py") for module in package["tool"]["setuptools"]["py-modules"]},
        "wrong.py": WRONG,
        "mine-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n",
        "mine-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "mine-1.0.dist-info/entry_points.txt": entries
        + "leaks = wrong:Leaks\nlooks-ahead = wrong:LooksAhead\n",
    }
    files["mine-1.0.dist-info/RECORD"] = "".join(
        f"{name},,\n" for name in [*files, "mine-1.0.dist-info/RECORD"]
    )
    wheel = folder / "mine-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    options = [
        "--quiet",
        "--no-index",
        "--no-deps",
        "--disable-pip-version-check",
        "--target",
        folder / "site",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, wheel],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "site"


def python(site: Path, *words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Python beside which the package is installed."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def test_it_is_listed_and_used(site: Path, tmp_path: Path):
    """ST-LIF-001: by both commands, with its settings; and the audit asks it again."""
    listed = json.loads(python(site, "-m", "semtrace", "policies", "--json", folder=tmp_path).stdout)
    mine = next(each for each in listed["policies"] if each["name"] == "mine")
    assert (mine["settings"], mine["source"]) == ({"most_blocks": 100}, "this page")
    made = graph(
        {
            "operations": [
                {"name": "a", "kind": "llm", "prompt": 40, "output": 20, "session": "s"},
                {"name": "t", "duration_ns": 1000, "after": ["a"]},
                {"name": "b", "kind": "llm", "prompt": 40, "output": 20, "session": "s", "after": ["t"]},
            ]
        }
    )
    write_bundle(tmp_path / "t.semtrace", trace=made.trace)
    for most, choice in ((3, "keep()"), (2, "nothing")):  # 59 computed tokens: 3 blocks of 16
        out = tmp_path / f"{most}.semtrace"
        done = python(
            site, "-m", "semtrace", "replay", "t.semtrace", "-o", out, "--engine", "qwen3-8b-a100", "--set",
            "policy.name=mine", "--set", f"policy.settings.most_blocks={most}", "--detail", "decisions",
            folder=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        decided = open_bundle(out).execution()["decisions"].data.to_pylist()
        assert next(row["choice"] for row in decided if row["policy"] == "mine") == choice
        audit = python(site, "-m", "semtrace", "audit", "t.semtrace", out, "--json", folder=tmp_path)
        judged = {rule["requirement"]: rule["judged"] for rule in json.loads(audit.stdout)["rules"]}
        assert audit.returncode == 0
        assert judged["ST-AUD-084"] > 0


def test_its_own_tests_hold(site: Path, tmp_path: Path):
    (tmp_path / "test_mine.py").write_text(listing("test_mine.py"), "utf-8")
    done = python(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py", folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


def test_one_that_leaks_and_one_that_looks_ahead_are_caught(site: Path, tmp_path: Path):
    (tmp_path / "test_wrong.py").write_text(TESTS, "utf-8")
    done = python(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_wrong.py", folder=tmp_path)
    assert done.returncode == 1
    failed = set(re.findall(r"^FAILED test_wrong\.py::(\w+::\w+)", done.stdout, re.MULTILINE))
    assert failed == {
        "TestLeaks::test_no_block_is_held_in_the_end",
        "TestLooksAhead::test_no_decision_knows_the_future",
    }
