"""What clients say beside the prompt is written down, and requests pass through as they are."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from semtrace_adapters.vllm.hints import VARIABLE, Hints

if TYPE_CHECKING:
    from pathlib import Path


BEGAN = time.time_ns()


def send(
    headers: dict[str, str], parts: list[bytes], *, method: str = "POST", reads: bool = True
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """One request through the middleware: the scope and the messages that the application saw, and what it sent."""
    seen: list[dict[str, Any]] = []
    scopes: list[dict[str, Any]] = []
    sent: list[dict[str, Any]] = []
    left = [
        {"type": "http.request", "body": part, "more_body": at + 1 < len(parts)}
        for at, part in enumerate(parts)
    ]

    async def app(scope: dict[str, Any], receive: Any, answer: Any) -> None:
        scopes.append(scope)
        while reads and left:
            seen.append(await receive())
        await answer({"type": "http.response.start", "status": 200})

    async def receive() -> dict[str, Any]:
        return left.pop(0)

    async def answer(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(Hints(app)(scope, receive, answer))
    return scopes[0], seen, sent


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "steps.jsonl"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def lines(log: Path) -> list[dict[str, Any]]:
    """The lines of the log, without their times, which are none but those of the clock."""
    made = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert all(BEGAN < each.pop("unix_ns") <= time.time_ns() for each in made)
    return made


def test_headers_and_the_user_are_written_down_under_the_id_of_the_request(log: Path):
    body = json.dumps({"model": "m", "user": "anna", "prompt": [1, 2]}).encode()
    headers = {
        "X-Request-Id": "r1",
        "X-Semtrace-Task": "t",
        "X-Semtrace-Stage": "s",
        "X-Semtrace-Session": "agent",
    }
    scope, seen, sent = send(headers, [body[:9], body[9:]])
    assert lines(log) == [
        {"kind": "hint", "request": "r1", "task": "t", "stage": "s", "session": "agent", "user": "anna"}
    ]
    assert b"".join(each["body"] for each in seen) == body
    assert dict(scope["headers"])[b"x-request-id"] == b"r1"
    assert sent == [{"type": "http.response.start", "status": 200}]


def test_a_request_without_an_id_gets_one(log: Path):
    scope, _, _ = send({"X-Semtrace-Task": "t"}, [b"{}"])
    (name,) = [value for key, value in scope["headers"] if key == b"x-request-id"]
    assert lines(log) == [{"kind": "hint", "request": name.decode(), "task": "t"}]


def test_who_says_nothing_leaves_nothing(log: Path):
    send({"X-Request-Id": "r1"}, [b'{"prompt": "the user is \\"user\\""}'])
    send({"X-Request-Id": "r1"}, [b'{"user": 5}'])
    send({"X-Request-Id": "r1"}, [b'["user"]'])
    send({"X-Request-Id": "r1"}, [b'{"user": '])
    send({"X-Semtrace-Task": "t"}, [b""], method="GET")
    assert lines(log) == []


def test_a_body_that_is_not_read_to_its_end_is_no_matter(log: Path):
    send({"X-Request-Id": "r1", "X-Semtrace-Task": "t"}, [b"{}"], reads=False)
    assert lines(log) == [{"kind": "hint", "request": "r1", "task": "t"}]


def test_without_a_log_everything_passes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    scope, seen, _ = send({"X-Semtrace-Task": "t"}, [b"{}"])
    assert len(seen) == 1
    assert b"x-request-id" not in dict(scope["headers"])
