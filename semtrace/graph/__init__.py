"""The dependency graph: release plans, their legality, ready times and critical paths."""
