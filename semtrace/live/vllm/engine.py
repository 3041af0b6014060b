"""vLLM's engine in this process, stepped one scheduler step at a time, as a scheduler that the step engine can have."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from semtrace.engine.pool import BlockPool
from semtrace.engine.scheduler import Entry, Move, Request, Scheduler, Step
from semtrace.errors import ReplayError, UsageError
from semtrace.live.vllm.settings import engine_arguments
from semtrace.records.enums import BlockAction, FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from semtrace.engine.settings import EngineSettings
    from semtrace.live.vllm.forced import Choices
    from semtrace.live.vllm.settings import Lock, VllmSettings

_ACTION: Final = {
    "allocate": BlockAction.ALLOCATE,
    "hit": BlockAction.HIT,
    "free": BlockAction.FREE,
    "evict": BlockAction.EVICT,
}
FINISH: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
"""Why vLLM says that a model stopped."""
_MUST_BE: Final = (
    "blocks",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "order",
    "chunked_prefill",
    "prefix_caching",
    "long_prefill_token_threshold",
    "watermark_blocks",
    "reserve_full_isl",
)


class Sent(NamedTuple):
    """What vLLM is given of a request.

    Attributes:
        prompt: its token ids.
        salt: what is mixed into the keys of its blocks, None for nothing.
        output: the ids that it is to give; None if only their number is fixed.
        stops: whether it is to end because its model stopped, not because it was long enough.
    """

    prompt: list[int]
    salt: str | None
    output: list[int] | None
    stops: bool


class Output(NamedTuple):
    """What vLLM gave.

    Attributes:
        ids: the token ids.
        finish_reason: why it ended.
    """

    ids: list[int]
    finish_reason: FinishReason | None


def need_vllm() -> None:
    """Make sure that vLLM is installed.

    Raises:
        UsageError: it is not.
    """
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:  # a folder of that name is no package
        raise UsageError(
            "vLLM is not installed",
            code="vllm.missing",
            path="backend.name",
            requirement="ST-VLM-001",
            hint="pip install 'semtrace[vllm]'",
        )


class Vllm:
    """A vLLM engine, and what its scheduler wrote down since the last step.

    Args:
        settings: the settings of the backend.
        engine: what its scheduler and its blocks are to be.
        locked: whether outputs are locked to ids.

    Attributes:
        lock: how they are.
        block_bytes: bytes of a block of its KV cache.
        version: vLLM's.
        records: what the scheduler wrote down.

    Raises:
        ReplayError: vLLM does not start, or with other numbers than it was told (ST-VLM-002).
    """

    def __init__(self, settings: VllmSettings, engine: EngineSettings, *, locked: bool) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine is stepped in this process
        os.environ["VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"] = "1"
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        from vllm import __version__
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
        from vllm.v1.engine.llm_engine import LLMEngine

        from semtrace.live.vllm.forced import CHOICES_LOG, ForcedTokens
        from semtrace.live.vllm.recorder import recording

        self.version: str = __version__
        self.records: list[dict[str, Any]] = []
        arguments = engine_arguments(settings, engine)
        arguments |= {
            "scheduler_cls": recording(VllmScheduler, self.records.append),
            "skip_tokenizer_init": True,
            "seed": 0,
        }
        try:
            self.lock: Lock | None = _lock(settings, EngineArgs(**arguments)) if locked else None
            if self.lock == "trace_replay":
                arguments["enable_trace_replay"] = True
            elif self.lock == "logits_processor":
                arguments["logits_processors"] = [ForcedTokens]
                if settings.choices:
                    arguments["additional_config"] = {
                        **settings.options.get("additional_config", {}),
                        CHOICES_LOG: "",
                    }
            self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except (ValueError, RuntimeError, TypeError, NotImplementedError, OSError) as error:
            raise ReplayError(
                f"vLLM does not start: {_first_line(error)}",
                code="vllm.start",
                path="backend.settings",
                requirement="ST-VLM-002",
                hint="its own messages are on stderr; VLLM_LOGGING_LEVEL=INFO shows more",
            ) from error
        self._judge(engine)

    def _judge(self, engine: EngineSettings) -> None:
        """The engine has the numbers of the document (ST-VLM-002)."""
        told = self.records.pop(0)
        scheduler = engine.scheduler
        asked = {"blocks": engine.blocks, "block_size": engine.block_size} | {
            name: getattr(scheduler, name) for name in _MUST_BE[2:]
        }
        wrong = [f"{name} {told[name]} for {asked[name]}" for name in _MUST_BE if told[name] != asked[name]]
        if wrong:
            raise ReplayError(
                f"vLLM took {', '.join(wrong)}",
                code="vllm.settings",
                path="backend.settings.engine",
                requirement="ST-VLM-002",
                hint="ask for what it takes",
            )
        self.block_bytes: int | None = told["block_bytes"]

    def add(self, request: Request, sent: Sent) -> None:
        """Give it a request."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        from semtrace.live.vllm.forced import IDS

        prompt: Any = {"prompt_token_ids": sent.prompt}
        if sent.salt is not None:
            prompt["cache_salt"] = sent.salt
        named: dict[str, Any] = {}
        if sent.output is None:
            named["min_tokens"] = request.max_tokens
        elif self.lock == "trace_replay":
            named["trace_decode_token_ids"] = sent.output
        else:
            named["extra_args"] = {IDS: sent.output}
            if sent.stops and sent.output[-1] not in sent.output[:-1]:
                named["stop_token_ids"] = [sent.output[-1]]
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=request.max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **named,
        )
        self._engine.add_request(
            name_of(request),
            prompt,
            parameters,
            arrival_time=float(request.arrival),
            priority=request.priority,
        )

    def step(self) -> dict[str, Output]:
        """One step: what ended in it, by request id."""
        return {
            each.request_id: Output(
                list(each.outputs[0].token_ids), FINISH.get(each.outputs[0].finish_reason or "")
            )
            for each in self._engine.step()
            if each.finished
        }

    def choices(self) -> Choices | None:
        """What was forced; None where our processor is not asked."""
        from semtrace.live.vllm.forced import ForcedTokens

        processor = ForcedTokens.last() if ForcedTokens.last is not None else None
        return None if processor is None or self.lock != "logits_processor" else processor.choices

    def close(self) -> None:
        """End the engine."""
        self._engine.engine_core.shutdown()


