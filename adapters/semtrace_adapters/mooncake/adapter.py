"""The adapter: which files are Mooncake's, reading one, writing one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from blake3 import blake3

from semtrace.errors import FormatError, UsageError
from semtrace_adapters.base import ImportOptions, ImportResult, LossReport, files_in
from semtrace_adapters.mooncake.lines import read_lines
from semtrace_adapters.mooncake.to_trace import TURNS, to_trace
from semtrace_adapters.mooncake.write import write

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from semtrace.records.trace import Trace
    from semtrace.store.manifest import Loss

BLOCK_SIZE: Final = 512
"""Tokens in a block of Mooncake's own traces; the format does not say it."""
_LARGEST_BLOCK: Final = 1 << 20
_LOOKED_AT: Final = 1 << 18
_OTHER: Final = frozenset({"wait_for", "request_id", "wait_for_ids"})
"""Fields of relatives of the format, whose requests wait for one another."""
_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")


class MooncakeAdapter:
    """Reads and writes request traces as Mooncake published them, and their variants with sessions, delays and texts."""

    name = "mooncake"
    version = "1"
    summary = "Mooncake request traces: JSON lines with timestamp, input_length, output_length, hash_ids; sessions, delays, texts"

    def detect(self, paths: Sequence[Path]) -> int:
        """How sure it is that the files are Mooncake traces, in percent: the surest file counts."""
        return max((_certainty(path) for path in files_in(paths, _SUFFIXES)[:_FILES]), default=0)

    def read(self, paths: Sequence[Path], options: ImportOptions) -> ImportResult:
        """Read one file.

        Options: `block_size`, tokens in a block of `hash_ids`; `turns`, whether the lengths of a session's later turns
        count its history (`cumulative`) or what is new (`delta`), where `auto` judges by the ids.

        Raises:
            FormatError: no line can be used, there are several files, or the ids are of another block size.
            UsageError: the file cannot be read, or there is no such option.
        """
        known = ("block_size=TOKENS", f"turns={'|'.join(TURNS)}")
        options.refuse_unknown(self.name, known)
        block_size = _block_size(options.values.get("block_size"))
        turns = options.values.get("turns", "auto")
        if turns not in TURNS:
            raise UsageError(
                f"no option turns={turns}",
                code="adapter.option",
                hint=f"the options of {self.name} are: {', '.join(known)}",
            )
        loss = LossReport()
        path = _one(paths, loss)
        lines = read_lines(path, loss, options.progress)
        if not len(lines.number):
            bad = sum(item.count for item in loss.items() if item.code.startswith("line."))
            raise FormatError(
                f"no line of it is a request ({bad} lines are none)" if bad else "there is no line in it",
                code="mooncake.nothing",
                path=str(path),
                hint='a line is like {"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [0, 1]}',
            )
        if "block_size" not in options.values and lines.known("hash_ids").any():
            loss.add(
                "block_size.assumed",
                "estimated",
                f"the format does not say how many tokens a block has: taken for {BLOCK_SIZE}",
            )
        scope = f"mooncake/{blake3(path.read_bytes()).hexdigest()[:16]}"
        trace = to_trace(lines, block_size, turns, scope, path.name, loss)
        return ImportResult(trace, None, loss.items(), [path])

    def write(self, trace: Trace, output: BinaryIO, options: ImportOptions) -> list[Loss]:
        """Write a valid trace, a line for each model call; see `semtrace_adapters.base.Exporter`."""
        options.refuse_unknown(self.name, ("block_size=TOKENS", "outputs=yes"))
        given = options.values.get("block_size")
        outputs = options.values.get("outputs", "no")
        if outputs not in ("yes", "no"):
            raise UsageError(f"outputs={outputs[:40]}: must be yes or no", code="adapter.option")
        block_size = None if given is None else _block_size(given)
        return write(trace, output, block_size, BLOCK_SIZE, outputs=outputs == "yes")


_FILES: Final = 64
"""Files that detection looks at, at most."""


def _block_size(text: str | None) -> int:
    if text is None:
        return BLOCK_SIZE
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= _LARGEST_BLOCK and len(text) < 9):
        raise UsageError(
            f"block_size={text[:40]}: must be a number of tokens from 1 to {_LARGEST_BLOCK}",
            code="adapter.option",
        )
    return int(text)


def _one(paths: Sequence[Path], loss: LossReport) -> Path:
    """The file to read: the only one, or the only one that looks like a Mooncake trace."""
    files = files_in(paths, _SUFFIXES)
    own = [path for path in files if _certainty(path)] or files
    if len(own) > 1:
        raise FormatError(
            "several files: block ids of one say nothing of another",
            code="mooncake.several",
            path=", ".join(str(path) for path in own[:4]) + (", …" if len(own) > 4 else ""),
            hint="import them one by one",
        )
    if not own:
        raise FormatError(
            "there is no file of JSON lines", code="mooncake.nothing", path=", ".join(map(str, paths))
        )
    for path in files:
        if path != own[0]:
            loss.add("files.other", "ignored", "a file that is no Mooncake trace", where=path.name)
    return own[0]


def _certainty(path: Path) -> int:
    """How sure it is of a file, by its first lines."""
    try:
        with path.open("rb") as file:
            head = file.read(_LOOKED_AT)
    except OSError:
        return 0
    lines = head.removeprefix(b"\xef\xbb\xbf").split(b"\n")[:8]
    found = [_fields(line) for line in lines if line.strip()]
    fields = [each for each in found if each is not None]
    if not fields:
        return _by_beginning(head)
    if any(each & _OTHER for each in fields):
        return 0
    lengths = [each for each in fields if each & {"input_length", "text_input"}]
    placed = [each for each in lengths if each & {"timestamp", "delay", "session_id", "hash_ids"}]
    if not placed or len(placed) * 2 < len(found):
        return 0
    return 95 if any("hash_ids" in each for each in placed) else 70


def _by_beginning(head: bytes) -> int:
    """How sure it is of a file whose first line is longer than what is looked at."""
    begun = head.lstrip()[:1] == b"{" and b"\n" not in head
    return 60 if begun and b'"hash_ids"' in head and not any(name.encode() in head for name in _OTHER) else 0


def _fields(line: bytes) -> set[str] | None:
    """The names of the fields of a line that is a JSON object."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return set(value) if isinstance(value, dict) else None
