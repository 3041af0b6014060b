"""Making traces: the builder that producers call, and the canonical order that it gives to rows."""

from semtrace.build.assemble import BuiltTrace
from semtrace.build.builder import TraceBuilder
from semtrace.build.delays import ExplainedStarts, explain_starts
from semtrace.build.requests import Span

__all__ = ["BuiltTrace", "ExplainedStarts", "Span", "TraceBuilder", "explain_starts"]
