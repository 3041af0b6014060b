"""Drives vLLM's scheduler while it records to a file, and is killed within a step: python killed.py STEPS."""

import os
import signal
import sys

import drive
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

from semtrace.live.vllm.recorder import recording

drive.SYNCHRONOUS = drive.logging(recording(Scheduler))


def main(steps):
    init_none_hash(sha256)
    case = {
        "settings": {
            "order": "fcfs", "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 200, "chunked_prefill": True,
            "prefix_caching": False, "long_prefill_token_threshold": 0, "threshold_always": False, "watermark_blocks": 0,
            "reserve_full_isl": True, "asynchronous": False,
        },
        "blocks": 64,
        "block_size": 4,
    }  # fmt: skip
    scheduler = drive.make(drive.base(), case)
    for number in range(4):
        scheduler.add_request(
            drive.Request(
                request_id=f"cmpl-semtrace-0-{number}-0-0123abcd",
                prompt_token_ids=[7, 8, 9, 10 + number],
                sampling_params=drive.SamplingParams(max_tokens=100, ignore_eos=True),
                pooling_params=None,
                arrival_time=float(number),
            )
        )
    for _ in range(steps):
        step = scheduler.schedule()
        names = list(step.num_scheduled_tokens)
        computed = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=[[1] for _ in names],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        scheduler.update_from_output(step, computed)
    scheduler.schedule()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
