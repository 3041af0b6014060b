"""Event logs made by hand, in the form of AutoGen 0.7's, for cases that recordings do not have."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEAM = "9bf0dd58-6b21-47cf-abdb-023692d840ea"
OTHER = "1c6a51a8-51f5-4ef3-8a3c-6f0f6a1d7a11"
START_NS = 1_795_971_276_000_000_000
MS = 1_000_000

Message = dict[str, Any]


def user(name: str, text: str) -> Message:
    """A user message as AutoGen's OpenAI client sends it."""
    return {"role": "user", "name": name, "content": text}


def asked(*calls: tuple[str, str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Tool calls in wire form, of (id, name, arguments)."""
    return [
        {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
        for i, n, a in calls
    ]


@dataclass
class Log:
    """An event log in the making: events with their times in Unix ns; every event is 1 ms after the one before."""

    team: str = TEAM
    manager: str = "RoundRobinGroupChatManager"
    lines: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    now: int = START_NS
    made: int = 0

    def at(self, name: str) -> str:
        return f"{name}_{self.team}/{self.team}"

    def add(self, event: dict[str, Any], after_ms: float = 1) -> None:
        self.now += int(after_ms * MS)
        self.lines.append((self.now, event))

    def message(self, sender: str | None, receiver: str | None, payload: Any, kind: str = "PUBLISH") -> None:
        for stage in ("SEND", "DELIVER"):
            self.add(
                {
                    "type": "Message",
                    "payload": payload if isinstance(payload, str) else json.dumps(payload),
                    "sender": sender,
                    "receiver": receiver if stage == "SEND" else None,
                    "kind": f"MessageKind.{kind}",
                    "delivery_stage": f"DeliveryStage.{stage}",
                }
            )

    def said(self, source: str, content: Any, kind: str = "TextMessage", usage: Any = None) -> dict[str, Any]:
        """An agentchat message, with an id and the time at which it was made."""
        self.made += 1
        stamp = datetime.fromtimestamp(self.now // 10**9, UTC).replace(microsecond=self.now % 10**9 // 1000)
        return {
            "id": f"m{self.made}-{self.team[:4]}",
            "source": source,
            "models_usage": usage,
            "metadata": {},
            "created_at": stamp.isoformat().replace("+00:00", "Z"),
            "content": content,
            "type": kind,
        }

    def start(self, text: str) -> None:
        payload = {"messages": [self.said("user", text)], "output_task_messages": True}
        self.message(None, self.at(self.manager), payload, "DIRECT")

    def request(self, agent: str) -> None:
        self.message(self.at(self.manager), self.at(agent), {})

    def call(
        self,
        agent: str | None,
        messages: list[Message],
        text: str | None = None,
        calls: list[dict[str, Any]] | None = None,
        tokens: tuple[int, int] = (10, 5),
        after_ms: float = 20,
        **extra: Any,
    ) -> None:
        """A call that ended; ``extra`` replaces members of the event."""
        self.made += 1
        message = {"role": "assistant", "content": text, "tool_calls": calls}
        finish = "tool_calls" if calls else "stop"
        choice = {"index": 0, "finish_reason": finish, "message": message}
        event = {
            "type": "LLMCall",
            "messages": messages,
            "tools": [],
            "response": {"id": f"chatcmpl-{self.made}", "model": "gpt-4o", "choices": [choice]},
            "prompt_tokens": tokens[0],
            "completion_tokens": tokens[1],
            "agent_id": self.at(agent) if agent else None,
        }
        self.add(event | extra, after_ms)

    def tool(
        self, agent: str, name: str, arguments: dict[str, Any], result: str, after_ms: float = 50
    ) -> None:
        event = {"type": "ToolCall", "tool_name": name, "arguments": arguments, "result": result}
        self.add(event | {"agent_id": self.at(agent)}, after_ms)

    def respond(self, agent: str, text: str, message: dict[str, Any] | None = None) -> None:
        said = message or self.said(agent, text, usage={"prompt_tokens": 10, "completion_tokens": 5})
        self.message(self.at(agent), self.at("output_topic"), {"message": said})
        self.message(
            self.at(agent), self.at("group_topic"), {"response": {"chat_message": said}, "name": agent}
        )

    def end(self) -> None:
        self.message(self.at(self.manager), self.at("output_topic"), "Message could not be serialized")

    def write(self, path: Path, dress: Callable[[int, dict[str, Any]], str] | None = None) -> Path:
        dress = dress or handler
        path.write_text("".join(dress(t, e) + "\n" for t, e in self.lines), encoding="utf-8")
        return path


def handler(time_ns: int, event: dict[str, Any]) -> str:
    """As semtrace's own handler writes it."""
    return json.dumps(
        {"time_unix_ns": time_ns, "logger": "autogen_core.events", "level": "INFO", "event": event}
    )


def bare(_: int, event: dict[str, Any]) -> str:
    """``str(record.msg)`` alone."""
    return json.dumps(event)


def prefixed(time_ns: int, event: dict[str, Any], hours: int = 0) -> str:
    """Behind logging's usual prefix, in local time ``hours`` ahead of UTC."""
    local = datetime.fromtimestamp(time_ns // 10**9 + hours * 3600, UTC)
    return f"{local:%Y-%m-%d %H:%M:%S},{time_ns // MS % 1000:03} - autogen_core.events - INFO - {json.dumps(event)}"


def json_formatter(time_ns: int, event: dict[str, Any]) -> str:
    """As python-json-logger writes it: the event is a string in the message."""
    stamp = datetime.fromtimestamp(time_ns // 10**9, UTC).isoformat()
    return json.dumps({"asctime": stamp, "name": "autogen_core.events", "message": json.dumps(event)})


def conversation(turns: int, names: tuple[str, ...] = ("ann", "bob")) -> Log:
    """Agents who speak in turn; each is sent all that was said, its own texts as the assistant's."""
    log = Log()
    log.start("Talk about the tides.")
    history: list[tuple[str, str]] = []
    for turn in range(turns):
        name = names[turn % len(names)]
        log.request(name)
        messages: list[Message] = [
            {"role": "system", "content": f"You are {name}."},
            user("user", "Talk about the tides."),
        ]
        for speaker, text in history:
            own = {"role": "assistant", "content": text}
            messages.append(own if speaker == name else user(speaker, text))
        text = f"Turn {turn}: {name} has something to say about tides, number {turn * 7919}."
        log.call(name, messages, text, tokens=(20 + 15 * turn, 15))
        log.respond(name, text)
        history.append((name, text))
    log.end()
    return log
