"""`semtrace import` and `semtrace export` of request traces: what is printed, written, refused."""

from __future__ import annotations

import json

import pytest

from cli.conftest import run

ROWS = [
    {"timestamp": 0, "input_length": 1024, "output_length": 3, "hash_ids": [0, 1]},
    {"timestamp": 5.5, "input_length": 700, "output_length": 3, "hash_ids": [0, 2]},
]


@pytest.fixture
def bundle(tmp_path):
    """An imported trace, and the file that it was made of, with a bad line."""
    source = tmp_path / "requests.jsonl"
    source.write_text(json.dumps(ROWS[0]) + "\nno line\n" + json.dumps(ROWS[1]) + "\n")
    out = tmp_path / "requests.semtrace"
    ran = run("import", source, "-o", out)
    assert ran.code == 0
    text = " ".join(ran.out.split())
    assert "mooncake: 2 tasks, 2 operations" in text
    assert "taken for 512" in text
    assert "a line that is no JSON (requests.jsonl:2)" in text
    return out


def test_there_and_back(bundle, tmp_path):
    out = tmp_path / "out.jsonl"
    ran = run("export", bundle, "--format", "mooncake", "-o", out)
    assert ran.code == 0
    assert "written to" in ran.out
    assert [json.loads(line) for line in out.read_text().splitlines()] == ROWS
    assert run("check", bundle).code == 0
    replayed = tmp_path / "run.semtrace"
    assert run("replay", bundle, "-o", replayed).code == 0


def test_the_report_is_printed_and_in_json(trace_file, tmp_path):
    out = tmp_path / "out.jsonl"
    ran = run("export", trace_file, "--format", "mooncake", "-o", out, "--set", "block_size=16")
    assert ran.code == 0
    assert "lost 3 × a stage" in " ".join(ran.out.split())
    ran = run(
        "export", trace_file, "--format", "mooncake", "-o", out, "--force", "--json", "--set", "block_size=16"
    )
    assert ran.json["adapter"] == "mooncake"
    assert ran.json["bytes"] == out.stat().st_size
    losses = {loss["code"]: (loss["effect"], loss["count"]) for loss in ran.json["loss"]}
    assert losses["stages.lost"] == ("lost", 3)
    assert losses["blocks.made"] == ("inferred", 4)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [len(line["hash_ids"]) for line in lines] == [4, 4, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["--format", "autogen"], 2, "adapter.unknown"),
        (["--format", "mooncake", "--set", "block_size=0"], 2, "adapter.option"),
        (["--format", "mooncake", "--set", "turns=delta"], 2, "adapter.option"),
        (["--format", "mooncake", "--set", "odd"], 2, "import.set"),
    ],
)
def test_wrong_use_leaves_nothing_behind(bundle, tmp_path, arguments, code, error):
    ran = run("export", bundle, *arguments, "-o", tmp_path / "new.jsonl", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (code, error)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["requests.jsonl", "requests.semtrace"]


def test_nothing_is_replaced_without_being_asked(bundle, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    ran = run("export", bundle, "--format", "mooncake", "-o", out)
    assert ran.code == 2
    assert out.read_text() == "mine"
    assert run("export", bundle, "--format", "mooncake", "-o", bundle, "--force", "--json").json["error"][
        "code"
    ] == "file.same"  # fmt: skip


@pytest.mark.parametrize(
    "content", [b"\x00" * 1000, b'{"hash_ids": [' * 3000, b'{"timestamp": 1, "input_length": 1e308}\n' * 3]
)
def test_odd_files_are_refused_with_words(tmp_path, content):
    source = tmp_path / "odd.jsonl"
    source.write_bytes(content)
    ran = run("import", source, "-o", tmp_path / "o.semtrace", "--adapter", "mooncake", "--json")
    assert ran.code == 1
    assert ran.json["error"]["code"] == "mooncake.nothing"
