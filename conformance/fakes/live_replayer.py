"""A small replayer for the profiles live and token_locked, right but for what its variants change. It is no model of haste."""

from __future__ import annotations

import asyncio
import json
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httptools
import pyarrow as pa
from blake3 import blake3

import live_wire
from live_wire import Answer, Json, Parser
from semtrace.graph.legality import judge
from semtrace.graph.plan import Plan
from semtrace.graph.resolve import resolve
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind, OperationStatus, Outcome, Trigger
from semtrace.records.execution import Execution
from semtrace.records.execution_tables import EXECUTION_TABLE
from semtrace.records.trace import MemoryContent
from semtrace.store.bundle import open_bundle, write_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from semtrace.records.trace import Trace

FAILURES: Final = (
    "connection",
    "reset",
    "timeout",
    "rate_limited",
    "server_error",
    "rejected",
    "truncated",
    "protocol",
)
OUTCOMES: Final = ("ok", "error", "cancelled", "timeout", "skipped", "refused", "unfinished")
RETRIED: Final = ("connection", "reset", "rate_limited", "server_error", "truncated")
EOS: Final = 2


@dataclass
class Event:
    """One operation of one instance: its triggers as futures of times, and what is recorded of it."""

    instance: int
    operation: int
    start: asyncio.Future[int]
    token: asyncio.Future[int]
    end: asyncio.Future[int]
    row: Json = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    skipped: bool = False


