"""Times of steps straight from the text of spec/cost.md, from the documents as JSON: shares nothing with the package."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

NAMES = (
    "requests", "prefill_tokens", "decode_tokens", "sampled",
    "prefill_pairs", "prefill_context", "decode_pairs", "decode_context",
)  # fmt: skip


def time_ns(cost: dict[str, Any], geometry: list[int], model: dict[str, Any], device: dict[str, Any]) -> int:
    step = dict(zip(NAMES, geometry, strict=True))
    context = step["prefill_context"] + step["decode_context"]
    if cost["kind"] == "linear":
        ps = (
            cost["c0_ps"]
            + cost["c_seq_ps"] * step["requests"]
            + cost["c_prefill_ps"] * step["prefill_tokens"]
        )
        return max(1, (ps + cost["c_decode_ps"] * step["decode_tokens"] + cost["c_kv_ps"] * context) // 1000)
    if cost["kind"] == "table":
        return max(1, int(_table(cost, [step["prefill_tokens"], step["decode_tokens"], context])))
    return max(1, int(_roofline(cost, step, model, device)))


def _table(cost: dict[str, Any], x: list[int]) -> float:
    axes = [cost["prefill_tokens"], cost["decode_tokens"], cost["context"]]
    inside = [min(value, axis[-1]) for value, axis in zip(x, axes, strict=True)]

    def along(times: Any, at: int) -> float:
        if at == 3:
            return float(times)
        axis, value = axes[at], inside[at]
        if len(axis) == 1:
            return along(times[0], at + 1)
        low = min(bisect_right(axis, value) - 1, len(axis) - 2)
        share = (value - axis[low]) / (axis[low + 1] - axis[low])
        a, b = along(times[low], at + 1), along(times[low + 1], at + 1)
        return a + (b - a) * share

    names = ("beyond_prefill_ps", "beyond_decode_ps", "beyond_context_ps")
    beyond = sum(cost[name] * (value - near) for name, value, near in zip(names, x, inside, strict=True))
    return along(cost["ns"], 0) + beyond / 1000


def _roofline(
    cost: dict[str, Any], step: dict[str, int], model: dict[str, Any], device: dict[str, Any]
) -> float:
    def chosen(name: str, otherwise: float) -> float:
        return float(cost.get(name, device.get(name, otherwise)))

    peak = chosen("compute_share", 1) * device["bf16_flops"] / 10**9
    band = chosen("memory_share", 1) * device["memory_bytes_per_s"] / 10**9
    t = cost.get("tensor_parallel", 1)
    layers, h, q, k = model["layers"], model["hidden_size"], model["heads"], model["kv_heads"]
    d, vocabulary = model["head_dim"], model["vocab_size"]
    b, kv = model.get("weight_bytes", 2), model.get("kv_bytes", 2)
    n = step["prefill_tokens"] + step["decode_tokens"]

    def takes(operations: float, moved: float) -> float:
        return max(operations / peak, moved / band)

    def product(c_in: int, c_out: int) -> float:
        moved = (b * (c_in * c_out)) / t + ((b * (c_in + c_out)) / t) * n
        return takes(((2 * c_in * c_out) / t) * n, moved)

    operators = [product(h, (q + 2 * k) * d)]
    for phase in ("prefill", "decode"):
        tokens = step[f"{phase}_tokens"]
        if tokens:
            moved = ((kv * (2 * k * d)) / t) * (step[f"{phase}_context"] + tokens)
            operators.append(takes(((4 * q * d) / t) * step[f"{phase}_pairs"], moved))
    operators.append(product(q * d, h))
    if "experts" in model:
        experts, chosen_experts, width = (
            model["experts"],
            model["experts_per_token"],
            model["expert_intermediate_size"],
        )
        missed, x = 1.0, 1 - chosen_experts / experts
        for digit in reversed(f"{n:b}"):
            missed = missed * x if digit == "1" else missed
            x = x * x
        moved = ((b * (3 * h * width)) / t) * (experts * (1 - missed))
        operators.append(takes(((2 * chosen_experts * 3 * h * width) / t) * n, moved))
    else:
        wide = model["intermediate_size"]
        operators += [product(h, 2 * wide), product(wide, h)]
    layer = 0.0
    for each in operators:
        layer += each
    total = layer * layers
    run = len(operators) * layers
    if step["sampled"]:
        total += takes(((2 * h * vocabulary) / t) * step["sampled"], (b * (h * vocabulary)) / t)
        run += 1
    total += chosen("kernel_ns", 0) * run
    total += 2 * layers * cost.get("allreduce_ns", 0) + (2 * layers * cost.get("allreduce_token_ns", 0)) * n
    return total + (cost.get("c0_ps", 0) + cost.get("c_seq_ps", 0) * step["requests"]) / 1000
