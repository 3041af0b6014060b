"""`python -m semtrace` is the command `semtrace`, where that is not on the path."""

from semtrace.cli import main

if __name__ == "__main__":
    main()
