"""Judging one case: what was answered against what is expected. Nothing here reads a file or runs a process."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from semtrace_conformance.live.grade import REPORTED, WITNESSED, judge_live, judge_nothing_sent
from semtrace_conformance.messages import Accepted, Failed, Rejected
from semtrace_conformance.values import differences, integer, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from semtrace_conformance.suite import Case, Expected

CHECKS: Final = {
    "answer": "an answer came in time, well formed, to the question asked",
    "verdict": "right input is accepted, wrong input refused",
    "refusal.phase": "a refusal names the phase",
    "refusal.requirement": "a refusal names a requirement that is violated",
    "refusal.path": "a refused plan comes with a path that forbids it",
    "reader.digests": "work and trace digest",
    "reader.rows": "rows of each table",
    "reader.cells": "single values",
    "reader.inputs": "the whole inputs of operations, inherited context resolved",
    "reader.requests": "chat requests, rebuilt",
    "reader.executions": "executions and their digests",
    "writer.form": "what was to be written is there, in the form asked for",
    "writer.sound": "it is a bundle in which every byte is under a digest",
    "writer.digests": "it has the digests expected, and the manifest and the answer say so",
    "writer.content": "it holds the content that it was given, and no other",
    "writer.order": "operations are numbered as a producer must",
    "writer.preserved": "what the writer need not know is still there",
    "planner.verdicts": "each added constraint is judged",
    "planner.groups": "the groups of a barrier plan, and how it was made",
    "planner.digest": "the digest of the plan",
    "release.digest": "the execution digest",
    "release.times": "ready, released, submitted, scheduled, first token, finished, to the nanosecond",
    "release.arrivals": "arrivals of instances, to the nanosecond",
    "store.contents": "content by its digest, how much there is, and what was removed",
    "store.state": "what lies in the store afterwards, and what was marked as used",
    "audit.found": "every planted fault is found",
    "audit.others": "nothing else is found",
    "audit.verdict": "what the audit says in all",
    **WITNESSED,
    **REPORTED,
}
"""Every check by name."""

_FACTS: Final[dict[str, str]] = {
    "work_digest": "reader.digests",
    "trace_digest": "reader.digests",
    "content_level": "reader.digests",
    "rows": "reader.rows",
    "cells": "reader.cells",
    "inputs": "reader.inputs",
    "requests": "reader.requests",
    "executions": "reader.executions",
    "order": "writer.order",
    "contents": "store.contents",
    "digests": "store.contents",
    "objects": "store.contents",
    "removed": "store.contents",
    "verdicts": "planner.verdicts",
    "groups": "planner.groups",
    "options": "planner.groups",
    "plan_digest": "planner.digest",
    "execution_digest": "release.digest",
    "times": "release.times",
    "arrivals": "release.arrivals",
    "verdict": "audit.verdict",
    "outcomes": "live.outcomes",
}
"""The check that compares a fact of an answer."""

_WRITTEN: Final = {
    "executions": "writer.digests",
    "content": "writer.content",
    "manifest": "writer.preserved",
    "annotations": "writer.preserved",
    "store": "store.state",
}
"""The check that compares something observed of what was written."""


@dataclass(frozen=True)
class Failure:
    """A check that failed, and why."""

    check: str
    message: str


def judge(
    case: Case,
    expected: Expected,
    answer: Accepted | Rejected | Failed | None,
    *,
    trouble: str | None = None,
    observed: Mapping[str, Any] | None = None,
) -> list[Failure]:
    """Judge a case.

    Args:
        case: the case.
        expected: what is expected.
        answer: the answer, None if there was none that could be understood.
        trouble: what happened instead of an answer.
        observed: what the harness saw of the file that a writer wrote.

    Returns:
        The checks that failed; none if the case is passed.
    """
    if answer is None:
        return [Failure("answer", trouble or "no answer")]
    if isinstance(answer, Failed):
        return [Failure("answer", f"a fault of its own: {answer.message}")]
    if isinstance(answer, Rejected):
        if expected.verdict == "accept":
            said = f"{answer.phase}, {answer.requirement}" + (f": {answer.message}" if answer.message else "")
            return [Failure("verdict", f"right input was refused ({said})")]
        left = {} if expected.written is None else expected.written
        begun = [Failure(*said) for said in judge_nothing_sent(observed or {})]
        return [*_refusal(expected, answer), *_contents(left, observed or {}), *begun]
    if expected.verdict == "reject":
        return [
            Failure("verdict", f"wrong input was accepted; {' or '.join(expected.requirements)} is violated")
        ]
    for peer in (observed or {}).get("peers", ()):
        if peer.get("verdict") != "accept":
            said = peer.get("message") or peer.get("requirement")
            return [Failure("verdict", f"of several asked at once, one did not accept: {said}")]
    answers = [answer.facts, *(each.get("facts", {}) for each in (observed or {}).get("peers", ()))]
    found = [
        Failure(_FACTS[name], message)
        for facts in answers
        for name, value in expected.facts.items()
        if name in _FACTS
        for message in differences(value, facts.get(name), name)
    ]
    if "violations" in expected.facts:
        found += _audit(expected.facts["violations"], answer.facts.get("violations"))
    if expected.live is not None:
        found += [Failure(*said) for said in judge_live(expected.live, observed or {})]
    if expected.written is not None:
        found += _written(case, expected.written, answer.facts, observed or {})
    return found


def _refusal(expected: Expected, answer: Rejected) -> Iterator[Failure]:
    if answer.phase != expected.phase:
        yield Failure("refusal.phase", f"refused as {answer.phase}, must be {expected.phase}")
    if answer.requirement not in expected.requirements:
        wanted = " or ".join(expected.requirements)
        yield Failure("refusal.requirement", f"refused by {answer.requirement}, violated is {wanted}")
    elif expected.path is not None:
        problem = _path_problem(expected.path, answer.facts.get("path"))
        if problem:
            yield Failure("refusal.path", problem)


def _path_problem(wanted: Mapping[str, Any], given: object) -> str | None:
    """What is wrong with a path against a plan.

    `wanted` has the steps that there are (`edges`), and either the ends that a path may have (`ends`), or `circle` and the
    steps of which one must be in it (`added`): its last operation must be its first then.
    """
    if not isinstance(given, list):
        return f"the path is {show(given)}, must be a list of operations"
    path = [integer(operation) for operation in given]
    steps = {tuple(step) for step in wanted["edges"]}
    for step in pairwise(path):
        if step not in steps:
            return f"the path {show(given)} has a step {step[0]} → {step[1]}, which is no constraint"
    if len(path) < 2:
        return f"the path {show(given)} has no step"
    if wanted.get("circle"):
        if path[0] != path[-1]:
            return f"the circle {show(given)} does not end where it begins"
        added = {tuple(step) for step in wanted["added"]}
        if not added & set(pairwise(path)):
            return f"the circle {show(given)} has no added constraint in it"
        return None
    if [path[0], path[-1]] not in wanted["ends"]:
        return f"the path leads from {path[0]} to {path[-1]}, must lead {_pairs(wanted['ends'])}"
    return None


def _pairs(ends: list[list[int]]) -> str:
    return " or ".join(f"from {source} to {target}" for source, target in ends)


def _audit(expected: list[dict[str, Any]], given: object) -> Iterator[Failure]:
    """Violations: each expected one with its rows, and no others.

    An expected violation has `requirement`, and `table` and `rows` where it is one of rows.
    """
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        yield Failure("audit.found", f"violations is {show(given)}, must be a list of objects")
        return
    found: dict[str, set[tuple[str, int | None]]] = {}
    for each in given:
        table, listed = str(each.get("table")), each.get("rows")
        rows = found.setdefault(str(each.get("requirement")), set())
        rows.update((table, integer(row)) for row in (listed if isinstance(listed, list) else ()))
    for each in expected:
        name = each["requirement"]
        if name not in found:
            yield Failure("audit.found", f"{name} was not found")
        elif "rows" in each:
            yield from _rows(name, {(each["table"], row) for row in each["rows"]}, found[name])
    for name in sorted(set(found) - {each["requirement"] for each in expected}):
        yield Failure("audit.others", f"{show(name)} was found, nothing violates it")


def _rows(
    name: str, wanted: set[tuple[str, int | None]], given: set[tuple[str, int | None]]
) -> Iterator[Failure]:
    missing, more = wanted - given, given - wanted
    if missing:
        yield Failure("audit.found", f"{name} was not found at {_places(missing)}")
    if more:
        yield Failure("audit.others", f"{name} was found at {_places(more)}, nothing violates it there")


def _places(rows: set[tuple[str, int | None]]) -> str:
    return ", ".join(f"{table}[{row}]" for table, row in sorted(rows, key=str))


def _written(
    case: Case, expected: Mapping[str, Any], facts: Mapping[str, Any], observed: Mapping[str, Any]
) -> Iterator[Failure]:
    if case.output is not None:
        yield from _bundle(case.output, expected, facts, observed)
        if observed.get("form") != case.output or observed.get("problems"):
            return
    yield from _contents(expected, observed)


def _contents(expected: Mapping[str, Any], observed: Mapping[str, Any]) -> Iterator[Failure]:
    """What was written is not what it must be."""
    for name, check in _WRITTEN.items():
        if name in expected:
            for message in differences(expected[name], observed.get(name), name):
                yield Failure(check, message)


def _bundle(
    form: str, expected: Mapping[str, Any], facts: Mapping[str, Any], observed: Mapping[str, Any]
) -> Iterator[Failure]:
    """What is wrong with a bundle that was written, but for what is in it."""
    if observed.get("form") != form:
        yield Failure("writer.form", f"found {observed.get('form') or 'nothing'}, must be {form}")
        return
    for problem in observed.get("problems", ()):
        yield Failure("writer.sound", problem)
    if observed.get("problems"):
        return
    said = (
        ("the tables have", observed),
        ("the manifest says", observed.get("stated") or {}),
        ("the answer says", facts),
    )
    for name in ("work_digest", "trace_digest"):
        for who, given in said:
            if name in expected and given.get(name) != expected[name]:
                message = f"{who} {name} {show(given.get(name))}, must be {expected[name]}"
                yield Failure("writer.digests", message)
