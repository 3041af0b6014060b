"""The command line. Each module holds one group of commands and imports what it needs only when it runs."""

import atexit
import gc
import os
import sys


def main() -> None:
    """Run the command line; what goes wrong outside of a command ends it with a sentence too."""
    # What is imported stays to the end: looking through it for garbage, above all when the interpreter ends, takes
    # a fifth of the time of a small command.
    gc.set_threshold(100_000, 50, 50)
    atexit.register(gc.freeze)
    # No command multiplies large matrices: starting threads for that takes a quarter of the processor time of a small one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # None needs pydantic's plug-ins: to look for them, it would read what every installed package says of itself.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    try:
        from semtrace.cli.main import build
        from semtrace.cli.printing import end_at_closed_pipes

        end_at_closed_pipes(yes=True)
        build(*sys.argv[1:2])()
    except ModuleNotFoundError as error:
        from semtrace.cli.printing import show_error
        from semtrace.errors import not_installed

        show_error(not_installed(error), as_json="--json" in sys.argv)
        sys.exit(2)
    except OSError as error:  # of a command itself, its wrapper has told; this is help, or the version
        from semtrace.cli.printing import drop_output, show_error
        from semtrace.errors import UsageError

        drop_output()  # to which an error as JSON would go too
        show_error(UsageError(f"cannot be read or written: {error}", code="file.io"), as_json=False)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
