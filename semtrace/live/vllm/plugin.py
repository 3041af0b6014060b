"""What vLLM is told to load, by the names that its options take (docs/vllm.md).

--logits-processors semtrace.live.vllm.plugin:ForcedTokens
--scheduler-cls semtrace.live.vllm.plugin.recording_scheduler
"""

from semtrace.live.vllm.forced import ForcedTokens
from semtrace.live.vllm.recorder import recording_scheduler

__all__ = ["ForcedTokens", "recording_scheduler"]
