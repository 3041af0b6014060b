"""Records vLLM's schedules anew: `make golden-vllm`."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from support.schedules import SCHEDULES, make_case  # noqa: E402  # tests are no package
from support.vllm_driver import recorded  # noqa: E402

SEEDS = range(1_000_000, 1_000_070)
"""No seed of the integration tests."""


def main() -> None:
    loads = [
        make_case(seed, asynchronous=asynchronous, requests=16, limit=600)
        for seed in SEEDS
        for asynchronous in (False, True)
    ]
    lines = [json.dumps([case, rows], separators=(",", ":")) for case, rows in recorded(loads)]
    packed = lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME)
    SCHEDULES.write_bytes(packed)
    sys.stdout.write(f"{len(lines)} schedules, {len(packed)} bytes\n")


if __name__ == "__main__":
    main()
