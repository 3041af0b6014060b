"""A time to live for each pin, by what the tool took before."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from semtrace.policies.history import ToolTimes
from semtrace.policies.interface import CallEnded, Keep, Policy, Question, ToolEnded
from semtrace.records.document import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from semtrace.policies.interface import Action, Facts, Notice, Value, View

_MILLION = 1_000_000


class ContinuumSettings(Document):
    """Settings of `continuum`.

    Attributes:
        form: `best`: the time with the greatest expected gain; `mean`: `ttl_ns` for tools that take no longer on the mean.
        ttl_ns: the time of the form `mean`, and of a tool of which none has ended yet.
        eta_ppm: weight of the mean wait for admission in what a miss costs, in millionths.
    """

    form: Literal["best", "mean"] = "best"
    ttl_ns: int = Field(default=2_000_000_000, ge=0, lt=1 << 50)
    eta_ppm: int = Field(default=_MILLION, ge=0, lt=1 << 30)


class Continuum(Policy):
    """Pin a context for a time that balances the gain of a hit with the memory held.

    With F(t) the share of the tool's past calls that took no longer than t, and B what a miss costs — eta times the mean wait for
    admission, and computing the context anew — the pin lives for the t among those past durations for which F(t) · B − t is
    greatest; the least of several; not at all if none is above 0.
    """

    name = "continuum"
    rule = "Pin for the time t that maximises F(t)·B − t over the tool's past durations, B = eta · mean wait + recomputation."
    source = "Continuum (arXiv 2511.02230), its time to live"
    Settings: ClassVar = ContinuumSettings
    notices: ClassVar = frozenset({CallEnded, ToolEnded})

    def __init__(self, settings: ContinuumSettings, facts: Facts) -> None:
        super().__init__(settings, facts)
        self._with = settings
        self._times = ToolTimes(settings.ttl_ns)

    def on(self, notice: Notice, view: View) -> Iterable[Question]:
        """Asked when a call has ended that asked for tools; remembers what tools took."""
        if isinstance(notice, ToolEnded):
            self._times.add(notice.tool, notice.took_ns)
        elif isinstance(notice, CallEnded) and notice.tools and not notice.last:
            context = view.context(notice.context)
            yield Question(
                context.id,
                {
                    "now": view.now_ns,
                    "took": " ".join(map(str, self._times.samples(notice.tools))),
                    "mean": self._times.mean_ns(notice.tools),
                    "wait": view.mean_wait_ns(context.server),
                    "recompute": view.prefill_ns(context.server, context.tokens, 0) if context.tokens else 0,
                },
            )

    def choose(self, inputs: Mapping[str, Value]) -> Sequence[Action]:
        """Keep for the best time, if it is any."""
        now, mean, wait, recompute = (_whole(inputs[name]) for name in ("now", "mean", "wait", "recompute"))
        took = [int(each) for each in str(inputs["took"]).split()]
        if self._with.form == "mean" or not took:
            live = self._with.ttl_ns if mean <= self._with.ttl_ns else 0
        else:
            miss = self._with.eta_ppm * wait + _MILLION * recompute  # in millionths of a ns
            gains = [(at * miss - _MILLION * len(took) * time, -time) for at, time in enumerate(took, 1)]
            gain, time = max(gains)
            live = -time if gain > 0 else 0
        return (Keep(now + live),) if live else ()


def _whole(value: Value) -> int:
    assert isinstance(value, int)  # noqa: S101  # as it was asked
    return value
