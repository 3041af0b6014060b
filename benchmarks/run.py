"""All benchmarks, ours and the peers' in one run: `make bench`. Writes build/bench.json and prints the ratios.

python benchmarks/run.py [--operations N] [--runs N] [--tenfold] [--no-peers] [--no-vllm]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import command_line
import inference_perf
import live
import native
import policies
import simulation
import trace_steps

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build"


def main() -> None:
    """Run everything."""
    options = argparse.ArgumentParser(description="All benchmarks; results in build/bench.json.")
    options.add_argument("--operations", type=int, default=1_000_000, help="operations of the large trace")
    options.add_argument("--runs", type=int, default=5, help="runs of each figure")
    options.add_argument(
        "--tenfold",
        action="store_true",
        help="also a trace ten times as large, once: minutes, and 20 GB of memory",
    )
    options.add_argument(
        "--no-peers", action="store_true", help="leave the peers out; they are written as not run"
    )
    options.add_argument(
        "--no-vllm", action="store_true", help="leave out what needs a vLLM server; it is written as not run"
    )
    chosen = options.parse_args()
    folder = OUT / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    results = command_line.run(folder, chosen.runs)
    results.update(trace_steps.run(folder, chosen.operations, chosen.runs, tenfold=chosen.tenfold))
    results.update(simulation.run(folder, ROOT, chosen.runs, peers=not chosen.no_peers))
    results.update(live.run(folder, ROOT, min(chosen.runs, 3), peers=not chosen.no_peers))
    results.update(native.run(folder, ROOT, native.PAIRS, vllm=not chosen.no_vllm))
    results.update(policies.run(min(chosen.runs, 3)))
    check = results["trace.check_1e6"]
    if chosen.no_peers:
        check.peer_note = "inference-perf not run: peers were left out"
    else:
        peer, check.peer_note = inference_perf.seconds_per_operation(folder, ROOT, min(chosen.runs, 3))
        check.peer = None if peer is None else peer * 1_000_000
    values = {name: result.as_dict() for name, result in sorted(results.items())}
    (OUT / "bench.json").write_text(json.dumps(values, indent=2) + "\n")
    for name, value in values.items():
        ratio = f"{value['ratio']:,.1f} times better than {value['peer']:,.3f}" if value["ratio"] else ""
        ours = f"{'–':>10}" if value["ours"] is None else f"{value['ours']:10.3f}"
        print(f"{name:20} {ours} {value['unit']:24} {ratio} ({value['peer_note']})")


if __name__ == "__main__":
    main()
