"""Tools on traces: filter, sample, merge, renumber and redact, each with its lineage; differences of traces and runs."""
