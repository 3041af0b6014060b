"""vLLM's whole engine on a CPU, with forward passes: its schedule is the one that our scheduler makes."""

import pytest

from support.schedules import counts, difference
from support.vllm_driver import engine

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("order", ["fcfs", "priority"])
def test_schedule_is_equal(order):
    case, rows = engine(order)
    assert difference(case, rows) is None
    seen = counts(rows)
    assert seen["steps"] >= 500
    assert seen["preemptions"] >= 20
    assert seen["hits"] >= 20
    assert case["settings"]["order"] == order
