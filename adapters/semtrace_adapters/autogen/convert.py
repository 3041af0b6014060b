"""From what was read to a trace, its native execution and the loss report."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from semtrace.build import TraceBuilder
from semtrace.records.enums import EntityKind, Evidence, OperationKind
from semtrace_adapters.autogen.answers import answer_of
from semtrace_adapters.autogen.endings import find_streams, note_cuts, note_exceptions, outcome_of
from semtrace_adapters.autogen.eventlog import retry_wait_s
from semtrace_adapters.autogen.facts import Facts
from semtrace_adapters.autogen.merge import merge
from semtrace_adapters.autogen.read_events import read_events, shift_of
from semtrace_adapters.autogen.read_spans import read_spans
from semtrace_adapters.autogen.requests import Requests
from semtrace_adapters.autogen.rows import Rows
from semtrace_adapters.autogen.structure import find_structure
from semtrace_adapters.autogen.walk import Last, Link, Point, Walk
from semtrace_adapters.base import finish

if TYPE_CHECKING:
    from semtrace.build import BuiltTrace
    from semtrace_adapters.autogen.config import TeamConfig
    from semtrace_adapters.autogen.merge import Merged
    from semtrace_adapters.autogen.runs import TeamRun
    from semtrace_adapters.autogen.sources import Sources
    from semtrace_adapters.base import LossReport


def convert(sources: Sources, loss: LossReport) -> BuiltTrace:
    """Make the trace."""
    facts = Facts()
    shift = shift_of(sources.records)
    read_events(sources.records, facts, loss, shift)
    spans = read_spans(sources.tree)
    if spans.wrapped:
        loss.add(
            "spans.doubled",
            "repaired",
            "a model call has a span inside of another (two instrumentors): counted once",
            count=spans.wrapped,
        )
    merged = merge(sources.records, facts, sources.tree, spans, sources.streams, loss)
    _retries(merged, loss)
    configs = [team for config in sources.configs for team in config.all_teams()]
    for config in configs:
        config.refuse_samples()
    runs = find_structure(merged, sources.configs, loss)
    note_exceptions([*runs, *(inner for run in runs for inner in run.inner())], facts)
    find_streams(runs, merged.streams)
    for run in runs:
        note_cuts(run, loss)
    zoned = _zoned(sources, shift, loss)
    origin = _origin(merged, runs)
    builder = TraceBuilder(origin_unix_ns=origin if zoned else None)
    rows = Rows(builder, configs, origin or 0, loss)
    people = _people(merged, configs)
    by_team: dict[str, list[TeamRun]] = {}
    for at, run in enumerate(runs):
        by_team.setdefault(run.team or f"#{at}", []).append(run)
    for again in by_team.values():
        _task(again, rows, configs, people, loss)
    return finish(builder, loss)


def _task(
    runs: list[TeamRun],
    rows: Rows,
    configs: list[TeamConfig],
    people: set[str],
    loss: LossReport,
) -> None:
    """One task: the run of a team, or several of one team with what the user said in between."""
    builder = rows.builder
    task = builder.task("")
    before = (len(rows.calls), len(rows.tools), len(rows.texts))
    walk = Walk(rows, configs, people, task)
    at = Point((), runs[0].order, runs[0].start_ns)
    for number, run in enumerate(runs):
        if number:
            at = _said(run, walk, at)
        part = walk.team(run, None, at)
        # What a person said after the last run is told by the log: the run that it started follows it.
        walk.links.extend(
            Link(t, w.operation, Evidence.OBSERVED, release=True) for t in part.first for w in at.waits
        )
        at = part.end if part.first else at
    part_rows = Rows(builder, configs, rows.origin_ns, loss)
    part_rows.calls = rows.calls[before[0] :]
    part_rows.tools = rows.tools[before[1] :]
    part_rows.texts = rows.texts[before[2] :]
    part_rows.ends = rows.ends
    Requests(part_rows, walk.inside, loss).record()
    _edges(walk, rows, loss)
    _describe(task, runs, part_rows, walk)
    _arrive(task, runs[0], part_rows, loss)


def _said(run: TeamRun, walk: Walk, at: Point) -> Point:
    """What a person said between two runs of one team, as an operation that took as long as it took to say it."""
    text = "\n".join(m["content"] for m in run.start if isinstance(m.get("content"), str))
    operation = walk.rows.text(
        OperationKind.HUMAN, "user", text, walk.task, None, None, at.time_ns, run.start_ns, run.order
    )
    walk.links.extend(Link(operation, w.operation, Evidence.OBSERVED, release=True) for w in at.waits)
    return Point((Last(operation, "user", run.order),), run.order, run.start_ns)


def _edges(walk: Walk, rows: Rows, loss: LossReport) -> None:
    """Control edges: all that a manager's request makes, and others where no data says the same."""
    builder = rows.builder
    data = {(s["operation"], s["source_operation"]) for s in builder.rows["segments"]}
    data |= {(at, row["context_base"]) for at, row in enumerate(builder.rows["operations"])}
    for link in walk.links:
        if not rows.precedes(link.source, link.target):
            loss.add(
                "edges.disordered",
                "lost",
                "the log's order says both that an operation waits for another and that it ended before it: no edge",
            )
        elif link.release or (link.target, link.source) not in data:
            builder.edge(link.target, link.source, evidence=link.evidence, confidence=link.confidence)
    for at, row in enumerate(builder.rows["operations"]):
        parent = (
            None if row["session"] is None else builder.rows["sessions"][row["session"]]["parent_operation"]
        )
        if row["task"] == walk.task and parent is not None and not rows.precedes(parent, at):
            builder.update_session(row["session"], parent_operation=None)


