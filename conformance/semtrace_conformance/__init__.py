"""The conformance suite: it judges readers, writers, planners and replayers against the spec."""
