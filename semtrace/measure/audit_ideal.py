"""Audit rule on the backend `ideal`, whose every number is fixed by the standard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.errors import SemtraceError
from semtrace.records.columns import NULL
from semtrace.records.enums import OperationKind
from semtrace.replay.ideal import IdealSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from semtrace.measure.audit_events import Case

_NULL: Final = (
    "cached_tokens",
    "computed_prompt_tokens",
    "loaded_tokens",
    "reused_tokens",
    "preempted_ns",
    "output_ids",
)
"""Columns that an ideal backend has nothing to say in."""


def judge_ideal(case: Case, reported: frozenset[str]) -> None:
    """What ran on the ideal backend took the time that its coefficients say, and has no other numbers (ST-AUD-042).

    Args:
        case: what is audited.
        reported: columns of events that are not well formed, which is reported already.
    """
    slots, ledger = case.slots, case.ledger
    header = slots.execution.header
    if case.native or header.backend.name != "ideal":
        return
    try:
        settings = IdealSettings.parse(header.backend.settings, path="backend.settings")
    except SemtraceError:
        ledger.skip("ST-AUD-042", "the settings are not those of an ideal backend, which is reported")
        return
    prompt, output = slots.recorded("prompt_tokens"), slots.recorded("output_tokens")
    whole = ~slots.fixed & case.ran & (slots.submitted != NULL)
    unknown = (prompt == NULL) | ((slots.recorded("kind") == OperationKind.LLM) & (output == NULL))
    told = case.reported("ST-AUD-003", "ST-AUD-004", "ST-AUD-005", "ST-AUD-020", "ST-AUD-021")
    ledger.skip("ST-AUD-042", "counts not recorded in the trace", int((whole & unknown).sum()))
    ledger.skip("ST-AUD-042", "reported under another rule", int((whole & ~unknown & told).sum()))
    at = np.flatnonzero(whole & ~unknown & ~told)
    expected = {
        name: values
        for name, values in _expected(settings, slots.submitted[at], prompt[at], output[at]).items()
        if name not in reported
    }
    wrong = np.zeros(len(at), dtype=np.bool_)
    for name, values in expected.items():
        wrong |= np.asarray(slots.seen(name)[at] != values, dtype=np.bool_)

    def problem(i: int) -> str:
        parts = []
        for name, values in expected.items():
            seen, must = int(slots.seen(name)[at[i]]), int(values[i])
            if seen != must:
                parts.append(f"{name} is {_shown(seen)}, must be {_shown(must)}")
        return ", ".join(parts)

    hint = "the ideal backend's times follow from the token counts and its coefficients (ST-REL-020)"
    case.judge("ST-AUD-042", at, wrong, problem, column="finished_ns", hint=hint)


def _shown(value: int) -> str:
    return "null" if value == NULL else str(value)


def _expected(
    settings: IdealSettings,
    submitted: NDArray[np.int64],
    prompt: NDArray[np.int64],
    output: NDArray[np.int64],
) -> dict[str, NDArray[Any]]:
    """The columns of events by ST-REL-020 and ST-REL-032; times as Python integers, which do not overflow."""
    first = submitted.astype(object) + settings.c0_ns + settings.c_pre_ns * prompt.astype(object)
    null = np.full(len(submitted), NULL, dtype=np.int64)
    return {
        "scheduled_ns": submitted,
        "first_token_ns": np.where(output > 0, first, null),
        "finished_ns": first + settings.c_dec_ns * np.maximum(output - 1, 0).astype(object),
        **dict.fromkeys(_NULL, null),
        "preemptions": np.zeros_like(null),
        "attempts": np.ones_like(null),
        "server": np.zeros_like(null),
    }
