"""The reference implementation of the semtrace standard: records, bundles, checks, plans, replay, measures."""

__version__ = "0.1.0"
