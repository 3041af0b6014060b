"""The harness judges itself first: testees whose points are known must get exactly these."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semtrace.errors import UsageError
from semtrace_conformance.process import Process
from semtrace_conformance.runner import Runner, order
from semtrace_conformance.score import score
from semtrace_conformance.suite import SPEC, Suite, broken

if TYPE_CHECKING:
    from semtrace_conformance.suite import Case

_POINTS: Final = {"right": 2, "accepting": 0, "refusing": 0, "dying": 0}
"""What each testee must get of two cases, a right input and a mutation of it."""
_CASES: Final[dict[str, dict[str, Any]]] = {
    "self/right": {"text": "right", "expected": {"verdict": "accept", "facts": {"rows": {"tasks": 1}}}},
    "self/wrong": {
        "text": "wrong",
        "base": "self/right",
        "expected": {"verdict": "reject", "phase": "invalid", "requirements": ["ST-TAB-001"]},
    },
}


def check_harness() -> None:
    """Run the harness on testees that it knows.

    Raises:
        UsageError: it does not give them the points that they must get: the harness is at fault.
    """
    with tempfile.TemporaryDirectory(prefix="semtrace-selfcheck-") as folder:
        suite = _suite(Path(folder))
        for mode, points in _POINTS.items():
            command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("selfcheck_testee.py")), mode]
            runner = Runner(suite, lambda scratch, command=command: Process(command, scratch))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            outcome = runner.run(order(suite.cases, lambda _: True))
            got = score(outcome.results, outcome.started.profiles).profiles["self"].points
            if got != points:
                raise UsageError(
                    f"the harness is at fault: it gives {got} points to a testee that must get {points} ({mode})",
                    code="certify.harness",
                    hint="nothing was judged; please report it",
                )


def _suite(folder: Path) -> Suite:
    """A suite of two cases."""

    def write(name: str, value: object) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")

    for name, values in _CASES.items():
        facts = {"id": name, "requirements": ["ST-TAB-001"]}
        if "base" in values:
            case = {**facts, "base": values["base"], "mutation": "it is wrong"}
        else:
            case = {**facts, "title": name, "profile": "self", "kind": "self", "inputs": {"text": "text"}}
        write(f"cases/{name}/case.json", case)
        write(f"cases/{name}/input/text", values["text"])
        write(f"expected/{name}.json", {"case": name, **values["expected"]})
    write(
        f"requirements/{SPEC}.json",
        {"spec": SPEC, "phases": {}, "profiles": {"self": {}}, "requirements": []},
    )
    write(f"requirements/tables-{SPEC}.json", {"spec": SPEC, "tables": []})
    return Suite(folder)


def check_suite(suite: Suite) -> None:
    """Look whether the suite is whole: each case has its expected answer, and each mutation its base.

    Raises:
        UsageError: it is not.
    """
    profiles = suite.requirements.profiles
    for case in suite.cases.values():
        path = suite.root / "cases" / case.id / "case.json"
        problem = _problem(suite, case)
        if problem:
            raise broken(f"{case.id}: {problem}", path)
        unknown = sorted(set(case.features) - set(profiles.get(case.profile, ())))
        if case.profile not in profiles or unknown:
            raise broken(
                f"{case.id} needs {unknown[0] if unknown else case.profile}, which is not listed", path
            )


def _problem(suite: Suite, case: Case) -> str | None:
    """What is wrong with a case, None if nothing is."""
    expected = suite.expected(case)
    if expected.case != case.id:
        return "its expected answer is that of another case"
    if expected.verdict == "reject" and (expected.phase is None or not expected.requirements):
        return "a refusal is expected without phase or requirement"
    if case.base is None:
        return (
            "nothing is expected to be accepted here, and it has no base"
            if expected.verdict == "reject"
            else None
        )
    base = suite.cases[case.base]
    return None if suite.expected(base).verdict == "accept" else f"its base {case.base} is no accept case"
