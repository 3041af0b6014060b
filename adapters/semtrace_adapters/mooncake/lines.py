"""Lines of a Mooncake trace as columns. A part of the file that Arrow cannot read is read line by line, once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from semtrace.errors import UsageError
from semtrace_adapters.source_lines import check_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from semtrace_adapters.base import LossReport

FIELDS: Final = pa.schema(
    [
        ("timestamp", pa.float64()),
        ("delay", pa.float64()),
        ("input_length", pa.int64()),
        ("output_length", pa.int64()),
        ("hash_ids", pa.list_(pa.uint64())),
        ("session_id", pa.string()),
        ("text_input", pa.string()),
    ]
)
"""What a line can say; each may be missing. Times are in ms."""
LATEST_MS: Final = float((1 << 62) // 1_000_000)
"""A time from which on there are no more, in ms (ST-VAL-003)."""
MOST_TOKENS: Final = 1 << 40
"""Tokens that a count stays below (ST-VAL-004)."""
_PART: Final = 8 << 20
"""Bytes that are read at once."""
_LARGEST_ID: Final = (1 << 64) - 1
_SPACE: Final = b" \t\r"


@dataclass(frozen=True)
class Lines:
    """The lines of a file that can be used.

    Attributes:
        table: their fields, with the columns of `FIELDS`.
        number: the number of each line in its file, from 1.
    """

    table: pa.Table
    number: NDArray[np.int64]

    def ints(self, name: str, missing: int = -1) -> NDArray[np.int64]:
        """A column of integers."""
        column = self.table.column(name).chunk(0)
        filled: NDArray[np.int64] = pc.fill_null(column, missing).to_numpy(zero_copy_only=False)
        return filled

    def known(self, name: str) -> NDArray[np.bool_]:
        """Which lines have a field."""
        valid: NDArray[np.bool_] = self.table.column(name).chunk(0).is_valid().to_numpy(zero_copy_only=False)
        return valid

    def nanoseconds(self, name: str) -> NDArray[np.int64]:
        """A column of times in ms, as whole ns; -1 where there is none."""
        column = pc.fill_null(self.table.column(name).chunk(0), 0.0)
        values: NDArray[np.float64] = column.to_numpy(zero_copy_only=False)
        whole = np.floor(values)
        made = whole.astype(np.int64) * 1_000_000 + np.rint((values - whole) * 1e6).astype(np.int64)
        return np.where(self.known(name), made, -1)


def read_lines(path: Path, loss: LossReport, progress: Callable[[int, int], None] | None = None) -> Lines:
    """Read a file; what is wrong with a line is reported with its number, and the line is left out.

    Raises:
        UsageError: the file cannot be read.
    """
    reader = _Reader(path.name, loss)
    tables, numbers = [FIELDS.empty_table()], [np.zeros(0, dtype=np.int64)]
    before, done = 0, 0
    try:
        size = path.stat().st_size
        for part in _parts(path):
            table, number = reader.read(part, before)
            tables.append(table)
            numbers.append(number)
            before += part.count(b"\n")
            done += len(part)
            if progress is not None:
                progress(done, max(size, done))
    except OSError as error:
        raise UsageError(f"cannot be read: {error}", code="file.unreadable", path=str(path)) from error
    reader.report()
    return Lines(pa.concat_tables(tables).combine_chunks(), np.concatenate(numbers))


def _parts(path: Path) -> Iterator[bytes]:
    """The file in parts that end with a line."""
    with path.open("rb") as file:
        rest = file.read(3)
        rest = b"" if rest == b"\xef\xbb\xbf" else rest  # a mark of byte order is no JSON
        before = 0
        while more := file.read(_PART):
            rest += more
            cut = rest.rfind(b"\n") + 1
            if cut:
                check_lines(rest[:cut], path, before)
                yield rest[:cut]
                before += rest.count(b"\n", 0, cut)
                rest = rest[cut:]
            check_lines(rest, path, before)
        if rest:
            yield rest


class _Reader:
    """Reads the parts of one file."""

    def __init__(self, name: str, loss: LossReport) -> None:
        self._name, self._loss = name, loss
        self._unknown: dict[str, int] = {}

    def read(self, part: bytes, before: int) -> tuple[pa.Table, NDArray[np.int64]]:
        """The usable lines of a part, and their numbers; `before` lines are before it."""
        number = before + _filled(part)
        table = self._at_once(part, len(number)) if len(number) else FIELDS.empty_table()
        if table is None:
            table, number = self._one_by_one(part, number, before)
        return self._judged(table, number)

    def report(self) -> None:
        """Report the fields that are not read."""
        for name, count in sorted(self._unknown.items()):
            shown = name if len(name) < 60 else name[:60] + "…"
            self._loss.add(
                "field.unknown", "lost", f"a field that the adapter does not read: {shown}", count=count
            )

    def _at_once(self, part: bytes, expected: int) -> pa.Table | None:
        """All lines of a part by Arrow; None if it does not take them all."""
        try:
            read = pa.json.read_json(
                pa.BufferReader(part),
                read_options=pa.json.ReadOptions(use_threads=False, block_size=len(part) + 1),
                parse_options=pa.json.ParseOptions(
                    explicit_schema=_GIVEN, newlines_in_values=False, unexpected_field_behavior="infer"
                ),
            )
            read.validate(full=True)
            if read.num_rows != expected:
                return None
            arrays = []
            for field in FIELDS:
                if field.name not in read.schema.names:
                    arrays.append(pa.chunked_array([pa.nulls(expected, field.type)]))
                    continue
                column = read.column(field.name)
                if field.name == "session_id" and not pa.types.is_string(column.type):
                    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
                        return None
                    column = column.cast(pa.string())
                arrays.append(column)
            table = pa.Table.from_arrays(arrays, schema=FIELDS).combine_chunks()
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        if _null_ids(table):
            return None
        for name in read.schema.names:
            if name not in FIELDS.names:
                self._unknown[name] = self._unknown.get(name, 0) + expected - read.column(name).null_count
        return table

    def _one_by_one(
        self, part: bytes, number: NDArray[np.int64], before: int
    ) -> tuple[pa.Table, NDArray[np.int64]]:
        rows: list[dict[str, Any]] = []
        kept: list[int] = []
        lines = part.split(b"\n")
        for at in number.tolist():
            row = self._line(lines[at - before - 1], at)
            if row is not None:
                rows.append(row)
                kept.append(at)
        return pa.Table.from_pylist(rows, FIELDS).combine_chunks(), np.array(kept, dtype=np.int64)

    def _line(self, line: bytes, at: int) -> dict[str, Any] | None:
        """The fields of a line, or None with a report."""
        try:
            value = json.loads(line.decode(), object_pairs_hook=_once, parse_constant=_no_number)
        except (ValueError, RecursionError):
            self._bad("line.json", "a line that is no JSON", at)
            return None
        if not isinstance(value, dict):
            self._bad("line.object", "a line that is no JSON object", at)
            return None
        for name, check in _CHECKS.items():
            try:
                value[name] = check(value.get(name))
            except (TypeError, ValueError, OverflowError):
                self._bad("line.field", f"a line whose {name} is not {_MUST[name]}", at)
                return None
        for name in value.keys() - _CHECKS.keys():
            self._unknown[name] = self._unknown.get(name, 0) + 1
        return {name: value[name] for name in FIELDS.names}

    def _judged(self, table: pa.Table, number: NDArray[np.int64]) -> tuple[pa.Table, NDArray[np.int64]]:
        """The lines whose values can be."""
        lines = Lines(table, number)
        good = np.ones(len(number), dtype=np.bool_)
        for name in ("input_length", "output_length"):
            counts = lines.ints(name, 0)
            good &= self._wrong((counts < 0) | (counts >= MOST_TOKENS), good, name, number)
        for name in ("timestamp", "delay"):
            times = pc.fill_null(table.column(name).chunk(0), 0.0).to_numpy(zero_copy_only=False)
            good &= self._wrong(~((times >= 0) & (times < LATEST_MS)), good, name, number)
        nothing = good & ~lines.known("input_length") & ~lines.known("text_input")
        for at in number[nothing].tolist():
            self._bad("line.empty", "a line without input_length, and without text_input", at)
        good &= ~nothing
        return (table, number) if good.all() else (table.filter(pa.array(good)), number[good])

    def _wrong(
        self, wrong: NDArray[np.bool_], good: NDArray[np.bool_], name: str, number: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        for at in number[wrong & good].tolist():
            self._bad("line.field", f"a line whose {name} is not {_MUST[name]}", at)
        return ~wrong

    def _bad(self, code: str, message: str, at: int) -> None:
        self._loss.add(code, "ignored", message, where=f"{self._name}:{at}")


_GIVEN: Final = pa.schema([field for field in FIELDS if field.name != "session_id"])
"""Types that are asked for; a session can be a text or a number."""


def _filled(part: bytes) -> NDArray[np.int64]:
    """The numbers of the lines of a part, from 1, that are not blank."""
    data = np.frombuffer(part, dtype=np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    if not part.endswith(b"\n"):
        ends = np.append(ends, len(part))
    starts = np.append(0, ends[:-1] + 1)[: len(ends)]
    blank = ends == starts
    doubtful = ~blank & np.isin(data[np.minimum(starts, len(data) - 1)], list(_SPACE))
    for at in np.flatnonzero(doubtful).tolist():
        blank[at] = not part[starts[at] : ends[at]].strip(_SPACE)
    numbers: NDArray[np.int64] = np.flatnonzero(~blank) + 1
    return numbers


def _null_ids(table: pa.Table) -> bool:
    """Whether a block id is null."""
    return bool(pc.list_flatten(table.column("hash_ids")).null_count)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def _no_number(text: str) -> float:
    raise ValueError(text)


def _whole(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or int(value) != value:
        raise TypeError
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError
    return int(value)


def _time(value: object) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TypeError
    return None if value is None else float(value)


def _ids(value: object) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise TypeError
    for each in value:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each <= _LARGEST_ID:
            raise TypeError
    return value


def _text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError
    if value is not None:
        value.encode()  # lone surrogates have no UTF-8
    return value


def _session(value: object) -> str | None:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value)


_CHECKS: Final[dict[str, Callable[[object], object]]] = {
    "timestamp": _time,
    "delay": _time,
    "input_length": _whole,
    "output_length": _whole,
    "hash_ids": _ids,
    "session_id": _session,
    "text_input": _text,
}
_MUST: Final = {
    "timestamp": "a time in ms, from 0 to 2^62 ns",
    "delay": "a time in ms, from 0 to 2^62 ns",
    "input_length": "a count of tokens",
    "output_length": "a count of tokens",
    "hash_ids": "a list of integers from 0 to 2^64 - 1",
    "session_id": "a text or an integer",
    "text_input": "a text",
}
