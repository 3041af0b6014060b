"""Make the cases of the conformance suite: one command makes all files of cases/, expected/, requirements/ and schema/.

    .venv/bin/python conformance/make_cases.py            write them
    .venv/bin/python conformance/make_cases.py --check    say what differs from what is there

What is expected comes from the text of the standard, through the oracles in `semtrace_conformance.making`, never from the
reader, planner, replayer or auditor that the suite judges.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from semtrace_conformance.making.make import differences, make

HERE = Path(__file__).resolve().parent

if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), HERE.parent / "spec")
            found = differences(HERE, Path(folder))
        print("\n".join(found) or "as made")
        sys.exit(1 if found else 0)
    make(HERE, HERE.parent / "spec")