class StepDriven(Scheduler):
    """vLLM's scheduler and pool where the step engine has its own (spec, vllm.md).

    vLLM computes a step when it is scheduled; what the step yields is told when it ends on the virtual clock. Nothing is
    lost by that: while a step computes, requests are added and nothing else happens.

    Args:
        engine: the settings.
        start: makes the engine; called when the first request is there.
        sent: what vLLM is given of a request.
    """

    def __init__(
        self, engine: EngineSettings, start: Callable[[], Vllm], sent: Callable[[Request], Sent]
    ) -> None:
        super().__init__(engine.scheduler, 2, engine.block_size)
        self._told_pool = _Free()
        self.pool = self._told_pool
        self._start, self._sent = start, sent
        self.vllm: Vllm | None = None
        self._open: dict[str, Request] = {}
        self._numbers: dict[int, Request] = {}
        self._computed: dict[str, Any] | None = None
        self._ended: dict[str, Output] = {}
        self.outputs: dict[int, Output] = {}

    def add(self, request: Request) -> None:
        """A request arrives."""
        if self.vllm is None:
            self.vllm = self._start()
        self._open[name_of(request)] = request
        self.vllm.add(request, self._sent(request))
        self._read(self.vllm)

    def schedule(self) -> Step:
        """Let vLLM schedule and compute its next step."""
        step = Step()
        if self.vllm is None or not self._open:
            return step
        self._ended = self.vllm.step()
        for record in self._read(self.vllm):
            if record["kind"] == "step":
                self._enter(step, record)
            elif record["kind"] == "computed":
                self._computed = record
        return step

    def update(self, step: Step) -> list[Request]:
        """The step is computed: the requests that ended with it."""
        del step  # one is in flight
        record, self._computed = self._computed, None
        if record is None:
            return []
        for number, count in record["yielded"]:
            self._numbers[number].outputs += count
        self._note_all(record["moves"])
        ended = []
        for number, _ in record["ended"]:
            request = self._numbers.pop(number)
            request.state = "ended"
            del self._open[name_of(request)]
            self.outputs[request.id] = self._ended[name_of(request)]
            ended.append(request)
        return ended

    def _read(self, vllm: Vllm) -> list[dict[str, Any]]:
        """What the scheduler wrote down, but for the requests that came, which are noted."""
        records = list(vllm.records)
        vllm.records.clear()
        for record in records:
            if record["kind"] == "request":
                self._numbers[record["n"]] = self._open[record["id"]]
        return [record for record in records if record["kind"] != "request"]

    def _enter(self, step: Step, record: dict[str, Any]) -> None:
        moves = record["moves"]
        for number in record["preempted"]:
            request = self._numbers[number]
            request.state = "preempted"
            request.preemptions += 1
            step.preempted.append(request)
        for number, kind, computed, tokens in record["entries"]:
            request = self._numbers[number]
            if kind != "running":
                request.admitted_tokens = request.tokens
                request.state = "running"
                if request.cached is None:
                    request.cached = computed
            request.computed = computed + tokens
            yields = request.computed == request.tokens
            step.entries.append(
                Entry(request, kind, computed, tokens, (), (), computed < request.admitted_tokens, yields)
            )
        self._told_pool.count = record["free_blocks"]
        self._note_all(moves)

    def _note_all(self, moves: list[list[Any]] | None) -> None:
        for action, number, position, ranges in moves or ():
            blocks = [first + at for first, count in ranges for at in range(count)]
            self.moves.append(Move(_ACTION[action], self._numbers[number], blocks, position))


class _Free(BlockPool):
    """The pool as far as it is asked here: how many blocks are free."""

    def __init__(self) -> None:
        super().__init__(2, caching=False)
        self.count = 0

    @property
    def free_count(self) -> int:
        """How many blocks have no holder."""
        return self.count


def name_of(request: Request) -> str:
    """The id of a request in vLLM."""
    return f"semtrace-{request.id}"


def _lock(settings: VllmSettings, arguments: Any) -> Lock:
    """How vLLM can be made to give recorded ids: its V2 model runner by trace replay, its V1 model runner by a logits processor."""
    own: Lock = "trace_replay" if arguments.create_engine_config().use_v2_model_runner else "logits_processor"
    if settings.lock not in ("auto", own):
        raise ReplayError(
            f"this vLLM can lock outputs by {own}, not by {settings.lock}",
            code="vllm.lock",
            path="backend.settings.lock",
            requirement="ST-VLM-004",
            hint="leave it out",
        )
    return own


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__
