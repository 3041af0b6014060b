"""AutoGen 0.4 to 0.7. `ADAPTER` reads its logs; `handler` writes them, and needs the standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semtrace_adapters.autogen.adapter import AutoGenAdapter

    ADAPTER: AutoGenAdapter

__all__ = ["ADAPTER"]


def __getattr__(name: str) -> Any:
    """Make the adapter when it is asked for: an application that only logs need not have semtrace's dependencies."""
    if name == "ADAPTER":
        from semtrace_adapters.autogen.adapter import AutoGenAdapter

        return AutoGenAdapter()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
