"""Fuzzing: mutated bundles and streams, of which none may do worse than end in findings or a SemtraceError."""