def _describe(task: int, runs: list[TeamRun], rows: Rows, walk: Walk) -> None:
    """Name, input, output, outcome and answer of a task."""
    builder = rows.builder
    first, last = runs[0], runs[-1]
    start = first.start
    if first.stream is not None and not any("content" in m for m in start):
        items = first.stream.items  # AutoGen before 0.7 logs messages without their content
        start = [i.message for i in itertools.takewhile(lambda i: i.source == "user", items)]
    given = [m["content"] for m in start if isinstance(m.get("content"), str)]
    text = "\n".join(given) if given else None
    kind = first.kind if first.kind not in {"", "Agent"} else first.manager or "agents"
    answer = answer_of(last, walk.kind_of(last), walk)
    said = next((r.call.text for r in rows.calls if r.operation == answer), None)
    said = said or next((r.run.result for r in rows.tools if r.operation == answer), None)
    said = said or next((r.text for r in rows.texts if r.operation == answer), None)
    builder.update_task(
        task,
        output=said,
        name=kind,  # what was asked is content, and stays where redacting finds it
        answer_operation=answer,
        outcome=outcome_of(last, walk.kind_of(last), rows.loss),
        input=None if text is None else builder.artifact(text),
    )
    if first.team:
        builder.annotate(EntityKind.TASK, task, "autogen/team_id", first.team)
    failed = next((run.failed for run in runs if run.failed), None)
    if failed:
        builder.annotate(EntityKind.TASK, task, "autogen/error", failed)
    if last.stream is not None and last.stream.stop_reason:
        builder.annotate(EntityKind.TASK, task, "autogen/stop_reason", last.stream.stop_reason)


def _arrive(task: int, run: TeamRun, rows: Rows, loss: LossReport) -> None:
    """When a task arrived: with its team's start, else with the first that was seen of it."""
    builder = rows.builder
    arrival = None if run.start_ns is None or not run.start else run.start_ns - rows.origin_ns
    if arrival is None:
        operations = [r.operation for r in rows.calls]
        operations += [r.operation for r in rows.tools] + [r.operation for r in rows.texts]
        times = [t for o in operations for t, _ in builder.observed[o].times.values()]
        arrival = min(times, default=None)
        loss.add(
            "arrival.inferred",
            "inferred",
            "a task's arrival is not logged: taken as the first time seen of it",
        )
    builder.update_task(task, arrival_ns=arrival)


def _retries(merged: Merged, loss: LossReport) -> None:
    """Count the SDK's hidden retries to the calls that they were of."""
    starts: dict[int, float] = {}
    latest: dict[object, float] = {}
    for call in merged.calls:
        starts[id(call)] = latest.get(call.agent, float("-inf"))
        latest[call.agent] = call.order
    for order, time_ns, text in merged.facts.texts:
        if retry_wait_s(text) is None:
            continue
        around = [
            c
            for c in merged.calls
            if starts[id(c)] < order < c.order
            and (not c.start_seen or time_ns is None or (c.start_ns or 0) <= time_ns <= (c.end_ns or time_ns))
        ]
        if around:
            around[0].attempts += 1
            if around[0].seen_ns is None:
                around[0].seen_ns = time_ns
        doubt = "" if len(around) == 1 else "; several calls were open, and it is counted to the first to end"
        doubt = doubt if around else "; of which call is not known"
        loss.add(
            "retries.hidden",
            "ignored" if len(around) == 1 else "inferred",
            "the SDK sent a request again: the call's time includes the failed attempts and the waits between them"
            + doubt,
        )


def _origin(merged: Merged, runs: list[TeamRun]) -> int | None:
    times = [t for c in merged.calls for t in (c.start_ns, c.seen_ns, c.first_ns, c.end_ns) if t]
    times += [
        t for tools in merged.tools.values() for r in tools for t in (r.start_ns, r.end_ns) if t is not None
    ]
    times += [s.time_ns for s in merged.sent if s.time_ns is not None]
    times += [r.start_ns for r in runs if r.start_ns is not None]
    return min(times, default=None)


def _zoned(sources: Sources, shift_ns: int, loss: LossReport) -> bool:
    """Whether the times are known as Unix times."""
    records = sources.records
    if not records:
        return True
    if all(r.time_ns is None for r in records):
        loss.add(
            "times.none",
            "unknown",
            "the log has no times: they are taken from the messages where those have some",
        )
        return True
    naive = [r for r in records if r.time_ns is not None and not r.zoned]
    if naive and not shift_ns and not any(r.kind == "Message" for r in naive):
        loss.add(
            "times.zone",
            "unknown",
            "the log's times have no offset from UTC: only their differences are kept",
        )
        return False
    return True


def _people(merged: Merged, configs: list[TeamConfig]) -> set[str]:
    """Names of agents behind which a person is."""
    made = {p.name for c in configs for p in c.participants if p.provider == "UserProxyAgent"}
    for sent in merged.sent:
        made |= {str(m.get("source")) for m in sent.messages if m.get("type") == "UserInputRequestedEvent"}
    return made
