"""Which adapter reads what, and what is refused: mixed families, bundles, an output that is a source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli.conftest import run
from semtrace.errors import FormatError
from semtrace_adapters.base import choose

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
AUTOGEN, METAGPT = EXAMPLES / "autogen" / "graphloop", EXAMPLES / "metagpt" / "custom"


def refused(*paths: Path, code: str = "adapter.mixed") -> str:
    with pytest.raises(FormatError) as raised:
        choose(list(paths))
    assert raised.value.code == code
    assert raised.value.hint
    return raised.value.message


@pytest.mark.parametrize("order", [1, -1])
def test_two_families_given_together_are_refused_with_their_names(order):
    message = refused(*[AUTOGEN, METAGPT][::order])
    assert f"autogen is sure of {AUTOGEN}" in message
    assert f"metagpt is sure of {METAGPT}" in message


def test_two_families_in_one_folder_are_refused_with_the_folders_in_it():
    message = refused(EXAMPLES)
    assert f"autogen is sure of {AUTOGEN.parent}" in message
    assert f"metagpt is sure of {METAGPT.parent}" in message


def test_two_families_in_one_flat_folder(tmp_path):
    shutil.copy(AUTOGEN / "events.jsonl", tmp_path / "a.jsonl")
    for path in METAGPT.rglob("*.txt"):
        shutil.copy(path, tmp_path / f"m-{path.name}")
    (tmp_path / "notes.md").write_text("of nobody")
    (tmp_path / "loop").symlink_to(tmp_path)
    message = refused(tmp_path)
    assert f"autogen is sure of {tmp_path / 'a.jsonl'}" in message
    assert "notes.md" not in message


def test_a_link_to_itself_is_of_nobody(tmp_path):
    folder, out = tmp_path / "folder", tmp_path / "run.semtrace"
    folder.mkdir()
    (folder / "self").symlink_to("self")
    ran = run("import", folder, "-o", out)
    assert (ran.code, "no adapter knows" in ran.err) == (2, True)
    ran = run("import", folder, "--adapter", "metagpt", "-o", out)
    assert (ran.code, "nothing in these sources is of a MetaGPT run" in ran.err) == (1, True)
    shutil.copytree(METAGPT, folder / "run")
    assert run("import", folder, "-o", out).code == 0


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be"])
def test_a_log_that_is_not_utf_8_is_named(tmp_path, encoding):
    shutil.copytree(AUTOGEN, tmp_path / "run")
    log, out = tmp_path / "run" / "events.jsonl", tmp_path / "out.semtrace"
    log.write_bytes(log.read_text("utf-8").encode(encoding))
    ran = run("import", tmp_path / "run", "-o", out, "--json")
    left = {loss["code"]: loss for loss in ran.json["loss"]}
    assert left["files.encoding"]["where"] == ["events.jsonl"]
    ran = run("import", log, "-o", out, "--force")
    assert ran.code == 2
    assert "events.jsonl: is UTF-16 or UTF-32: what is imported is UTF-8" in "".join(ran.err.split("\n"))


def test_many_files_are_counted(tmp_path):
    for at in range(5):
        shutil.copy(AUTOGEN / "events.jsonl", tmp_path / f"{at}.jsonl")
    message = refused(METAGPT, *sorted(tmp_path.iterdir()))
    assert f"{tmp_path / '2.jsonl'} and 2 more" in message


def test_a_named_adapter_reads_its_own_and_says_what_it_left(tmp_path):
    out = tmp_path / "run.semtrace"
    ran = run("import", AUTOGEN, METAGPT, "--adapter", "autogen", "-o", out, "--json")
    assert ran.code == 0
    left = next(loss for loss in ran.json["loss"] if loss["code"] == "files.other")
    assert left["count"] > 1
    assert "server.jsonl" in run("import", AUTOGEN, "--adapter", "autogen", "-o", out, "--force").out


@pytest.mark.parametrize(("folder", "name"), [(AUTOGEN.parent, "autogen"), (METAGPT.parent, "metagpt")])
def test_several_recordings_of_one_family_are_no_mixture(folder, name):
    assert choose([folder]).name == name
    assert choose(sorted(path for path in folder.iterdir() if path.is_dir())).name == name


def test_files_that_nobody_is_sure_of_do_not_disturb(tmp_path):
    (tmp_path / "config2.yaml").write_text("llm:\n  model: gpt\n")  # a little like MetaGPT's
    (tmp_path / "readme.txt").write_text("hello")
    assert choose([AUTOGEN, tmp_path]).name == "autogen"


@pytest.mark.parametrize("form", [(), ("--directory",)])
def test_a_bundle_is_no_source(tmp_path, form):
    bundle = tmp_path / "run.semtrace"
    assert run("import", AUTOGEN, "-o", bundle, *form).code == 0
    for sources in ([bundle], [AUTOGEN, bundle]):
        assert "a bundle already" in refused(*sources, code="adapter.bundle")
    ran = run("import", bundle, "-o", tmp_path / "again.semtrace", "--adapter", "autogen", "--json")
    assert ran.code == 2
    assert ran.json["error"]["code"] == "adapter.bundle"
    assert not (tmp_path / "again.semtrace").exists()


def test_a_record_stream_is_to_be_sealed(tmp_path):
    from semtrace.stream.writer import StreamWriter

    StreamWriter(tmp_path / "run.stsl", producer="test").close()
    with pytest.raises(FormatError) as raised:
        choose([tmp_path / "run.stsl"])
    assert raised.value.code == "adapter.stream"
    assert "semtrace seal" in str(raised.value.hint)


def test_no_output_replaces_a_source(tmp_path):
    shutil.copytree(AUTOGEN, tmp_path / "gf")
    events = tmp_path / "gf" / "events.jsonl"
    before = events.read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "gf")
    for source, out in (
        (tmp_path / "gf", events),
        (events, events),
        (tmp_path / "gf", tmp_path / "gf" / "new.semtrace"),
        (tmp_path / "gf", tmp_path / "link" / "new.semtrace"),
        (events, tmp_path / "gf" / ".." / "gf" / "events.jsonl"),
    ):
        for force in ((), ("--force",)):
            ran = run("import", source, "-o", out, *force, "--json")
            assert ran.code == 2
            assert ran.json["error"]["code"] == "file.same"
    assert events.read_bytes() == before
    assert not (tmp_path / "gf" / "new.semtrace").exists()
    # Beside a source that is a file there is room.
    assert run("import", events, "-o", tmp_path / "gf" / "run.semtrace").code == 0


def test_show_names_templates_beyond_the_standards(tmp_path):
    bundle = tmp_path / "run.semtrace"
    assert run("import", EXAMPLES / "autogen" / "agenttools", "-o", bundle).code == 0
    out = run("show", bundle).out
    assert "SelectorGroupChat autogen/selector" in out
    assert "RoundRobinGroupChat sequence" in out


def test_a_killed_run_says_so_in_the_terminal(tmp_path):
    lines = (AUTOGEN / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    calls = [
        at for at, line in enumerate(lines) if json.loads(line).get("event", {}).get("type") == "LLMCall"
    ]
    (tmp_path / "events.jsonl").write_text("".join(lines[: calls[2]]), encoding="utf-8")
    ran = run("import", tmp_path / "events.jsonl", "-o", tmp_path / "run.semtrace")
    assert ran.code == 0
    text = " ".join(ran.out.split())
    assert "the sources end before the run does" in text
    assert "an agent was asked: writer" in text
    assert "(writer, asked at events.jsonl:" in text
