"""Calls of the model, and which line of the log ends which.

The line that ends a call says its counts and nothing else. While one call is in flight, it is the one. While several
are, the lines that follow are looked at: a role goes on in the same breath, without giving way to another, so where
the next lines are those of a role with one call in flight, that call has ended. What is left when as many ends are
open as calls is those calls' together, and they cannot be told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semtrace.records.enums import Evidence, OperationStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semtrace_adapters.base import LossReport

    from .events import Usage


@dataclass(eq=False)
class Call:
    """One call of the model.

    Times are of the log. `ended_at` is the place in the log by which it had ended, None where it is not known to
    have. `together` counts the calls that this one cannot be told apart from, itself included.
    """

    at: int
    where: str
    role: str | None
    action: str
    messages: list[dict[str, Any]] | None
    file: str | None = None
    start_ns: int | None = None
    start_evidence: Evidence = Evidence.DERIVED
    end_ns: int | None = None
    end_evidence: Evidence = Evidence.MISSING
    ended_at: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens_evidence: Evidence = Evidence.MISSING
    model: str | None = None
    output: str | None = None
    output_evidence: Evidence = Evidence.MISSING
    status: OperationStatus = OperationStatus.OK
    attempts: int | None = None
    together: int = 1

    def close(self, time_ns: int | None, at: int, evidence: Evidence) -> None:
        """It had ended by this place in the log."""
        self.end_ns, self.ended_at, self.end_evidence = time_ns, at, evidence

    def count(self, usage: Usage, evidence: Evidence) -> None:
        """Give it the counts of its end."""
        self.prompt_tokens, self.output_tokens = usage.prompt_tokens, usage.output_tokens
        self.model = usage.model or self.model
        if usage.prompt_tokens is not None or usage.output_tokens is not None:
            self.tokens_evidence = evidence


class CallsInFlight:
    """The calls in flight at one place of a log.

    `open` are those not known to have ended, `loose` the ends that are not known to be one call's, and `settled` the
    calls that are over and whose ends are among the loose ones.
    """

    def __init__(self, loss: LossReport, *, ends_logged: bool, share: bool = False) -> None:
        self.loss = loss
        self.ends_logged = ends_logged
        self.share = share
        self.open: list[Call] = []
        self.loose: list[Usage] = []
        self.settled: list[Call] = []

    def begin(self, call: Call) -> None:
        """A call was made."""
        if not self.ends_logged:  # of a role's calls, one is taken to follow the other
            for earlier in [each for each in self.open if each.role == call.role]:
                earlier.close(call.start_ns, call.at, Evidence.INFERRED)
                self.open.remove(earlier)
        self.open.append(call)

    def end(self, usage: Usage, role: str | None) -> Call | None:
        """A call ended; `role` is the one that went on at once. Gives the call, if it is known which."""
        mine = [call for call in self.open if call.role == role and role is not None]
        found: Call | None = None
        evidence = Evidence.DERIVED
        if len(self.open) == 1 and len(self.loose) <= len(self.settled):
            found = self.open[0]
        elif len(mine) == 1:
            found, evidence = mine[0], Evidence.INFERRED
            self.loss.add(
                "calls.paired_by_order",
                "inferred",
                "calls were in flight together; the end of one was told by the role that went on in the next lines",
                where=usage.line.where,
            )
        if found is None:
            self.loose.append(usage)
        else:
            self.open.remove(found)
            found.close(usage.line.time_ns, usage.at, evidence)
            found.count(usage, evidence)
        if self.loose and len(self.loose) == len(self.open) + len(self.settled):
            self._together(self.settled + self.open)
        return found

    def finish(self, calls: Iterable[Call], time_ns: int, at: int) -> None:
        """These calls are over by now: their role, or the round, went on."""
        mine = [call for call in calls if call in self.open]
        if mine and len(self.loose) == len(mine) and not self.settled:
            self._together(mine)
            return
        for call in mine:
            self.open.remove(call)
            call.close(time_ns, at, Evidence.INFERRED)
            if self.loose:
                self.settled.append(call)
            elif self.ends_logged:
                self._unknown(call)
        if not self.open:
            self._give_up()

    def abandon(self, calls: Iterable[Call], time_ns: int, at: int, status: OperationStatus) -> None:
        """These calls did not come back."""
        for call in [call for call in calls if call in self.open]:
            self.open.remove(call)
            call.status = status
            call.close(time_ns, at, Evidence.INFERRED)
        self._give_up()

    def _give_up(self) -> None:
        """Nothing is in flight any more: what is loose stays so."""
        for call in self.settled:
            self._unknown(call)
        if self.loose:
            self.loss.add(
                "calls.counts_unassigned",
                "lost",
                "token counts of a call that was in flight with others: it cannot be said whose they are",
                count=len(self.loose),
                where=self.loose[0].line.where,
            )
        self.settled.clear()
        self.loose.clear()

    def _unknown(self, call: Call) -> None:
        self.loss.add(
            "calls.end_unknown",
            "unknown",
            "the end of a call is not in the log, or cannot be told from the ends of others: its counts are unknown, "
            "and it is said to end when its role went on",
            where=call.where,
        )

    def _together(self, calls: list[Call]) -> None:
        """These calls ended with the loose ends, one each, and nobody can say which with which."""
        if len(calls) == 1:
            calls[0].close(self.loose[0].line.time_ns, self.loose[0].at, Evidence.DERIVED)
            calls[0].count(self.loose[0], Evidence.DERIVED)
        else:
            prompts = [usage.prompt_tokens for usage in self.loose]
            outputs = [usage.output_tokens for usage in self.loose]
            for call in calls:
                call.together = len(calls)
                # Equal counts are everybody's, whoever ended with which.
                call.prompt_tokens = prompts[0] if len(set(prompts)) == 1 else None
                call.output_tokens = outputs[0] if len(set(outputs)) == 1 else None
                if call.prompt_tokens is not None or call.output_tokens is not None:
                    call.tokens_evidence = Evidence.DERIVED
                if call in self.open:
                    call.close(self.loose[-1].line.time_ns, self.loose[-1].at, Evidence.INFERRED)
            known = [count for count in (*prompts, *outputs) if count is not None]
            sums = ""
            if len(known) == 2 * len(calls):
                sums = f" together {sum(known[: len(calls)])} prompt and {sum(known[len(calls) :])} output tokens"
            self.loss.add(
                "calls.concurrent",
                "unknown",
                "calls in flight together that cannot be told apart in the log: which of them had which counts, and "
                "ended when, is unknown; each is said to end with the last",
                count=len(calls),
                where=", ".join(call.where for call in calls) + ":" + (sums or " no counts"),
            )
            if self.share and sums:
                self._share(calls, sum(known[: len(calls)]), sum(known[len(calls) :]))
        self.open = [call for call in self.open if call not in calls]
        self.settled = [call for call in self.settled if call not in calls]
        self.loose.clear()

    def _share(self, calls: list[Call], prompt: int, output: int) -> None:
        """Give each of these calls the same part of what they had together."""
        for place, call in enumerate(calls):
            call.prompt_tokens = prompt // len(calls) + (place < prompt % len(calls))
            call.output_tokens = output // len(calls) + (place < output % len(calls))
            call.tokens_evidence = Evidence.INFERRED
        self.loss.add(
            "tokens.shared",
            "estimated",
            "calls in flight together that cannot be told apart were given equal parts of their counts, as asked for",
            count=len(calls),
            where=calls[0].where,
        )
