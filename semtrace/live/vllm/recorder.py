"""vLLM's scheduler, writing down what it does: each request, each step, and what happens to each block (spec, vllm.md).

It needs vLLM alone, and what vLLM needs. The file is named by the environment variable `SEMTRACE_VLLM_LOG`, or by `{"semtrace_step_log": PATH}` in
vLLM's `--additional-config`, which goes first. With data parallelism every engine but the first has the file `PATH.<rank>`. Nothing
that vLLM decides changes: every method does what it did.

A step's lines are written together, in one call of the operating system, when the step is computed. So a server that is killed
has lost no more than the step that it was in.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from semtrace.live.vllm.names import FORMAT, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

VARIABLE: Final = "SEMTRACE_VLLM_LOG"
"""The environment variable that names the file."""
OPTION: Final = "semtrace_step_log"
"""The member of vLLM's additional configuration that names it."""
_encode: Final = msgspec.json.Encoder().encode
_BATCH: Final = 1 << 16
"""Bytes of lines that wait for the end of a step, at most."""


def path_of(config: Any) -> str:
    """Where the log of this engine goes.

    Raises:
        ValueError: nobody says.
    """
    extra = config.additional_config
    path = extra.get(OPTION) if isinstance(extra, dict) else None
    path = path or os.environ.get(VARIABLE)
    if not path:
        raise ValueError(
            f"the recording scheduler has no file to write to: set {VARIABLE}, or {OPTION} in --additional-config"
        )
    rank = config.parallel_config.data_parallel_rank
    return f"{path}.{rank}" if rank else str(path)


def recording(scheduler: type[Scheduler], sink: Callable[[dict[str, Any]], None] | None = None) -> type[Any]:
    """A scheduler of vLLM that also says what it does.

    Args:
        scheduler: vLLM's `Scheduler` or `AsyncScheduler`.
        sink: what takes each record; a file, as the module says, if left out.
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
            self._lines: list[bytes] = []
            self._held = 0
            self._file = None if sink is not None else _open(path_of(self.vllm_config))
            self._watches = self._watch()
            self._emit(self._server(), now=True)

        # -- what vLLM calls ------------------------------------------------------------------------------------

        def add_request(self, request: Request) -> None:
            """A request arrives."""
            name = request.request_id
            known = name in self.requests
            super().add_request(request)
            if known:
                return
            self._number[name] = self._requests_seen
            self._requests_seen += 1
            self._emit(
                {
                    "kind": "request",
                    "n": self._number[name],
                    "id": name,
                    "prompt_tokens": request.num_prompt_tokens,
                    "max_tokens": request.max_tokens,
                    "priority": request.priority,
                    **_clock(),
                }
            )

        def schedule(self, *arguments: Any, **named: Any) -> SchedulerOutput:
            """A step is scheduled."""
            at = _clock()
            step = super().schedule(*arguments, **named)
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
                        "moves": self._take_moves(),
                        "free_blocks": self.kv_cache_manager.block_pool.get_num_free_blocks(),
                        "running": len(self.running),
                        "waiting": self.get_request_counts()[1],
                    }
                )
            self._preempted = []
            return step

        def update_from_output(
            self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
        ) -> Any:
            """A step is computed."""
            at = _clock()
            done = super().update_from_output(scheduler_output, model_runner_output)
            number = next((number for step, number in self._flying if step is scheduler_output), None)
            if number is None:
                return done
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
            self._emit(
                {
                    "kind": "computed",
                    "step": number,
                    **at,
                    "yielded": yielded,
                    "ended": ended,
                    "moves": self._take_moves(),
                },
                now=True,
            )
            return done

        def finish_requests(
            self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
        ) -> list[Request]:
            """Requests are ended from outside."""
            at = _clock()
            done: list[Request] = super().finish_requests(request_ids, finished_status)
            gone = [self._number.pop(each.request_id) for each in done if each.request_id in self._number]
            if gone:
                self._emit({"kind": "aborted", **at, "requests": gone, "moves": self._take_moves()}, now=True)
            return done

        def reset_prefix_cache(self, *arguments: Any, **named: Any) -> bool:
            """All that is kept is forgotten: what blocks hold is not told any more."""
            done: bool = super().reset_prefix_cache(*arguments, **named)
            self._watches = False
            self._emit({"kind": "reset", **_clock()}, now=True)
            return done

        def shutdown(self) -> None:
            """The server ends."""
            self._flush()
            super().shutdown()

        # -- blocks --------------------------------------------------------------------------------------------

        def _preempt_request(self, request: Request, *arguments: Any, **named: Any) -> None:
            self._preempted.append(self._number[request.request_id])
            super()._preempt_request(request, *arguments, **named)

        def _free_request_blocks(self, request: Request) -> None:
            if self._watches:
                blocks = self.kv_cache_manager.get_block_ids(request.request_id)[0]
                self._move("free", request, None, blocks)
                self._holds.pop(request.request_id, None)
            super()._free_request_blocks(request)

        def _watch(self) -> bool:
            """Listen to what happens to blocks, where they are of one kind and freed at once: whether they are."""
            manager = self.kv_cache_manager
            pool = manager.block_pool
            if len(self.kv_cache_config.kv_cache_groups) != 1 or self.defer_block_free:
                return False
            allocate, evict = manager.allocate_slots, pool._maybe_evict_cached_block  # noqa: SLF001  # no event names its block

            def evicting(block: Any) -> bool:
                done: bool = evict(block)
                if done:
                    self._evicted.append(block.block_id)
                return done

            def allocating(request: Request, *arguments: Any, **named: Any) -> Any:
                new = allocate(request, *arguments, **named)
                if new is None:
                    return new
                taken = new.get_block_ids()[0]
                name = request.request_id
                at = self._holds.get(name)
                if at is None:  # admitted: what it holds besides was found
                    held = manager.get_block_ids(name)[0]
                    at = len(held) - len(taken)
                    self._move("evict", request, None, self._evicted)
                    self._move("hit", request, 0, held[:at])
                elif taken:
                    self._move("evict", request, None, self._evicted)
                else:
                    return new
                self._move("allocate", request, at, taken)
                self._holds[name] = at + len(taken)
                self._evicted = []
                return new

            manager.allocate_slots = allocating
            pool._maybe_evict_cached_block = evicting  # noqa: SLF001  # vLLM tells evictions nowhere else
            return True

        def _move(self, action: str, request: Request, position: int | None, blocks: Sequence[int]) -> None:
            number = self._number.get(request.request_id)
            if blocks and number is not None:
                self._moves.append([action, number, position, _ranges(blocks)])

        def _take_moves(self) -> list[list[Any]] | None:
            moves, self._moves = self._moves, []
            return moves if self._watches else None

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
                "async_scheduling": bool(told.async_scheduling),
                "moves": self._watches,
            }

        def _emit(self, record: dict[str, Any], *, now: bool = False) -> None:
            if sink is not None:
                sink(record)
                return
            line = _encode(record) + b"\n"
            self._lines.append(line)
            self._held += len(line)
            if now or self._held > _BATCH:
                self._flush()

        def _flush(self) -> None:
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
