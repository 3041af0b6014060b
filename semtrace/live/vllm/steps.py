"""What a vLLM server wrote down of its steps, joined to the execution that a client has of the same run (spec, vllm.md)."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa

from semtrace.engine.log import detail_tables
from semtrace.errors import FormatError, WrongKindError
from semtrace.live.vllm.compared import Compared, Comparer
from semtrace.live.vllm.log_lines import check_numbers, log_lines, what_is_wrong
from semtrace.live.vllm.names import FORMAT, VERSION, external
from semtrace.live.vllm.requests import refused, rows_of_requests
from semtrace.records.columns import NULL
from semtrace.records.enums import BlockAction, Evidence, Phase, Tier
from semtrace.records.execution import Execution
from semtrace.records.execution_tables import EXECUTION_TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

_ACTION: Final = {
    "allocate": BlockAction.ALLOCATE,
    "hit": BlockAction.HIT,
    "free": BlockAction.FREE,
    "evict": BlockAction.EVICT,
}
_STEP: Final = ("server", "start_ns", "end_ns", "free_blocks")
_ENTRY: Final = ("step", "request", "position", "tokens", "phase")
_FRONT: Final = ("request", "before_ns", "queued_ns", "prefill_ns", "decode_ns", "after_ns")
_MOVE: Final = ("time_ns", "server", "action", "request", "first_block", "blocks", "position")


@dataclass
class ServerSteps:
    """What the schedulers of a server did, in the order in which they wrote it down.

    Times are of the server's monotonic clock, in ns.

    Attributes:
        servers: what each said of itself when it began, by number.
        names: the id of each request.
        prompt_tokens: of each request.
        server: which server each request was sent to.
        unix_ns: what Unix time was when each request came.
        ahead_ns: by how much Unix time was ahead of the monotonic clock when each request came.
        outputs: tokens that each has yielded.
        cached_tokens: those that each found in the cache when it was first scheduled; `NULL` before.
        preemptions: how often each was preempted.
        preempted_ns: for how long each was.
        steps: by step the server, its start, its end (`NULL` while it is not computed) and the blocks free after scheduling.
        entries: by request in a step: the step, the request, tokens computed before, tokens computed, the phase.
        moves: by run of consecutive blocks: when, the server, what, the request, the first block, how many, the ordinal of the first, or `NULL`.
        has_moves: whether all that happened to blocks was written down.
        front: by request of which the server's front told: the request; how long it had it before the scheduler; how long it waited, was
            prefilled and was decoded; and how long after its last step the front had its end.
        compared: what vLLM's own events and statistics say, held against the rest (ST-VLM-021).
        torn: whether the last line of a file was cut off: the server was ended while it wrote.
        failed: whether a scheduler gave up writing.
    """

    servers: dict[int, dict[str, Any]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    server: list[int] = field(default_factory=list)
    unix_ns: array[int] = field(default_factory=lambda: array("q"))
    ahead_ns: array[int] = field(default_factory=lambda: array("q"))
    outputs: list[int] = field(default_factory=list)
    cached_tokens: list[int] = field(default_factory=list)
    preemptions: list[int] = field(default_factory=list)
    preempted_ns: list[int] = field(default_factory=list)
    steps: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in _STEP})
    entries: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in _ENTRY})
    moves: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in _MOVE})
    has_moves: bool = True
    front: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in _FRONT})
    compared: Compared = field(default_factory=Compared)
    torn: bool = False
    failed: bool = False


def read_steps(paths: Sequence[Path], progress: Callable[[int], None] | None = None) -> ServerSteps:
    """Read step logs: one file of each engine of a server.

    Args:
        paths: the files.
        progress: called with lines read now and then.

    Raises:
        UsageError: a file cannot be read.
        FormatError: a file is no step log, or of a later version, or a line of it is no record, or too long.
    """
    log = ServerSteps()
    count = 0
    for path in paths:
        life: _Life | None = None
        for number, line in log_lines(path):
            count += 1
            if progress is not None and count % 8192 == 0:
                progress(count)
            if not line.endswith(b"\n"):
                log.torn = True
                continue
            try:
                record = orjson.loads(line)
                kind = record["kind"]
                if kind == "server" or life is not None:
                    check_numbers(record)
                if kind == "server":
                    life = _begin(log, record, path)
                elif life is None:
                    raise _no_log(path)
                else:
                    life.take(kind, record)
            except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
                if life is None:
                    raise _no_log(path) from error
                raise FormatError(
                    f"line {number} is no record of a step log: {what_is_wrong(error)}",
                    code="vllm.line",
                    path=str(path),
                    requirement="ST-VLM-022",
                    hint="only the last line may be cut off",
                ) from None
        if life is None:
            raise _no_log(path)
    return log


def join(execution: Execution, log: ServerSteps, event: NDArray[np.int64] | None = None) -> Execution:
    """The execution with the steps and the blocks of the server that it ran on (ST-VLM-014 to ST-VLM-016).

    Requests are known by their ids, or as it is told. What others sent to the server is left out of steps, and is nobody's in blocks. What was computed and
    thrown away, as happens where steps are scheduled ahead, is left out of steps, too.

    Args:
        execution: an execution on a wall clock, with request ids.
        log: what the server wrote down.
        event: by request of the log its row in the events, or `NULL`; if left out, as `rows_of_requests` finds it.

    Raises:
        ReplayError: the execution has no time of its origin, no request ids or steps already; or no request of it is in the log, or which is its own cannot be told.
    """
    header = execution.header
    for what, lacks in (
        ("does not say when it began", header.origin_unix_ns is None),
        ("has steps already", execution["steps"].rows > 0),
        ("has no request ids", execution.events.array("request_id").null_count == execution.events.rows),
    ):
        if lacks:
            raise refused(f"the execution {what}", "join what a replay on a server left (--backend http)")
    origin = header.origin_unix_ns or 0
    event = np.append(rows_of_requests(execution, log) if event is None else event, NULL)
    made = _Joined(execution, log, event, origin)
    tables = {name: columns.data for name, columns in execution.tables.items()}
    tables |= made.tables()
    tables["events"] = made.events()
    detail = [*header.detail, *(name for name in ("steps", "step_runs", "blocks") if name in made.kept)]
    environment = {**header.environment, "vllm_steps": made.facts()}
    told = header.model_copy(update={"detail": detail, "environment": environment})
    return Execution.from_arrow(told, tables, execution.content)


class _Life:
    """A server from its start on, while its log is read."""

    def __init__(self, log: ServerSteps, server: int, record: Mapping[str, Any]) -> None:
        self._log, self._server = log, server
        self._place: dict[int, int] = {}  # by the log's number of a request, its place among all
        self._steps: dict[int, int] = {}  # by the log's number of a step in flight, its place among all
        self._admitted: dict[int, int] = {}  # by place, the tokens that it had when it was last admitted
        self._away: dict[int, int] = {}  # by place, since when it is preempted
        self._named: dict[
            str, int | None
        ] = {}  # by its id in vLLM's front, a request's number; None for several at once
        self._ended: dict[int, int] = {}  # by place, the Unix time of its last step's end
        self._comparer = Comparer(log.compared, record)
        if not record["moves"]:
            log.has_moves = False

    def take(self, kind: str, record: dict[str, Any]) -> None:
        """A line; of kinds that others add nothing is read (ST-VLM-012)."""
        log = self._log
        self._comparer.take(kind, record)
        if kind == "request":
            self._place[record["n"]] = len(log.names)
            log.names.append(str(record["id"]))
            name = external(log.names[-1])
            self._named[name] = None if name in self._named else record["n"]
            log.prompt_tokens.append(int(record["prompt_tokens"]))
            log.server.append(self._server)
            log.unix_ns.append(int(record["unix_ns"]))
            log.ahead_ns.append(int(record["unix_ns"]) - int(record["monotonic_ns"]))
            for column in (log.outputs, log.preemptions, log.preempted_ns):
                column.append(0)
            log.cached_tokens.append(NULL)
        elif kind == "step":
            self._step(record)
        elif kind == "computed":
            step = self._steps.pop(record["step"], None)
            if step is not None:
                log.steps["end_ns"][step] = int(record["monotonic_ns"])
            for number, count in record["yielded"]:
                log.outputs[self._place[number]] += count
            for number, _ in record["ended"]:
                self._gone(self._place[number], int(record["monotonic_ns"]))
                self._ended[self._place[number]] = int(record["unix_ns"])
            self._moved(record)
        elif kind == "aborted":
            for number in record["requests"]:
                self._gone(self._place[number], int(record["monotonic_ns"]))
                self._named.pop(
                    external(log.names[self._place[number]]), None
                )  # the front tells nothing of it
            self._moved(record)
        elif kind == "finished":
            self._finished(record)
        elif kind == "reset":
            log.has_moves = False
        elif kind == "failed":
            log.failed, log.has_moves = True, False

    def _finished(self, record: dict[str, Any]) -> None:
        """What the front says of a request; nothing is taken of one that the log does not have under that id, or more than one at that time."""
        log, number = self._log, self._named.pop(str(record["id"]), None)
        place = NULL if number is None else self._place[number]
        if number is None or place not in self._ended:
            return
        self._comparer.ended(number, record)
        before = log.unix_ns[place] - int(record["arrived_unix_ns"])
        after = int(record["ended_unix_ns"]) - self._ended.pop(place)
        parts = (int(record[name]) for name in _FRONT[2:5])
        for name, value in zip(_FRONT, (place, before, *parts, after), strict=True):
            log.front[name].append(value)

    def _step(self, record: dict[str, Any]) -> None:
        log, at = self._log, int(record["monotonic_ns"])
        step = len(log.steps["server"])
        if record["step"] is not None:
            self._steps[record["step"]] = step
            for name, value in zip(_STEP, (self._server, at, NULL, record["free_blocks"]), strict=True):
                log.steps[name].append(value)
        for number in record["preempted"]:
            place = self._place[number]
            log.preemptions[place] += 1
            self._away[place] = at
        for number, kind, computed, tokens in record["entries"]:
            place = self._place[number]
            if kind != "running":
                self._admitted[place] = log.prompt_tokens[place] + log.outputs[place]
                self._back(place, at)
                if log.cached_tokens[place] == NULL:
                    log.cached_tokens[place] = computed
            phase = Phase.PREFILL if computed < self._admitted[place] else Phase.DECODE
            for name, value in zip(_ENTRY, (step, place, computed, tokens, int(phase)), strict=True):
                log.entries[name].append(value)
        self._moved(record)

    def _back(self, place: int, at: int) -> None:
        self._log.preempted_ns[place] += at - self._away.pop(place, at)

    def _gone(self, place: int, at: int) -> None:
        self._back(place, at)
        self._admitted.pop(place, None)

    def _moved(self, record: dict[str, Any]) -> None:
        if record["moves"] is None:
            self._log.has_moves = False
            return
        columns = [self._log.moves[name] for name in _MOVE]
        for action, number, position, ranges in record["moves"]:
            place = NULL if position is None else position
            for first, count in ranges:
                row = (
                    int(record["monotonic_ns"]),
                    self._server,
                    int(_ACTION[action]),
                    self._place[number],
                    first,
                    count,
                    place,
                )
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
                place = NULL if place == NULL else place + count


class _Joined:
    """What a log adds to an execution.

    Args:
        execution: the execution.
        log: the log.
        event: by request of the log its row in the events, or `NULL`; and `NULL` at the end.
        origin: Unix time of the execution's time 0.
    """

    def __init__(self, execution: Execution, log: ServerSteps, event: NDArray[np.int64], origin: int) -> None:
        self._execution, self._log, self._event, self._origin = execution, log, event, origin
        step, request, *rest = (_ints(log.entries[name]) for name in _ENTRY)
        position, tokens, _ = rest
        lasts = np.array(log.prompt_tokens, dtype=np.int64) + np.maximum(log.outputs, 1) - 1
        kept = (event[request] != NULL) & (_ints(log.steps["end_ns"])[step] != NULL)
        kept &= position + tokens <= lasts[request]
        self._step, self._request, self._position, self._tokens, self._phase = (
            each[kept] for each in (step, request, *rest)
        )
        self.kept: frozenset[str] = frozenset()
        # A reading of both clocks can be torn by the system, so the middle one of many is believed (ST-VLM-016).
        mine = event[:-1] != NULL
        of, ahead = np.array(log.server, dtype=np.int64), np.array(log.ahead_ns, dtype=np.int64)
        self._ahead = np.zeros(max(log.servers) + 1, dtype=np.int64)
        for server in np.unique(of[mine]).tolist():
            ordered = np.sort(ahead[mine & (of == server)])
            self._ahead[server] = ordered[len(ordered) // 2]

    def _time(self, values: NDArray[np.int64], server: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times of the log as those of the execution."""
        made: NDArray[np.int64] = values + self._ahead[server] - self._origin
        return made

    def tables(self) -> dict[str, pa.Table]:
        """The detail tables that the log tells."""
        log = self._log
        server, start, end, free = (_ints(log.steps[name]) for name in _STEP)
        used, dense = np.unique(self._step, return_inverse=True)
        index = np.zeros(len(used), dtype=np.int64)
        for each in np.unique(server[used]):
            mine = server[used] == each
            index[mine] = np.arange(int(mine.sum()))
        steps = {
            "server": server[used],
            "index": index,
            "start_ns": self._time(start[used], server[used]),
            "end_ns": self._time(end[used], server[used]),
            "tokens": np.bincount(dense, self._tokens, len(used)).astype(np.int64),
            "requests": np.bincount(dense, minlength=len(used)),
            "free_blocks": free[used],
        }
        made = detail_tables(steps, self._runs(index[dense]))
        sizes = {told.get("block_bytes") for told in log.servers.values()}
        size = sizes.pop() if len(sizes) == 1 else None
        if log.has_moves and size is not None:
            made["blocks"] = self._blocks(size)
        self.kept = frozenset(made)
        return made

    def _runs(self, index: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Maximal runs of steps of one event with as many tokens in one phase, at consecutive positions (ST-ENG-062)."""
        event = self._event[self._request]
        order = np.lexsort((index, event))
        event, step, position, tokens, phase = (
            each[order] for each in (event, index, self._position, self._tokens, self._phase)
        )
        begins = np.ones(len(event), dtype=np.bool_)
        begins[1:] = np.diff(event) != 0
        begins[1:] |= (np.diff(step) != 1) | (np.diff(tokens) != 0) | (np.diff(phase) != 0)
        begins[1:] |= np.diff(position) != tokens[:-1]
        at = np.flatnonzero(begins)
        return {
            "event": event[at],
            "first_step": step[at],
            "count": np.diff(np.append(at, len(event))),
            "start_position": position[at],
            "tokens_per_step": tokens[at],
            "phase": phase[at],
        }

    def _blocks(self, block_bytes: int) -> pa.Table:
        """What happened to blocks, in the order of time; in one instant as it was written down."""
        moves = {name: _ints(self._log.moves[name]) for name in _MOVE}
        # What was before time 0 is told then, in its order: blocks keep what they got from it.
        moves["time_ns"] = np.maximum(self._time(moves["time_ns"], moves["server"]), 0)
        order = np.argsort(moves["time_ns"], kind="stable")
        time, server, action, request, first, count, place = (moves[name][order] for name in _MOVE)
        rows = np.arange(len(time))
        opens = np.append(True, np.diff(time) != 0)[: len(time)]
        event = self._event[request]
        values: dict[str, Any] = {
            "time_ns": time,
            "sequence": rows - np.maximum.accumulate(np.where(opens, rows, 0)),
            "server": server,
            "tier": np.full(len(time), int(Tier.DEVICE)),
            "action": action,
            "event": pa.array(event, mask=event == NULL),
            "blocks": count,
            "bytes": count * block_bytes,
            "first_block": first,
            "position": pa.array(place, mask=place == NULL),
        }
        schema = EXECUTION_TABLE["blocks"].arrow
        arrays = [
            pa.array(values[each.name]).cast(each.type)
            if each.name in values
            else pa.nulls(len(time), each.type)
            for each in schema
        ]
        return pa.Table.from_arrays(arrays, schema=schema)

    def events(self) -> pa.Table:
        """The events with what the log says of them; what it does not know of stays."""
        log, table = self._log, self._execution.events.data
        mine = np.flatnonzero(self._event != NULL)
        rows = self._event[mine]
        start, server = _ints(log.steps["start_ns"]), _ints(log.steps["server"])
        count = len(log.names)
        first = np.full(count, len(start), dtype=np.int64)
        np.minimum.at(first, self._request, self._step)
        seen = first[mine] < len(start)
        at = first[mine[seen]]
        prefill = np.bincount(
            self._request, np.where(self._phase == Phase.PREFILL, self._tokens, 0), minlength=count
        ).astype(np.int64)
        told = {
            "scheduled_ns": (rows[seen], self._time(start[at], server[at])),
            "server": (rows[seen], server[at]),
            "computed_prompt_tokens": (rows[seen], prefill[mine[seen]]),
            "cached_tokens": (rows[seen], np.array(log.cached_tokens, dtype=np.int64)[mine[seen]]),
            "preemptions": (rows, np.array(log.preemptions, dtype=np.int64)[mine]),
            "preempted_ns": (rows, np.array(log.preempted_ns, dtype=np.int64)[mine]),
            "scheduled_evidence": (rows[seen], np.full(int(seen.sum()), int(Evidence.OBSERVED))),
        }
        for name, (where, values) in told.items():
            kind = table.schema.field(name)
            column = self._execution.events.ints(name).astype(np.int64)
            column[where] = values
            new = pa.array(np.maximum(column, 0), mask=column == NULL).cast(kind.type)
            table = table.set_column(table.schema.get_field_index(name), kind, new)
        return table

    def facts(self) -> dict[str, Any]:
        """What is told of the server in the header of the execution."""
        log = self._log
        left_out = {"kind", "format", "pid", "unix_ns", "monotonic_ns"}
        return {
            "servers": {
                str(number): {name: value for name, value in told.items() if name not in left_out}
                for number, told in sorted(log.servers.items())
            },
            "requests": int((self._event[:-1] != NULL).sum()),
            "others": int((self._event[:-1] == NULL).sum()),
            "torn": log.torn,
            "failed": log.failed,
            "compared": log.compared.as_dict(),
            **self._front(),
        }

    def _front(self) -> dict[str, Any]:
        """Where the execution's requests spent their time, as the server's front has it: of each part the middle and the most, in ns."""
        request, *parts = (_ints(self._log.front[name]) for name in _FRONT)
        mine = self._event[request] != NULL
        if not mine.any():
            return {}
        told: dict[str, Any] = {"requests": int(mine.sum())}
        for name, values in zip(_FRONT[1:], parts, strict=True):
            ordered = np.sort(values[mine])
            told[name] = {"middle": int(ordered[len(ordered) // 2]), "most": int(ordered[-1])}
        return {"front": told}


def _begin(log: ServerSteps, record: dict[str, Any], path: Path) -> _Life:
    if record["format"] != FORMAT or record["version"] > VERSION:
        raise FormatError(
            f"is a step log {record['format']!s:.40} of version {record['version']!s:.20}, this reads {FORMAT} {VERSION}",
            code="vllm.version",
            path=str(path),
            requirement="ST-VLM-011",
            hint="read it with the semtrace that wrote it",
        )
    server = int(record["rank"])
    if server in log.servers:
        log.has_moves = False  # what the server before it held is gone
    log.servers[server] = record
    return _Life(log, server, record)


def _no_log(path: Path) -> WrongKindError:
    return WrongKindError(
        "is no step log: it does not begin with the line of a server",
        code="vllm.log",
        path=str(path),
        requirement="ST-VLM-022",
        hint="a step log is what vLLM writes with our recording scheduler (docs/vllm.md)",
    )


def _ints(values: array[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)
