"""The simulated serving engine: vLLM's schedule on a virtual clock, in a readable form and a compiled one that agree."""
