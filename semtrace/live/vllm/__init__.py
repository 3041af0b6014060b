"""vLLM: what runs within its processes to force recorded ids and to record its steps, and a backend that steps it in this one.

Nothing is imported here: vLLM's processes import `semtrace.live.vllm.plugin`, which needs vLLM and the standard library alone.
"""
