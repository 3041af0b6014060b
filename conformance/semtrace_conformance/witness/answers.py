"""The bytes of answers, as vLLM's server forms them."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import orjson

from semtrace_conformance.witness.asked import CHAT, EMBEDDINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semtrace_conformance.witness.asked import Asked

CREATED: Final = 1_700_000_000
"""When all answers say that they were made, in s since 1970: nothing depends on it."""
LAST_CHUNK: Final = b"0\r\n\r\n"
DONE: Final = b"data: [DONE]\n\n"


def head(status: int, content_type: str, length: int | None, **more: str | None) -> bytes:
    """The head of an answer.

    Args:
        status: the status.
        content_type: the type of what follows.
        length: its bytes; None for chunks.
        more: further headers, `_` for `-`; those without a value are left out.
    """
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"content-type: {content_type}"]
    lines.append("transfer-encoding: chunked" if length is None else f"content-length: {length}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items() if value is not None]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def whole(status: int, value: Any, **more: str | None) -> bytes:
    """An answer that is one JSON document."""
    body = orjson.dumps(value)
    return head(status, "application/json", len(body), **more) + body


def chunk(content: bytes) -> bytes:
    """Content as a chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def problem(status: int, message: str) -> dict[str, Any]:
    """What a refusal says."""
    return {"error": {"message": message, "type": HTTPStatus(status).phrase.replace(" ", ""), "code": status}}


def usage(asked: Asked, count: int) -> dict[str, Any]:
    """How many tokens there were."""
    prompt = len(asked.prompt_ids)
    return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}


def text_of(ids: Sequence[int]) -> str:
    """What the tokens of an output spell."""
    return "".join(f" {each}" for each in ids)


def name_of(asked: Asked, request_id: str) -> str:
    """The id that the answer to a request has."""
    return f"{'chatcmpl' if asked.path == CHAT else 'cmpl'}-{request_id}"


def event(
    asked: Asked, name: str, ids: Sequence[int], reason: str | None, *, first: bool, tells_ids: bool
) -> bytes:
    """An event of a stream: some tokens, the finish reason with the last of them."""
    choice: dict[str, Any] = {"index": 0}
    prefix = b""
    if asked.path == CHAT:
        if first:
            begin = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            prefix = _event(asked, name, [begin])
        choice["delta"] = {"content": text_of(ids)}
    else:
        choice["text"] = text_of(ids)
    choice |= {"logprobs": None, "finish_reason": reason, "stop_reason": None}
    if tells_ids:
        choice["token_ids"] = list(ids)
    return prefix + _event(asked, name, [choice])


def usage_event(asked: Asked, name: str, count: int) -> bytes:
    """The event of a stream that says how many tokens there were."""
    return _event(asked, name, [], usage=usage(asked, count))


def _event(asked: Asked, name: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
    kind = "chat.completion.chunk" if asked.path == CHAT else "text_completion"
    value = {"id": name, "object": kind, "created": CREATED, "model": asked.model, "choices": choices, **more}
    return b"data: " + orjson.dumps(value) + b"\n\n"


def error_event(message: str) -> bytes:
    """The event of a stream that says that the server failed."""
    return b"data: " + orjson.dumps(problem(500, message)) + b"\n\n"


def document(
    asked: Asked, name: str, ids: Sequence[int], reason: str, *, tells_ids: bool, tells_usage: bool
) -> dict[str, Any]:
    """An answer that is no stream."""
    value: dict[str, Any] = {"id": name, "created": CREATED, "model": asked.model}
    if asked.path == EMBEDDINGS:
        value |= {"object": "list", "data": [{"index": 0, "object": "embedding", "embedding": [0.0, 1.0]}]}
    else:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        if asked.path == CHAT:
            value["object"] = "chat.completion"
            choice["message"] = {"role": "assistant", "content": text_of(ids)}
        else:
            value["object"] = "text_completion"
            choice["text"] = text_of(ids)
        if tells_ids:
            choice["token_ids"] = list(ids)
        value["choices"] = [choice]
    if tells_usage:
        value["usage"] = usage(asked, len(ids))
    return value


def models(names: Sequence[str], context: int) -> dict[str, Any]:
    """The models that there are."""
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": CREATED,
                "owned_by": "semtrace-conformance",
                "root": name,
                "parent": None,
                "max_model_len": context,
            }
            for name in names
        ],
    }
