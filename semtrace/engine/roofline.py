"""The roofline cost: each operator takes the longer of its arithmetic and its memory traffic (spec/cost.md).

Work and traffic of the operators of a decoder, dense or with experts, split over `tensor_parallel` devices, from
the model's shape; peaks from the device. Not normative: binary64 in a stated order, and no claim to a real device's times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from semtrace.engine.coefficients import Nanoseconds, Picoseconds, Share
from semtrace.errors import DocumentError
from semtrace.records.document import Document

if TYPE_CHECKING:
    from semtrace.engine.catalog import Device, ModelShape


class RooflineCost(Document):
    """A step's time from the shape of the model and the figures of the device (ST-COST-020).

    Attributes:
        c0_ps: ps for every step, beside its operators.
        c_seq_ps: ps for every request in it.
        tensor_parallel: devices that share every operator, t.
        allreduce_ns: time of one all-reduce in ns, of which a layer has two; needed with more than one device.
        allreduce_token_ns: what each token of the step adds to it, in ns.
        compute_share: part of the device's peak arithmetic that is reached; the device's own, else 1, if left out.
        memory_share: part of its peak memory rate that is reached; likewise.
        kernel_ns: time that every operator takes beside its work, in ns; the device's own, else 0, if left out.
        notes: where the numbers are from.
    """

    format: Literal["semtrace-cost"] = "semtrace-cost"
    kind: Literal["roofline"] = "roofline"
    c0_ps: Picoseconds = 0
    c_seq_ps: Picoseconds = 0
    tensor_parallel: int = Field(default=1, ge=1, le=1 << 16)
    allreduce_ns: Nanoseconds | None = None
    allreduce_token_ns: Nanoseconds | None = None
    compute_share: Share | None = None
    memory_share: Share | None = None
    kernel_ns: Nanoseconds | None = None
    notes: str | None = None

    @model_validator(mode="after")
    def _allreduce(self) -> RooflineCost:
        given = self.allreduce_ns is not None or self.allreduce_token_ns is not None
        if self.tensor_parallel > 1 and self.allreduce_ns is None:
            raise ValueError("allreduce_ns is needed with tensor_parallel above 1 (ST-COST-023)")
        if self.tensor_parallel == 1 and given:
            raise ValueError("one device has no all-reduce: leave out allreduce_ns (ST-COST-023)")
        return self


def roofline_numbers(
    document: RooflineCost, model: ModelShape | None, device: Device | None
) -> tuple[list[int], list[float]]:
    """The integers and binary64 numbers that `step_ns` takes of a roofline (ST-COST-021).

    Integers: layers, experts (0 if dense), c0_ps, c_seq_ps. Numbers: peak (operations per ns), band (bytes per ns); of each
    matrix product operations per token, bytes, bytes per token; of the rest as named below.

    Raises:
        DocumentError: model, device or the device's arithmetic is not given, or heads cannot be split evenly.
    """
    if model is None or device is None:
        missing = "a model" if model is None else "a device"
        raise _wrong(f"a roofline needs {missing}", f"give {missing} by name, path or written out")
    if device.bf16_flops is None:
        raise _wrong(
            f"bf16_flops of {device.name} is not known",
            "copy the device's file, add bf16_flops, and give the path of the copy",
        )
    t = document.tensor_parallel
    if model.kv_heads % t:  # heads are a multiple of kv_heads
        raise _wrong(
            f"{model.kv_heads} kv_heads cannot be split evenly over {t} devices",
            "tensor_parallel must divide kv_heads: heads held twice are not modelled",
        )
    ways, b = float(t), float(model.weight_bytes)
    h, d, q, k = model.hidden_size, model.head_dim, model.heads, model.kv_heads

    def product(c_in: int, c_out: int) -> list[float]:
        return [
            float(2 * c_in * c_out) / ways,
            b * float(c_in * c_out) / ways,
            b * float(c_in + c_out) / ways,
        ]

    attention = [float(4 * q * d) / ways, float(model.kv_bytes) * float(2 * k * d) / ways]
    dense, experts = [0.0] * 6, [0.0] * 4
    if model.experts and model.experts_per_token and model.expert_intermediate_size:
        matrices = 3 * h * model.expert_intermediate_size
        experts = [
            float(2 * model.experts_per_token * matrices) / ways,
            b * float(matrices) / ways,
            1.0 - float(model.experts_per_token) / float(model.experts),
            float(model.experts),
        ]
    elif model.intermediate_size:
        dense = [
            *product(h, 2 * model.intermediate_size),
            *product(model.intermediate_size, h),
        ]
    head = [float(2 * h * model.vocab_size) / ways, b * float(h * model.vocab_size) / ways]
    kernel = document.kernel_ns if document.kernel_ns is not None else device.kernel_ns
    floats = [
        _first(document.compute_share, device.compute_share) * float(device.bf16_flops) / 1e9,
        _first(document.memory_share, device.memory_share) * float(device.memory_bytes_per_s) / 1e9,
        *product(h, (q + 2 * k) * d),
        *attention,
        *product(q * d, h),
        *dense,
        *experts,
        *head,
        float(kernel or 0),
        float(2 * model.layers) * float(document.allreduce_ns or 0),
        float(2 * model.layers) * float(document.allreduce_token_ns or 0),
    ]
    return [model.layers, model.experts or 0, document.c0_ps, document.c_seq_ps], floats


def _first(*shares: float | None) -> float:
    """The first share that is given, else all of it."""
    return next((float(each) for each in shares if each is not None), 1.0)


def _wrong(message: str, hint: str) -> DocumentError:
    return DocumentError(message, code="engine.roofline", path="cost", requirement="ST-COST-023", hint=hint)
