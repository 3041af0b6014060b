"""Runs vLLM's whole engine on a CPU, forward passes included, and writes its schedule: python engine.py fcfs|priority.

The model is tiny and its weights are random. The load and the schedule go out as one JSON line, in the form of
tests/support/schedules.py; a token is a stream of its own.
"""

import json
import os
import random
import sys
import tempfile
from pathlib import Path

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
}

from drive import MODEL, SYNCHRONOUS  # it sets the environment further
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

REQUESTS, BLOCKS, BLOCK_SIZE, LONGEST = 110, 12, 32, 256

rows, ticks, arriving, leaving = [], [], [], []


class Logging(SYNCHRONOUS):
    """The scheduler of the engine; it also writes down what it does."""

    def __init__(self, *arguments, **named) -> None:
        super().__init__(*arguments, **named)
        self.watch()

    def schedule(self, *arguments, **named):
        step = super().schedule(*arguments, **named)
        ticks.append({"add": arriving[:], "abort": leaving[:]})
        arriving.clear()
        leaving.clear()
        rows.append([*self.row(step), []])
        return step

    def update_from_output(self, step, computed):
        done = super().update_from_output(step, computed)
        rows[-1][-1] = [
            int(each.request_id)
            for part in done.values()
            for each in part.outputs
            if each.finish_reason is not None
        ]
        return done


def main(order):
    rng = random.Random(order)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=folder,
                skip_tokenizer_init=True,
                load_format="dummy",
                dtype="float32",  # a CPU may offer instructions for bfloat16 that it does not let everybody use
                enforce_eager=True,
                max_model_len=LONGEST,
                block_size=BLOCK_SIZE,
                num_gpu_blocks_override=BLOCKS,
                max_num_seqs=5,
                max_num_batched_tokens=64,
                scheduling_policy=order,
                scheduler_cls=Logging,
                seed=0,
            )
        )
    root = [rng.randrange(4, 1024) for _ in range(100)]
    wanted, made, history = [], {}, []
    while len(wanted) < REQUESTS or engine.has_unfinished_requests():
        while len(wanted) < REQUESTS and rng.random() < 0.25:
            before = rng.choice([root, *history[-4:]])
            prompt = before[: rng.randint(0, len(before))]
            prompt = (prompt + [rng.randrange(4, 1024) for _ in range(rng.randint(1, 40))])[:200]
            number = len(wanted)
            each = {
                "prompt": prompt,
                "length": rng.randint(1, min(50, LONGEST - len(prompt))),
                "priority": rng.randint(0, 2) if order == "priority" else 0,
                "arrival": number,
                "salt": rng.choice([None, None, None, "a"]),
            }
            engine.add_request(
                f"{number:06d}",
                {"prompt_token_ids": prompt} | ({"cache_salt": each["salt"]} if each["salt"] else {}),
                SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=each["length"], detokenize=False),
                arrival_time=float(number),
                priority=each["priority"],
            )
            wanted.append(each)
            arriving.append(number)
        if wanted and rng.random() < 0.01:
            number = rng.randrange(len(wanted))
            engine.abort_request([f"{number:06d}"])
            leaving.append(number)
        for output in engine.step():
            number = int(output.request_id)
            made[number] = list(output.outputs[0].token_ids)
            if output.finished:
                history.append(wanted[number]["prompt"] + made[number])
    requests = []
    for number, each in enumerate(wanted):
        output = made.get(number, [])
        missing = each.pop("length") - len(output)  # of a request that was aborted
        rest = [[2000 + number, 0, missing]] if missing else []
        requests.append(
            each
            | {
                "prompt": [[token, 0, 1] for token in each["prompt"]],
                "output": [[token, 0, 1] for token in output] + rest,
            }
        )
    told, cache = engine.vllm_config.scheduler_config, engine.vllm_config.cache_config
    settings = {
        "order": told.policy,
        "max_num_seqs": told.max_num_seqs,
        "max_num_batched_tokens": told.max_num_batched_tokens,
        "max_model_len": engine.vllm_config.model_config.max_model_len,
        "chunked_prefill": told.enable_chunked_prefill,
        "prefix_caching": cache.enable_prefix_caching,
        "long_prefill_token_threshold": told.long_prefill_token_threshold,
        "watermark_blocks": int(told.watermark * cache.num_gpu_blocks),
        "reserve_full_isl": told.scheduler_reserve_full_isl,
        "asynchronous": bool(told.async_scheduling),
    }
    case = {
        "settings": settings,
        "blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "in_flight": 1,
        "limit": len(ticks),
        "requests": requests,
        "ticks": ticks,
    }
    sys.stdout.write(json.dumps([case, rows]) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
