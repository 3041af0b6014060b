"""Record AutoGen runs against the project's test server: the recordings beside this file are made by it.

Run it in the environment of AutoGen, ``.venvs/autogen`` (``make .venvs/autogen/.installed``)::

    .venvs/autogen/bin/python examples/autogen/record.py [SCENARIO...] [--out DIR]

For each scenario it writes, into ``DIR/SCENARIO``: ``events.jsonl`` (AutoGen's event log, through the handler that
semtrace_adapters ships), ``spans.jsonl`` (OpenTelemetry; not for all), ``stream.jsonl`` (the run stream), ``config.json`` (the
team's component config) and ``server.jsonl`` (the server's access log: what was really sent and answered).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The environment holds AutoGen only: the server and the handler need nothing but the standard library.
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "adapters"), str(HERE)]

from openinference.instrumentation.autogen_agentchat import AutogenAgentChatInstrumentor  # noqa: E402
from openinference.instrumentation.openai import OpenAIInstrumentor  # noqa: E402
from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.resources import Resource  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult  # noqa: E402
from teams import SCENARIOS, WITHOUT_SPANS, Endpoint  # noqa: E402

from semtrace_adapters.autogen.handler import recording  # noqa: E402
from servers.launch import start_server  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan


class JsonLinesExporter(SpanExporter):
    """Writes each finished span as one line, in the form of the SDK's own ``to_json``."""

    def __init__(self, *, always: bool) -> None:
        self.path: Path | None = None
        self.always = always

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append the spans to the current file; without one they are dropped."""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                for span in spans:
                    line = json.loads(span.to_json(indent=None))
                    for event in line["events"]:
                        event["attributes"].pop("exception.stacktrace", None)  # full of this machine's paths
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return SpanExportResult.SUCCESS


async def run(name: str, url: str, out: Path, exporter: JsonLinesExporter) -> int:
    """Run one scenario and write its recording; returns the number of stream items."""
    team, task = SCENARIOS[name](Endpoint(url))
    exporter.path = out / "spans.jsonl" if exporter.always or name not in WITHOUT_SPANS else None
    items: list[dict[str, Any]] = []
    with recording(out / "events.jsonl"), (out / "stream.jsonl").open("w", encoding="utf-8") as stream:
        async for item in team.run_stream(task=task):
            line = {
                "time_unix_ns": time.time_ns(),
                "class": type(item).__name__,
                "data": item.model_dump(mode="json"),
            }
            items.append(line)
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")
        await asyncio.sleep(0.05)  # the runtime finishes its last deliveries after the stream has ended
    exporter.path = None
    config = team.dump_component().model_dump(mode="json")
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return len(items)


async def run_all(names: list[str], folder: Path, exporter: JsonLinesExporter) -> None:
    """Run the scenarios one after the other, each with a server of its own."""
    for name in names:
        out = folder / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        with start_server(out / "server.jsonl", HERE / "rules.json") as server:
            items = await run(name, server.url, out, exporter)
            print(f"{name}: {len(server.entries())} requests, {items} stream items")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Record AutoGen runs against the test server.")
    parser.add_argument(
        "scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; default all"
    )
    parser.add_argument(
        "--out", type=Path, default=HERE, help="folder of the recordings (default: beside this file)"
    )
    parser.add_argument("--all-spans", action="store_true", help="record spans of the scenarios without, too")
    parser.add_argument(
        "--double", action="store_true", help="instrument AutoGen too: calls have two spans each"
    )
    options = parser.parse_args()
    unknown = [s for s in options.scenarios if s not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    exporter = JsonLinesExporter(always=options.all_spans)
    provider = TracerProvider(resource=Resource({}))  # the default resource would name the process
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    if options.double:
        AutogenAgentChatInstrumentor().instrument(tracer_provider=provider)
    logging.getLogger("autogen_core").setLevel(logging.CRITICAL)  # tool errors are in the recording
    asyncio.run(run_all(options.scenarios or list(SCENARIOS), options.out, exporter))
    return 0


if __name__ == "__main__":
    sys.exit(main())
