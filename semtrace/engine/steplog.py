"""Step logs: what steps held and how long they took, read from plain logs and scheduler logs (spec/cost.md)."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.check.finding import EXAMPLES, Finding
from semtrace.engine.cost import GEOMETRY
from semtrace.errors import FormatError, UsageError
from semtrace.records.document import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


LOG_LIMIT: Final = 1 << 30
"""Largest log file read, in bytes."""
MOST_NS: Final = 10**15
"""Longest step, in ns."""
_LARGEST: Final = (1 << 53) - 1
_DIGITS: Final = re.compile(r"-?[0-9]{1,18}")
_COLUMNS: Final = (*GEOMETRY, "duration_ns")
_LEAST: Final = {"requests": 1, "duration_ns": 1, "n": 1}
_MOST: Final = {"duration_ns": MOST_NS, "n": 1 << 20, "computed": 1 << 40}
_PHASES: Final = ("prefill", "prefill_last", "decode")
_KINDS: Final = ("new", "resumed", "running")


class StepLogError(FormatError):
    """A step log that is not used.

    Attributes:
        findings: what is wrong, with line numbers as rows.
    """

    def __init__(self, message: str, findings: Sequence[Finding], *, path: str) -> None:
        super().__init__(
            message,
            code="calibrate.log",
            path=path,
            requirement=findings[0].requirement if findings else None,
        )
        self.findings = tuple(findings)


@dataclass(frozen=True)
class StepLog:
    """Steps in the order of time.

    Attributes:
        geometry: the steps, int64[steps, 8] in the order of `GEOMETRY`.
        duration_ns: how long each took, int64[steps].
        part: which uninterrupted run of one server each is of, int64[steps], ascending.
        notices: what was left out, and why.
    """

    geometry: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    part: NDArray[np.int64]
    notices: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.duration_ns)


def join_logs(logs: Sequence[StepLog]) -> StepLog:
    """All steps of some logs, as parts of their own."""
    parts, first = [], 0
    for log in logs:
        parts.append(log.part + first)
        first += int(log.part.max()) + 1 if log.steps else 0
    return StepLog(
        np.concatenate([log.geometry for log in logs]),
        np.concatenate([log.duration_ns for log in logs]),
        np.concatenate(parts),
        tuple(notice for log in logs for notice in log.notices),
    )


def step_geometry(
    step: NDArray[np.int64],
    steps: int,
    *,
    computed: NDArray[np.int64],
    tokens: NDArray[np.int64],
    decode: NDArray[np.bool_],
    yields: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """The geometry of steps, from the sequences in them (ST-COST-001).

    Args:
        step: the step of each sequence, below `steps`.
        steps: how many steps.
        computed: tokens of each computed before, s.
        tokens: tokens of each computed in the step, q.
        decode: which are decode.
        yields: which yield a token.

    Returns:
        int64[steps, 8].
    """
    pairs, context = tokens * computed + tokens * (tokens + 1) // 2, computed + tokens
    made = np.zeros((steps, len(GEOMETRY)), dtype=np.int64)
    for column, values in enumerate(
        (
            np.ones(len(step), dtype=np.int64),
            np.where(decode, 0, tokens),
            np.where(decode, tokens, 0),
            yields.astype(np.int64),
            np.where(decode, 0, pairs),
            np.where(decode, 0, context),
            np.where(decode, pairs, 0),
            np.where(decode, context, 0),
        )
    ):
        np.add.at(made[:, column], step, values)
    return made


class _Problems:
    """Findings on lines, those of one kind together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[tuple[str, str, str | None, str | None], list[int]] = {}

    def add(
        self, requirement: str, line: int, message: str, column: str | None = None, hint: str | None = None
    ) -> None:
        self._lines.setdefault((requirement, message, column, hint), []).append(line)

    def stop(self) -> None:
        """Raise what was found, if anything was.

        Raises:
            StepLogError: naming all of it.
        """
        if not self._lines:
            return
        findings = [
            Finding(
                requirement,
                f"line {lines[0]}: {message}",
                str(self._path),
                column,
                tuple(lines[:EXAMPLES]),
                len(lines),
                hint,
            )
            for (requirement, message, column, hint), lines in list(self._lines.items())[:20]
        ]
        raise StepLogError("this step log is not used", findings, path=str(self._path))


