"""Mooncake's request traces: JSON lines with arrival, lengths and block ids; read and written."""

from __future__ import annotations

from semtrace_adapters.mooncake.adapter import MooncakeAdapter

ADAPTER = MooncakeAdapter()
"""The adapter, as the entry point names it."""

__all__ = ["ADAPTER", "MooncakeAdapter"]
