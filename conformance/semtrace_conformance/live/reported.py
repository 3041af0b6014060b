"""The grade *self-reported*: the execution that a replayer leaves, held against the scenario, itself and the witness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from semtrace_conformance.live.header import judge_header
from semtrace_conformance.live.releases import first_token
from semtrace_conformance.live.witnessed import HALF_LATE_NS, MOST_LATE_NS, few, name, percentile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from semtrace_conformance.live.seen import Attempt, Seen
    from semtrace_conformance.live.witnessed import Said
    from semtrace_conformance.live.work import Live

CLOCKS_NS: Final = 1_000_000
"""By how much the clocks of the witness and of the replayer may differ, in ns: the one may be set while the other is not."""
OUTCOME: Final = {
    1: "ok", 2: "error", 3: "cancelled", 4: "timeout", 5: "skipped", 6: "refused", 7: "unfinished",
}  # fmt: skip
FAILURE: Final = {
    1: "connection", 2: "reset", 3: "timeout", 4: "rate_limited", 5: "server_error", 6: "rejected", 7: "truncated",
    8: "protocol",
}  # fmt: skip
FINISH: Final = {1: "stop", 2: "length"}

SUCCESS: Final = 2
"""The outcome of an instance that ran to its end."""
_TIMED: Final = frozenset({"ok", "error", "cancelled", "timeout"})
_TIMES: Final = ("ready_ns", "released_ns", "submitted_ns", "finished_ns")

Row = dict[str, Any]


def judge_reported(live: Live, seen: Seen, execution: Mapping[str, Any]) -> Iterator[Said]:
    """What is wrong with the execution that a replayer left."""
    header = execution["header"]
    yield from few("live.header", judge_header(live, header))
    if not isinstance(header.get("origin_unix_ns"), (int, str)):
        yield "live.header", "the header does not say when the run began (origin_unix_ns)"
        return
    rows: list[Row] = [
        dict(zip(execution["events"], row, strict=True))
        for row in zip(*execution["events"].values(), strict=True)
    ]
    if [row["task"] for row in execution["instances"]] != live.tasks:
        yield "live.record", "its instances are not those of the scenario"
        return
    if [(row["instance"], row["operation"]) for row in rows] != live.events:
        yield "live.record", "its events are not those of the instances, in their order"
        return
    yield from few("live.record", _facts(live, seen, rows))
    yield from few("live.record", _whole(execution["instances"], rows))
    offset = int(header["origin_unix_ns"]) - seen.base_unix_ns
    yield from few("live.times", _times(seen, rows, offset))
    yield from _gaps(seen, rows, offset)
    yield from few("live.times", _own(live, rows, [each["arrival_ns"] for each in execution["instances"]]))


def _whole(instances: list[Row], rows: list[Row]) -> Iterator[str]:
    """Nothing is missing that an execution of a replay must have (ST-AUD-004, ST-AUD-008)."""
    for instance, each in enumerate(instances):
        if each["arrival_ns"] is None:
            yield f"instance {instance} has no arrival"
        ended = all(
            OUTCOME.get(row["outcome"], "unfinished") != "unfinished"
            for row in rows
            if row["instance"] == instance
        )
        if ended and each["outcome"] != SUCCESS:
            yield f"instance {instance} is said to have the outcome {each['outcome']}; it ran to its end, which is success"
    for row in rows:
        missing = [key for key in _TIMES if row[key] is None]
        if OUTCOME.get(row["outcome"]) in _TIMED and missing:
            yield f"{name(row['instance'], row['operation'])} has no {missing[0]}"


def _facts(live: Live, seen: Seen, rows: list[Row]) -> Iterator[str]:
    """Counts, outcomes and ids are those that the witness saw."""
    for row in rows:
        event = row["instance"], row["operation"]
        course, operation = live.course(*event), live.operations[row["operation"]]
        where = name(*event)
        if OUTCOME.get(row["outcome"]) != course.outcome:
            yield f"{where} is said to be {OUTCOME.get(row['outcome'])}, must be {course.outcome}"
        if FAILURE.get(row["failure"]) != course.failure:
            yield f"{where} is said to have met {FAILURE.get(row['failure'])}, must be {course.failure}"
        attempts = seen.events.get(event)
        if not operation.sent or not attempts:
            continue
        last = attempts[-1]
        said: dict[str, Any] = {"attempts": last.ordinal, "request_id": last.request_id}
        if last.finish_reason is not None and last.status == 200:
            said["prompt_tokens"] = last.prompt_tokens if live.usage else None
            if live.usage or row["output_tokens"] is not None:  # ids that were told can be counted
                said["output_tokens"] = last.output_tokens if operation.output_tokens is not None else None
            if FINISH.get(row["finish_reason"]) != last.finish_reason:
                yield f"{where} is said to have ended by {row['finish_reason']}, ended by {last.finish_reason}"
            if live.mode == "token_locked" and row["output_digest"] != last.output_digest:
                yield f"{where} is said to have yielded other ids than it was sent"
        if course.failure == "connection":
            del said["attempts"], said["request_id"]  # the last ones are not seen
        for key, value in said.items():
            if row[key] is None and course.outcome == "cancelled":
                continue  # called off before it could be told
            if row[key] != value:
                yield f"{where} is said to have {key} {row[key]!r}, the witness has {value!r}"


def _sent(seen: Seen, rows: list[Row]) -> Iterator[tuple[str, Row, list[Attempt]]]:
    for row in rows:
        attempts = seen.events.get((row["instance"], row["operation"]))
        if attempts and row["submitted_ns"] is not None:
            yield name(row["instance"], row["operation"]), row, attempts


def _times(seen: Seen, rows: list[Row], offset: int) -> Iterator[str]:
    """Nothing is said to have been sent after it came, or to have come before it was sent."""
    for where, row, attempts in _sent(seen, rows):
        slack = CLOCKS_NS
        after = row["submitted_ns"] + offset - attempts[0].arrival_ns
        if after > slack:
            yield f"{where} is said to have been submitted {after} ns after it came"
        last = attempts[-1]
        pairs = (("first_token_ns", first_token(attempts)), ("finished_ns", last.end_ns))
        for key, sent in pairs:
            if row[key] is None or sent is None or last.closed_by == "client":
                continue
            before = sent - (row[key] + offset)
            if before > slack:
                yield f"{where} is said to have {key} {before} ns before it was sent"


def _gaps(seen: Seen, rows: list[Row], offset: int) -> Iterator[Said]:
    """What is said to be a submission is not long before what came: else lateness could be hidden there."""
    gaps = sorted(
        attempts[0].arrival_ns - (row["submitted_ns"] + offset) for _, row, attempts in _sent(seen, rows)
    )
    for percent, limit in ((50, HALF_LATE_NS), (90, MOST_LATE_NS)):
        if gaps and percentile(gaps, percent) > limit:
            said = (
                f"{100 - percent} % of {len(gaps)} requests came more than {percentile(gaps, percent)} ns after they are "
                f"said to have been submitted, must be {limit} ns"
            )
            yield "live.times", said
            return


def _own(live: Live, rows: list[Row], arrivals: list[int | None]) -> Iterator[str]:
    """The times agree with each other: ready and released follow, nothing is early, tools take their time."""
    by_event = {(row["instance"], row["operation"]): row for row in rows}
    for row in rows:
        instance, at = row["instance"], row["operation"]
        where, operation = name(instance, at), live.operations[at]
        if row["submitted_ns"] is None:
            continue
        triggers = [
            _trigger(by_event[instance, wait.source], wait.trigger, wait.lag_ns) for wait in live.waits_of[at]
        ]
        if None in triggers:
            continue
        ready = max((each for each in triggers if each is not None), default=arrivals[instance])
        if row["ready_ns"] != ready:
            yield f"{where} is said to be ready at {row['ready_ns']}, by the other times it is at {ready}"
        elif ready is not None and row["released_ns"] != ready + operation.delay_ns:
            yield f"{where} is said to be released at {row['released_ns']}, must be {ready + operation.delay_ns}"
        elif row["submitted_ns"] < row["released_ns"]:
            yield f"{where} is said to be submitted {row['released_ns'] - row['submitted_ns']} ns before its release"
        if not operation.sent and row["finished_ns"] is not None and operation.duration_ns is not None:
            took = row["finished_ns"] - row["submitted_ns"]
            if took != operation.duration_ns:
                yield f"{where} is said to have taken {took} ns, must take {operation.duration_ns}"


def _trigger(row: Row, trigger: str, lag_ns: int) -> int | None:
    end = row["finished_ns"]
    time = {
        "start": row["submitted_ns"],
        "first_token": end if row["first_token_ns"] is None else row["first_token_ns"],
        "finish": end,
    }[trigger]
    return None if time is None else int(time) + lag_ns
