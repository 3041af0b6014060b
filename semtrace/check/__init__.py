"""Every validity rule of the standard, each with its requirement id; findings, not exceptions."""

from semtrace.check.bundles import check_bundle
from semtrace.check.executions import check_execution
from semtrace.check.finding import Finding
from semtrace.check.trace import check_trace

__all__ = ["Finding", "check_bundle", "check_execution", "check_trace"]
