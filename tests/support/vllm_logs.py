"""Step logs of vLLM by hand: a server that runs one request after another, as a recording scheduler writes it down."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

START = 1_700_000_000_000_000_000
"""Unix time at which the server begins."""
MS = 1_000_000


class StepLog:
    """Lines of a step log; times in ms after the server's beginning. What happens to blocks is not told, unless asked for."""

    def __init__(self, *, rank: int = 0, content: bool = True, moves: bool = False) -> None:
        self.lines: list[dict[str, Any]] = []
        self.content = content
        self.moves: list[Any] | None = [] if moves else None
        self.requests = self.steps = 0
        self.put(
            0, kind="server", format="semtrace-vllm-steps", version=1, vllm="0.32.0", rank=rank, pid=1, blocks=60,
            block_size=32, block_bytes=65536, order="fcfs", max_num_seqs=4, max_num_batched_tokens=128,
            max_model_len=512, chunked_prefill=True, prefix_caching=True, long_prefill_token_threshold=0,
            watermark_blocks=0, reserve_full_isl=True, async_scheduling=False, moves=moves,
        )  # fmt: skip
        if content:
            shape = {"layers": 2, "hidden_size": 64, "heads": 2, "kv_heads": 1, "head_dim": 64}
            self.lines.append(
                {"kind": "model", "name": "tiny", **shape, "intermediate_size": 128, "vocab_size": 1024}
            )

    def put(self, at_ms: float, **record: Any) -> None:
        """A line with a time."""
        ns = int(at_ms * MS)
        self.lines.append({**record, "unix_ns": START + ns, "monotonic_ns": 5_000 * MS + ns})

    def hint(self, at_ms: float | None, request: str, **told: str) -> None:
        """A client says something of the request with this id that comes next; without a time as lines once had none."""
        when = {} if at_ms is None else {"unix_ns": START + int(at_ms * MS)}
        self.lines.append({"kind": "hint", **when, "request": request, **told})

    def come(self, at_ms: float, prompt: Sequence[int] | int, *, name: str | None = None, **told: Any) -> int:
        """A request comes, with token ids or a number of tokens."""
        number = self.requests
        self.requests += 1
        tokens = prompt if isinstance(prompt, int) else len(prompt)
        named = name if name is not None else f"cmpl-r{number}-0"
        self.put(at_ms, kind="request", n=number, id=named, prompt_tokens=tokens, max_tokens=9, priority=0)
        if self.content:
            self.lines.append(
                {
                    "kind": "prompt",
                    "n": number,
                    "ids": None if isinstance(prompt, int) else list(prompt),
                    "arrival_unix_ns": START + int(at_ms * MS),
                    "pooling": False,
                    "sampling": {"temperature": 0.0, "max_tokens": 9},
                    "session": None,
                    "hints": {},
                    "salted": False,
                    "adapter": None,
                    **told,
                }
            )
        return number

    def step(self, at_ms: float, entries: list[list[Any]], preempted: Sequence[int] = ()) -> int:
        """A step is scheduled: number, kind, tokens computed before, tokens computed."""
        number = self.steps
        self.steps += 1
        self.put(
            at_ms, kind="step", step=number, entries=entries, preempted=list(preempted), moves=self.moves, free_blocks=50,
            running=len(entries), waiting=0,
        )  # fmt: skip
        return number

    def computed(
        self, at_ms: float, step: int, yielded: list[list[int]], ended: list[list[Any]] | None = None
    ) -> None:
        """A step is computed."""
        self.put(at_ms, kind="computed", step=step, yielded=yielded, ended=ended or [], moves=self.moves)

    def output(self, number: int, ids: Sequence[int]) -> None:
        """A request's output is told."""
        if self.content:
            self.lines.append({"kind": "output", "n": number, "ids": list(ids)})

    def serve(
        self,
        at_ms: float,
        prompt: Sequence[int] | int,
        output: Sequence[int],
        *,
        reason: str = "length",
        cached: int = 0,
        **told: Any,
    ) -> int:
        """A request comes and is served: its prompt takes 2 ms, each token 1 ms."""
        number = self.come(at_ms, prompt, **told)
        tokens = prompt if isinstance(prompt, int) else len(prompt)
        at = at_ms + 1
        for place in range(len(output)):
            entry = (
                [number, "running", tokens + place - 1, 1]
                if place
                else [number, "new", cached, tokens - cached]
            )
            step = self.step(at, [entry])
            at += 1 if place else 2
            last = place + 1 == len(output)
            self.computed(at, step, [[number, 1]], [[number, reason]] if last else [])
        self.output(number, output)
        return number

    def write(self, path: Path) -> Path:
        """The log as a file."""
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines), "utf-8")
        return path
