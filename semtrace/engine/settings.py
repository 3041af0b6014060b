"""What a simulated engine is told, as plain numbers: made from an engine document, checked there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Order = Literal["fcfs", "priority"]
Routing = Literal["round_robin", "least_loaded", "prefix_aware", "session_sticky"]


@dataclass(frozen=True)
class SchedulerSettings:
    """Settings of one server's scheduler, named as vLLM names them.

    Attributes:
        order: order of the waiting queue: first come, first served, or (priority, arrival).
        static: admit requests only while none runs: a batch ends before the next one begins.
        max_num_seqs: most requests running at once.
        max_num_batched_tokens: most tokens in one step.
        max_model_len: most tokens of a request, prompt and output.
        chunked_prefill: whether a prompt may be computed in several steps.
        prefix_caching: whether full blocks are kept and found by their content.
        long_prefill_token_threshold: most tokens of one request in a step, 0 for no such limit.
        threshold_always: apply that limit also to a request that is alone (vLLM 0.29 and 0.30).
        watermark_blocks: blocks that an admission must leave free while something runs.
        reserve_full_isl: admit a request only if its whole input fits.
        asynchronous: schedule a step while the one before it still computes.
    """

    order: Order = "fcfs"
    static: bool = False
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 1 << 40
    chunked_prefill: bool = True
    prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    threshold_always: bool = False
    watermark_blocks: int = 0
    reserve_full_isl: bool = True
    asynchronous: bool = False


@dataclass(frozen=True)
class EngineSettings:
    """Settings of all servers; they are alike.

    Attributes:
        scheduler: settings of each server's scheduler.
        blocks: device blocks of each server, the null block (id 0) included.
        block_size: tokens in a block.
        servers: how many servers.
        routing: how a released operation finds its server.
    """

    scheduler: SchedulerSettings
    blocks: int
    block_size: int
    servers: int = 1
    routing: Routing = "round_robin"