def read_log(path: Path) -> StepLog:
    """Read a plain log (CSV or JSON lines) or a scheduler log (JSON lines).

    Raises:
        UsageError: there is no such file, or it cannot be read.
        StepLogError: it is none, with the lines that are wrong.
    """
    raw = read_regular(path, LOG_LIMIT + 1)
    if len(raw) > LOG_LIMIT:
        raise UsageError(
            f"larger than {LOG_LIMIT} bytes",
            code="calibrate.size",
            path=str(path),
            hint="a part of the log will do",
        )
    problems = _Problems(path)
    try:
        lines = raw.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        problems.add("ST-COST-040", raw[: error.start].count(b"\n") + 1, "is not UTF-8 text")
        problems.stop()
        raise
    first = next((line for line in lines if line.strip()), "")
    if not first.lstrip().startswith("{"):
        log = _read_csv(lines, problems)
    elif (_object(first, 1, _Problems(path)) or {}).get("t") is not None:
        log = _read_scheduler(lines, problems)
    else:
        read = ((at, _object(line, at, problems)) for at, line in enumerate(lines, 1) if line.strip())
        log = _plain(((at, row) for at, row in read if row is not None), problems)
    problems.stop()
    if not log.steps:
        problems.add("ST-COST-040", max(len(lines), 1), "there is no step")
        problems.stop()
    return log


def _object(line: str, at: int, problems: _Problems) -> dict[str, Any] | None:
    """The object on a line; None and a finding if it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    problems.add("ST-COST-040", at, "is no JSON object")
    return None


def _read_csv(lines: list[str], problems: _Problems) -> StepLog:
    reader = csv.reader(lines)
    try:
        header = [name.strip() for name in next(reader, [])]
        missing = [name for name in _COLUMNS if name not in header]
        if missing or len(set(header)) != len(header):
            problems.add(
                "ST-COST-040",
                1,
                f"the header lacks {', '.join(missing)}" if missing else "the header has a name twice",
                hint=f"the columns are {', '.join(_COLUMNS)}",
            )
            problems.stop()

        def rows() -> Iterator[tuple[int, dict[str, Any]]]:
            for values in reader:
                if not values:
                    continue
                if len(values) != len(header):
                    problems.add("ST-COST-040", reader.line_num, "has not as many values as the header")
                    continue
                texts = dict(zip(header, (value.strip() for value in values), strict=True))
                yield (
                    reader.line_num,
                    {name: int(text) if _DIGITS.fullmatch(text) else text for name, text in texts.items()},
                )

        return _plain(rows(), problems)
    except csv.Error:
        problems.add("ST-COST-040", reader.line_num, "is no CSV")
        problems.stop()
        raise


def _plain(rows: Iterable[tuple[int, dict[str, Any]]], problems: _Problems) -> StepLog:
    """The steps of a plain log, row by row as they are read."""
    made: list[list[int]] = [[] for _ in _COLUMNS]
    for at, row in rows:
        for values, name in zip(made, _COLUMNS, strict=True):
            values.append(_whole(row, name, at, problems))
    numbers = np.array(made, dtype=np.int64).reshape(len(_COLUMNS), -1)
    steps = numbers.shape[1]
    return StepLog(np.ascontiguousarray(numbers[:-1].T), numbers[-1], np.zeros(steps, dtype=np.int64))


def _whole(row: dict[str, Any], name: str, at: int, problems: _Problems, where: str = "ST-COST-040") -> int:
    """A number of a row; 0 and a finding if it is none."""
    least, most = _LEAST.get(name, 0), _MOST.get(name, _LARGEST)
    value = row.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    message = f"must be a whole number from {least} to {most}" if name in row else "is missing"
    problems.add(where, at, f"{name} {message}", name)
    return 0


@dataclass
class _Scheduled:
    """The steps of a scheduler log, as they are read."""

    line: list[int] = field(default_factory=list)
    part: list[int] = field(default_factory=list)
    duration: list[int] = field(default_factory=list)
    start: list[int | None] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    decode: list[bool] = field(default_factory=list)
    yields: list[bool] = field(default_factory=list)


def _read_scheduler(lines: list[str], problems: _Problems) -> StepLog:
    made = _Scheduled()
    caught_up: dict[str, bool] = {}  # whether the last step of a request yielded a token
    by_number: dict[int, int] = {}
    part = 0
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _object(line, at, problems)
        if row is None:
            continue
        what = row.get("t")
        if what == "config" and made.line:  # the server began anew
            part += 1
            caught_up, by_number = {}, {}
        elif what == "step" and row.get("reqs") != []:
            by_number[_whole(row, "i", at, problems, "ST-COST-041")] = len(made.line)
            made.line.append(at)
            made.part.append(part)
            made.duration.append(0)
            made.start.append(None)
            _times(row, len(made.line) - 1, made, at, problems)
            _requests(row, made, caught_up, at, problems)
        elif what == "out" and isinstance(row.get("i"), int) and row["i"] in by_number:
            _times(row, by_number[row["i"]], made, at, problems)
    return _scheduled(made, problems)


def _times(row: dict[str, Any], step: int, made: _Scheduled, at: int, problems: _Problems) -> None:
    """Take a step's times out of a row, as far as it has them."""
    if "start_ns" in row:
        made.start[step] = _whole(row, "start_ns", at, problems, "ST-COST-041")
    if "duration_ns" in row:
        made.duration[step] = _whole(row, "duration_ns", at, problems, "ST-COST-041")
    elif "end_ns" in row:
        end, start = _whole(row, "end_ns", at, problems, "ST-COST-041"), made.start[step]
        if start is None or not 1 <= end - start <= MOST_NS:
            problems.add(
                "ST-COST-041",
                at,
                f"end_ns must be from 1 to {MOST_NS} ns after the step's start_ns",
                "end_ns",
            )
        else:
            made.duration[step] = end - start


