"""How a step log names itself: what `semtrace.live.vllm.recorder` writes, which cannot be imported where vLLM is not."""

from typing import Final

FORMAT: Final = "semtrace-vllm-steps"
VERSION: Final = 1
