"""The grade *witnessed*: what the record of the witness itself shows, whatever the replayer says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semtrace_conformance.live.releases import RATE, UNSEEN_NS, releases

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from semtrace_conformance.live.releases import Arrived
    from semtrace_conformance.live.seen import Attempt, Seen
    from semtrace_conformance.live.work import Failed, Live, Operation

HALF_LATE_NS: Final = 100_000_000
"""Half of the requests of a case may come this much later than they may have come at the earliest, in ns, and no more."""
MOST_LATE_NS: Final = 300_000_000
"""Nine in ten of them may come this much later, and no more."""
GOAL_NS: Final = 1_000_000
"""The lateness of which a certificate says how many requests kept it."""
_SHOWN: Final = 3

Said = tuple[str, str]
"""A check that failed, and why."""


def judge_witnessed(live: Live, seen: Seen) -> Iterator[Said]:
    """What is wrong by the record of the witness."""
    yield from few("live.presence", _presence(live, seen))
    yield from few("live.prompts", _prompts(live, seen))
    yield from few("live.locks", _locks(live, seen))
    yield from few("live.attempts", _attempts(live, seen))
    found = releases(live, seen)
    yield from few("live.release", _early(found))
    if live.concurrency is None:
        yield from _late(found)
    else:
        yield from _crowd(live.concurrency, seen)


def late(live: Live, seen: Seen) -> list[int]:
    """By how much requests came late at the witness, in ns: those of which it can be said exactly.

    That is not so where they may have to wait for room, and after what the witness cannot see: a submission, or a time limit.
    """
    if live.concurrency is not None:
        return []
    return [max(each.late_ns, 0) for each in releases(live, seen) if not each.bound.loose]


def distribution(late_ns: Sequence[int]) -> dict[str, int]:
    """The distribution of lateness: ns, and parts in a million."""
    ordered = sorted(late_ns)
    if not ordered:
        return {"requests": 0}
    kept = sum(each <= GOAL_NS for each in ordered)
    return {
        "requests": len(ordered),
        "within_1ms_ppm": 1_000_000 * kept // len(ordered),
        "p50_ns": percentile(ordered, 50),
        "p90_ns": percentile(ordered, 90),
        "p99_ns": percentile(ordered, 99),
        "max_ns": ordered[-1],
    }


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The smallest value that so many percent of the sorted values do not exceed."""
    return ordered[max(-(-len(ordered) * percent // 100) - 1, 0)]


def few(check: str, problems: Iterator[str]) -> Iterator[Said]:
    """The first of several problems of one sort, and how many more there are."""
    told = list(problems)
    for each in told[:_SHOWN]:
        yield check, each
    if len(told) > _SHOWN:
        yield check, f"and {len(told) - _SHOWN} more"


def name(instance: int, operation: int) -> str:
    """An event, for people."""
    return f"operation {operation} of instance {instance}"


def _presence(live: Live, seen: Seen) -> Iterator[str]:
    """Every operation that runs on the backend comes, as often as it must, and nothing else does."""
    known = set(live.events)
    for each in seen.strange:
        yield f"{each!r} is the id of no request"
    for event, attempts in sorted(seen.events.items()):
        if event not in known:
            yield f"a request came for {name(*event)}, which there is not"
        elif not live.expected(*event):
            yield f"a request came for {name(*event)}, which must not be sent"
        else:
            yield from _often(live, event, attempts)
    for event in live.events:
        if live.expected(*event) and event not in seen.events and live.course(*event).least > 0:
            yield f"{name(*event)} never came"


def _often(live: Live, event: tuple[int, int], attempts: Sequence[Attempt]) -> Iterator[str]:
    """What is wrong with how often an event came."""
    course = live.course(*event)
    ordinals = []
    for at, each in enumerate(attempts):
        if at and attempts[at - 1].again and attempts[at - 1].ordinal == each.ordinal:
            continue
        ordinals.append(each.ordinal)
        if (
            course.resent
            and each.again
            and [one.ordinal for one in attempts[at + 1 : at + 2]] != [each.ordinal]
        ):
            yield (
                f"{name(*event)} was cut without an answer on a connection that was open before, and was not made again "
                "at once as the same attempt (ST-LIV-043)"
            )
    least, most = course.least, course.most
    if not least <= len(ordinals) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        yield f"{name(*event)} came {len(ordinals)} times, must come {wanted} times"
    elif ordinals != sorted(set(ordinals)) or (least == most and ordinals != list(range(1, most + 1))):
        yield f"the attempts of {name(*event)} have the ordinals {ordinals}"
    elif ordinals[-1] > live.retry.attempts:
        yield f"{name(*event)} came with an attempt {ordinals[-1]}, there are {live.retry.attempts} at most"


def _each(live: Live, seen: Seen) -> Iterator[tuple[str, Operation, Failed, Attempt]]:
    for event, attempts in sorted(seen.events.items()):
        if event[1] < len(live.operations) and live.operations[event[1]].sent:
            for attempt in attempts:
                yield name(*event), live.operations[event[1]], live.course(*event), attempt


def _prompts(live: Live, seen: Seen) -> Iterator[str]:
    for where, operation, _, attempt in _each(live, seen):
        if attempt.hints:
            yield f"{where} has the headers {', '.join(attempt.hints)}, which nobody asked for"
        if operation.prompt_tokens is not None and attempt.prompt_tokens != operation.prompt_tokens:
            yield f"the prompt of {where} has {attempt.prompt_tokens} tokens, must have {operation.prompt_tokens}"
        elif operation.prompt_digest is not None and attempt.prompt_digest != operation.prompt_digest:
            yield f"the prompt of {where} has other token ids than recorded"


def _locks(live: Live, seen: Seen) -> Iterator[str]:
    """Exactly the recorded output is asked for, and generated."""
    for where, operation, course, attempt in _each(live, seen):
        wanted = operation.output_tokens
        if wanted is None:
            continue
        stops = operation.finish == "stop"
        least = {wanted} if live.mode == "length_locked" else {wanted, None}  # a least would keep ends out
        if attempt.max_tokens != wanted:
            yield f"{where} asks for at most {attempt.max_tokens} tokens, must ask for {wanted}"
        elif not stops and not (attempt.ignore_eos and attempt.min_tokens in least):
            yield (
                f"{where} asks for at least {attempt.min_tokens} tokens, end tokens "
                f"{'ignored' if attempt.ignore_eos else 'heeded'}; must ask for {wanted}, and have them ignored"
            )
        elif stops and attempt.ignore_eos:
            yield f"{where} ignores end tokens, and must end by its last one"
        elif operation.output_digest is not None and attempt.lock_digest != operation.output_digest:
            count = attempt.lock_tokens
            yield f"{where} locks {'no output' if count is None else f'{count} other ids than recorded'}"
        elif attempt.status == 200 and attempt.finish_reason is not None and not course.astray:
            yield from _generated(where, operation, attempt)


def _generated(where: str, operation: Operation, attempt: Attempt) -> Iterator[str]:
    if operation.output_digest is not None and attempt.output_digest is None and attempt.output_tokens:
        yield f"{where} did not ask for the ids of its output (return_token_ids), so which came cannot be seen"
    elif operation.output_digest is not None and attempt.output_digest != operation.output_digest:
        yield f"{where} yielded other ids than recorded"
    elif operation.finish is not None and attempt.finish_reason != operation.finish:
        yield f"{where} ended by {attempt.finish_reason}, must end by {operation.finish}"
    elif attempt.output_tokens != operation.output_tokens:
        yield f"{where} yielded {attempt.output_tokens} tokens, must yield {operation.output_tokens}"


def _attempts(live: Live, seen: Seen) -> Iterator[str]:
    """Requests are left alone until their time is over."""
    for where, _, course, attempt in _each(live, seen):
        if attempt.closed_by != "client" or attempt.end_ns is None:
            continue
        waited = attempt.end_ns - attempt.arrival_ns
        if course.outcome == "cancelled":
            continue
        if waited < live.timeout_ns - live.timeout_ns // RATE - UNSEEN_NS:
            yield f"{where} was given up after {_ms(waited)}, the time limit is {_ms(live.timeout_ns)}"
        elif waited > live.timeout_ns + 4 * MOST_LATE_NS:
            yield f"{where} was given up only after {_ms(waited)}, the time limit is {_ms(live.timeout_ns)}"


def _early(found: list[Arrived]) -> Iterator[str]:
    for each in sorted(found, key=lambda one: one.attempt.arrival_ns):
        if each.early:
            yield f"{name(each.instance, each.operation)} came {_ms(-each.late_ns)} before its release"


def _late(found: list[Arrived]) -> Iterator[Said]:
    late = sorted(each.late_ns for each in found)
    for percent, limit in ((50, HALF_LATE_NS), (90, MOST_LATE_NS)):
        if late and percentile(late, percent) > limit:
            said = (
                f"{100 - percent} % of {len(late)} requests came more than {_ms(percentile(late, percent))} after their "
                f"release, must be {_ms(limit)}"
            )
            yield "live.lateness", said
            return


def _crowd(limit: int, seen: Seen) -> Iterator[Said]:
    """No more requests are in flight than the scenario allows."""
    changes = []
    for attempts in seen.events.values():
        changes.append((attempts[0].arrival_ns, 1))
        ends = [each.end_ns for each in attempts if each.end_ns is not None]
        if ends:
            changes.append((max(ends), -1))
    flying = most = 0
    for _, change in sorted(changes):
        flying += change
        most = max(most, flying)
    if most > limit:
        yield "live.concurrency", f"{most} requests were in flight at once, must be {limit} at most"


def _ms(time_ns: int) -> str:
    return f"{time_ns / 1e6:.3f} ms"
