"""Help for testing what reads and writes traces: random valid traces, the same for the same seed on every machine."""

from semtrace.testing.traces import TraceShape, random_requests, random_trace

__all__ = ["TraceShape", "random_requests", "random_trace"]
