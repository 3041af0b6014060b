"""Every validity rule of the standard, each with its requirement id; findings, not exceptions."""
