"""What must come to the witness, by the text of the standard: from a work in short form, its plan and its scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import rfc8785

from semtrace.records.enums import FinishReason, Trigger
from semtrace_conformance.live.work import Failed, Live, Operation, Retry, Wait
from semtrace_conformance.making.draft import show
from semtrace_conformance.making.timing import OUTCOME, constraints, plan_digest
from semtrace_conformance.making.work import packed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from semtrace_conformance.making.work import Work
    from semtrace_conformance.witness.script import Script

Json = dict[str, Any]

_TRIGGER: Final = {Trigger.FINISH: "finish", Trigger.START: "start", Trigger.FIRST_TOKEN: "first_token"}
_FINISH: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


def live(
    work: Work,
    plan: Mapping[str, Any],
    scenario: Mapping[str, Any],
    script: Script,
    failed: Sequence[Failed] = (),
) -> Live:
    """What must come to the witness.

    Args:
        work: the work.
        plan: the plan, as its document.
        scenario: the scenario, as its document.
        script: the server.
        failed: the events that do not go well at once.
    """
    copies = scenario.get("copies", 1)
    tasks = [task for task in range(len(work.tasks)) for _ in range(copies)]
    arrivals = scenario.get("arrivals") or {"kind": "together"}
    sent = [task * copies + copy for copy in range(copies) for task in range(len(work.tasks))]
    times: list[int | None] = [None] * len(tasks)
    loop: list[int] = []
    if arrivals["kind"] == "closed_loop":
        loop, users = sent, arrivals["users"]
        for at, instance in enumerate(sent[:users]):
            times[instance] = at * arrivals.get("ramp_ns", 0) // users
    elif arrivals["kind"] == "drawn":
        for instance, time_ns in zip(sent, arrivals["times_ns"], strict=True):
            times[instance] = time_ns
    else:
        times = [work.tasks[task].arrival or 0 if arrivals["kind"] == "recorded" else 0 for task in tasks]
    retry = scenario.get("retry", {})
    rules = [rule.fault for rule in script.rules if rule.fault is not None]
    after = [getattr(fault, "retry_after_s", None) or 0 for fault in rules]
    mode = scenario.get("mode", "length_locked")
    return Live(
        mode=mode,
        operations=[
            _operation(work, at, locked=mode == "token_locked") for at in range(len(work.operations))
        ],
        waits=_waits(work, plan),
        tasks=tasks,
        arrivals_ns=times,
        loop=loop,
        think_ns=arrivals.get("think_ns", 0),
        answers=[None if task.answer is None else work.number(task.answer) for task in work.tasks],
        concurrency=scenario.get("concurrency"),
        timeout_ns=scenario.get("timeout_ns", 600_000_000_000),
        retry=Retry(**{name: retry[name] for name in ("attempts", "wait_ns", "factor") if name in retry}),
        retry_after_ns=max(after, default=0) * 1_000_000_000,
        failed=list(failed),
        usage=script.usage,
        plan=dict(plan),
        plan_digest=plan_digest(plan),
        scenario=dict(scenario),
        tolerance_ns=scenario.get("tolerance_ns", 1_000_000),
    )


def _waits(work: Work, plan: Mapping[str, Any]) -> list[Wait]:
    found = {
        (source, target, _TRIGGER[trigger], lag)
        for target, waits in constraints(work, plan).items()
        for source, trigger, lag in waits
    }
    return [Wait(source=each[0], target=each[1], trigger=each[2], lag_ns=each[3]) for each in sorted(found)]  # type: ignore[arg-type]  # the names of triggers are the literals


def _operation(work: Work, at: int, *, locked: bool) -> Operation:
    each = work.operations[at]
    if not each.on_backend:
        return Operation(
            task=each.task,
            outcome=OUTCOME[each.status].name.lower(),
            duration_ns=each.duration,
            delay_ns=each.delay,
        )
    prompt = work.prompt(at)
    digest = None if prompt is None else show(packed(prompt))
    if each.messages is not None:
        digest = show(rfc8785.dumps(list(each.messages)))
    return Operation(
        task=each.task,
        sent=True,
        outcome=OUTCOME[each.status].name.lower(),
        delay_ns=each.delay,
        prompt_tokens=each.prompt
        if each.messages is None
        else None,  # how many a text has is up to the server
        prompt_digest=digest,
        output_tokens=each.output,
        output_digest=show(packed(each.output_ids)) if locked and each.output_ids is not None else None,
        finish=_FINISH.get(each.finish) if locked and each.finish is not None else None,  # type: ignore[arg-type]  # the same
    )
