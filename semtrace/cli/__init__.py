"""The command line. Each module holds one group of commands and imports what it needs only when it runs."""