def _requests(
    row: dict[str, Any], made: _Scheduled, caught_up: dict[str, bool], at: int, problems: _Problems
) -> None:
    """Take the requests of a step, and what is known of them from the steps before."""
    requests = row.get("reqs")
    if not isinstance(requests, list):
        problems.add("ST-COST-041", at, "reqs must be a list")
        return
    for request in requests:
        if not isinstance(request, dict):
            problems.add("ST-COST-041", at, "a request must be an object", "reqs")
            continue
        wrong = [
            f"a request's {name} must be {', '.join(allowed)}"
            for name, allowed in (("phase", _PHASES), ("kind", _KINDS))
            if request.get(name) not in allowed
        ]
        if wrong:
            problems.add("ST-COST-041", at, "; ".join(wrong), "reqs")
            continue
        name, phase = str(request.get("req")), request["phase"]
        started = request.get("kind") == "running" and phase == "decode"
        tokens = _whole(request, "n", at, problems, "ST-COST-041")
        made.step.append(len(made.line) - 1)
        made.computed.append(_whole(request, "computed", at, problems, "ST-COST-041"))
        made.tokens.append(tokens)
        made.decode.append(caught_up.get(name, started) and request.get("kind") != "resumed")
        made.yields.append(phase != "prefill")
        caught_up[name] = phase != "prefill"


def _scheduled(made: _Scheduled, problems: _Problems) -> StepLog:
    """The log of what was read; steps without a time are left out, with a notice."""
    duration = np.array(made.duration, dtype=np.int64)
    timed = duration > 0
    if len(duration) and not timed.any():
        problems.add(
            "ST-COST-041",
            made.line[0],
            f"none of {len(duration):,} steps has a time",
            hint="a step needs duration_ns, or start_ns and end_ns (the latter may stand in its `out`); sched_us is what "
            "scheduling took, not the step",
        )
    problems.stop()
    geometry = step_geometry(
        np.array(made.step, dtype=np.int64),
        len(duration),
        computed=np.array(made.computed, dtype=np.int64),
        tokens=np.array(made.tokens, dtype=np.int64),
        decode=np.array(made.decode, dtype=np.bool_),
        yields=np.array(made.yields, dtype=np.bool_),
    )
    left_out = int((~timed).sum())
    notices = (f"{left_out:,} steps without a time are left out",) if left_out else ()
    return StepLog(geometry[timed], duration[timed], np.array(made.part, dtype=np.int64)[timed], notices)
