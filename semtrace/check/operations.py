"""Operations: which values which kind has, and how they agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from semtrace.check.finding import Finding, found
from semtrace.check.rules import Rule, rule
from semtrace.records.columns import NULL
from semtrace.records.enums import Evidence, OperationKind, OperationStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from semtrace.check.view import TraceView

_FAILED: Final = (OperationStatus.ERROR, OperationStatus.TIMEOUT)


def _is(view: TraceView, *kinds: OperationKind) -> NDArray[np.bool_]:
    return _among(view.raw("operations", "kind"), kinds)


def _among(values: NDArray[Any], chosen: Sequence[int]) -> NDArray[np.bool_]:
    """Which values, enumeration numbers, are among a few."""
    among: NDArray[np.bool_] = np.logical_or.reduce([values == each for each in chosen])
    return among


@rule("ST-OP-003", "ST-OP-004")
def durations_of_models(view: TraceView) -> Iterator[Finding]:
    """A model call that ran takes the time that the backend takes; one that failed has the time that it took."""
    status = view.raw("operations", "status")
    failed = _among(status, _FAILED)
    known, llm = view.known("operations", "duration_ns"), _is(view, OperationKind.LLM)
    yield from found(
        "ST-OP-003",
        llm & ~failed & known,
        "a model call that did not fail has a duration",
        table="operations",
        column="duration_ns",
        hint="what it took in one run belongs to that run's execution",
    )
    yield from found(
        "ST-OP-004",
        llm & failed & ~known,
        "a model call that failed has no duration",
        table="operations",
        column="duration_ns",
        hint="it is never sent to a backend: it takes its recorded duration, inferred if need be",
    )


@rule("ST-OP-005")
def reasoning_within_output(view: TraceView) -> Iterator[Finding]:
    """Reasoning tokens are among the output tokens."""
    reasoning, output = view.ints("operations", "reasoning_tokens"), view.ints("operations", "output_tokens")
    yield from found(
        "ST-OP-005",
        (output != NULL) & (reasoning > output),
        lambda row: f"{reasoning[row]} reasoning tokens among {output[row]} output tokens",
        table="operations",
        column="reasoning_tokens",
        hint="output tokens include reasoning tokens",
    )


@rule("ST-OP-006")
def token_evidence(view: TraceView) -> Iterator[Finding]:
    """The evidence of token counts is missing exactly where both are unknown."""
    known = view.known("operations", "prompt_tokens") | view.known("operations", "output_tokens")
    yield from _evidence(view, "ST-OP-006", "tokens_evidence", known, "token counts")


@rule("ST-OP-007")
def duration_evidence(view: TraceView) -> Iterator[Finding]:
    """The evidence of a duration is missing exactly where it is unknown."""
    known = view.known("operations", "duration_ns")
    yield from _evidence(view, "ST-OP-007", "duration_evidence", known, "duration")


def _evidence(
    view: TraceView, requirement: str, column: str, known: NDArray[np.bool_], what: str
) -> Iterator[Finding]:
    missing = view.raw("operations", column) == Evidence.MISSING
    yield from found(
        requirement,
        known == missing,
        lambda row: (
            f"operation {row} has {'' if known[row] else 'no '}known {what}, its evidence says "
            f"{'missing' if missing[row] else 'otherwise'}"
        ),
        table="operations",
        column=column,
    )


_OF_MODELS: Final = (
    "output_tokens",
    "reasoning_tokens",
    "finish_reason",
    "output_envelope",
    "output_token_ids",
    "context_base",
)


@rule("ST-OP-008", "ST-OP-009")
def values_of_models(view: TraceView) -> Iterator[Finding]:
    """What only model calls have, and what only models read."""
    llm = _is(view, OperationKind.LLM)
    if not llm.all():
        for column in _OF_MODELS:
            wrong = ~llm & view.known("operations", column)
            message = "operation {row} has a value that only operations of kind llm have"
            yield from found("ST-OP-008", wrong, message, table="operations", column=column)
        reads = _is(view, OperationKind.LLM, OperationKind.EMBED)
        wrong = ~reads & view.known("operations", "prompt_tokens")
        message = "operation {row} has prompt tokens and calls no model"
        yield from found("ST-OP-009", wrong, message, table="operations", column="prompt_tokens")


OPERATION_RULES: Final[tuple[Rule[TraceView], ...]] = (
    durations_of_models,
    reasoning_within_output,
    token_evidence,
    duration_evidence,
    values_of_models,
)
