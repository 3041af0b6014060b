"""A multi-agent program as people write them, which takes down what it did.

A planner; analysts at once, in threads, each in a conversation of its own that begins with what the planner was told and said, with
a tool between every two turns; and a writer who reads what each of them said last. It uses the standard library alone, and knows
nothing of the standard. Tools sleep. Prompts are token ids, and repeat what the model really said.

Its record is JSON on standard output, times in ns of the machine's clock from when the program began: of each call the instant
before the first byte of its request was given to the socket, after its body was made; when the first token was read; and when the
end of the stream was read, before anything else was done with it. All between the end of one thing and the begin of the next is
the program's own time: connecting, making prompts and bodies, reading what the model said, starting threads and waiting for them.

python benchmarks/agents.py URL MODEL SEED [lengths]    with the last, it asks for answers of exactly the greatest length
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

AGENTS, TURNS = 4, 6
TOKENS = range(4, 1024)
"""Ids that the tiny model knows, but for those with a meaning."""
INSTRUCTIONS = 96
TOOL_SECONDS = (0.04, 0.12)
OUTPUT = (48, 80)
"""Most tokens of an answer: the model may stop before."""


class Program:
    """One run."""

    def __init__(self, url: str, model: str, seed: int, *, lengths: bool = False) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname or "", parts.port)
        self._model, self._seed, self._lengths = model, seed, lengths
        self._began = 0
        self._lock = threading.Lock()
        self.operations: list[dict[str, Any]] = []

    def run(self, agents: int, turns: int) -> dict[str, Any]:
        """Run; what was done."""
        self._ask(self.connect(), [5, 6, 7], 1)  # as replays do before their time 0
        unix, self._began = time.time_ns(), time.monotonic_ns()
        random = Random(f"{self._seed} planner")
        question = [random.choice(TOKENS) for _ in range(INSTRUCTIONS)]
        planner = Agent(self, "planner", [], None, [])
        plan = planner.turn([(question, None)], random.randint(*OUTPUT))
        with ThreadPoolExecutor(agents) as threads:
            ends = list(threads.map(lambda name: self._analyse(name, planner, plan, turns), range(agents)))
        told = [(self.operations[end]["output"], end) for end in ends]
        writer = Agent(self, "writer", planner.said, plan, ends)
        writer.turn(told, random.randint(*OUTPUT))
        return {"origin_unix_ns": unix, "operations": self.operations}

    def _analyse(self, number: int, planner: Agent, plan: int, turns: int) -> int:
        random = Random(f"{self._seed} analyst {number}")
        agent = Agent(self, f"analyst {number}", planner.said, plan, [plan])
        role = [random.choice(TOKENS) for _ in range(random.randint(16, 48))]
        last = agent.turn([(role, None)], random.randint(*OUTPUT))
        for _ in range(turns - 1):
            tool, found = agent.tool(random, last)
            last = agent.turn([(found, tool)], random.randint(*OUTPUT))
        return last

    def connect(self) -> HTTPConnection:
        """A connection to the server."""
        made = HTTPConnection(*self._server)
        made.connect()
        return made

    def now(self) -> int:
        """The time since the program began, in ns."""
        return time.monotonic_ns() - self._began

    def _ask(self, connection: HTTPConnection, prompt: list[int], most: int) -> dict[str, Any]:
        """Ask the model for up to so many tokens, and read its stream."""
        asked = {
            "model": self._model, "prompt": prompt, "max_tokens": most, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, "return_token_ids": True,
        }  # fmt: skip
        if self._lengths:
            asked |= {"min_tokens": most, "ignore_eos": True}
        body = json.dumps(asked).encode()
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(body)))
        submitted = self.now()
        connection.endheaders(body)
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"the server answers {answer.status}")
        made: dict[str, Any] = {"submitted_ns": submitted, "output": []}
        left = b""
        while "finished_ns" not in made:
            data = answer.read1(1 << 16)
            at = self.now()
            if not data:
                raise RuntimeError("the stream ended before its end")
            *events, left = (left + data).split(b"\n\n")
            for event in events:
                text = event.removeprefix(b"data: ")
                if text == b"[DONE]":
                    made["finished_ns"] = at
                else:
                    self._take(made, json.loads(text), at)
        answer.read()
        if "output_tokens" not in made or made["finish_reason"] is None:
            raise RuntimeError("the stream ended without usage, or without why")
        return made

    def _take(self, made: dict[str, Any], event: dict[str, Any], at: int) -> None:
        for choice in event["choices"]:
            if choice["token_ids"]:
                made.setdefault("first_token_ns", at)
                made["output"] += choice["token_ids"]
            made["finish_reason"] = choice["finish_reason"] or made.get("finish_reason")
        if event.get("usage"):
            usage = event["usage"]
            made["prompt_tokens"], made["output_tokens"] = usage["prompt_tokens"], usage["completion_tokens"]
            made["cached_tokens"] = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")

    def ask(self, connection: HTTPConnection, prompt: list[int], most: int, **facts: Any) -> int:
        """A call of the model; its row."""
        return self._keep({"kind": "llm", **facts, **self._ask(connection, prompt, most)})

    def sleep(self, seconds: float, **facts: Any) -> int:
        """A tool; its row."""
        submitted = self.now()
        time.sleep(seconds)
        finished = self.now()
        return self._keep({"kind": "tool", **facts, "submitted_ns": submitted, "finished_ns": finished})

    def _keep(self, row: dict[str, Any]) -> int:
        with self._lock:
            self.operations.append(row)
            return len(self.operations) - 1


class Agent:
    """Somebody with a conversation, and a connection of its own.

    Attributes:
        said: the token ids of the conversation so far.
    """

    def __init__(
        self, program: Program, name: str, said: list[int], base: int | None, after: list[int]
    ) -> None:
        self._program, self._name = program, name
        self.said = list(said)
        self._base, self._after = base, after
        self._connection = program.connect()

    def turn(self, pieces: Sequence[tuple[list[int], int | None]], most: int) -> int:
        """Say something to the model, in pieces of which each may be what an operation returned; its row."""
        for ids, _ in pieces:
            self.said += ids
        row = self._program.ask(
            self._connection,
            self.said,
            most,
            name=self._name,
            base=self._base,
            pieces=pieces,
            after=self._after,
        )
        self.said += self._program.operations[row]["output"]
        self._base, self._after = row, []
        return row

    def tool(self, random: Random, after: int) -> tuple[int, list[int]]:
        """Call a tool; its row, and what it found."""
        seconds = random.uniform(*TOOL_SECONDS)
        found = [random.choice(TOKENS) for _ in range(random.randint(8, 32))]
        row = self._program.sleep(seconds, name="search", agent=self._name, after=[after])
        self._after = [row]
        return row, found


if __name__ == "__main__":
    URL, MODEL, SEED, *MORE = sys.argv[1:]
    print(json.dumps(Program(URL, MODEL, int(SEED), lengths=MORE == ["lengths"]).run(AGENTS, TURNS)))
