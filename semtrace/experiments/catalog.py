"""The experiments by name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from semtrace.errors import UsageError
from semtrace.experiments.attainment import ATTAINMENT
from semtrace.experiments.barrier import FOUR_CALLS, RESEARCHER
from semtrace.experiments.context_growth import CONTEXT_GROWTH
from semtrace.experiments.kv_size import KV_SIZE
from semtrace.experiments.policies import POLICIES
from semtrace.experiments.request_limit import REQUEST_LIMIT
from semtrace.experiments.spawn import SPAWN

if TYPE_CHECKING:
    from semtrace.experiments.base import Experiment

EXPERIMENTS: Final[dict[str, Experiment]] = {
    each.name: each
    for each in (FOUR_CALLS, RESEARCHER, SPAWN, KV_SIZE, ATTAINMENT, REQUEST_LIMIT, CONTEXT_GROWTH, POLICIES)
}


def find_experiment(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        UsageError: there is none.
    """
    if name not in EXPERIMENTS:
        near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
        raise UsageError(
            f"no experiment {name[:60]!r}" + (f", did you mean {near[0]!r}?" if near else ""),
            code="experiment.unknown",
            hint=f"there are: {', '.join(EXPERIMENTS)}",
        )
    return EXPERIMENTS[name]
