"""Sixteen processes, or how many are asked for, that put content into a store until their time is over.

    python store_putter.py STORE SECONDS SEED PROCESSES OUTPUT

Prints the ids of the processes, and ends when they have. Each appends the digest of each put that returned to a file
OUTPUT.N of its own. Half of the content is the same for all.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from semtrace.store.artifact_store import ArtifactStore


def content_of(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 10, 1000, 50_000, 300_000]))


def shared_content() -> list[bytes]:
    """What all processes put."""
    return [content_of(random.Random(at)) for at in range(200)]


def put_until(path: str, seconds: float, seed: int, output: str) -> None:
    store = ArtifactStore(path, create=True)
    own = random.Random(seed)
    shared = shared_content()
    end = time.monotonic() + seconds
    with Path(output).open("ab", buffering=0) as file:
        while True:
            content = own.choice(shared) if own.random() < 0.5 else content_of(own)
            file.write(store.put(content).hex().encode() + b"\n")
            if time.monotonic() > end:
                return


def main() -> None:
    path, seconds, seed, processes, output = sys.argv[1:]
    children = []
    for at in range(int(processes)):
        child = os.fork()
        if not child:
            status = 1
            try:
                put_until(path, float(seconds), int(seed) + at, f"{output}.{at}")
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    sys.stdout.write(" ".join(map(str, children)) + "\n")
    sys.stdout.flush()
    statuses = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(statuses))


if __name__ == "__main__":
    main()
