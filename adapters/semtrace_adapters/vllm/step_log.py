"""Reading step logs: what requests came, what they held, and what became of them (docs/vllm.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from semtrace.errors import FormatError, UsageError
from semtrace_adapters.vllm.plugin_words import FORMAT, VERSION
from semtrace_adapters.vllm.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from semtrace_adapters.base import LossReport

_SUFFIX: Final = re.compile(r"-[0-9a-f]{8}")
_CHAT: Final = re.compile(r"(?:chatcmpl|cmpl|embd|pool|score|rerank|responses?|resp)-")
_SAMPLE: Final = re.compile(r"(\d+)_(.+)")


@dataclass
class Call:
    """A request to a server.

    Attributes:
        server: the server, from 0.
        number: its number in the server's log, anew with each start of the server.
        name: its id there.
        prompt_tokens: tokens of its prompt.
        arrival_ns: when the server had it; Unix time, as all times here.
        ids: its prompt's ids as little-endian int32; None if they are not known.
        told: the rest of its line of content; None without one.
        scheduled_ns, first_token_ns, ended_ns: when it was first scheduled, when its first token was there, when it ended.
        ended: how, in vLLM's words; None while it has not.
        output_tokens: tokens that it yielded.
        output_ids: their ids; None if they are not known.
        cached_tokens: prompt tokens that it did not compute when it was first scheduled; None before.
        preemptions: how often it was preempted.
        preempted_ns: time between its preemptions and the steps that it came back in, or its end.
        hints: what the client said of it.
    """

    server: int
    number: int
    name: str
    prompt_tokens: int
    arrival_ns: int
    ids: NDArray[np.int32] | None = None
    told: dict[str, Any] | None = None
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    ended_ns: int | None = None
    ended: str | None = None
    output_tokens: int = 0
    output_ids: NDArray[np.int32] | None = None
    cached_tokens: int | None = None
    preemptions: int = 0
    preempted_ns: int = 0
    hints: dict[str, str] = field(default_factory=dict)


@dataclass
class ServerLog:
    """What the logs of one run of a server say.

    Attributes:
        facts: the line of each server that began, by server.
        model: name and shape of the model, if they were written down.
        calls: the requests in the order of their arrival.
        order: by number that `steps` has of a call, its place in `calls`.
        steps: what the engines did.
        hints: what clients said, by request id.
    """

    facts: dict[int, dict[str, Any]] = field(default_factory=dict)
    model: dict[str, Any] | None = None
    calls: list[Call] = field(default_factory=list)
    hints: dict[str, dict[str, str]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    steps: Steps = field(default_factory=Steps)


def sent_id(name: str, hints: dict[str, dict[str, str]] | None = None) -> str:
    """The `X-Request-Id` with which a request came, out of the id that the scheduler knows it by.

    vLLM puts the kind of the request before it, and the number of the prompt and eight random digits after it, where it does so.

    Args:
        name: the scheduler's id.
        hints: ids that are known to have come: one that is among them is the one.
    """
    begin = _CHAT.match(name)
    bare = name[begin.end() :] if begin else name
    shorter = [bare]
    if len(bare) > 9 and _SUFFIX.fullmatch(bare[-9:]):  # a hyphen and eight digits
        shorter.append(bare[:-9])
    if begin and not begin[0].startswith("chat"):
        for each in list(shorter):
            head, hyphen, number = each.rpartition("-")
            if hyphen and number.isdigit():
                shorter.append(head)
    for each in reversed(shorter):
        if hints is not None and each in hints:
            return each
    return shorter[-1]


class Reader:
    """Reads the logs of one run, file by file.

    Args:
        loss: told what is no line of a log, and what is of no use.
        progress: called with bytes read, and in all.
    """

    def __init__(self, loss: LossReport, progress: Callable[[int, int], None] | None = None) -> None:
        self.log = ServerLog()
        self._loss, self._progress = loss, progress
        self._read = self._all = 0

    def read(self, paths: list[Path]) -> ServerLog:
        """Read the files, and put together what they say.

        Raises:
            UsageError: a file cannot be read.
            FormatError: a file is no step log, or of a later version.
        """
        self._all = sum(path.stat().st_size for path in paths)
        for path in paths:
            self._file(path)
        log = self.log
        calls = log.calls
        order = sorted(range(len(calls)), key=lambda at: (calls[at].arrival_ns, calls[at].server, at))
        log.order = [0] * len(calls)
        for place, at in enumerate(order):
            log.order[at] = place
        log.calls = [calls[at] for at in order]
        for call in log.calls:
            told = log.hints.get(sent_id(call.name, log.hints), {})
            inner = (call.told or {}).get("hints") or {}
            call.hints = {**told, **{name.removeprefix("semtrace_"): value for name, value in inner.items()}}
            if (call.told or {}).get("session"):
                call.hints.setdefault("session", str(call.told["session"]))  # type: ignore[index]
        return log

    def _file(self, path: Path) -> None:
        state: _Engine | None = None
        try:
            with path.open("rb") as file:
                for at, line in enumerate(file, 1):
                    self._read += len(line)
                    if self._progress is not None and at % 4096 == 0:
                        self._progress(self._read, self._all)
                    where = f"{path.name}:{at}"
                    record = _object(line)
                    if record is None:
                        torn = not line.endswith(b"\n")
                        self._loss.add(
                            "lines.torn" if torn else "lines.bad",
                            "lost",
                            "the last line was being written when the server ended"
                            if torn
                            else "a line that is no record",
                            where=where,
                        )
                        continue
                    kind = record.get("kind")
                    try:
                        if kind == "server":
                            state = self._begin(record, path)
                        elif kind == "hint":
                            self._hint(record)
                        elif state is None:
                            raise FormatError(
                                "begins with no line of a server: it is no step log",
                                code="vllm.log",
                                path=str(path),
                                hint="a step log is what vLLM writes with a recording scheduler (docs/vllm.md)",
                            )
                        else:
                            state.take(record, str(kind))
                    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
                        self._loss.add("lines.bad", "lost", "a line that is no record", where=where)
        except OSError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}", code="file.unreadable", path=str(path)
            ) from error

    def _begin(self, record: dict[str, Any], path: Path) -> _Engine:
        if record["format"] != FORMAT or int(record["version"]) > VERSION:
            raise FormatError(
                f"is a step log of format {record['format']!s:.40} {record['version']!s:.20}, not {FORMAT} {VERSION}",
                code="vllm.version",
                path=str(path),
                hint="read it with the semtrace that wrote it",
            )
        server = int(record["rank"])
        if server in self.log.facts:
            self._loss.add(
                "server.again", "ignored", "the server began anew: its steps are counted on from there"
            )
        self.log.facts.setdefault(server, record)
        return _Engine(self.log, server, record)

    def _hint(self, record: dict[str, Any]) -> None:
        told = {name: str(record[name]) for name in ("task", "stage", "session", "user") if record.get(name)}
        self.log.hints[str(record["request"])] = told


class _Engine:
    """One start of one server: its requests by number, while its log is read."""

    def __init__(self, log: ServerLog, server: int, record: dict[str, Any]) -> None:
        self._log, self._server = log, server
        self._shift = int(record["unix_ns"]) - int(record["monotonic_ns"])
        self._calls: dict[int, Call] = {}
        self._place: dict[int, int] = {}  # by number, the place among all calls
        self._steps: dict[int, int] = {}  # by step that is in flight, its number among all
        self._admitted: dict[int, int] = {}  # by number, the tokens that it had when it was admitted last
        self._away: dict[int, int] = {}  # by number, since when it is preempted

    def _at(self, record: dict[str, Any]) -> int:
        """When, in Unix time as the server's clock had it when it began: it does not jump."""
        return int(record["monotonic_ns"]) + self._shift

    def take(self, record: dict[str, Any], kind: str) -> None:
        """Take a line."""
        if kind == "request":
            call = Call(
                self._server,
                int(record["n"]),
                str(record["id"]),
                int(record["prompt_tokens"]),
                self._at(record),
            )
            self._calls[call.number] = call
            self._place[call.number] = len(self._log.calls)
            self._log.calls.append(call)
        elif kind == "step":
            self._step(record, self._at(record))
        elif kind == "computed":
            self._computed(record, self._at(record))
        elif kind == "aborted":
            at = self._at(record)
            for number in record["requests"]:
                self._end(number, "abort", at)
            self._log.steps.move(at, self._server, record["moves"], self._place)
        elif kind == "reset":
            self._log.steps.has_moves = False
        elif kind == "model":
            self._log.model = record
        elif kind == "prompt":
            call = self._calls[record["n"]]
            ids = record.pop("ids")
            call.ids = None if ids is None else _ids(ids)
            call.told = record
            call.arrival_ns = min(call.arrival_ns, int(record["arrival_unix_ns"]))
        elif kind == "output":
            self._calls[record["n"]].output_ids = _ids(record["ids"])

    def _step(self, record: dict[str, Any], at: int) -> None:
        log = self._log.steps
        step = None
        if record["step"] is not None:
            step = log.begin(self._server, at, int(record["free_blocks"]))
            self._steps[int(record["step"])] = step
        for number in record["preempted"]:
            self._calls[number].preemptions += 1
            self._away[number] = at
        for number, how, computed, tokens in record["entries"]:
            call = self._calls[number]
            if call.scheduled_ns is None:
                call.scheduled_ns, call.cached_tokens = at, int(computed)
            if how != "running":
                self._admitted[number] = call.prompt_tokens + call.output_tokens
                call.preempted_ns += at - self._away.pop(number, at)
            if step is not None:
                decode = computed >= self._admitted[number]
                log.enter(step, self._place[number], computed, tokens, decode=decode)
        log.move(at, self._server, record["moves"], self._place)

    def _computed(self, record: dict[str, Any], at: int) -> None:
        step = self._steps.pop(record["step"], None)
        if step is not None:
            self._log.steps.steps["end_ns"][step] = at
        for number, tokens in record["yielded"]:
            call = self._calls[number]
            if call.first_token_ns is None:
                call.first_token_ns = at
            call.output_tokens += int(tokens)
        for number, reason in record["ended"]:
            self._end(number, str(reason), at)
        self._log.steps.move(at, self._server, record["moves"], self._place)

    def _end(self, number: int, how: str, at: int) -> None:
        call = self._calls[number]
        call.ended, call.ended_ns = how, at
        call.preempted_ns += at - self._away.pop(number, at)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _ids(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int64).astype(np.uint32).view(np.int32)


def samples(calls: list[Call]) -> set[int]:
    """The calls that are answers to one request with several (`n` above 1), which vLLM names by their number and its id."""
    found: dict[str, list[int]] = {}
    for at, call in enumerate(calls):
        name = _SAMPLE.fullmatch(call.name)
        if name:
            found.setdefault(name[2], []).append(at)
    return {at for each in found.values() for at in each}
