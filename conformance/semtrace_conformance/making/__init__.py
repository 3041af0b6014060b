"""Making the cases of the suite: only this part of the package uses semtrace's records and builder."""
