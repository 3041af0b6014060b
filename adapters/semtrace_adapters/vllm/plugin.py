"""The recording scheduler that also writes down what requests hold: token ids, generation settings, sessions (docs/vllm.md).

It adds lines to the step log of `semtrace.live.vllm.recorder`:

    {"kind":"model", …}                  once, after the server's line: the model and its shape
    {"kind":"prompt","n":N, …}           after a request's line
    {"kind":"output","n":N,"ids":[…]}    when a request has ended

vLLM is told to load it with `--scheduler-cls semtrace_adapters.vllm.plugin.content_scheduler`. It needs vLLM and the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from semtrace.live.vllm.recorder import RecordingAsyncScheduler, RecordingScheduler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request, RequestStatus

_SAMPLING: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "min_tokens",
    "ignore_eos",
    "stop",
    "stop_token_ids",
)
_HINTS: Final = ("semtrace_task", "semtrace_stage", "semtrace_session")
_SHAPE: Final = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
}


def with_content(scheduler: type[Any]) -> type[Any]:
    """A recording scheduler that also records what requests hold."""

    class WithContent(scheduler):  # type: ignore[misc]  # vLLM gives it no type
        """Records content; see the module."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            self._content: dict[str, tuple[int, Request]] = {}
            super().__init__(*arguments, **named)
            self._emit({"kind": "model", **_model(self.vllm_config.model_config)}, now=True)

        def add_request(self, request: Request) -> None:
            """A request arrives."""
            known = request.request_id in self._number
            super().add_request(request)
            number = self._number.get(request.request_id)
            if known or number is None:
                return
            self._content[request.request_id] = (number, request)
            self._emit({"kind": "prompt", "n": number, **_prompt(request)})

        def update_from_output(
            self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
        ) -> Any:
            """A step is computed."""
            done = super().update_from_output(scheduler_output, model_runner_output)
            for part in done.values():
                self._ended(each.request_id for each in part.outputs if each.finish_reason is not None)
            return done

        def finish_requests(
            self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
        ) -> list[Request]:
            """Requests are ended from outside."""
            done: list[Request] = super().finish_requests(request_ids, finished_status)
            self._ended(each.request_id for each in done)
            return done

        def _ended(self, names: Iterable[str]) -> None:
            ended = [self._content.pop(name) for name in names if name in self._content]
            for number, request in ended:
                self._emit({"kind": "output", "n": number, "ids": list(request.output_token_ids)})
            if ended:
                self._flush()

    return WithContent


def _model(config: Any) -> dict[str, Any]:
    """The model's name and shape, as far as its configuration says them."""
    served = config.served_model_name
    hub = getattr(config, "hf_text_config", None)
    made: dict[str, Any] = {"name": served[0] if isinstance(served, list) else served or config.model}
    for name, theirs in _SHAPE.items():
        value = getattr(hub, theirs, None)
        made[name] = value if isinstance(value, int) and value > 0 else None
    return made


def _prompt(request: Request) -> dict[str, Any]:
    """What a request holds. Ids that stand for an image, or for embeddings, are not told: they do not say what is there."""
    exact = request.prompt_token_ids is not None and request.prompt_embeds is None and not request.mm_features
    sampling = request.sampling_params
    settings: dict[str, Any] = {}
    hints: dict[str, str] = {}
    if sampling is not None:
        for name in _SAMPLING:
            value = getattr(sampling, name, None)
            if value is not None and value != []:
                settings[name] = value
        extra = sampling.extra_args or {}
        hints = {name: str(extra[name]) for name in _HINTS if isinstance(extra.get(name), str)}
    return {
        "ids": list(request.prompt_token_ids) if exact and request.prompt_token_ids is not None else None,
        "arrival_unix_ns": int(request.arrival_time * 1e9),
        "pooling": sampling is None,
        "sampling": settings,
        "session": request.session_id,
        "hints": hints,
        "salted": request.cache_salt is not None,
        "adapter": None if request.lora_request is None else request.lora_request.lora_name,
    }


ContentScheduler: Final = with_content(RecordingScheduler)
"""The synchronous one."""
AsyncContentScheduler: Final = with_content(RecordingAsyncScheduler)
"""The asynchronous one."""


def content_scheduler(*arguments: Any, **named: Any) -> Any:
    """The scheduler that vLLM would have taken, recording: asynchronous exactly where scheduling is."""
    config = named["vllm_config"] if "vllm_config" in named else arguments[0]
    chosen = AsyncContentScheduler if config.scheduler_config.async_scheduling else ContentScheduler
    return chosen(*arguments, **named)
