"""The controller against a slow oracle written from the spec's text, on random work, plans and scenarios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from support.random_graphs import random_graph, random_plan, random_scenario
from support.release_difference import difference

if TYPE_CHECKING:
    from random import Random


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False))
def test_controller_equals_oracle(rng: Random):
    made = random_graph(rng)
    assert difference(made.trace, random_plan(rng, made), random_scenario(rng, made)) is None