class Replayer:
    """Replays a trace on a server."""

    def __init__(self, trace: Trace, plan: Plan, scenario: Json, url: str, vocabulary: Json) -> None:
        self.trace = trace
        self.constraints = resolve(trace, plan)
        self.plan = plan
        self.scenario = scenario
        self.vocabulary = vocabulary
        self.host, self.port = str(urlsplit(url).hostname), int(urlsplit(url).port or 80)
        self.model = asyncio.run(live_wire.model(url))
        self.locked = scenario.get("mode") == "token_locked"
        operations = trace.operations
        names = (
            "kind",
            "status",
            "task",
            "duration_ns",
            "external_delay_ns",
            "prompt_tokens",
            "output_tokens",
            "finish_reason",
        )
        self.of: dict[str, list[int]] = {name: operations.ints(name).tolist() for name in names}
        self.copies = scenario.get("copies", 1)
        self.tasks = [task for task in range(trace.tasks.rows) for _ in range(self.copies)]
        self.origin = self.origin_unix_ns = 0
        self.room: asyncio.Semaphore | None = None
        self.events: dict[tuple[int, int], Event] = {}
        self.outputs: dict[bytes, bytes] = {}
        self.arrival: dict[int, int] = {}

    # -- what variants change -----------------------------------------------------------------------------------

    def release(self, event: Event, ready: int, released: int) -> int:
        """When an event is submitted."""
        return released

    def groups(self) -> Iterator[tuple[Any, Any]]:
        """The barriers that are honoured."""
        yield from zip(self.constraints.waits, self.constraints.holds, strict=True)

    def wanted(self, event: Event) -> bool:
        """Whether an event is sent."""
        return True

    def body(self, event: Event) -> Json:
        """The body of a request."""
        at = event.operation
        body = {"model": self.model, "prompt": self.prompt(at)}
        if self.of["kind"][at] == OperationKind.EMBED:
            return {"model": self.model, "input": body["prompt"]}
        count = self.of["output_tokens"][at]
        stops = self.locked and self.of["finish_reason"][at] == 1
        body |= {
            "max_tokens": count, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
            "ignore_eos": not stops,
        }  # fmt: skip
        if not stops:
            body["min_tokens"] = count
        if self.locked:
            body["vllm_xargs"] = {"semtrace_output_ids": self.output(at)}
        return body

    def limit_ns(self) -> int:
        """Time that an attempt may take."""
        return int(self.scenario.get("timeout_ns", 600_000_000_000))

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection for a request."""
        return await asyncio.open_connection(self.host, self.port)

    def disconnect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, whole: bool) -> None:
        """Leave a connection after an answer, whole or not."""
        writer.close()

    @classmethod
    def followed(cls, trace: Trace, plan: Plan) -> Plan:
        """The plan that is followed.

        Raises:
            Refused: it is not legal.
        """
        for finding in judge(trace, plan).findings:
            raise Refused(finding.requirement)
        return plan

    def header(self) -> Json:
        """The header of the execution."""
        backend = {"name": "http"}
        return {
            "work_digest": self.plan.work_digest,
            "plan": self.plan.model_dump(mode="json"),
            "plan_digest": self.plan.content_digest(),
            "scenario": {**self.scenario, "backend": backend},
            "mode": "token_locked" if self.locked else "length_locked",
            "clock": "wall",
            "origin_unix_ns": self.origin_unix_ns,
            "tolerance_ns": self.scenario.get("tolerance_ns", 1_000_000),
            "measured_at": "client",
            "backend": backend,
        }

    def ended(self) -> int:
        """The outcome of an instance that ran to its end."""
        return Outcome.SUCCESS

    def reported(self, event: Event) -> Json:
        """What is said of an event in the end."""
        return event.row

    def leaves(self, path: Path) -> None:
        """Leave the execution."""
        write_bundle(path, None, {"run": self.execution()})

    # -- inputs -------------------------------------------------------------------------------------------------

    def output(self, at: int) -> list[int]:
        """The recorded ids of an output."""
        return self.ids(int(self.trace.operations.ints("output_token_ids")[at]))

    def ids(self, artifact: int) -> list[int]:
        """Token ids that are content."""
        if artifact == NULL:
            return []
        content = self.trace.content.get(self.trace["artifacts"].digests()[artifact]) or b""
        return list(struct.unpack(f"<{len(content) // 4}I", content))

    def prompt(self, at: int) -> list[int]:
        """The ids of a prompt: as recorded, or made up."""
        base = int(self.trace.operations.ints("context_base")[at])
        found = [] if base == NULL else [*self.prompt(base), *self.output(base)]
        for row in range(self.trace.segment_offsets[at], self.trace.segment_offsets[at + 1]):
            found += self.ids(int(self.trace.segments.ints("token_ids")[row]))
        return found or [self.vocabulary["first"] + at] * self.of["prompt_tokens"][at]

    def on_server(self, at: int) -> bool:
        """Whether an operation runs on the backend."""
        model = self.of["kind"][at] in {OperationKind.LLM, OperationKind.EMBED}
        return model and self.of["status"][at] in {OperationStatus.OK, OperationStatus.CANCELLED}

    # -- the run ------------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Time since the origin."""
        return time.monotonic_ns() - self.origin

    async def until(self, time_ns: int) -> None:
        """Wait; never come back too soon."""
        while (left := time_ns - self.now()) > 0:  # noqa: ASYNC110  # it waits for a time, not for something else
            await asyncio.sleep(left / 1e9)

    async def run(self) -> Json:
        """Replay everything; returns the facts of the answer."""
        if limit := self.scenario.get("concurrency"):
            self.room = asyncio.Semaphore(limit)
        self.origin, self.origin_unix_ns = time.monotonic_ns(), time.time_ns()
        sent = [
            task * self.copies + copy for copy in range(self.copies) for task in range(self.trace.tasks.rows)
        ]
        arrivals = self.scenario.get("arrivals") or {"kind": "together"}
        kind = arrivals["kind"]
        if kind == "closed_loop":
            await self.loop(sent, arrivals)
        else:
            recorded = self.trace.tasks.ints("arrival_ns")
            times = {
                "drawn": lambda at, _: arrivals["times_ns"][at],
                "recorded": lambda _, instance: int(recorded[self.tasks[instance]]),
                "together": lambda *_: 0,
            }[kind]
            await asyncio.gather(*(self.instance(each, times(at, each)) for at, each in enumerate(sent)))
        found = [OUTCOMES[self.reported(self.events[key])["outcome"] - 1] for key in sorted(self.events)]
        return {"outcomes": {name: found.count(name) for name in set(found)}}

    async def loop(self, sent: list[int], arrivals: Json) -> None:
        """A closed loop."""
        rest = sent[arrivals["users"] :]

        async def user(first: int, arrival: int) -> None:
            following: list[asyncio.Task[None]] = []
            answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            following.append(asyncio.ensure_future(self.instance(first, arrival, answered)))
            end = await answered
            if rest:
                await user(rest.pop(0), end + arrivals.get("think_ns", 0))
            await asyncio.gather(*following)

        users = min(arrivals["users"], len(sent))
        ramp = arrivals.get("ramp_ns", 0)
        await asyncio.gather(*(user(sent[at], at * ramp // arrivals["users"]) for at in range(users)))

    async def instance(
        self, instance: int, arrival: int, answered: asyncio.Future[int] | None = None
    ) -> None:
        """Run an instance."""
        task = self.tasks[instance]
        self.arrival[instance] = arrival
        operations = [at for at, each in enumerate(self.of["task"]) if each == task]
        create = asyncio.get_running_loop().create_future
        own = {at: Event(instance, at, create(), create(), create()) for at in operations}
        self.events |= {(instance, at): event for at, event in own.items()}
        waits: dict[int, list[tuple[Event, int, int]]] = {at: [] for at in operations}
        held = self.constraints
        for target, source, trigger, lag in zip(
            held.target.tolist(),
            held.source.tolist(),
            held.trigger.tolist(),
            held.lag_ns.tolist(),
            strict=True,
        ):
            if target in own:
                waits[target].append((own[source], trigger, lag))
        for wait, hold in self.groups():
            for at in hold.tolist():
                if at in own:
                    waits[at] += [(own[source], Trigger.FINISH, 0) for source in wait.tolist()]
        for at, event in own.items():
            event.task = asyncio.ensure_future(self.event(event, waits[at], own))
        answer = int(self.trace.tasks.ints("answer_operation")[task])
        ends = [own[answer].end] if answer != NULL else [event.end for event in own.values()]
        if answered is not None:
            answered.set_result(max(await asyncio.gather(*ends)))
        await asyncio.gather(*(event.task for event in own.values() if event.task), return_exceptions=True)

    async def event(self, event: Event, waits: list[tuple[Event, int, int]], own: dict[int, Event]) -> None:
        """Run an operation."""
        ready = self.arrival[event.instance]
        if waits:
            futures = [
                {Trigger.START: source.start, Trigger.FIRST_TOKEN: source.token}.get(
                    Trigger(trigger), source.end
                )
                for source, trigger, _ in waits
            ]
            times = await asyncio.gather(*(asyncio.shield(each) for each in futures))
            ready = max(time_ns + lag for time_ns, (_, _, lag) in zip(times, waits, strict=True))
        if event.skipped or any(source.skipped for source, _, _ in waits):
            self.skip(event)
            return
        at = event.operation
        released = ready + self.of["external_delay_ns"][at]
        await self.until(self.release(event, ready, released))
        if event.skipped:
            self.skip(event)
            return
        event.row = {"ready_ns": ready, "released_ns": released}
        if self.on_server(at):
            if self.wanted(event):
                try:
                    await self.request(event)
                except asyncio.CancelledError:
                    event.row |= {"outcome": 3, "finished_ns": self.now()}
            else:
                event.row |= {"submitted_ns": self.now(), "outcome": 1}
        else:
            start = self.now()
            end = start + self.of["duration_ns"][at]
            event.row |= {"submitted_ns": start, "finished_ns": end, "outcome": self.of["status"][at]}
            self.comes(event.start, start)
            await self.until(end)
        if event.row["outcome"] not in {1, 3} and self.on_server(at):
            self.failed(event, waits, own)
        self.end(event)

    def failed(self, event: Event, waits: list[tuple[Event, int, int]], own: dict[int, Event]) -> None:
        """What becomes of the others, once an operation has failed."""
        rule = self.scenario.get("on_failure", "proceed")
        if rule == "skip":
            event.skipped = True
        if rule == "fail":
            for other in own.values():
                if other is event or other.end.done():
                    continue
                if "submitted_ns" in other.row and other.task is not None:
                    other.task.cancel()
                else:
                    other.skipped = True

    def comes(self, future: asyncio.Future[int], time_ns: int) -> None:
        """A trigger comes, once."""
        if not future.done():
            future.set_result(time_ns)

    def skip(self, event: Event) -> None:
        """An operation is not run."""
        event.skipped = True
        event.row = {"outcome": 5}
        for future in (event.start, event.token, event.end):
            self.comes(future, self.now())

    def end(self, event: Event) -> None:
        """An operation has ended."""
        end = event.row.setdefault("finished_ns", self.now())
        for future in (event.start, event.token, event.end):
            self.comes(future, end)

    async def request(self, event: Event) -> None:
        """Send an operation, again where the scenario says so."""
        if self.room is not None:
            async with self.room:
                await self.attempts(event)
        else:
            await self.attempts(event)

    async def attempts(self, event: Event) -> None:
        """All attempts of an operation."""
        retry = self.scenario.get("retry") or {}
        wait = retry.get("wait_ns", 100_000_000)
        for attempt in range(1, retry.get("attempts", 1) + 1):
            answer = await self.attempt(event, attempt)
            event.row["finished_ns"] = self.now()
            again = answer.failure in retry.get("on", RETRIED) and attempt < retry.get("attempts", 1)
            if not again:
                break
            await self.until(self.now() + max(wait, answer.retry_after_s * 1_000_000_000))
            wait *= retry.get("factor", 2)
        failure = answer.failure
        outcome = {None: self.of["status"][event.operation], "timeout": 4, "rejected": 6}.get(failure, 2)
        event.row |= {"outcome": outcome, "failure": None if failure is None else FAILURES.index(failure) + 1}
        if failure is None:
            event.row |= {
                "first_token_ns": answer.first_ns,
                "prompt_tokens": answer.usage.get("prompt_tokens"),
                "output_tokens": answer.usage.get("completion_tokens"),
                "finish_reason": {"stop": 1, "length": 2, None: None}[answer.finish],
                "ids": answer.ids,
            }

    async def attempt(self, event: Event, attempt: int) -> Answer:
        """One attempt."""
        name = f"semtrace-{event.instance}-{event.operation}" + (f"-{attempt}" if attempt > 1 else "")
        event.row |= {"request_id": name, "attempts": attempt}
        path = "embeddings" if self.of["kind"][event.operation] == OperationKind.EMBED else "completions"
        body = json.dumps(self.body(event)).encode()
        head = f"POST /v1/{path} HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: application/json\r\nx-request-id: {name}\r\ncontent-length: {len(body)}\r\n\r\n"
        event.row.setdefault("submitted_ns", self.now())
        self.comes(event.start, event.row["submitted_ns"])
        try:
            return await asyncio.wait_for(self.exchange(event, head.encode() + body), self.limit_ns() / 1e9)
        except TimeoutError:
            return Answer("timeout")
        except ConnectionRefusedError:
            return Answer("connection")
        except OSError:
            return Answer("reset")
        except (ValueError, httptools.HttpParserError):
            return Answer("protocol")

    async def exchange(self, event: Event, request: bytes) -> Answer:
        """Send bytes, and read the answer."""
        reader, writer = await self.connect()
        parser = None
        try:
            writer.write(request)
            parser = Parser(self.now)
            http = httptools.HttpResponseParser(parser)
            while not parser.over:
                content = await reader.read(1 << 16)
                if not content:
                    return Answer("reset")
                http.feed_data(content)
                answer = parser.answer
                answer.status = http.get_status_code()
                if answer.first_ns is not None:
                    self.comes(event.token, answer.first_ns)
        finally:
            self.disconnect(reader, writer, whole=parser is not None and parser.over)
        if answer.status == 429:
            answer.failure = "rate_limited"
        elif answer.status >= 500:
            answer.failure = "server_error"
        elif answer.status != 200:
            answer.failure = "rejected"
        elif answer.failure is None and not answer.done:
            answer.failure = "truncated"
        return answer

    # -- the execution ------------------------------------------------------------------------------------------

    def execution(self) -> Execution:
        """What happened, as an execution."""
        rows = []
        content: dict[bytes, bytes] = {}
        for key in sorted(self.events):
            row = dict(self.reported(self.events[key]))
            ids = row.pop("ids", None)
            if ids:
                held = struct.pack(f"<{len(ids)}I", *ids)
                content[blake3(held).digest()] = held
                row["digest"] = blake3(held).digest()
            rows.append({"instance": key[0], "operation": key[1], **row})
        places = {digest: at for at, digest in enumerate(sorted(content))}
        for row in rows:
            row["output_ids"] = places.get(row.pop("digest", b""))
            for name in ("ready", "released", "submitted", "scheduled", "first_token", "finished"):
                row[f"{name}_evidence"] = 4 if row.get(f"{name}_ns") is None else 1
        instances = [
            {
                "task": task,
                "instance": at % self.copies,
                "arrival_ns": self.arrival[at],
                "outcome": self.ended(),
            }
            for at, task in enumerate(self.tasks)
        ]
        tables = {name: _table(name, each) for name, each in (("instances", instances), ("events", rows))}
        from semtrace.records.execution import ExecutionHeader

        return Execution.from_arrow(
            ExecutionHeader.model_validate(self.header()), tables, MemoryContent(content)
        )


def _table(name: str, rows: list[Json]) -> pa.Table:
    schema = EXECUTION_TABLE[name].arrow
    return pa.Table.from_pylist(rows, schema=schema)


class Refused(Exception):  # noqa: N818  # an answer, not an error
    """The work cannot be replayed there: by which requirement."""

    def __init__(self, requirement: str) -> None:
        super().__init__(requirement)
        self.requirement = requirement


def check(replayer: Replayer, url: str) -> None:
    """Look whether everything can be sent.

    Raises:
        Refused: it cannot.
    """
    for at in range(replayer.trace.operations.rows):
        if not replayer.on_server(at):
            continue
        if replayer.of["prompt_tokens"][at] < 1:
            raise Refused("ST-INP-011")
        if replayer.of["kind"][at] == OperationKind.LLM and replayer.of["output_tokens"][at] < 1:
            raise Refused("ST-LIV-024")
        if replayer.locked and not replayer.output(at):
            raise Refused("ST-LIV-024")
    if replayer.locked and not asyncio.run(live_wire.locks(url, replayer.model)):
        raise Refused("ST-LIV-021")


def replay_live(kind: type[Replayer], inputs: dict[str, Path], ask: Json, output: Path | None) -> Json:
    """Answer a question of the suite.

    Raises:
        Refused: the work cannot be replayed there.
    """
    trace = open_bundle(inputs["trace"]).trace
    scenario = json.loads(inputs["scenario"].read_text("utf-8"))
    plan = kind.followed(trace, Plan.read(inputs["plan"]))
    replayer = kind(trace, plan, scenario, ask["url"], ask["vocabulary"])
    check(replayer, ask["url"])
    facts = asyncio.run(replayer.run())
    if output is not None:
        replayer.leaves(output)
    return facts
