"""The requests that a server is sent: path, header fields and JSON body of each (spec, live.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import orjson

import semtrace
from semtrace.live.answers import EMBEDDING, GENERATION
from semtrace.records.columns import NULL
from semtrace.records.enums import FinishReason, OperationKind
from semtrace.replay.controller import runs_on_backend

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.live.prompts import Inputs
    from semtrace.live.settings import Key, Target
    from semtrace.records.trace import Trace

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
EMBEDDINGS: Final = "/v1/embeddings"
GENERATE: Final = "/inference/v1/generate"
"""Where vLLM takes token ids with its own sampling parameters, those of its trace replay among them."""
LOCK_ARGUMENT: Final = "semtrace_output_ids"
"""Argument under which the logits processor finds the ids that it forces, in `vllm_xargs`."""
ANNOTATION: Final = "output_replay_id"
"""Annotation by which Dynamo's mocker is told whose recorded output it gives."""

Lock = Literal["logits_processor", "trace_replay", "annotation"]


@dataclass(frozen=True)
class Form:
    """How requests are put, the same for all of a run.

    Attributes:
        model: the model's name on the server.
        stream: whether answers are streamed.
        lock: how outputs are locked to recorded ids; None where their lengths alone are.
        ignore_eos, min_tokens, return_token_ids, cache_salt: whether the server takes these members.
        tools_uncalled: whether it takes tools only where it is told to call none.
        hints: whether requests carry the headers of ST-LIV-031.
    """

    model: str
    stream: bool = True
    lock: Lock | None = None
    ignore_eos: bool = True
    min_tokens: bool = True
    return_token_ids: bool = True
    cache_salt: bool = True
    tools_uncalled: bool = False
    hints: bool = False


class Asker:
    """Makes the requests of a trace's operations."""

    def __init__(self, trace: Trace, inputs: Inputs, form: Form, target: Target, key: Key | None) -> None:
        self._inputs = inputs
        self._form = form
        self._target = target
        self._key = key
        operations = trace.operations
        self._embeds: list[bool] = (operations.ints("kind") == OperationKind.EMBED).tolist()
        self._output: list[int] = operations.ints("output_tokens").tolist()
        self._prompt: list[int] = operations.ints("prompt_tokens").tolist()
        self._stops: list[bool] = (operations.ints("finish_reason") == FinishReason.STOP).tolist()
        self._hints = Hints(trace) if form.hints else None
        self._heads: dict[str, bytes] = {}

    def kind(self, operation: int) -> str:
        """What is asked for: `GENERATION` or `EMBEDDING`."""
        return EMBEDDING if self._embeds[operation] else GENERATION

    def size(self, operation: int) -> int:
        """About how large its request is, in tokens."""
        return max(self._prompt[operation], 0) + (
            max(self._output[operation], 0) if self._form.lock is not None else 0
        )

    def request(self, instance: int, operation: int, attempt: int = 1) -> bytes:
        """The whole request of an operation in an instance, as it is sent."""
        path, body = self.body(instance, operation)
        name = request_id(instance, operation, attempt)
        hints = b"" if self._hints is None else self._hints.fields(instance, operation)
        return b"%sX-Request-Id: %s\r\n%sContent-Length: %d\r\n\r\n%s" % (
            self._head(path), name.encode("ascii"), hints, len(body), body,
        )  # fmt: skip

    def _head(self, path: str) -> bytes:
        made = self._heads.get(path)
        if made is None:
            made = self._heads[path] = head(self._target, self._key, path)
        return made

    def body(self, instance: int, operation: int) -> tuple[str, bytes]:
        """Path and JSON body of an operation's request in an instance."""
        form, inputs = self._form, self._inputs
        ids = inputs.ids(operation, instance)
        if self._embeds[operation]:
            if ids is None:
                return EMBEDDINGS, orjson.dumps({"model": form.model, "input": inputs.text(operation)})
            return EMBEDDINGS, with_ids({"model": form.model}, "input", ids)
        count = self._output[operation]
        length: dict[str, Any] = {"max_tokens": count, "temperature": 0}
        locked = None if form.lock is None else inputs.output_ids(operation, instance)
        if form.ignore_eos:
            length["ignore_eos"] = form.lock is None or not self._stops[operation]
        if form.min_tokens and form.lock is None:
            length["min_tokens"] = count
        members: dict[str, Any] = {"model": form.model, "stream": form.stream}
        if form.stream:
            members["stream_options"] = {"include_usage": True}
        salt = inputs.cache_salt(instance) if form.cache_salt else None
        if salt is not None:
            members["cache_salt"] = salt
        if form.lock == "trace_replay":
            members["sampling_params"] = {**length, "trace_decode_token_ids": _array(locked)}
            return GENERATE, with_ids(members, "token_ids", _array(ids))
        if form.return_token_ids:
            members["return_token_ids"] = True
        if form.lock == "logits_processor":
            members["vllm_xargs"] = {LOCK_ARGUMENT: _array(locked)}
        elif form.lock == "annotation":
            members["nvext"] = {
                "annotations": [f"{ANNOTATION}:semtrace-{operation}"],
                "extra_fields": ["completion_token_ids"],
            }
        members |= length
        if ids is not None:
            return COMPLETIONS, with_ids(members, "prompt", ids)
        request = inputs.messages(operation) or {}
        if form.tools_uncalled and "tools" in request:
            members["tool_choice"] = "none"
        return CHAT, orjson.dumps({**members, **request}, option=_NUMPY)


_NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY


def _array(ids: NDArray[np.int32] | None) -> NDArray[np.int32]:
    """Ids as orjson writes them: an array without gaps, empty where there are none."""
    return np.empty(0, dtype=np.int32) if ids is None else np.ascontiguousarray(ids)


def with_ids(members: dict[str, Any], name: str, ids: NDArray[np.int32]) -> bytes:
    """JSON of an object with some members and one of token ids."""
    return orjson.dumps({**members, name: _array(ids)}, option=_NUMPY)


def request_id(instance: int, operation: int, attempt: int) -> str:
    """The id that a request is sent with (ST-LIV-030)."""
    name = f"semtrace-{instance}-{operation}"
    return name if attempt == 1 else f"{name}-{attempt}"


def head(target: Target, key: Key | None, path: str, method: str = "POST") -> bytes:
    """The head of a request but for the fields that differ: with a body, `Content-Length` and the empty line."""
    return b"".join((
        f"{method} {target.root}{path} HTTP/1.1\r\nHost: {target.host_field}\r\n".encode("ascii"),
        b"" if key is None else key.field(),
        f"User-Agent: semtrace/{semtrace.__version__}\r\n".encode("ascii"),
        b"Accept: application/json, text/event-stream\r\n",
        b"Content-Type: application/json\r\n" if method == "POST" else b"",
    ))  # fmt: skip


def plain(target: Target, key: Key | None, path: str, value: dict[str, Any] | None, name: str) -> bytes:
    """A whole request with an id: GET without a value, POST with one."""
    if value is None:
        return head(target, key, path, "GET") + f"X-Request-Id: {name}\r\n\r\n".encode("ascii")
    body = json.dumps(value).encode("ascii")
    fields = f"X-Request-Id: {name}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head(target, key, path) + fields.encode("ascii") + body


class Hints:
    """Header fields that tell a server where in its task a request stands (ST-LIV-031)."""

    def __init__(self, trace: Trace) -> None:
        operations, edges = trace.operations, trace["edges"]
        self._rows = {
            name: operations.ints(column).tolist()
            for name, column in (("Task", "task"), ("Stage", "stage"), ("Session", "session"))
        }
        source, target = edges.ints("source"), edges.ints("target")
        alone = np.ones(len(target), dtype=np.bool_)  # edges whose target waits for their source only
        if len(target):
            starts = np.flatnonzero(np.concatenate([[True], target[1:] != target[:-1]]))
            same = np.minimum.reduceat(source, starts) == np.maximum.reduceat(source, starts)
            alone = np.repeat(same, np.diff(np.append(starts, len(target))))
        tool = alone & ~runs_on_backend(trace)[target]
        wait = np.full(operations.rows, NULL, dtype=np.int64)
        np.maximum.at(wait, source[tool], operations.ints("duration_ns")[target[tool]])
        self._tool: list[int] = wait.tolist()

    def fields(self, instance: int, operation: int) -> bytes:
        """The header lines of an operation in an instance."""
        lines = [
            f"X-Semtrace-{name}: {instance}-{rows[operation]}\r\n"
            for name, rows in self._rows.items()
            if rows[operation] != NULL
        ]
        if self._tool[operation] != NULL:
            lines.append(f"X-Semtrace-Tool-Ns: {self._tool[operation]}\r\n")
        return "".join(lines).encode("ascii")
