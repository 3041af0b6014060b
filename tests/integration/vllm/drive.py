"""Drives vLLM's own schedulers alone, without a model: cases come in as JSON lines, schedules go out as JSON lines.

Runs in vLLM's environment and imports nothing of semtrace. See tests/support/schedules.py for the form of both.
"""

import copy
import json
import os
import sys
import tempfile
from collections import deque
from pathlib import Path

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
"""Some model that vLLM knows; nothing of it is ever computed."""


def base():
    """A configuration of vLLM, whose scheduler's part each case changes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        return EngineArgs(
            model=folder, skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, block_size=32
        ).create_engine_config()


def logging(scheduler):
    """The same scheduler, which also tells who was preempted and what was evicted, in that order.

    vLLM's own output has the preempted requests as a set. `always` is the rule of vLLM 0.29 and 0.30, which have no
    exception for a request that is alone: the scheduler is told of one request more than there is.
    """

    class Logging(scheduler):
        always = False

        def _preempt_request(self, request, *arguments, **named):
            self.preempted.append(int(request.request_id))
            super()._preempt_request(request, *arguments, **named)

        def get_request_counts(self):
            running, waiting = super().get_request_counts()
            return running, waiting + self.always

        def watch(self):
            pool = self.kv_cache_manager.block_pool
            evict = pool._maybe_evict_cached_block

            def noted(block):
                done = evict(block)
                if done:
                    self.evicted.append(block.block_id)
                return done

            pool._maybe_evict_cached_block = noted
            self.preempted, self.evicted = [], []

        def row(self, step):
            """What the schedule of this step did, with the queues and the pool after it."""
            seen = {
                each.req_id: ("new", each.num_computed_tokens, each.block_ids[0])
                for each in step.scheduled_new_reqs
            }
            rest = step.scheduled_cached_reqs
            for name, blocks, computed in zip(
                rest.req_ids, rest.new_block_ids, rest.num_computed_tokens, strict=True
            ):
                kind = "resumed" if name in rest.resumed_req_ids else "running"
                seen[name] = (kind, computed, blocks[0] if blocks else [])
            pool = self.kv_cache_manager.block_pool
            row = [
                [
                    [int(name), seen[name][0], seen[name][1], count, list(seen[name][2])]
                    for name, count in step.num_scheduled_tokens.items()
                ],
                self.preempted,
                self.evicted,
                [int(request.request_id) for request in self.running],
                [int(request.request_id) for request in self.waiting],
                [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
                sum(block.block_hash is not None for block in pool.blocks),
            ]
            self.preempted, self.evicted = [], []
            return row

    return Logging


SYNCHRONOUS, ASYNCHRONOUS = logging(Scheduler), logging(AsyncScheduler)


def make(config, case):
    settings, size, blocks = case["settings"], case["block_size"], case["blocks"]
    config = copy.copy(config)
    config.scheduler_config = copy.copy(config.scheduler_config)
    config.cache_config = copy.copy(config.cache_config)
    config.model_config = copy.copy(config.model_config)
    wanted = config.scheduler_config
    wanted.policy = settings["order"]
    wanted.max_num_seqs = settings["max_num_seqs"]
    wanted.max_num_batched_tokens = settings["max_num_batched_tokens"]
    wanted.enable_chunked_prefill = settings["chunked_prefill"]
    wanted.long_prefill_token_threshold = settings["long_prefill_token_threshold"]
    wanted.scheduler_reserve_full_isl = settings["reserve_full_isl"]
    wanted.watermark = (settings["watermark_blocks"] + 0.5) / blocks if settings["watermark_blocks"] else 0.0
    config.model_config.max_model_len = settings["max_model_len"]
    config.cache_config.block_size = size
    config.cache_config.enable_prefix_caching = settings["prefix_caching"]
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(
        num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    scheduler = (ASYNCHRONOUS if settings["asynchronous"] else SYNCHRONOUS)(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=size,
        log_stats=False,
    )
    scheduler.always = settings["threshold_always"]
    scheduler.watch()
    return scheduler


def tokens_of(runs):
    return [(stream << 16) + at for stream, start, length in runs for at in range(start, start + length)]


def record(config, case):
    scheduler = make(config, case)
    hasher = (
        get_request_block_hasher(case["block_size"], sha256) if case["settings"]["prefix_caching"] else None
    )
    outputs = {}

    def add(number):
        each = case["requests"][number]
        name = f"{number:06d}"  # with equal priority and arrival vLLM compares ids, as strings
        outputs[name] = tokens_of(each["output"])
        scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=tokens_of(each["prompt"]),
                sampling_params=SamplingParams(max_tokens=len(outputs[name]), ignore_eos=True),
                pooling_params=None,
                arrival_time=float(each["arrival"]),
                priority=each["priority"],
                cache_salt=each["salt"],
                block_hasher=hasher,
            )
        )

    def abort(number):
        scheduler.finish_requests(f"{number:06d}", RequestStatus.FINISHED_ABORTED)

    def update(step, yielding):
        names = list(step.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = scheduler.requests.get(name)
            yields = request is not None and name in yielding
            sampled.append([outputs[name][request.num_output_tokens]] if yields else [])
        computed = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        done = scheduler.update_from_output(step, computed)
        return [
            int(each.request_id)
            for part in done.values()
            for each in part.outputs
            if each.finish_reason is not None
        ]

    flying = deque()
    found = []
    ticks = deque(case["ticks"])
    while (ticks or scheduler.running or scheduler.waiting or flying) and len(found) < case["limit"]:
        tick = ticks.popleft() if ticks else {}
        for number in tick.get("add", ()):
            add(number)
        for number in tick.get("abort", ()):
            abort(number)
        step = scheduler.schedule()
        row = scheduler.row(step)
        scheduled = row[0]
        if scheduled:
            yielding = {
                name for name in step.num_scheduled_tokens if not scheduler.requests[name].is_prefill_chunk
            }
            flying.append((step, yielding))
        for number in tick.get("meanwhile", ()):
            abort(number)
        ended = []
        while flying and (len(flying) >= tick.get("in_flight", case["in_flight"]) or not scheduled):
            ended += update(*flying.popleft())
            if not scheduled:
                break
        found.append([*row, ended])
    return found


def main():
    init_none_hash(sha256)
    config = base()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(record(config, json.loads(line)), separators=(",", ":")) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
