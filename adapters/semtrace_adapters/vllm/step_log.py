"""Reading step logs: what requests came, what they held, and what became of them (docs/vllm.md)."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
from pydantic import ValidationError

from semtrace.live.vllm.log_lines import log_lines
from semtrace.live.vllm.names import sent_id, without_digits
from semtrace_adapters.vllm.lines import HintLine, ModelLine, PromptLine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from semtrace_adapters.base import LossReport

_SAMPLE: Final = re.compile(r"(\d+)_(.+)")


@dataclass
class Call:
    """A request to a server, but for its steps.

    Attributes:
        server: the server, from 0.
        name: its id there.
        prompt_tokens: tokens of its prompt.
        came_ns: when the scheduler had it.
        came_unix_ns: the same, always as a Unix time.
        arrival_ns: when the server had it; None if that was not written down.
        ids: its prompt's ids, the bits of uint32; None if they are not known.
        told: the rest of its line of content; None without one.
        first_token_ns, ended_ns: when its first token was there, when it ended.
        ended: how, in vLLM's words; None while it has not.
        output_tokens: tokens that it yielded.
        output_ids: their ids; None if they are not known.
        hints: what the client said of it.
        asked: its id without vLLM's random digits: the same for requests that a client sent with the same id.

    Times are of the server's monotonic clock while the log is read, then Unix times; `arrival_ns` and `came_unix_ns` always are.
    """

    server: int
    name: str
    prompt_tokens: int
    came_ns: int
    came_unix_ns: int
    arrival_ns: int | None = None
    ids: NDArray[np.int32] | None = None
    told: dict[str, Any] | None = None
    first_token_ns: int | None = None
    ended_ns: int | None = None
    ended: str | None = None
    output_tokens: int = 0
    output_ids: NDArray[np.int32] | None = None
    hints: dict[str, str] = field(default_factory=dict)
    asked: str = ""

    @property
    def begins_ns(self) -> int:
        """When the server had it, as far as it is known."""
        return self.came_ns if self.arrival_ns is None else min(self.arrival_ns, self.came_ns)


@dataclass
class Content:
    """What the logs of one run of a server say of requests, but for its steps.

    Attributes:
        model: name and shape of the model, if they were written down.
        calls: the requests in the order in which the logs have them.
        hints: what clients said, by request id: when and what, each time that they said something.
    """

    model: dict[str, Any] | None = None
    calls: list[Call] = field(default_factory=list)
    hints: dict[str, list[tuple[int, dict[str, str]]]] = field(default_factory=lambda: defaultdict(list))


def read_content(
    paths: Sequence[Path], loss: LossReport, progress: Callable[[int, int], None] | None = None
) -> Content:
    """Read step logs that `semtrace.live.vllm.steps.read_steps` has found to be such.

    Args:
        paths: the files of one run, one of each engine.
        loss: told of lines of ours that are none.
        progress: called with bytes read, and in all.

    Raises:
        UsageError: a file cannot be read.
        FormatError: a line is too long.
    """
    content = Content()
    whole, read = sum(path.stat().st_size for path in paths), 0
    for path in paths:
        life: _Life | None = None
        for at, line in log_lines(path):
            read += len(line)
            if progress is not None and at % 4096 == 0:
                progress(read, whole)
            if not line.endswith(b"\n"):
                loss.add("lines.torn", "lost", "the last line was being written when the server ended")
                continue
            record = orjson.loads(line)
            if record["kind"] == "server":
                life = _Life(content, record["rank"])
            elif life is not None and not life.take(record):
                loss.add("lines.bad", "lost", "a line that is no record", where=f"{path.name}:{at}")
    _hint(content)
    for call in content.calls:
        if call.output_ids is not None and len(call.output_ids) != call.output_tokens:
            call.output_ids = None
            loss.add("outputs.ids", "lost", "an output of which not as many ids as tokens were written down")
    return content


def _hint(content: Content) -> None:
    """Give every call what was said of it.

    A client may use an id again, so what is said with an id is of the next request that has it, of all its prompts, and of none after that.
    """
    for call, asked in zip(content.calls, without_digits([call.name for call in content.calls]), strict=True):
        call.asked = asked
    for hints in content.hints.values():
        hints.sort(key=lambda hint: hint[0])
    taken: set[tuple[str, str, int]] = set()
    for call in sorted(content.calls, key=lambda call: call.came_unix_ns):
        sent = sent_id(call.name, content.hints)
        told = call.told or {}
        if sent is not None:
            hints = content.hints[sent]
            last = bisect_right(hints, call.came_unix_ns, key=lambda hint: hint[0]) - 1
            if last >= 0 and (sent, call.asked, last) not in taken:
                taken.add((sent, call.asked, last))
                call.hints = dict(hints[last][1])
        call.hints |= {name.removeprefix("semtrace_"): value for name, value in told.get("hints", {}).items()}
        if told.get("session"):
            call.hints.setdefault("session", told["session"])


class _Life:
    """A server from its start on, while its log is read."""

    def __init__(self, content: Content, server: int) -> None:
        self._content, self._server = content, server
        self._calls: dict[int, Call] = {}
        self._unix_ns = 0  # of the last line that says when it was

    def take(self, record: dict[str, Any]) -> bool:
        """Take a line.

        Returns:
            whether it is one. Those of steps are: they were read before.
        """
        kind = record["kind"]
        if kind != "hint" and isinstance(record.get("unix_ns"), int):
            self._unix_ns = record["unix_ns"]
        if kind == "request":
            call = Call(
                self._server,
                str(record["id"]),
                int(record["prompt_tokens"]),
                int(record["monotonic_ns"]),
                int(record["unix_ns"]),
            )
            self._calls[record["n"]] = call
            self._content.calls.append(call)
        elif kind == "computed":
            self._computed(record, int(record["monotonic_ns"]))
        elif kind == "aborted":
            for number in record["requests"]:
                self._end(number, "abort", int(record["monotonic_ns"]))
        elif kind in ("model", "prompt", "output", "hint"):
            try:
                self._ours(kind, record)
            except (ValidationError, KeyError, TypeError, ValueError, OverflowError):
                return False
        return True

    def _computed(self, record: dict[str, Any], at: int) -> None:
        for number, tokens in record["yielded"]:
            call = self._calls[number]
            if call.first_token_ns is None:
                call.first_token_ns = at
            call.output_tokens += tokens
        for number, reason in record["ended"]:
            self._end(number, str(reason), at)

    def _end(self, number: int, how: str, at: int) -> None:
        self._calls[number].ended, self._calls[number].ended_ns = how, at

    def _ours(self, kind: str, record: dict[str, Any]) -> None:
        """A line that the recording scheduler has of us, or of a client."""
        if kind == "hint":
            hint = HintLine.model_validate(record)
            told = hint.model_dump(include={"task", "stage", "session", "user"}, exclude_none=True)
            at = self._unix_ns if hint.unix_ns is None else hint.unix_ns
            self._content.hints[hint.request].append((at, told))
        elif kind == "model":
            self._content.model = ModelLine.model_validate(record).model_dump(exclude={"kind"})
        elif kind == "output":
            self._calls[record["n"]].output_ids = _ids(record["ids"])
        else:
            call, ids = self._calls[record["n"]], record.pop("ids")
            line = PromptLine.model_validate(record)
            if ids is not None and len(ids) != call.prompt_tokens:
                raise ValueError("not as many token ids as tokens")
            call.ids = None if ids is None else _ids(ids)
            call.arrival_ns = line.arrival_unix_ns
            call.told = line.model_dump()


def _ids(values: list[int]) -> NDArray[np.int32]:
    """Token ids.

    Raises:
        ValueError: one is none.
    """
    ids = np.array(values if isinstance(values, list) else None)
    if ids.ndim != 1 or (len(ids) and (ids.dtype.kind != "i" or ids.min() < 0 or ids.max() >= 1 << 32)):
        raise ValueError("token ids are whole numbers below 2^32")
    return ids.astype(np.uint32).view(np.int32)


def samples(calls: list[Call]) -> set[int]:
    """The calls that are answers to one request with several (`n` above 1), which vLLM names by their number and its id."""
    found: dict[str, list[int]] = {}
    for at, call in enumerate(calls):
        name = _SAMPLE.fullmatch(call.name)
        if name:
            found.setdefault(name[2], []).append(at)
    return {at for each in found.values() for at in each}
