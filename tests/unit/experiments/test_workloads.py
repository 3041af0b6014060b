"""The structures of the experiments: they have the shapes that they claim, are valid, and fit into the request limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from semtrace.check import check_trace
from semtrace.experiments import workloads
from semtrace.experiments.context_growth import (
    cumulative_debate,
    last_round_debate,
    mixture_of_agents,
    prompt_tokens,
)
from semtrace.graph.barrier import barrier
from semtrace.graph.legality import judge
from semtrace.store.digests import work_digest

if TYPE_CHECKING:
    from collections.abc import Callable

    from semtrace.records.trace import Trace

ROOTS = 5


@dataclass(frozen=True)
class Shape:
    """A structure by its levels: how many calls of a root have so many calls before them on the longest path."""

    make: Callable[[int, int], Trace]
    levels: list[int]
    edges: int
    chained: int
    sessions: int


SHAPES = {
    "four calls": Shape(workloads.four_calls, [2, 1, 1], 3, 1, 4),
    "researcher": Shape(workloads.researcher, [1, 3, 1, 1, 1], 9, 2, 6),
    "spawn": Shape(workloads.spawn, [1, 4, 1], 9, 3, 5),
    "independent": Shape(workloads.independent, [1], 0, 0, 1),
    "overlapping": Shape(workloads.overlapping, [1, 4, 4, 1], 12, 3, 6),
}


def levels(trace: Trace) -> list[int]:
    depth = [0] * trace.operations.rows
    edges = trace.edges
    for target, source in zip(edges.ints("target").tolist(), edges.ints("source").tolist(), strict=True):
        depth[target] = max(depth[target], depth[source] + 1)
    return [depth.count(level) for level in range(max(depth) + 1)]


@pytest.mark.parametrize("name", SHAPES)
def test_structures_have_the_shapes_that_they_claim(name: str):
    shape = SHAPES[name]
    trace = shape.make(ROOTS, 7)
    assert check_trace(trace) == []
    assert levels(trace) == [calls * ROOTS for calls in shape.levels]
    assert trace.edges.rows == shape.edges * ROOTS
    assert trace["sessions"].rows == shape.sessions * ROOTS
    last = trace.tasks.ints("answer_operation")
    assert last.tolist() == [sum(shape.levels) * (root + 1) - 1 for root in range(ROOTS)]


@pytest.mark.parametrize("name", SHAPES)
def test_a_chain_adds_the_edges_that_the_reference_names(name: str):
    shape = SHAPES[name]
    trace = shape.make(ROOTS, 7)
    plan = barrier(trace, "chain")
    assert len(plan.groups) == shape.chained * ROOTS
    assert judge(trace, plan).findings == []


@pytest.mark.parametrize("name", SHAPES)
def test_no_draw_exceeds_the_request_limit(name: str):
    operations = SHAPES[name].make(64, 0).operations
    tokens = operations.ints("prompt_tokens") + operations.ints("output_tokens")
    assert tokens.max() <= workloads.REQUEST_LIMIT
    assert (operations.ints("reasoning_tokens") < operations.ints("output_tokens")).all()


def test_the_largest_draw_would_fit_too():
    lengths = workloads.LENGTHS
    most = {
        "researcher": lengths.question + lengths.sources + lengths.answer,
        "refined": lengths.question + 3 * lengths.answer + 2 * lengths.answer,
        "spawn": lengths.question + lengths.answer + 4 * lengths.answer,
        "overlapping": 2 * lengths.question + lengths.document + 2 * lengths.answer,
        "joined": lengths.question + 4 * lengths.answer,
    }
    output = lengths.reasoning + lengths.answer
    for name, prompt in most.items():
        assert (prompt + output) * (100 + lengths.spread_percent) <= 100 * workloads.REQUEST_LIMIT, name


def test_a_seed_gives_one_workload():
    one, again, other = (work_digest(workloads.spawn(3, seed)) for seed in (1, 1, 2))
    assert one == again
    assert one != other


@pytest.mark.parametrize(("agents", "rounds"), [(3, 2), (3, 1), (1, 4), (5, 0), (4, 3)])
def test_debates_grow_as_their_formulas_say(agents: int, rounds: int):
    every = workloads.debate(agents, rounds, 101, 17, cumulative=True)
    last = workloads.debate(agents, rounds, 101, 17, cumulative=False)
    assert prompt_tokens(every) == cumulative_debate(agents, rounds, 101, 17)
    assert prompt_tokens(last) == last_round_debate(agents, rounds, 101, 17)
    assert check_trace(every) == []
    assert every.operations.ints("prompt_tokens").max() == 101 + rounds * agents * 17
    assert levels(every) == levels(last) == [agents] * (rounds + 1)


@pytest.mark.parametrize(("proposers", "layers"), [(6, 3), (6, 2), (2, 1), (1, 5)])
def test_mixtures_grow_as_their_formula_says(proposers: int, layers: int):
    trace = workloads.mixture(proposers, layers, 101, 17)
    assert prompt_tokens(trace) == mixture_of_agents(proposers, layers, 101, 17)
    assert check_trace(trace) == []
    assert levels(trace) == [proposers] * layers + [1]


def test_the_formulas_are_the_ones_that_are_quoted():
    assert cumulative_debate(3, 2, 1000, 1) == 9027
    assert last_round_debate(3, 2, 1000, 1) == 9018
    assert cumulative_debate(3, 1, 1000, 1) == 6009
    assert mixture_of_agents(6, 3, 1000, 1) == 19078
    assert mixture_of_agents(6, 2, 1000, 1) == 13042
