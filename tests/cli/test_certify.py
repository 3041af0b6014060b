"""`semtrace certify` and `semtrace certificate`, with testees as processes, right and wrong."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from cli.conftest import run
from semtrace_conformance import selfcheck, suite

ROOT = Path(__file__).parents[2] / "conformance"
OURS = f"{sys.executable} {ROOT / 'testees' / 'semtrace_testee.py'}"


def fake(name, script="standalone"):
    return f"{sys.executable} {ROOT / 'fakes' / script}.py {name}"


def test_ours_is_conformant_and_its_certificate_verified(tmp_path):
    certificate, junit, html = (tmp_path / name for name in ("c.json", "j.xml", "h.html"))
    ran = run(
        "certify", "--testee", OURS, "--profile", "planner", "--profile", "store",
        "-o", certificate, "--junit", junit, "--html", html, "--json",
    )  # fmt: skip
    assert ran.code == 0
    assert ran.json["conformant"]
    assert ran.json["sentence"].startswith("semtrace ")
    assert "is conformant: planner, store" in ran.json["sentence"]
    assert {name for name, claim in ran.json["profiles"].items() if claim["conformant"]} == {
        "planner",
        "store",
    }
    assert json.loads(certificate.read_text("utf-8"))["digest"] == ran.json["digest"]
    assert len(ET.fromstring(junit.read_text("utf-8"))) == 2  # noqa: S314  # our own report
    assert "conformant" in html.read_text("utf-8")
    verified = run("certificate", "verify", certificate)
    assert (verified.code, "verified: semtrace" in verified.out) == (0, True)
    values = json.loads(certificate.read_text("utf-8"))
    values["results"][0]["status"] = "failed"
    certificate.write_text(json.dumps(values), "utf-8")
    refused = run("certificate", "verify", certificate, "--json")
    assert (refused.code, refused.json["verified"]) == (1, False)


def test_who_is_wrong_is_told_where(tmp_path):
    ran = run("certify", "--testee", fake("groups-backwards", "variants"), "-o", tmp_path / "c.json")
    assert ran.code == 1
    assert "planner.groups" in ran.out
    assert "is not conformant: 33 of 51 cases count" in ran.out
    assert "nothing" not in ran.err
    assert run("certificate", "verify", tmp_path / "c.json").code == 0, "what it says is so"


@pytest.mark.parametrize(
    ("testee", "code", "says"),
    [
        ("no-such-program --x", 2, "there is no testee"),
        ("", 2, "is empty"),
        (fake("never-starts"), 2, "did not answer `start`"),
        (fake("echoes-start"), 2, "did not answer `start`"),
        (fake("other-protocol"), 2, "do not understand each other: it chose protocol 2"),
        (fake("knows-neither"), 2, "I speak protocol 7"),
        (fake("declares-nothing"), 3, "nothing ran: fake 0 declares no profile, asked for was planner"),
        (fake("accept-all"), 1, "is not conformant: 0 of"),
        (fake("exit-1"), 1, "is not conformant: 0 of"),
    ],
)
def test_exit_codes_with_one_sentence(testee, code, says):
    ran = run("certify", "--testee", testee, "--profile", "planner")
    assert ran.code == code
    said = " ".join((ran.out + ran.err).split())
    assert said.count(says) == 1


def test_nothing_runs_where_the_profile_was_not_declared():
    ran = run("certify", "--testee", fake("groups-backwards", "variants"), "--profile", "audit", "--json")
    assert ran.code == 3
    assert ran.json["sentence"] == "nothing ran: semtrace 0.1.0 declares planner, asked for was audit"


MISSPELT = """
import json, sys
for line in sys.stdin:
    if json.loads(line)["type"] == "start":
        print(json.dumps({"type": "started", "protocol": 1, "spec": "1.0-draft",
                          "testee": {"name": "mine", "version": "0"}, "profiles": PROFILES}), flush=True)
    else:
        break
