"""Judging replays in the world: by what the witness saw of them, and by what they say of themselves."""
