"""The shapes of published results, each re-run by one command on the simulated engine, our number beside theirs."""
