"""Replays a trace on the backend `vllm`: python replay.py TRACE SCENARIO OUTPUT; facts of the run go out as one JSON line."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

import pyarrow as pa

from semtrace.errors import SemtraceError
from semtrace.graph.plan import dag
from semtrace.live.vllm.backend import in_process
from semtrace.records.execution import Execution
from semtrace.replay import run
from semtrace.replay.scenario import Scenario
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.digests import show, work_digest

made = []


def keep(setup):
    made.append(in_process(setup))
    return made[-1]


def main(trace_path, scenario_path, output):
    run.BACKENDS["vllm"] = keep
    trace = open_bundle(trace_path).trace
    scenario = Scenario.parse(json.loads(Path(scenario_path).read_text()), path="scenario")
    detail = ("steps", "step_runs", "blocks")
    try:
        execution = run.replay(trace, dag(show(work_digest(trace))), scenario, detail=detail)
    except SemtraceError as error:
        sys.stdout.write(json.dumps(error.as_dict()) + "\n")
        return
    ordinals, content = made[0].outputs()
    events = execution.events.data
    place = events.schema.get_field_index("output_ids")
    ids = pa.array(
        [ordinals.get(row) for row in range(events.num_rows)], type=events.schema.field(place).type
    )
    tables = {name: columns.data for name, columns in execution.tables.items()}
    tables["events"] = events.set_column(place, events.schema.field(place), ids)
    header = execution.header.model_copy(
        update={"environment": {**execution.header.environment, **made[0].environment()}}
    )
    write_bundle(output, executions={"vllm": replace(Execution.from_arrow(header, tables), content=content)})
    sys.stdout.write(json.dumps(made[0].environment()) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
