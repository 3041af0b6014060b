"""The compiled engine: a whole virtual replay in one loop, equal to the step engine to the bit."""