"""


def test_what_is_misspelt_is_said_not_taken_for_something_else(tmp_path):
    testee = tmp_path / "testee.py"
    testee.write_text(f"PROFILES = {{'reader': ['directries'], 'plannner': []}}\n{MISSPELT}", "utf-8")
    ran = run("certify", "--testee", f"{sys.executable} {testee}", "--case", "reader/zip-*", "--json")
    assert ran.code == 3
    assert ran.json["sentence"] == (
        "nothing ran: reader is declared, but each case asked for needs `zip`, which is not"
    )
    assert ran.json["not_known"] == [
        "profile 'plannner' (is 'planner' meant?)",
        "feature of reader 'directries' (is 'directory' meant?)",
    ]
    ran = run("certify", "--testee", f"{sys.executable} {testee}", "--case", "reader/zip-*")
    assert "ignored: profile 'plannner' (is 'planner' meant?)" in " ".join(ran.out.split())


def test_a_failure_says_what_was_changed_and_who_is_to_blame():
    ran = run(
        "certify", "--testee", fake("miscounts-rows", "variants"), "--case", "reader/*-swapped", "--json"
    )
    assert {each["shows"].split(", but ")[0] for each in ran.json["failing"]} >= {
        "everything that a trace can say, in small"
    }
    first = next(each["case"] for each in ran.json["failing"] if each["failures"])
    assert ran.json["sentence"].endswith(f"{first} is the first that failed")
    ran = run("certify", "--testee", fake("miscounts-rows", "variants"), "--case", "reader/*-swapped")
    said = " ".join(ran.out.split())
    assert "✗ reader/team: everything that a trace can say, in small" in said
    assert "mutations of it passed, which does not count while it fails" in said
    assert "✗ reader/edges-swapped" not in said


def test_the_cases_can_be_listed_without_a_testee():
    ran = run("certify", "--list", "--case", "planner/over*")
    assert ran.code == 0
    assert [line.split("  ")[0] for line in ran.out.splitlines()] == [
        "planner/overlap",
        "planner/overlap-first-token",
        "planner/overlap-of-tools",
    ]
    ran = run("certify", "--list", "--profile", "planner", "--json")
    assert len(ran.json["cases"]) == 51
    assert all(each["shows"] and each["requirements"] for each in ran.json["cases"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--profile", "reeder"], "no profile 'reeder'"),
        (["--case", "reader/none-*"], "no case is like"),
        (["--case", "reader/edge-swapped"], "is reader/edges-swapped"),
        (["-o", "/no/such/folder/c.json"], "the folder is missing"),
        (["--expect-failures", "/no/such/file"], "cannot be read"),
    ],
)
def test_wrong_use(options, says):
    ran = run("certify", "--testee", OURS, *options)
    assert ran.code == 2
    assert says in ran.err


def test_without_a_testee_nothing_is_asked():
    ran = run("certify", "--profile", "planner")
    assert (ran.code, "there is no --testee" in ran.err) == (2, True)


def test_a_broken_harness_is_said_to_be_at_fault(monkeypatch):
    monkeypatch.setitem(selfcheck._POINTS, "dying", 1)
    ran = run("certify", "--testee", OURS, "--profile", "planner")
    assert ran.code == 2
    assert "the harness is at fault" in ran.err


def test_a_broken_suite_is_said_to_be_broken(monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "find_suite", lambda: suite.Suite(tmp_path))
    ran = run("certify", "--testee", OURS)
    assert ran.code == 2
    assert "the suite is broken" in ran.err


def test_a_fault_of_ours_is_ours(monkeypatch):
    monkeypatch.setattr(selfcheck, "check_harness", lambda: 1 / 0)
    assert run("certify", "--testee", OURS, "--profile", "planner").code == 4


def test_known_failures(tmp_path):
    testee = fake("no-circles", "variants")
    first = run("certify", "--testee", testee, "--profile", "planner", "--json")
    failing = [each["case"] for each in first.json["failing"]]
    known = tmp_path / "known.yaml"
    entries = "\n".join(
        f"- {{case: {case}, reason: circles come later, link: 'https://example.org/7'}}" for case in failing
    )
    known.write_text(f"format: semtrace-expected-failures\nfailures:\n{entries}\n", "utf-8")
    ran = run("certify", "--testee", testee, "--profile", "planner", "--expect-failures", known)
    assert ran.code == 0
    assert "is not conformant; it failed in the 4 cases expected, and no other" in " ".join(ran.out.split())
    ran = run("certify", "--testee", OURS, "--profile", "planner", "--expect-failures", known)
    assert ran.code == 2
    assert "out of date" in ran.out


def test_a_case_brings_its_base_along(tmp_path):
    ran = run("certify", "--testee", OURS, "--case", "planner/overlap", "-o", tmp_path / "c.json", "--json")
    assert (ran.code, ran.json["counts"]["selected"]) == (0, 2)
    assert run("certificate", "verify", tmp_path / "c.json").code == 0


ONE = ["certify", "--testee", OURS, "--case", "planner/overlap"]


def test_what_is_there_is_replaced_on_demand_only(tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("mine\n", "utf-8")
    for option in ("-o", "--junit", "--html"):
        ran = run(*ONE, option, notes)
        assert (ran.code, "exists already" in ran.err, notes.read_text("utf-8")) == (2, True, "mine\n"), (
            option
        )
    assert run(*ONE, "-o", notes, "--force").code == 0
    assert run("certificate", "verify", notes).code == 0
    assert list(tmp_path.iterdir()) == [notes]


def test_a_certificate_that_cannot_be_written_whole_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "c.json"
    path.write_text("old", "utf-8")

    def full(self, text, encoding):
        self.write_bytes(text.encode(encoding)[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    ran = run(*ONE, "-o", path, "--force")
    assert (ran.code, "No space left" in ran.err) == (2, True), ran
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])


def test_outputs_that_would_be_lost_are_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    known = tmp_path / "known.yaml"
    known.write_text("format: semtrace-expected-failures\nfailures: []\n", "utf-8")
    before = sorted(tmp_path.iterdir())
    c = tmp_path / "c.json"
    for options, says in (
        (["-o", c, "--junit", c, "--html", c], "the output of two options"),
        (["-o", c, "--html", tmp_path / "folder" / ".." / "c.json"], "the output of two options"),
        (["-o", tmp_path / "fifo"], "is no file and no directory"),
        (["-o", known, "--expect-failures", known], "would replace or lie in what is read"),
    ):
        ran = run(*ONE, *options, "--force")
        assert (ran.code, says in " ".join(ran.err.split())) == (2, True), (options, ran)
    assert sorted(tmp_path.iterdir()) == before
    assert known.read_text("utf-8").startswith("format")


def test_what_is_no_certificate(tmp_path):
    path = tmp_path / "c.json"
    path.write_text("{}", "utf-8")
    assert run("certificate", "verify", path).code == 1
    assert run("certificate", "verify", tmp_path / "none").code == 2
    path.write_text("[" * 100_000, "utf-8")
    ran = run("certificate", "verify", path)
    assert (ran.code, "no certificate: not JSON: nested more than 64 deep" in ran.err) == (1, True)
