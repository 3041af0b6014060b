"""A stat logger of vLLM: it writes what the server's front counted of each request that ended into the step log (spec, vllm.md).

A program gives it to its engine, `AsyncLLM(…, stat_loggers=[RecordingStats])`; `vllm serve` finds it if the folder `PLUGINS` of
`semtrace.live.vllm.names` is on its path. It runs where answers are made, not where steps are scheduled, and needs vLLM alone.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import TYPE_CHECKING, Any, Final

from vllm.v1.metrics.loggers import StatLoggerBase

from semtrace.live.vllm.names import OPTION, VARIABLE, log_path

if TYPE_CHECKING:
    from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats

_log: Final = logging.getLogger("vllm.semtrace")
_PARTS: Final = ("queued", "prefill", "decode", "inference")
"""Times of a request that vLLM measures, by its scheduler's clock."""


class RecordingStats(StatLoggerBase):  # type: ignore[misc]  # vLLM gives it no type
    """Writes down what became of requests; without a step log it does nothing, and an error ends what it writes, not the server.

    Args:
        vllm_config: vLLM's configuration.
        engine_index: which of the server's engines it is told of.
    """

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._file: int | None = None
        path = log_path(vllm_config.additional_config, engine_index)
        if path is None:
            _log.warning(
                "semtrace: no step log is named, by %s or by %s: requests are not written down",
                VARIABLE,
                OPTION,
            )
            return
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError:
            _log.exception("semtrace: requests are not written down")

    def record(
        self, scheduler_stats: Any, iteration_stats: IterationStats | None, *arguments: Any, **named: Any
    ) -> None:
        """What vLLM counted in a step: of that, the requests that ended are written down."""
        del scheduler_stats, arguments, named  # the scheduler writes its own down, by step
        if self._file is None or iteration_stats is None or not iteration_stats.finished_requests:
            return
        try:
            at = int(iteration_stats.iteration_timestamp * 1e9)
            lines = [_line(each, at) for each in iteration_stats.finished_requests]
            os.write(self._file, "".join(lines).encode())
        except Exception:  # noqa: BLE001  # whatever it is, the server answers on
            self._file = None
            _log.exception("semtrace: requests are written down no more; the server goes on")

    def log_engine_initialized(self) -> None:
        """The engine is there; nothing to say."""


def _line(request: FinishedRequestStats, at_unix_ns: int) -> str:
    """What is written down of a request that has ended.

    Args:
        request: what vLLM counted of it.
        at_unix_ns: when the front had the end of it.
    """
    record = {
        "kind": "finished",
        "id": request.request_id,
        "unix_ns": time.time_ns(),
        "monotonic_ns": time.monotonic_ns(),
        "arrived_unix_ns": at_unix_ns - int(request.e2e_latency * 1e9),
        "ended_unix_ns": at_unix_ns,
        **{f"{part}_ns": int(getattr(request, f"{part}_time") * 1e9) for part in _PARTS},
        "reason": str(request.finish_reason),
        "prompt_tokens": request.num_prompt_tokens,
        "output_tokens": request.num_generation_tokens,
        "cached_tokens": request.num_cached_tokens,
        "preemptions": request.num_preemptions,
    }
    return json.dumps(record, separators=(",", ":")) + "\n"
