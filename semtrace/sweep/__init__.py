"""Sweeps: one trace replayed in a grid of settings, plans, arrivals and seeds, and what that gives in one table."""
