"""vLLM's scheduler, writing down what it does: each request, each step, and what happens to each block (spec, vllm.md).

It needs vLLM alone, and what vLLM needs. The file is named by the environment variable `SEMTRACE_VLLM_LOG`, or by `{"semtrace_step_log": PATH}` in
vLLM's `--additional-config`, which goes first. With data parallelism every engine but the first has the file `PATH.<rank>`. Nothing
that vLLM decides changes: every method does what it did.

A step's lines are written together, in one call of the operating system, when the step is computed. So a server that is killed
has lost no more than the step that it was in.

Beside its own record it writes down what vLLM says of the same things: the events of its KV cache, where vLLM makes them, and the
statistics of its scheduler, where it keeps them. `compared` holds them against the record.

A server that cannot open its file does not start. After that nothing that goes wrong here reaches vLLM: it is told once, in the server's log, and recording ends.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import vllm
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from semtrace.live.vllm.names import FORMAT, OPTION, VARIABLE, VERSION, log_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from vllm.v1.core.kv_cache_utils import ExternalBlockHash
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.metrics.stats import SchedulerStats
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

_log: Final = logging.getLogger("vllm.semtrace")
_encode: Final = msgspec.json.Encoder().encode
_BATCH: Final = 1 << 16
"""Bytes of lines that wait for the end of a step, at most."""


def path_of(config: Any) -> str:
    """Where the log of this engine goes.

    Raises:
        ValueError: nobody says.
    """
    path = log_path(config.additional_config, config.parallel_config.data_parallel_rank)
    if path is None:
        raise ValueError(
            f"the recording scheduler has no file to write to: set {VARIABLE}, or {OPTION} in --additional-config"
        )
    return path


def recording(scheduler: type[Scheduler], sink: Callable[[dict[str, Any]], None] | None = None) -> type[Any]:
    """A scheduler of vLLM that also says what it does.

    Args:
        scheduler: vLLM's `Scheduler` or `AsyncScheduler`.
        sink: what takes each record, and whose errors are the caller's; a file, as the module says, if left out.
    """

    class Recording(scheduler):  # type: ignore[misc]  # vLLM gives it no type
        """Records; see the module."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._number: dict[str, int] = {}
            self._requests_seen = 0
            self._step = -1
            self._flying: list[tuple[SchedulerOutput, int]] = []
            self._moves: list[list[Any]] = []
            self._preempted: list[int] = []
            self._evicted: list[int] = []
            self._holds: dict[str, int] = {}  # by request, how many blocks it holds
            self._events: list[list[Any]] = []
            self._heard = 0  # how many of the events that wait for vLLM's publisher are in `_events`, or were
            self._stats: dict[str, Any] | None = None
            self._failed = False
            self._lines: list[bytes] = []
            self._held = 0
            self._file = None if sink is not None else _open(path_of(self.vllm_config))
            self._watches = self._watch()
            self._hears = self._watches and self._listen()
            self._emit(self._server(), now=True)

        # -- what vLLM calls ------------------------------------------------------------------------------------

        def add_request(self, request: Request) -> None:
            """A request arrives."""
            known = request.request_id in self.requests
            super().add_request(request)
            if not known:
                self._note(self._came, request)

        def schedule(self, *arguments: Any, **named: Any) -> SchedulerOutput:
            """A step is scheduled."""
            at = _clock()
            step = super().schedule(*arguments, **named)
            self._note(self._scheduled, step, at)
            return step

        def update_from_output(
            self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
        ) -> Any:
            """A step is computed."""
            at = _clock()
            done = super().update_from_output(scheduler_output, model_runner_output)
            self._note(self._computed, scheduler_output, done, at)
            return done

        def make_stats(self, *arguments: Any, **named: Any) -> SchedulerStats | None:
            """What vLLM counts itself."""
            stats: SchedulerStats | None = super().make_stats(*arguments, **named)
            if stats is not None:
                self._note(self._counted, stats)
            return stats

        def finish_requests(
            self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
        ) -> list[Request]:
            """Requests are ended from outside."""
            at = _clock()
            done: list[Request] = super().finish_requests(request_ids, finished_status)
            self._note(self._aborted, done, at)
            return done

        def reset_prefix_cache(self, *arguments: Any, **named: Any) -> bool:
            """All that is kept is forgotten: what blocks hold is not told any more."""
            done: bool = super().reset_prefix_cache(*arguments, **named)
            self._note(self._reset)
            return done

        def shutdown(self) -> None:
            """The server ends."""
            self._flush()
            super().shutdown()

        # -- what is written down of it --------------------------------------------------------------------------

        def _note(self, taking: Callable[..., None], *arguments: Any) -> None:
            """Write something down. If that fails, nothing is written down any more, and vLLM goes on."""
            if self._failed:
                return
            try:
                taking(*arguments)
            except Exception as error:
                if sink is not None:
                    raise
                self._failed = True
                _log.exception("semtrace: the step log ends here; the server goes on without it")
                with suppress(OSError):
                    self._lines.append(
                        _encode({"kind": "failed", **_clock(), "error": type(error).__name__}) + b"\n"
                    )
                    self._write()

        def _came(self, request: Request) -> None:
            number = self._number[request.request_id] = self._requests_seen
            self._requests_seen += 1
            record = {
                "kind": "request",
                "n": number,
                "id": request.request_id,
                "prompt_tokens": request.num_prompt_tokens,
                "max_tokens": request.max_tokens,
                "priority": request.priority,
                **_clock(),
            }
            if request.skip_reading_prefix_cache:
                record["reads_cache"] = False
            self._emit(record)

        def _scheduled(self, step: SchedulerOutput, at: dict[str, int]) -> None:
            entries = self._entries(step)
            if entries:
                self._step += 1
                self._flying.append((step, self._step))
            if entries or self._preempted:
                self._emit(
                    {
                        "kind": "step",
                        "step": self._step if entries else None,
                        **at,
                        "entries": entries,
                        "preempted": self._preempted,
                        **self._take_moves(),
                        "free_blocks": self.kv_cache_manager.block_pool.get_num_free_blocks(),
                        "running": len(self.running),
                        "waiting": self.get_request_counts()[1],
                    }
                )
            self._preempted = []

        def _computed(self, step: SchedulerOutput, done: Any, at: dict[str, int]) -> None:
            number = next((number for each, number in self._flying if each is step), None)
            if number is None:
                return
            self._flying = [each for each in self._flying if each[1] != number]
            yielded, ended = [], []
            for part in done.values():
                for output in part.outputs:
                    which = self._number.get(output.request_id)
                    if which is None:
                        continue
                    if output.new_token_ids:
                        yielded.append([which, len(output.new_token_ids)])
                    if output.finish_reason is not None:
                        ended.append([which, str(output.finish_reason)])
                        del self._number[output.request_id]
            stats, self._stats = self._stats, None
            self._emit(
                {
                    "kind": "computed",
                    "step": number,
                    **at,
                    "yielded": yielded,
                    "ended": ended,
                    **self._take_moves(),
                    "stats": stats,
                },
                now=True,
            )

        def _counted(self, stats: SchedulerStats) -> None:
            """What vLLM counted since it was asked last; what is of the past adds up until it is written down."""
            pool, cache = self.kv_cache_manager.block_pool, stats.prefix_cache_stats
            found = [cache.requests, cache.queries, cache.hits]
            again = [cache.preempted_requests, cache.preempted_queries, cache.preempted_hits]
            before = self._stats or {"found": [0] * 3, "found_again": [0] * 3}
            self._stats = {
                "running": stats.num_running_reqs,
                "waiting": stats.num_waiting_reqs + stats.num_skipped_waiting_reqs,
                "used_blocks": round(stats.kv_cache_usage * (pool.num_gpu_blocks - 1)),
                "found": [one + two for one, two in zip(before["found"], found, strict=True)],
                "found_again": [one + two for one, two in zip(before["found_again"], again, strict=True)],
            }

        def _aborted(self, done: Sequence[Request], at: dict[str, int]) -> None:
            gone = [self._number.pop(each.request_id) for each in done if each.request_id in self._number]
            if gone:
                self._emit({"kind": "aborted", **at, "requests": gone, **self._take_moves()}, now=True)

        def _reset(self) -> None:
            self._hear(None)
            self._emit({"kind": "reset", **_clock(), "kv_events": self._take_moves()["kv_events"]}, now=True)
            self._watches = self._hears = False

        # -- blocks --------------------------------------------------------------------------------------------

        def _preempt_request(self, request: Request, *arguments: Any, **named: Any) -> None:
            self._note(lambda: self._preempted.append(self._number[request.request_id]))
            super()._preempt_request(request, *arguments, **named)

        def _free_request_blocks(self, request: Request) -> None:
            if self._watches:
                self._note(self._frees, request)
            super()._free_request_blocks(request)

        def _frees(self, request: Request) -> None:
            blocks = self.kv_cache_manager.get_block_ids(request.request_id)[0]
            self._move("free", request, None, blocks)
            self._holds.pop(request.request_id, None)

        def _watch(self) -> bool:
            """Listen to what happens to blocks, where they are of one kind and freed at once: whether they are."""
            manager = self.kv_cache_manager
            pool = manager.block_pool
            if len(self.kv_cache_config.kv_cache_groups) != 1 or self.defer_block_free:
                return False
            allocate, evict = manager.allocate_slots, pool._maybe_evict_cached_block  # noqa: SLF001  # no event names its block

            def evicting(block: Any) -> bool:
                done: bool = evict(block)
                if done and not self._failed:
                    self._evicted.append(block.block_id)
                return done

            def allocating(request: Request, *arguments: Any, **named: Any) -> Any:
                new = allocate(request, *arguments, **named)
                if new is not None:
                    self._note(self._allocated, request, new)
                self._note(self._hear, request)
                return new

            manager.allocate_slots = allocating
            pool._maybe_evict_cached_block = evicting  # noqa: SLF001  # vLLM tells evictions nowhere else
            return True

        def _allocated(self, request: Request, new: Any) -> None:
            taken = new.get_block_ids()[0]
            name = request.request_id
            at = self._holds.get(name)
            if at is None:  # admitted: what it holds besides was found
                held = self.kv_cache_manager.get_block_ids(name)[0]
                at = len(held) - len(taken)
                self._move("evict", request, None, self._evicted)
                self._move("hit", request, 0, held[:at])
            elif taken:
                self._move("evict", request, None, self._evicted)
            else:
                return
            self._move("allocate", request, at, taken)
            self._holds[name] = at + len(taken)
            self._evicted = []

        def _listen(self) -> bool:
            """Listen to vLLM's own events of its KV cache, where it makes them (`--kv-events-config`): whether it does."""
            manager = self.kv_cache_manager
            if not manager.block_pool.enable_kv_cache_events:
                return False
            keep, take = manager.cache_blocks, manager.take_events

            def keeping(request: Request, *arguments: Any, **named: Any) -> None:
                keep(request, *arguments, **named)
                self._note(self._hear, request)

            def taking() -> Any:
                self._note(self._hear, None)
                self._heard = 0
                return take()

            manager.cache_blocks, manager.take_events = keeping, taking
            return True

        def _hear(self, request: Request | None) -> None:
            """Note the events that are new: what, after how many moves, for which request, which hashes."""
            if not self._hears:
                return
            queue = self.kv_cache_manager.block_pool.kv_event_queue
            number = None if request is None else self._number.get(request.request_id)
            for event in queue[self._heard :]:
                told: list[Any] = [len(self._moves), number]
                if isinstance(event, BlockStored):
                    parent = event.parent_block_hash
                    told += [
                        None if parent is None else _name(parent),
                        [_name(each) for each in event.block_hashes],
                    ]
                    self._events.append(["stored", *told])
                elif isinstance(event, BlockRemoved):
                    self._events.append(["removed", *told, [_name(each) for each in event.block_hashes]])
                elif isinstance(event, AllBlocksCleared):
                    self._events.append(["cleared", *told])
            self._heard = len(queue)

        def _move(self, action: str, request: Request, position: int | None, blocks: Sequence[int]) -> None:
            number = self._number.get(request.request_id)
            if blocks and number is not None:
                self._moves.append([action, number, position, _ranges(blocks)])

        def _take_moves(self) -> dict[str, list[list[Any]] | None]:
            """What happened to blocks since it was asked last, as we saw it and as vLLM says it."""
            moves, self._moves = self._moves, []
            events, self._events = self._events, []
            return {"moves": moves if self._watches else None, "kv_events": events if self._hears else None}

        # -- records -------------------------------------------------------------------------------------------

        def _entries(self, step: SchedulerOutput) -> list[list[Any]]:
            """Of each request in a step: its number, how it comes into it, tokens computed before, and tokens computed."""
            new = {each.req_id: each.num_computed_tokens for each in step.scheduled_new_reqs}
            cached = step.scheduled_cached_reqs
            old = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            made = []
            for name, tokens in step.num_scheduled_tokens.items():
                kind = "new" if name in new else "resumed" if name in cached.resumed_req_ids else "running"
                made.append([self._number[name], kind, new[name] if name in new else old[name], tokens])
            return made

        def _server(self) -> dict[str, Any]:
            config = self.vllm_config
            told, cache = config.scheduler_config, config.cache_config
            pages = [group.kv_cache_spec.page_size_bytes for group in self.kv_cache_config.kv_cache_groups]
            layers = [len(group.layer_names) for group in self.kv_cache_config.kv_cache_groups]
            return {
                "kind": "server",
                "format": FORMAT,
                "version": VERSION,
                "vllm": vllm.__version__,
                "rank": config.parallel_config.data_parallel_rank,
                "pid": os.getpid(),
                **_clock(),
                "blocks": self.kv_cache_manager.block_pool.num_gpu_blocks,
                "block_size": self.block_size,
                "block_bytes": pages[0] * layers[0] if len(pages) == 1 else None,
                "order": told.policy,
                "max_num_seqs": self.max_num_running_reqs,
                "max_num_batched_tokens": self.max_num_scheduled_tokens,
                "max_model_len": self.max_model_len,
                "chunked_prefill": told.enable_chunked_prefill,
                "prefix_caching": cache.enable_prefix_caching,
                "long_prefill_token_threshold": told.long_prefill_token_threshold,
                "watermark_blocks": self.kv_cache_manager.watermark_blocks,
                "reserve_full_isl": self.scheduler_reserve_full_isl,
                "async_scheduling": issubclass(scheduler, AsyncScheduler),
                "moves": self._watches,
                "kv_events": self._hears,
                "speculative": config.speculative_config is not None,
                "connector": self.connector is not None,
            }

        def _emit(self, record: dict[str, Any], *, now: bool = False) -> None:
            if sink is not None:
                sink(record)
                return
            self._note(self._put, record, now)

        def _put(self, record: dict[str, Any], now: bool) -> None:
            line = _encode(record) + b"\n"
            self._lines.append(line)
            self._held += len(line)
            if now or self._held > _BATCH:
                self._write()

        def _flush(self) -> None:
            self._note(self._write)

        def _write(self) -> None:
            if self._file is None:
                return
            data = memoryview(b"".join(self._lines))
            self._lines, self._held = [], 0
            while data:
                data = data[os.write(self._file, data) :]

    return Recording


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def _clock() -> dict[str, int]:
    return {"unix_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns()}


def _name(key: ExternalBlockHash) -> str:
    """A hash of a block as vLLM's events have it, which is 64 bits, or bytes; in hexadecimal digits."""
    return f"{key:016x}" if isinstance(key, int) else key.hex()


def _ranges(blocks: Sequence[int]) -> list[list[int]]:
    """Runs of consecutive ids: the first of each, and how many."""
    breaks = [at for at, (one, two) in enumerate(pairwise(blocks), 1) if two != one + 1]
    cuts = [0, *breaks, len(blocks)]
    return [[blocks[first], last - first] for first, last in pairwise(cuts)]


RecordingScheduler: Final = recording(Scheduler)
"""`Scheduler` that records."""
RecordingAsyncScheduler: Final = recording(AsyncScheduler)
"""`AsyncScheduler` that records."""


def recording_scheduler(*arguments: Any, **named: Any) -> Any:
    """The scheduler that vLLM would have taken, recording: asynchronous exactly where scheduling is.

    vLLM takes what `--scheduler-cls` names as it is; a synchronous one where scheduling is asynchronous would slow it down.
    """
    config = named["vllm_config"] if "vllm_config" in named else arguments[0]
    chosen = RecordingAsyncScheduler if config.scheduler_config.async_scheduling else RecordingScheduler
    return chosen(*arguments, **named)
