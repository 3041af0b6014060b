"""How context grows with rounds and layers: prompt tokens of a debate and a Mixture-of-Agents, counted and by formula.

The text gives the prompt of round k of a debate, |q| + k·n·|a|, and the structure of a Mixture-of-Agents; the sums
are arithmetic. A debate of “two rounds” is read in three ways: two rounds after the first answers, with all earlier
answers in the prompt; the same with those of the last round alone; and the first answers as the first of the two
rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from semtrace.experiments.base import Compared, Experiment, Lab, Result
from semtrace.experiments.workloads import LENGTHS, debate, mixture

if TYPE_CHECKING:
    from semtrace.records.trace import Trace


def cumulative_debate(agents: int, rounds: int, question: int, answer: int) -> int:
    """Prompt tokens of rounds 0 to R in which agents read all earlier answers: n(R+1)q + n²a·R(R+1)/2."""
    return agents * (rounds + 1) * question + agents**2 * answer * rounds * (rounds + 1) // 2


def last_round_debate(agents: int, rounds: int, question: int, answer: int) -> int:
    """Prompt tokens of rounds 0 to R in which agents read the answers of the round before: n(R+1)q + n²a·R."""
    return agents * (rounds + 1) * question + agents**2 * answer * rounds


def mixture_of_agents(proposers: int, layers: int, question: int, answer: int) -> int:
    """Prompt tokens of L layers of n proposers and an aggregator: (nL+1)q + (n²(L−1)+n)a."""
    return (proposers * layers + 1) * question + (proposers**2 * (layers - 1) + proposers) * answer


def prompt_tokens(trace: Trace) -> int:
    """Prompt tokens of all operations of a trace."""
    return int(trace.operations.ints("prompt_tokens").sum())


def _run(_: Lab) -> Result:
    q, a = LENGTHS.question, LENGTHS.answer
    cases = [
        ("debate, 3 agents, 2 rounds after the first answers, all earlier answers", "9q + 27a",
         cumulative_debate(3, 2, q, a), prompt_tokens(debate(3, 2, q, a, cumulative=True))),
        ("the same, answers of the last round alone", "9q + 18a",
         last_round_debate(3, 2, q, a), prompt_tokens(debate(3, 2, q, a, cumulative=False))),
        ("debate, 3 agents, 2 rounds with the first answers", "6q + 9a",
         cumulative_debate(3, 1, q, a), prompt_tokens(debate(3, 1, q, a, cumulative=True))),
        ("Mixture-of-Agents, 3 layers of 6 and an aggregator", "19q + 78a",
         mixture_of_agents(6, 3, q, a), prompt_tokens(mixture(6, 3, q, a))),
        ("MoA-Lite, 2 layers of 6 and an aggregator", "13q + 42a",
         mixture_of_agents(6, 2, q, a), prompt_tokens(mixture(6, 2, q, a))),
    ]  # fmt: skip
    compared = [
        Compared(
            f"prompt tokens, formula → counted: {name}", formula, [float(told)], [float(counted)], "equal"
        )
        for name, formula, told, counted in cases
    ]
    rows = [
        {"workload": name, "formula": formula, "told": told, "counted": counted}
        for name, formula, told, counted in cases
    ]
    why = (
        "Nothing differs: the traces are built call by call, and their prompts add up to the formulas. Templates and "
        "roles are not in them."
    )
    return Result(compared, rows, why, [f"question q: {q} tokens, answer a: {a} tokens"])


CONTEXT_GROWTH: Final = Experiment(
    "context-growth",
    "Prompt tokens of debates and of a Mixture-of-Agents",
    "the prompt of round k of a debate has |q| + k·n·|a| tokens; each proposer reads all answers of the layer before",
    "the same, as traces whose prompts are counted; nothing is replayed",
    _run,
)
