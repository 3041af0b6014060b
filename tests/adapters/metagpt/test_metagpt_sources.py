"""Finding, reading and merging sources; wrong and damaged ones."""

import json
import random
import shutil

import pytest

from metagpt_logs import RECORDINGS, LogWriter, load
from semtrace.errors import FormatError, SemtraceError, UsageError
from semtrace.records.chat import rebuild_request
from semtrace.records.enums import OperationStatus
from semtrace_adapters.base import ImportOptions, LossReport
from semtrace_adapters.metagpt import ADAPTER
from semtrace_adapters.metagpt.lines import merge_logs, read_json_log, read_text_log
from semtrace_adapters.metagpt.matching import Text, TextIndex, leaves, spans_in

CUSTOM = RECORDINGS / "custom"
SOP = RECORDINGS / "sop"


@pytest.mark.parametrize(
    ("source", "certain"),
    [
        (CUSTOM, 95),
        (CUSTOM / "log.txt", 95),
        (CUSTOM / "loguru_serialized.jsonl", 95),
        (CUSTOM / "team" / "team.json", 90),
        (SOP / "workspace", 60),
        (CUSTOM / "config2.yaml", 20),
        (CUSTOM / "server_access.jsonl", 0),
        (CUSTOM / "nothing-here", 0),
        (RECORDINGS / "README.md", 0),
    ],
)
def test_detection(source, certain):
    assert ADAPTER.detect([source]) >= certain if certain else ADAPTER.detect([source]) == 0


def test_text_and_json_of_one_log_are_one():
    loss = LossReport()
    text, structured = (
        read_text_log(CUSTOM / "log.txt", loss),
        read_json_log(CUSTOM / "loguru_serialized.jsonl", loss),
    )
    assert [line.text for line in text.lines] == [line.text for line in structured.lines]
    assert [line.message for line in text.lines] == [line.message for line in structured.lines]
    (merged,) = merge_logs([text], [structured], loss)
    assert merged == structured.lines


def test_each_line_that_only_one_log_has_is_kept(tmp_path):
    text = (CUSTOM / "log.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    lines = (CUSTOM / "loguru_serialized.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "log.txt").write_text("".join(text[:60]), encoding="utf-8")
    (tmp_path / "log.jsonl").write_text("".join(lines[30:]), encoding="utf-8")
    loss = LossReport()
    (merged,) = merge_logs(
        [read_text_log(tmp_path / "log.txt", loss)], [read_json_log(tmp_path / "log.jsonl", loss)], loss
    )
    whole = read_json_log(CUSTOM / "loguru_serialized.jsonl", loss).lines
    assert [line.text for line in merged] == [line.text for line in whole]
    assert all(line.utc for line in merged)
    assert all(
        abs(ours.time_ns - theirs.time_ns) < 1_000_000 for ours, theirs in zip(merged, whole, strict=True)
    )
    assert {item.code: item.count for item in loss.items()} == {"log.text_only": 30}
    imported = load(tmp_path)
    assert len(imported.rows("tasks")) == 1
    assert len(imported.calls) == 9


def test_a_clock_that_goes_back_is_repaired(tmp_path):
    lines = (CUSTOM / "loguru_serialized.jsonl").read_text(encoding="utf-8").splitlines()
    entry = json.loads(lines[20])
    entry["record"]["time"]["repr"] = entry["record"]["time"]["repr"].replace("2026", "2027")
    (tmp_path / "a.jsonl").write_text(
        "\n".join([*lines[:20], json.dumps(entry), *lines[21:]]), encoding="utf-8"
    )
    imported = load(tmp_path / "a.jsonl")
    assert imported.losses["log.time"] == 1
    assert max(event["finished_ns"] for event in imported.events) < 60_000_000_000


def test_two_processes_in_one_json_log(tmp_path):
    lines = (CUSTOM / "loguru_serialized.jsonl").read_text(encoding="utf-8").splitlines()
    other = [
        line.replace('"process": {"id": ', '"process": {"id": 9').replace('\\"id\\":\\"', '\\"id\\":\\"x')
        for line in lines
    ]
    mixed = [line for pair in zip(lines, other, strict=True) for line in pair]
    (tmp_path / "mixed.jsonl").write_text("\n".join(mixed), encoding="utf-8")
    imported = load(tmp_path / "mixed.jsonl")
    assert len(imported.rows("tasks")) == 2
    assert len(imported.calls) == 18
    assert imported.losses["calls.concurrent"] == 4


def test_a_log_copied_from_a_terminal(tmp_path):
    text = (CUSTOM / "log.txt").read_text(encoding="utf-8")
    coloured = "\n".join(
        "\x1b[32m" + line.replace(" | ", "\x1b[0m | \x1b[1m", 1) + "\x1b[0m" for line in text.splitlines()
    )
    (tmp_path / "out.txt").write_text("starting up\n" + coloured, encoding="utf-8")
    assert ADAPTER.detect([tmp_path / "out.txt"]) >= 90
    imported = load(tmp_path / "out.txt")
    assert len(imported.calls) == 9
    assert imported.losses["log.preamble"] == 1


