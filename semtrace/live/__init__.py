"""Live replay: recorded work sent to a real server over HTTP, on a wall clock (spec, live.md)."""
