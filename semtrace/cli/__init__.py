"""The command line. Each module holds one group of commands and imports what it needs only when it runs."""

import sys


def main() -> None:
    """Run the command line; an interrupt while it is still being imported ends it quietly too."""
    try:
        from semtrace.cli.main import app

        app()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