def test_the_configuration_names_the_model_and_nothing_secret():
    imported = load(CUSTOM / "log.txt", CUSTOM / "config2.yaml")
    assert [row["name"] for row in imported.rows("models")] == ["gpt-4o"]
    for content in imported.trace.content.values():
        assert b"api_key" not in content
        assert b"127.0.0.1" not in content


def test_options(tmp_path):
    imported = load(CUSTOM / "log.txt", model="my-model")
    assert [row["name"] for row in imported.rows("models")] == ["my-model"]
    for values in ({"modle": "x"}, {"counts": "guess"}):
        with pytest.raises(UsageError, match="no option"):
            ADAPTER.read([CUSTOM / "log.txt"], ImportOptions(values=values))


def test_progress_reaches_the_whole():
    seen = []
    ADAPTER.read([CUSTOM], ImportOptions(progress=lambda done, total: seen.append((done, total))))
    assert seen[-1][0] == seen[-1][1] > 0


def test_the_order_of_the_sources_does_not_matter():
    sources = [
        SOP / "loguru_serialized.jsonl",
        SOP / "team" / "team.json",
        SOP / "workspace",
        SOP / "config2.yaml",
    ]
    assert load(*sources).trace["operations"].data == load(*reversed(sources)).trace["operations"].data


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.txt", ""),
        ("prose.txt", "Just some words.\nAnd more.\n"),
        ("other.txt", "2026-11-29 10:00:00.000 | INFO     | somewhere.else:run:1 - hello\n"),
        ("other.jsonl", '{"event": 1}\n'),
        ("other.json", '{"env": {}, "roles": []}'),
        ("binary.bin", "\x00\x01\x02"),
    ],
)
def test_what_is_not_metagpts_is_refused(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert ADAPTER.detect([path]) == 0
    with pytest.raises(FormatError) as caught:
        ADAPTER.read([path], ImportOptions())
    assert caught.value.code == "metagpt.nothing"
    assert caught.value.hint


def test_missing_and_damaged_sources(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        ADAPTER.read([tmp_path / "nothing"], ImportOptions())
    whole = (CUSTOM / "team" / "team.json").read_text(encoding="utf-8")
    (tmp_path / "team.json").write_text(whole[: len(whole) // 2], encoding="utf-8")
    with pytest.raises(FormatError, match="damaged"):
        ADAPTER.read([tmp_path / "team.json"], ImportOptions())
    (tmp_path / "config2.yaml").write_text("llm: [unclosed", encoding="utf-8")
    with pytest.raises(FormatError, match="YAML"):
        ADAPTER.read([CUSTOM / "log.txt", tmp_path / "config2.yaml"], ImportOptions())


def test_a_truncated_log(tmp_path):
    """Cut in the middle of the assessments: what is known up to there is kept, the calls in flight are cancelled."""
    lines = (CUSTOM / "log.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if "the monthly cost" in line)
    (tmp_path / "log.txt").write_text("".join(lines[: place + 1]), encoding="utf-8")
    imported = load(tmp_path / "log.txt")
    assert [OperationStatus(row["status"]).name for _, row in imported.calls] == ["OK", *["CANCELLED"] * 4]
    assert imported.losses["log.truncated"] == 4
    assert imported.losses["run.no_end"] == 1


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_log_cut_anywhere_is_read_as_far_as_it_goes(tmp_path, cut):
    raw = (SOP / "log.txt").read_bytes()
    (tmp_path / "log.txt").write_bytes(raw[: len(raw) * cut // 20])
    imported = load(tmp_path / "log.txt", SOP / "workspace")
    assert len(imported.rows("tasks")) >= 1


@pytest.mark.parametrize(
    ("find", "put", "code"),
    [
        ("'role': 'user'", "'role': user", "request.unreadable"),
        ('"role":"Coordinator"', '"role":Coordinator', "message.unreadable"),
        ("observed: ['Human", "observed: [Human", "observed.unreadable"),
        ("'role': 'user'", "'role': 'narrator'", "request.form"),
    ],
)
def test_damaged_lines_are_lost_and_said_to_be(tmp_path, find, put, code):
    text = (CUSTOM / "log.txt").read_text(encoding="utf-8")
    assert find in text
    (tmp_path / "log.txt").write_text(text.replace(find, put, 1), encoding="utf-8")
    imported = load(tmp_path / "log.txt")
    assert imported.losses[code] == 1
    assert len(imported.calls) == 9


def test_text_without_a_utf8_form(tmp_path):
    log = (
        LogWriter()
        .invest()
        .ask_user()
        .observe("Ann(Writer)", "Human: Do the thing...")
        .act("Ann(Writer)", "Write")
    )
    log.line(
        "metagpt.provider.base_llm", "aask", r"[{'role': 'user', 'content': 'half \ud83d a pair'}]"
    ).usage(9, 2)
    path = (
        log.done("Ann(Writer)", "Write", "m1", "done and published").end_round(0).save(tmp_path / "log.txt")
    )
    path.write_bytes(path.read_bytes().replace(b"done and published", b"done \xff published"))
    imported = load(path)
    assert rebuild_request(imported.trace, 0)["messages"][0]["content"] == "half \ufffd a pair"
    assert imported.losses["text.surrogate"] == 1
    assert imported.losses["text.encoding"] == 1


def test_hostile_json(tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    (tmp_path / "team.json").write_text('{"env": {"roles": ' + deep + "}}", encoding="utf-8")
    with pytest.raises(SemtraceError):
        ADAPTER.read([tmp_path / "team.json"], ImportOptions())
    log = LogWriter().invest().ask_user()
    log.line("metagpt.provider.base_llm", "aask", deep)
    log.line("metagpt.environment.base_env", "publish_message", "publish_message: " + deep)
    log.line("metagpt.utils.cost_manager", "update_cost", f"prompt_tokens: {'9' * 40}, completion_tokens: 1")
    log.line("metagpt.utils.file_repository", "save", "save to: ../../../etc/passwd")
    log.line("metagpt.utils.file_repository", "save", "save to: /abs/olute")
    log.end_round(0)
    imported = load(log.save(tmp_path / "log.txt"))
    assert imported.losses["request.unreadable"] == 1
    assert imported.losses["message.unreadable"] == 1


def test_the_same_log_twice_is_one_run(tmp_path):
    text = (CUSTOM / "log.txt").read_text(encoding="utf-8")
    (tmp_path / "log.txt").write_text(text, encoding="utf-8")
    (tmp_path / "part.txt").write_text("\n".join(text.splitlines()[:40]) + "\n", encoding="utf-8")
    once = load(tmp_path / "log.txt", tmp_path / "log.txt", tmp_path)
    assert len(once.rows("tasks")) == 1
    assert len(once.calls) == 9
    assert once.losses["run.again"] == 1


@pytest.mark.parametrize("seed", range(12))
def test_damaged_logs_give_a_valid_trace_or_a_clear_error(tmp_path, seed):
    """Bytes changed, lines lost, doubled and in the wrong order."""
    chance = random.Random(seed)
    for number, source in enumerate(
        [CUSTOM / "log.txt", CUSTOM / "loguru_serialized.jsonl", SOP / "log.txt"]
    ):
        lines = source.read_bytes().split(b"\n")
        for _ in range(8):
            at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
            match chance.randrange(4):
                case 0:
                    del lines[at]
                case 1:
                    lines.insert(at, lines[other])
                case 2:
                    lines[at], lines[other] = lines[other], lines[at]
                case _:
                    lines[at] = lines[at][: len(lines[at]) // 2] + bytes([chance.randrange(256)])
        path = tmp_path / f"{number}.log"
        path.write_bytes(b"\n".join(lines))
        assert ADAPTER.detect([path]) > 0
        load(path, CUSTOM / "team" / "team.json")


def test_links_in_a_workspace_are_not_followed(tmp_path):
    shutil.copytree(SOP / "workspace", tmp_path / "workspace")
    secret = tmp_path / "secret.txt"
    secret.write_text("not to be read", encoding="utf-8")
    (tmp_path / "workspace" / "link.txt").symlink_to(secret)
    (tmp_path / "workspace" / "folder").symlink_to(tmp_path)
    imported = load(tmp_path / "workspace")
    assert imported.losses["file.link"] == 1
    assert b"not to be read" not in imported.trace.content.values()


def test_leaves_of_json():
    document = json.dumps(
        {"docs": {"a": {"content": json.dumps({"plan": "a plan of some length", "short": "x"})}}}
    )
    assert set(leaves(document)) == {
        document,
        json.dumps({"plan": "a plan of some length", "short": "x"}),
        "a plan of some length",
    }
    assert leaves("short") == []


def test_spans_are_longest_first_and_apart():
    long, part = "the long text with a part inside", "a part inside"
    content = f"First: {part}. Then: {long}. Again: {part}."
    index = TextIndex([Text(part, 1, part), Text(long, 2, "xx" + long), Text("nowhere to be found", 3, None)])
    spans = spans_in(content, index)
    assert [(content[span.start : span.end], span.source, span.source_start) for span, _ in spans] == [
        (part, 1, 0), (long, 2, 2), (part, 1, 0),
    ]  # fmt: skip


def test_a_span_does_not_reach_into_a_longer_one():
    content = "alpha beta gamma delta epsilon zeta eta"
    before, long, after = "beta gamma de", "gamma delta epsilon", "epsilon zeta eta"
    spans = spans_in(content, TextIndex([Text(before, 1, None), Text(long, 2, None), Text(after, 3, None)]))
    assert [content[span.start : span.end] for span, _ in spans] == [long]
