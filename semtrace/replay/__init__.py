"""The reference replayer: fixed work, released by a plan, on a clock and a backend."""
