"""vLLM's server. `ADAPTER` reads what its scheduler wrote down; `plugin` and `hints` write it, and run in vLLM's processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semtrace_adapters.vllm.adapter import VllmAdapter

    ADAPTER: VllmAdapter

__all__ = ["ADAPTER"]


def __getattr__(name: str) -> Any:
    """Make the adapter when it is asked for: vLLM's processes need not have semtrace's dependencies."""
    if name == "ADAPTER":
        from semtrace_adapters.vllm.adapter import VllmAdapter

        return VllmAdapter()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
