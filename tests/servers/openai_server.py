"""A small OpenAI-compatible chat-completions server for tests and examples.

Everything it does is a function of what it is sent, so that a framework driven by it makes the same run
twice: replies follow rules, cues in the prompt or the prompt's digest; tokens are counted by a fixed rule;
service time is computed from the token counts. Its access log is the reference that recordings are compared
with: one JSON line per request, with arrival and completion in Unix nanoseconds.

Reply, in this order:

1. the first of the caller's rules that matches (``--rules``, see :class:`Rule`);
2. AutoGen's Magentic-One ledgers and its speaker selection, recognised by their wording;
3. tool calls, where tools are offered. The system message may plan them with cues, ``<<call=a,b>>``: the
   k-th cue is the k-th round of calls (``<<call=none>>`` calls nothing). Without cues every offered tool
   is called once, in one round, but no ``transfer_to_…`` handoff;
4. an instance of the JSON schema, where ``response_format`` demands one;
5. text: words drawn by the digest of the messages. Cues in the system message: ``<<tokens=N>>`` for the
   length, ``<<say=…>>`` for what the text ends with, ``<<slow=MS>>`` for extra service time.

Faults come from the rules file too (see :class:`Fault`): an error status for the first so many requests that
match, which a client's own retries may hide, or added delay.

Run it with ``python openai_server.py --port 0 --log access.jsonl --rules rules.json``: it prints its URL.
``launch.start_server`` does so in a child process for the length of a ``with`` block.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import re
import sys
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, TextIO

Json = dict[str, Any]

VOCABULARY = """
river stone market winter signal harbour ledger copper forest window margin village engine paper
summer orbit garden bridge metal silence number valley letter morning island current thread shadow
mirror anchor season border kernel cloud station record circle distance pattern surface measure branch
corner reason account figure weather method origin detail demand supply growth answer notice
"""
WORDS = VOCABULARY.split()


# --- what a client sends ------------------------------------------------------------------------------


def text_of(content: Any) -> str:
    """The text of a message's content: a string, a list of parts, or nothing."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(p.get("text", "")) for p in content if isinstance(p, dict))
    return ""


