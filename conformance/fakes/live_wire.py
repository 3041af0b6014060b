"""What the small replayer knows of HTTP: how answers are taken apart, and whether a server locks tokens."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httptools

Json = dict[str, Any]


@dataclass
class Answer:
    """What came of an attempt: counts, ids and times as they were told; `failure` if it was not whole."""

    failure: str | None = None
    status: int | None = None
    retry_after_s: int = 0
    ids: list[int] = field(default_factory=list)
    finish: str | None = None
    usage: Json = field(default_factory=dict)
    done: bool = False
    first_ns: int | None = None


class Parser:
    """Takes an answer apart; what httptools calls back."""

    def __init__(self, now: Any) -> None:
        self.answer = Answer()
        self.over = False
        self._now = now
        self._text = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        if name.lower() == b"retry-after":
            self.answer.retry_after_s = int(value)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._text += body
        while b"\n\n" in self._text:
            event, self._text = self._text.split(b"\n\n", 1)
            self._event(event.removeprefix(b"data: "))

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.answer.done = True
            return
        value = json.loads(data)
        if "error" in value:
            self.answer.failure = "server_error"
        if value.get("usage"):
            self.answer.usage = value["usage"]
        for choice in value.get("choices", ()):
            if choice.get("token_ids") and self.answer.first_ns is None:
                self.answer.first_ns = self._now()
            self.answer.ids += choice.get("token_ids") or []
            self.answer.finish = choice.get("finish_reason") or self.answer.finish

    def on_message_complete(self) -> None:
        """It is whole, as far as HTTP goes."""
        self.over = True
        if self._text.startswith(b"{"):
            self.answer.done = True
            self.answer.usage = json.loads(self._text).get("usage") or {}


async def model(url: str) -> str:
    """The model that a server lists."""
    answer = await _whole(url, "GET /v1/models HTTP/1.1\r\nconnection: close\r\n\r\n")
    return str(json.loads(answer)["data"][0]["id"])


async def locks(url: str, model: str) -> bool:
    """Whether a server generates the ids that it is told."""
    body = {
        "model": model, "prompt": [300], "max_tokens": 2, "return_token_ids": True, "ignore_eos": True,
        "vllm_xargs": {"semtrace_output_ids": [301, 302]},
    }  # fmt: skip
    text = json.dumps(body)
    head = "content-type: application/json\r\nconnection: close\r\n"
    answer = await _whole(
        url, f"POST /v1/completions HTTP/1.1\r\n{head}content-length: {len(text)}\r\n\r\n{text}"
    )
    return b'"token_ids":[301,302]' in answer


async def _whole(url: str, request: str) -> bytes:
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    writer.write(request.encode())
    parser = httptools.HttpResponseParser(whole := _Whole())
    while not whole.over and (content := await reader.read(1 << 16)):
        parser.feed_data(content)
    writer.close()
    return whole.body


class _Whole:
    """The body of an answer; what httptools calls back."""

    over = False
    body = b""

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.over = True
