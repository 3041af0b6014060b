"""A multi-agent trace with token ids for a model of 1,024 ids, the engine that it presses, and that model's folder."""

from __future__ import annotations

import random
import subprocess
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.build import TraceBuilder
from semtrace.records.enums import FinishReason, OperationKind, Role
from semtrace.records.media import TOKEN_IDS_TYPE
from support.vllm_driver import SCRIPTS, environment

if TYPE_CHECKING:
    from pathlib import Path

    from semtrace.records.trace import Trace

EOS: Final = 2
"""The id at which the model of `tiny_model` stops, if it may."""
IDS: Final = 1024
"""Ids of its vocabulary."""

ENGINE: Final[dict[str, Any]] = {
    "blocks": 24,
    "block_size": 32,
    "scheduler": {
        "max_num_seqs": 6,
        "max_num_batched_tokens": 128,
        "max_model_len": 704,
        "long_prefill_token_threshold": 80,
    },
    "model": {
        "name": "tiny", "layers": 2, "hidden_size": 64, "heads": 2, "kv_heads": 1, "head_dim": 64,
        "intermediate_size": 128, "vocab_size": IDS,
    },
    "cost": {
        "kind": "linear", "c0_ps": 4_000_000, "c_seq_ps": 500_000, "c_prefill_ps": 30_011, "c_decode_ps": 90_001, "c_kv_ps": 1_009,
    },
}  # fmt: skip
"""An engine with memory for two long requests or so."""


def agents_trace(seed: int, tasks: int = 7) -> Trace:
    """Tasks in which agents talk and call tools side by side, and one call reads what all of them said.

    All begin with the same instructions; a turn's prompt is the one before it, what was said then, and what a tool gave. Outputs are ids that no
    model would choose; some end with the model's end and were recorded as stopped, some have it in their middle.
    """
    rng = random.Random(seed)
    made = TraceBuilder()
    instructions = _draw(rng, 70)

    def call(
        task: int, session: int, prompt: list[list[int]], after: list[int], at: int
    ) -> tuple[int, list[int]]:
        output = _draw(rng, rng.randint(40, 90))
        stops = rng.random() < 0.4
        if stops:
            output[-1] = EOS
        elif rng.random() < 0.3:
            output[len(output) // 2] = EOS
        row = made.operation(
            task,
            OperationKind.LLM,
            "call",
            session=session,
            started_ns=at,
            prompt_tokens=sum(map(len, prompt)),
            output_tokens=len(output),
            finish_reason=FinishReason.STOP if stops else FinishReason.LENGTH,
        )
        for piece in prompt:
            made.segment(row, Role.USER, token_ids=_ids(made, piece), token_ids_start=0, tokens=len(piece))
        made.update_operation(row, output_token_ids=_ids(made, output))
        for before in after:
            made.edge(row, before)
        return row, output

    for number in range(tasks):
        task = made.task(f"task {number}", arrival_ns=number * 400_000)
        lasts, said, at = [], [], 0
        for agent in range(4):
            session = made.session(task, name=f"agent {agent}")
            prompt = [instructions, _draw(rng, rng.randint(5, 50))]
            after: list[int] = []
            for _ in range(rng.randint(3, 5)):
                row, output = call(task, session, prompt, after, at)
                tool = made.operation(
                    task,
                    OperationKind.TOOL,
                    "search",
                    session=session,
                    started_ns=at + 1,
                    duration_ns=rng.randint(0, 900_000),
                )
                made.edge(tool, row)
                prompt = [*prompt, output, _draw(rng, rng.randint(3, 20))]
                after, at = [tool], at + 2
            lasts += after
            said.append(output)
        session = made.session(task, name="join")
        call(task, session, [instructions, *said], lasts, at)
    return made.build().trace


def tiny_model(folder: Path) -> Path:
    """A folder with a model of random weights, its tokenizer and its chat template."""
    command = [environment(), "-W", "ignore", SCRIPTS / "make_model.py", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise AssertionError(done.stderr[-3000:])
    return folder


def _draw(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(4, IDS) for _ in range(count)]


def _ids(made: TraceBuilder, ids: list[int]) -> int:
    return made.artifact(np.array(ids, dtype="<u4").tobytes(), TOKEN_IDS_TYPE)
