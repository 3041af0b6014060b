"""Models and devices: the catalog's figures, names, and a user's own."""

from __future__ import annotations

import pytest

from semtrace.build import TraceBuilder
from semtrace.engine.catalog import devices, find_device, find_model, models
from semtrace.errors import DocumentError, UsageError
from semtrace.records.enums import OperationKind

MODELS = {
    "Qwen3-4B": (36, 2560, 32, 8, 128, 9728, 151936, 147456),
    "Qwen3-8B": (36, 4096, 32, 8, 128, 12288, 151936, 147456),
    "Qwen3-14B": (40, 5120, 40, 8, 128, 17408, 151936, 163840),
    "Qwen3-32B": (64, 5120, 64, 8, 128, 25600, 151936, 262144),
    "Qwen3-30B-A3B": (48, 2048, 32, 4, 128, None, 151936, 98304),
    "Qwen2.5-14B": (48, 5120, 40, 8, 128, 13824, 152064, 196608),
    "Qwen2.5-32B": (64, 5120, 40, 8, 128, 27648, 152064, 262144),
    "Llama-3.1-8B": (32, 4096, 32, 8, 128, 14336, 128256, 131072),
    "Llama-3.1-70B": (80, 8192, 64, 8, 128, 28672, 128256, 327680),
}
DEVICES = {
    "A100-SXM": (312e12, 2.039e12, 80e9, 32e9),
    "A800-SXM": (312e12, 2.039e12, 80e9, 32e9),
    "H100-SXM": (989e12, 3.35e12, 80e9, 64e9),
    "H200": (989e12, 4.8e12, 141e9, 64e9),
    "RTX-PRO-6000": (467.8e12, 1.792e12, 96e9, 64e9),
    "RTX-PRO-5000": (258e12, 1.344e12, 48e9, 64e9),
    "Ascend-910C-chip": (390e12, 1.6e12, 64e9, None),
    "Ascend-950DT": (None, 4e12, 144e9, None),
}
SHAPE = {
    "name": "tiny", "layers": 2, "hidden_size": 8, "heads": 4, "kv_heads": 2, "head_dim": 3,
    "intermediate_size": 16, "vocab_size": 100,
}  # fmt: skip


def test_models_are_the_published_ones():
    """ST-COST-010, ST-COST-011: the last figure is the KV cache of a token in 16 bits."""
    found = {
        name: (
            each.layers, each.hidden_size, each.heads, each.kv_heads, each.head_dim, each.intermediate_size,
            each.vocab_size, each.kv_bytes_per_token,
        )
        for name, each in models().items()
    }  # fmt: skip
    assert found == MODELS
    mixture = models()["Qwen3-30B-A3B"]
    assert (mixture.experts, mixture.experts_per_token, mixture.expert_intermediate_size) == (128, 8, 768)
    assert all(each.source for each in models().values())


def test_devices_have_their_figures_and_say_where_from():
    """ST-COST-012."""
    found = {
        name: (each.bf16_flops, each.memory_bytes_per_s, each.memory_bytes, each.host_link_bytes_per_s)
        for name, each in devices().items()
    }
    assert found == DEVICES
    assert all(each.source for each in devices().values())
    assert devices()["A800-SXM"].l2_bytes == 40 << 20
    assert devices()["RTX-PRO-5000"].l2_bytes == 96 << 20
    for uncertain in ("RTX-PRO-5000", "Ascend-910C-chip", "Ascend-950DT"):
        assert {"DERIVED", "UNCERTAIN"} & set(
            (devices()[uncertain].notes or "").replace(".", " ").replace(":", " ").split()
        )


@pytest.mark.parametrize("kind", [models, devices])
def test_no_name_stands_for_two(kind):
    names = [each.casefold() for entry in kind().values() for each in (entry.name, *entry.aliases)]
    assert len(set(names)) == len(names)


def test_names_and_aliases_are_found_in_any_case():
    assert find_model("qwen/qwen3-8b") == models()["Qwen3-8B"]
    assert find_device("a100") == devices()["A100-SXM"]


@pytest.mark.parametrize(
    ("find", "name", "near"),
    [
        (find_model, "Qwen3-8", "Qwen3-8B"),
        (find_model, "llama-3-8b", "Llama-3.1-8B"),
        (find_device, "H10", "H100-SXM"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(find, name, near):
    """ST-COST-013."""
    with pytest.raises(DocumentError, match=f"did you mean '{near}'") as caught:
        find(name)
    assert caught.value.requirement == "ST-COST-013"
    assert near in (caught.value.hint or "")


def test_a_name_like_none_names_none():
    with pytest.raises(DocumentError) as caught:
        find_model("%%%%")
    assert "did you mean" not in str(caught.value)


def test_a_users_own_by_path_or_written_out(tmp_path):
    (tmp_path / "tiny.yaml").write_text("\n".join(f"{key}: {value}" for key, value in SHAPE.items()))
    assert find_model("tiny.yaml", folder=tmp_path) == find_model(SHAPE)
    assert find_model(SHAPE).kv_bytes_per_token == 2 * 2 * 2 * 3 * 2
    (tmp_path / "card.yaml").write_text("name: card\nmemory_bytes_per_s: 5\nmemory_bytes: 6\n")
    assert find_device("card.yaml", folder=tmp_path).memory_bytes == 6
    with pytest.raises(UsageError, match=r"none\.yaml"):
        find_model("none.yaml", folder=tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"heads": 3}, "no multiple of 2 kv_heads"),
        ({"intermediate_size": None}, "needs intermediate_size, or experts"),
        ({"experts": 8}, "come together"),
        ({"experts": 2, "experts_per_token": 3, "expert_intermediate_size": 4}, "3 of 2 experts"),
        ({"kv_bytes": 0.3}, "no whole number of bits"),
        ({"kv_bytes": 0.125, "layers": 1, "head_dim": 1}, "no whole bytes"),
        ({"layers": 0}, "layers"),
        ({"head_size": 3}, "unknown key 'head_size'"),
    ],
)
def test_a_shape_that_is_none_is_refused(change, said):
    with pytest.raises(DocumentError, match=said):
        find_model({**SHAPE, **change})


def trace_with(name: str, **shape: int):
    builder = TraceBuilder()
    task = builder.task("t", arrival_ns=0)
    model = builder.model(name, **shape)
    builder.operation(
        task, OperationKind.LLM, "a", model=model, started_ns=0, prompt_tokens=5, output_tokens=1
    )
    return builder.build().trace


def test_a_traces_own_shape_serves_for_a_name_that_the_catalog_lacks():
    """ST-COST-013."""
    whole = {key: value for key, value in SHAPE.items() if key != "name"}
    found = find_model("mine", trace=trace_with("mine", **whole))
    assert {key: getattr(found, key) for key in whole} == whole
    assert find_model("Qwen3-8B", trace=trace_with("Qwen3-8B", layers=1)) == models()["Qwen3-8B"]
    with pytest.raises(DocumentError, match="layers") as caught:
        find_model("mine", trace=trace_with("mine", heads=4))
    assert "the trace does not hold the whole shape" in (caught.value.hint or "")
    with pytest.raises(DocumentError, match="no model 'other'"):
        find_model("other", trace=trace_with("mine"))