def count_tokens(text: str) -> int:
    """Tokens of a text: one per started five letters or digits of a word, one per other visible sign."""
    return sum(-(-len(m) // 5) if m[0].isalnum() else 1 for m in re.findall(r"[^\W_]+|[^\w\s]|_", text))


def message_tokens(content: Any, calls: list[Json] | None) -> int:
    """Tokens of a message's content and tool calls; each call costs its name and arguments and three more."""
    parts = [text_of(content)]
    parts += [f"{call['function']['name']} {call['function']['arguments']}" for call in calls or []]
    return sum(map(count_tokens, parts)) + 3 * (len(parts) - 1)


def prompt_tokens(body: Json) -> int:
    """Tokens of a request: three, each message and three more, each offered tool's JSON."""
    total = 3 + sum(3 + message_tokens(m.get("content"), m.get("tool_calls")) for m in body["messages"])
    return total + sum(count_tokens(json.dumps(tool, sort_keys=True)) for tool in body.get("tools") or [])


def digest_of(value: Any) -> bytes:
    """SHA-256 of a value's JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).digest()


# --- what is answered ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """One line of the rules file's ``rules``: ``["regex", "reply"]`` or an object with these names.

    ``match`` is searched (dot matches newline) in ``where``: ``all`` messages joined by newlines, the
    ``system`` messages, or the ``last`` message. ``reply`` may use the groups as ``\\1``.
    """

    match: re.Pattern[str]
    reply: str
    where: str = "all"


@dataclass
class Fault:
    """One entry of the rules file's ``faults``.

    Hits the ``request``-th request (from 1), or the first ``times`` requests in whose messages ``match``
    is found. ``status`` other than 200 is answered as an error (``retry_after_s`` adds the header);
    ``delay_ms`` is slept first.
    """

    status: int = 500
    request: int | None = None
    match: re.Pattern[str] | None = None
    times: int = 1
    delay_ms: float = 0.0
    retry_after_s: float | None = None
    hits: int = 0

    def hit(self, ordinal: int, text: str) -> bool:
        """Whether this request is struck; a hit is counted."""
        struck = self.hits < self.times and self.request in (None, ordinal)
        struck = struck and (self.match is None or self.match.search(text) is not None)
        self.hits += struck
        return struck


@dataclass
class Settings:
    """The rules file: an object with any of these names, or only the list of rules.

    A request's service time is ``base_ms`` and ``prompt_us`` for each prompt token until the first token,
    then ``output_us`` for each output token.
    """

    rules: list[Rule] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    models: list[str] = field(default_factory=lambda: ["gpt-4o"])
    base_ms: float = 4.0
    prompt_us: float = 15.0
    output_us: float = 1000.0

    @classmethod
    def parse(cls, document: Any) -> Settings:
        """Read a rules document; raises ``KeyError``, ``TypeError`` or ``re.error`` where it is malformed."""
        if isinstance(document, list):
            document = {"rules": document}
        settings = cls(**{k: v for k, v in document.items() if k not in ("rules", "faults")})
        for entry in document.get("rules", []):
            known = {"match": entry[0], "reply": entry[1]} if isinstance(entry, list) else entry
            settings.rules.append(Rule(**{**known, "match": re.compile(known["match"], re.DOTALL)}))
        for entry in document.get("faults", []):
            match = re.compile(entry["match"], re.DOTALL) if "match" in entry else None
            settings.faults.append(Fault(**{**entry, "match": match}))
        return settings


@dataclass(frozen=True)
class Reply:
    """A text, or tool calls."""

    text: str | None
    calls: list[Json] = field(default_factory=list)


def instance_of(schema: Json, seed: bytes, root: Json | None = None) -> Any:
    """A value that fits a JSON schema, the same for the same seed; object properties are all present."""
    root = root or schema
    if "$ref" in schema:  # pydantic's references: "#/$defs/NAME"
        return instance_of(root["$defs"][schema["$ref"].rsplit("/", 1)[-1]], seed, root)
    if schema.get("default") is not None:
        return schema["default"]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][seed[0] % len(schema[key])]
    if schema.get("anyOf"):
        return instance_of(schema["anyOf"][0], seed, root)
    kind = schema.get("type", "string")
    if kind == "object":
        return {
            k: instance_of(v, digest_of([seed.hex(), k]), root)
            for k, v in schema.get("properties", {}).items()
        }
    if kind == "array":
        return [instance_of(schema.get("items", {}), seed, root)]
    if kind in ("integer", "number"):
        return int(schema.get("minimum", 0)) + seed[0] % 10
    if kind == "boolean":
        return bool(seed[0] % 2)
    return None if kind == "null" else WORDS[seed[0] % len(WORDS)]


def cues_of(messages: list[Json]) -> list[tuple[str, str]]:
    """The ``<<key=value>>`` cues of the system messages, in order."""
    system = [text_of(m.get("content")) for m in messages if m["role"] in ("system", "developer")]
    return re.findall(r"<<(\w+)=(.*?)>>", "\n".join(system), re.DOTALL)


def magentic_reply(last: str, everything: str) -> str | None:
    """Answers to Magentic-One's orchestrator: facts, plan, progress ledger, replanning, final answer."""
    if "is_request_satisfied" in last:
        found = re.search(r"next_speaker.*?select from: ([^)]*)\)", last, re.DOTALL)
        names = [n.strip() for n in found.group(1).split(",")] if found else ["nobody"]
        # A participant's own text names it (see words_reply): who has not reported yet is next.
        left = [n for n in names if f"report of {n}:" not in everything]
        speaker = left[0] if left else names[0]
        answers: Json = {
            "is_request_satisfied": not left,
            "is_in_loop": False,
            "is_progress_being_made": True,
        }
        answers["next_speaker"] = speaker
        answers["instruction_or_question"] = f"{speaker}, give your report on the request."
        return json.dumps(
            {k: {"reason": f"{len(left)} reports missing", "answer": v} for k, v in answers.items()}
        )
    if "pre-survey" in last or "rewrite the following fact sheet" in last:
        return "1. GIVEN OR VERIFIED FACTS: the request\n2. FACTS TO LOOK UP: the reports\n3. FACTS TO DERIVE: none"
    if "bullet-point plan" in last or "come up with a new plan" in last:
        return "- ask each member for a report\n- put the reports together"
    if "provide the final answer" in last:
        return "The reports agree, and the request is answered."
    return None


def selector_reply(everything: str) -> str | None:
    """The next speaker for AutoGen's selector: the candidate who spoke least, the first of them."""
    found = re.search(r"select the next role from \[(.*?)\] to play", everything)
    if not found:
        return None
    names = re.findall(r"[\w-]+", found.group(1))
    spoken = {n: len(re.findall(rf"(?m)^{re.escape(n)} ?: ", everything)) for n in names}
    return str(min(names, key=spoken.__getitem__))


def tool_calls(body: Json, cues: list[tuple[str, str]], identity: str) -> list[Json]:
    """The tool calls of this round, or none."""
    offered = {t["function"]["name"]: t["function"].get("parameters") or {} for t in body.get("tools") or []}
    made = sum(1 for m in body["messages"] if m["role"] == "assistant" and m.get("tool_calls"))
    plan = [[n.strip() for n in v.split(",")] for k, v in cues if k == "call"]
    if not plan:
        plan = [[n for n in offered if not n.startswith("transfer_to_")]]
    names = [n for n in plan[made] if n in offered] if made < len(plan) else []
    calls = []
    for i, name in enumerate(names):
        arguments = instance_of({"type": "object", **offered[name]}, digest_of([identity, name]))
        call_id = "call_" + digest_of([identity, i, name]).hex()[:20]
        function = {"name": name, "arguments": json.dumps(arguments)}
        calls.append({"id": call_id, "type": "function", "function": function})
    return calls


def words_reply(messages: list[Json], cues: list[tuple[str, str]]) -> str:
    """A text made of words drawn by the digest of the messages."""
    seed = digest_of(messages)
    wanted = next((int(v) for k, v in cues if k == "tokens"), 24 + seed[0] % 32)
    system = "\n".join(text_of(m.get("content")) for m in messages if m["role"] in ("system", "developer"))
    who = re.search(r"You are (?:the |an? )?([\w-]+)", system)
    text = f"report of {who.group(1) if who else 'assistant'}: {seed.hex()[:8]}"
    ending = "".join(f" {v}" for k, v in cues if k == "say")
    draw = 0
    while count_tokens(text + "." + ending) < wanted:
        text += " " + WORDS[digest_of([seed.hex(), draw])[0] % len(WORDS)]
        draw += 1
    return text + "." + ending


def decide(body: Json, rules: list[Rule], identity: str) -> Reply:
    """The reply to a request; ``identity`` makes the ids of its tool calls unlike any other's."""
    messages = body["messages"]
    texts = [text_of(m.get("content")) for m in messages]
    everything = "\n".join(texts)
    system = "\n".join(
        t for t, m in zip(texts, messages, strict=True) if m["role"] in ("system", "developer")
    )
    for rule in rules:
        found = rule.match.search({"all": everything, "system": system, "last": texts[-1]}[rule.where])
        if found:
            return Reply(found.expand(rule.reply))
    cues = cues_of(messages)
    special = magentic_reply(texts[-1], everything) or selector_reply(everything)
    if special is not None:
        return Reply(special)
    if body.get("tools") and body.get("tool_choice") != "none":
        calls = tool_calls(body, cues, identity)
        if calls:
            return Reply(None, calls)
    wanted = body.get("response_format") or {}
    if wanted.get("type") == "json_schema":
        return Reply(json.dumps(instance_of(wanted["json_schema"].get("schema", {}), digest_of(messages))))
    return Reply(words_reply(messages, cues))


# --- HTTP ---------------------------------------------------------------------------------------------


class BadRequestError(Exception):
    """A request that the server cannot take; the text goes to the client."""


class Server:
    """The server's state: settings, the count of requests, the open access log."""

    def __init__(self, settings: Settings, log: TextIO | None) -> None:
        self.settings, self.log, self.count = settings, log, 0

    def record(self, entry: Json) -> None:
        """Stamp the completion and append one line to the access log, at once."""
        if self.log:
            self.log.write(json.dumps(entry | {"done_unix_ns": time.time_ns()}, ensure_ascii=False) + "\n")
            self.log.flush()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one keep-alive connection until the client closes it."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                try:
                    request = await read_request(reader)
                except BadRequestError as error:
                    await send(writer, 400, error_body(str(error)))
                    break
                if request is None:
                    break
                method, path, headers, payload = request
                if method == "GET" and path == "/v1/models":
                    data = [{"id": m, "object": "model", "owned_by": "tests"} for m in self.settings.models]
                    await send(writer, 200, {"object": "list", "data": data})
                elif method == "POST" and path == "/v1/chat/completions":
                    await self.chat(writer, headers, payload)
                else:
                    await send(writer, 404, error_body(f"no {method} {path} here"))
        writer.close()

    async def chat(self, writer: asyncio.StreamWriter, headers: dict[str, str], payload: bytes) -> None:
        """Answer one chat completion and log it.

        The line is written before the last byte is sent, so that a client that has its answer finds it.
        """
        due = asyncio.get_running_loop().time()
        self.count += 1
        entry: Json = {"ordinal": self.count, "arrival_unix_ns": time.time_ns(), "headers": headers}
        try:
            body = check_body(payload)
        except BadRequestError as error:
            await self.refuse(writer, entry, 400, str(error))
            return
        entry["request"] = body
        everything = "\n".join(text_of(m.get("content")) for m in body["messages"])
        for fault in self.settings.faults:
            if fault.hit(entry["ordinal"], everything):
                due += fault.delay_ms / 1e3
                if fault.status != HTTPStatus.OK:
                    await sleep_until(due)
                    await self.refuse(writer, entry, fault.status, "failed on cue", fault.retry_after_s)
                    return
        entry["id"] = identity = f"chatcmpl-{entry['ordinal']:06d}-{digest_of(body).hex()[:12]}"
        reply = decide(body, self.settings.rules, identity)
        given, made = prompt_tokens(body), max(1, message_tokens(reply.text, reply.calls))
        usage: Json = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
        usage["prompt_tokens_details"] = {"cached_tokens": 0}
        due += sum(float(v) for k, v in cues_of(body["messages"]) if k == "slow") / 1e3
        due += self.settings.base_ms / 1e3 + given * self.settings.prompt_us / 1e6
        span = made * self.settings.output_us / 1e6
        finish = "tool_calls" if reply.calls else "stop"
        message = {
            "role": "assistant",
            "content": reply.text,
            **({"tool_calls": reply.calls} if reply.calls else {}),
        }
        common = {"id": identity, "created": entry["arrival_unix_ns"] // 10**9, "model": body["model"]}
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        whole = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
        entry |= {"status": 200, "response": whole, "usage": usage}
        if not body.get("stream"):
            await sleep_until(due + span)
            self.record(entry)
            await send(writer, 200, whole)
            return
        try:
            wanted = bool((body.get("stream_options") or {}).get("include_usage"))
            await stream(writer, common, reply, due, span, usage if wanted else None)
        except ConnectionError:
            entry["status"] = 499  # the client went away; what it was sent is not known
            raise
        finally:
            self.record(entry)
        chunk(writer, None)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def refuse(
        self,
        writer: asyncio.StreamWriter,
        entry: Json,
        status: int,
        why: str,
        retry_after_s: float | None = None,
    ) -> None:
        """Log and send an error."""
        answer = error_body(why, "rate_limit_error" if status == 429 else "server_error")
        self.record(entry | {"status": status, "response": answer})
        await send(
            writer, status, answer, {} if retry_after_s is None else {"retry-after": f"{retry_after_s:g}"}
        )


async def stream(
    writer: asyncio.StreamWriter, common: Json, reply: Reply, due: float, span: float, usage: Json | None
) -> None:
    """Send server-sent events, all but the final marker: the pieces spread over ``span`` seconds after ``due``."""
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(head.encode())
    pieces: list[Json] = [{"content": p} for p in re.findall(r"\S+\s*", reply.text or "")]
    pieces += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(reply.calls)]
    base = {**common, "object": "chat.completion.chunk"}
    for i, piece in enumerate(pieces):
        await sleep_until(due + span * i / len(pieces))
        delta = piece if i else {"role": "assistant", **piece}
        chunk(writer, {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        await writer.drain()
    await sleep_until(due + span)
    finish = "tool_calls" if reply.calls else "stop"
    chunk(writer, {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if usage is not None:
        chunk(writer, {**base, "choices": [], "usage": usage})
    await writer.drain()


def chunk(writer: asyncio.StreamWriter, event: Json | None) -> None:
    """Write one server-sent event as an HTTP chunk; ``None`` is the final marker."""
    data = ("data: " + ("[DONE]" if event is None else json.dumps(event)) + "\n\n").encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def error_body(message: str, kind: str = "invalid_request_error") -> Json:
    """The error document of the OpenAI interface."""
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def check_body(payload: bytes) -> Json:
    """The request document; raises :class:`BadRequestError` where it is not one that can be answered."""
    try:
        body = json.loads(payload)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict) or not isinstance(body.get("model"), str) or not body.get("messages"):
        raise BadRequestError("the body must be an object with a model and messages")
    if not all(isinstance(m, dict) and "role" in m for m in body["messages"]) or body.get("n", 1) != 1:
        raise BadRequestError("every message must have a role, and n must be 1")
    return body


async def sleep_until(due: float) -> None:
    """Sleep until the event loop's clock reads ``due`` seconds."""
    await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))


async def read_request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str], bytes] | None:
    """One HTTP request: method, path, headers (lower case, no authorization), body; None at the end."""
    line = await reader.readline()
    if not line.strip():
        return None
    parts = line.decode("latin-1").split()
    if len(parts) != 3:
        raise BadRequestError("malformed request line")
    headers: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    headers.pop("authorization", None)
    if "transfer-encoding" in headers:
        raise BadRequestError("a body must come with a content-length")
    payload = await reader.readexactly(int(headers.get("content-length", "0")))
    return parts[0], parts[1].partition("?")[0], headers, payload


async def send(
    writer: asyncio.StreamWriter, status: int, body: Json, extra: dict[str, str] | None = None
) -> None:
    """Send one JSON response."""
    data = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "content-type: application/json"]
    lines += [f"content-length: {len(data)}", *(f"{k}: {v}" for k, v in (extra or {}).items())]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    await writer.drain()


async def serve(settings: Settings, log: Path | None, port: int) -> None:
    """Serve on 127.0.0.1 until cancelled, having printed the base URL (``http://127.0.0.1:PORT/v1``)."""
    with log.open("a", encoding="utf-8") if log else contextlib.nullcontext() as opened:
        server = await asyncio.start_server(
            Server(settings, opened).connection, "127.0.0.1", port, limit=2**20
        )
        sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1\n")
        sys.stdout.flush()
        await server.serve_forever()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Deterministic OpenAI-compatible server for tests.")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--log", type=Path, help="access log (JSON lines), appended to")
    parser.add_argument("--rules", type=Path, help="rules file (JSON): rules, faults, timing, models")
    options = parser.parse_args()
    try:
        settings = Settings.parse(json.loads(options.rules.read_text("utf-8")) if options.rules else [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, re.error) as error:
        parser.error(f"{options.rules}: no rules file: {error!r}")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(settings, options.log, options.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
