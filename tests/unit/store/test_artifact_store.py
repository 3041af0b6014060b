"""Artifact stores: what is put is there, what is damaged is found, what is named is never collected."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from semtrace.check import check_bundle
from semtrace.errors import FormatError, IntegrityError, UnsupportedError, UsageError
from semtrace.records.chat import rebuild_request
from semtrace.records.columns import Columns
from semtrace.records.enums import Availability, OperationKind
from semtrace.records.trace import Trace
from semtrace.store import artifact_store
from semtrace.store.artifact_store import ArtifactStore
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.digests import show, trace_digest
from semtrace.store.external import attach, embed, externalize, named_digests
from semtrace.testing import random_trace
from support.store_putter import shared_content

PUTTER = str(Path(__file__).parents[2] / "support" / "store_putter.py")
OLD = 1_000_000_000
"""A modification time long ago."""


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(tmp_path / "store", create=True)


def path_of(store, digest):
    name = digest.hex()
    return store.path / "objects" / name[:2] / (name[2:] + ".zst")


def age(store, digest):
    os.utime(path_of(store, digest), (OLD, OLD))


# -- putting and getting ----------------------------------------------------------------------------------------


def test_what_was_put_is_got(store):
    """ST-STO-002, ST-STO-004."""
    contents = [b"", b"a", b"text " * 1000, os.urandom(300_000)]
    digests = [store.put(content) for content in contents]
    assert digests == [blake3(content).digest() for content in contents]
    assert [store.get(digest) for digest in digests] == contents
    assert list(store) == sorted(digests)
    assert all(digest in store for digest in digests)
    for content, digest in zip(contents, digests, strict=True):
        stored = path_of(store, digest).read_bytes()
        assert zstandard.frame_content_size(stored) == len(content)
        assert zstandard.ZstdDecompressor().decompress(stored) == content
    assert store.get(bytes(32)) is None
    assert bytes(32) not in store
    assert b"short" not in store


def test_putting_again_changes_nothing(store):
    digest = store.put(b"twice")
    before = path_of(store, digest).stat()
    assert store.put(b"twice") == digest
    assert path_of(store, digest).stat().st_ino == before.st_ino
    assert store.verify().objects == 1
    assert not list(store.path.rglob(".*"))


def test_putting_again_marks_as_used(store):
    """ST-STO-014."""
    digest = store.put(b"used again")
    age(store, digest)
    store.put(b"used again")
    assert path_of(store, digest).stat().st_mtime > OLD + 1


def test_a_durable_store_keeps_the_same(tmp_path):
    store = ArtifactStore(tmp_path / "s", create=True, durable=True)
    digest = store.put(b"x" * 10_000)
    assert store.put(b"x" * 10_000) == digest
    assert ArtifactStore(tmp_path / "s").get(digest) == b"x" * 10_000


@pytest.fixture(scope="module")
def one_store(tmp_path_factory):
    return ArtifactStore(tmp_path_factory.mktemp("one") / "store", create=True)


@given(content=st.binary(max_size=2000))
def test_any_content_comes_back(one_store, content):
    assert one_store.get(one_store.put(content)) == content


# -- damage -----------------------------------------------------------------------------------------------------


def corrupt(content):
    """Stored bytes that are not the object of this content, each with the requirement that says so."""
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(content)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(content)
    flipped = bytearray(whole)
    flipped[-8] ^= 1
    return {
        "empty": (b"", "ST-STO-004"),
        "no frame": (content, "ST-STO-004"),
        "cut": (whole[: len(whole) // 2], "ST-STO-004"),
        "flipped": (bytes(flipped), "ST-STO-004"),
        "more behind": (whole + b"\0", "ST-STO-004"),
        "two frames": (whole + whole, "ST-STO-004"),
        "no size": (unsized, "ST-STO-004"),
        "swapped": (zstandard.compress(b"another's"), "ST-STO-005"),
    }


@pytest.mark.parametrize("kind", corrupt(b"").keys())
def test_damage_is_found_and_mended(store, kind):
    """ST-STO-006, ST-STO-013, ST-STO-016."""
    content = b"some content " * 200
    digest = store.put(content)
    stored, requirement = corrupt(content)[kind]
    path_of(store, digest).write_bytes(stored)
    with pytest.raises(IntegrityError) as caught:
        store.get(digest)
    assert show(digest) in caught.value.message
    assert caught.value.requirement == requirement
    state = store.verify()
    assert (state.objects, [error.path for error in state.damaged]) == (0, [str(path_of(store, digest))])
    assert store.put(content) == digest
    assert store.get(digest) == content
    assert not store.verify().damaged


def test_every_flipped_bit_is_found_or_harmless(store):
    content = b"short"
    digest = store.put(content)
    path = path_of(store, digest)
    whole = path.read_bytes()
    found = 0
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            assert store.get(digest) == content
        except IntegrityError:
            found += 1
    assert found > 8 * len(whole) * 3 // 4


def test_sizes_are_looked_at_before_decompressing(tmp_path):
    """ST-STO-008: a frame that claims more than an object may have is refused by its claim; so is a file that is too long."""
    store = ArtifactStore(tmp_path / "s", create=True, limit=1000)
    bomb = zstandard.compress(bytes(100_000))
    digest = blake3(bytes(100_000)).digest()
    path = path_of(store, digest)
    path.parent.mkdir(parents=True)
    path.write_bytes(bomb)
    with pytest.raises(IntegrityError, match="claims 100000 bytes"):
        store.get(digest)
    path.write_bytes(os.urandom(5000))
    with pytest.raises(IntegrityError, match="5000 bytes, more than an object can take"):
        store.get(digest)
    with pytest.raises(UsageError, match="1001 bytes of content"):
        store.put(bytes(1001))
    assert store.get(store.put(os.urandom(1000))) is not None


def test_links_and_pipes_are_no_objects(store, tmp_path):
    """ST-STO-009."""
    content = b"linked"
    digest = store.put(content)
    path = path_of(store, digest)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(IntegrityError, match="no plain file"):
        store.get(digest)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(IntegrityError, match="no plain file"):
        store.get(digest)
    path.unlink()
    path.mkdir()
    assert [error.requirement for error in store.verify().damaged] == ["ST-STO-004"]
    with pytest.raises(UsageError):
        store.put(content)
    assert not [each for each in path.parent.iterdir() if each != path]


def test_what_is_no_object_is_reported(store):
    digest = store.put(b"one")
    (store.path / "objects" / "zz").mkdir()
    (path_of(store, digest).parent / "readme").write_text("hello")
    (path_of(store, digest).parent / ".tmp-1-x").write_bytes(b"half")
    state = store.verify()
    assert (state.objects, len(state.damaged), state.leftovers) == (1, 2, 1)
    assert {error.requirement for error in state.damaged} == {"ST-STO-002"}
    store.collect(set(), grace_s=0)
    assert (store.path / "objects" / "zz").is_dir()


def test_what_is_read_back_wrong_is_no_success(store, monkeypatch):
    """ST-STO-012: a write that the disk garbles is an error, and leaves nothing under the name."""
    monkeypatch.setattr(artifact_store, "object_bytes", lambda _: zstandard.compress(b"garbled"))
    with pytest.raises(IntegrityError):
        store.put(b"right")
    assert store.get(blake3(b"right").digest()) is None
    assert not [path for path in (store.path / "objects").rglob("*") if path.is_file()]


# -- opening ----------------------------------------------------------------------------------------------------


def test_a_store_is_made_once(tmp_path):
    """ST-STO-001."""
    made = ArtifactStore(tmp_path / "deep" / "store", create=True)
    assert (made.path / "semtrace-store.json").read_bytes() == b'{"format":"semtrace-store","version":1}'
    digest = made.put(b"x")
    assert ArtifactStore(made.path, create=True).get(digest) == b"x"
    assert ArtifactStore(made.path).get(digest) == b"x"


def test_what_is_no_store_is_refused(tmp_path):
    """ST-STO-003."""
    with pytest.raises(UsageError, match="no artifact store"):
        ArtifactStore(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo").write_text("x")
    with pytest.raises(UsageError, match="other things"):
        ArtifactStore(tmp_path / "full", create=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError):
        ArtifactStore(tmp_path / "file", create=True)
    marker = tmp_path / "full" / "semtrace-store.json"
    for text, error in (
        ("{", FormatError),
        ("[]", FormatError),
        ('{"format":"other"}', FormatError),
        ('{"format":"semtrace-store","version":2}', UnsupportedError),
    ):
        marker.write_text(text)
        with pytest.raises(error):
            ArtifactStore(tmp_path / "full")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_that_may_not_be_written_is_named(store):
    store.path.chmod(0o500)
    try:
        with pytest.raises(UsageError, match="Permission denied"):
            store.put(b"x")
    finally:
        store.path.chmod(0o700)


# -- collecting -------------------------------------------------------------------------------------------------


def test_the_unnamed_and_old_goes(store):
    """ST-STO-020, ST-STO-022."""
    named, old, fresh = (store.put(content) for content in (b"named", b"old", b"fresh"))
    age(store, named)
    age(store, old)
    told = store.collect({named}, grace_s=60, dry_run=True)
    assert (told.removed, told.named, told.fresh) == ((old,), 1, 1)
    assert store.get(old) == b"old"
    done = store.collect({named}, grace_s=60)
    assert (done.removed, done.named, done.fresh) == ((old,), 1, 1)
    assert done.removed_bytes == told.removed_bytes > 0
    assert store.get(old) is None
    assert (store.get(named), store.get(fresh)) == (b"named", b"fresh")
    with pytest.raises(UsageError):
        store.collect(set(), grace_s=-1)


def test_what_is_put_while_it_is_collected_stays(store, monkeypatch):
    """ST-STO-021: a put between the first look at the time and the last, on either side of the renaming."""
    digest = store.put(b"contended")
    real = Path.rename

    def put_before(path, target):
        monkeypatch.setattr(Path, "rename", real)
        store.put(b"contended")
        return real(path, target)

    age(store, digest)
    monkeypatch.setattr(Path, "rename", put_before)
    assert store.collect(set(), grace_s=60).fresh == 1
    assert store.get(digest) == b"contended"

    def put_after(path, target):
        monkeypatch.setattr(Path, "rename", real)
        done = real(path, target)
        assert store.get(digest) == b"contended"  # ST-STO-015: found where it was set aside
        store.put(b"contended")
        return done

    age(store, digest)
    monkeypatch.setattr(Path, "rename", put_after)
    store.collect(set(), grace_s=60)
    assert store.get(digest) == b"contended"
    assert not list(store.path.rglob(".gc-*"))


def test_a_mark_on_what_is_taken_away_is_noticed(store, monkeypatch):
    """A put that marks the file after its name was taken finds the name gone, and writes anew."""
    digest = store.put(b"contended")
    path = path_of(store, digest)
    real = os.utime

    def taken(target):
        monkeypatch.setattr(os, "utime", real)
        path.rename(path.with_name(f".gc-{path.name}"))
        path.with_name(f".gc-{path.name}").unlink()
        return real(target)

    monkeypatch.setattr(os, "utime", taken)
    assert store.put(b"contended") == digest
    assert store.get(digest) == b"contended"


def test_objects_set_aside_by_a_killed_collector(store):
    """ST-STO-015: they are still found, and the next collection decides on them."""
    digests = [store.put(content) for content in (b"named", b"old", b"fresh")]
    for digest in digests:
        path_of(store, digest).rename(path_of(store, digest).with_name(f".gc-{digest.hex()[2:]}.zst"))
    assert [store.get(digest) for digest in digests] == [b"named", b"old", b"fresh"]
    for digest in digests[:2]:
        os.utime(path_of(store, digest).with_name(f".gc-{digest.hex()[2:]}.zst"), (OLD, OLD))
    assert store.verify().leftovers == 3
    assert store.collect({digests[0]}, grace_s=60).leftovers == 3
    assert [store.get(digest) for digest in digests] == [b"named", None, b"fresh"]
    assert store.verify().leftovers == 0


def test_leftovers_of_writers_go_after_an_hour(store):
    """ST-STO-023."""
    shard = path_of(store, store.put(b"x")).parent
    (shard / ".tmp-1-young").write_bytes(b"half")
    (shard / ".tmp-1-old").write_bytes(b"half")
    os.utime(shard / ".tmp-1-old", (OLD, OLD))
    assert store.collect(set(), grace_s=0).leftovers == 1
    assert [path.name for path in shard.glob(".tmp-*")] == [".tmp-1-young"]


def test_a_put_whose_file_was_taken_for_a_leftover_tries_again(store, monkeypatch):
    real = Path.replace
    tries = []

    def vanish(path, target):
        tries.append(path)
        if len(tries) == 1:
            path.unlink()
        return real(path, target)

    monkeypatch.setattr(Path, "replace", vanish)
    assert store.get(store.put(b"again")) == b"again"
    assert len(tries) == 2


# -- many processes ---------------------------------------------------------------------------------------------


def putters(store, tmp_path, processes, seconds, seed=0):
    """Processes that put into a store: their launcher, and their ids."""
    words = [sys.executable, PUTTER, store.path, seconds, seed, processes, tmp_path / f"put-{seed}"]
    launcher = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True)
    return launcher, [int(word) for word in launcher.stdout.readline().split()]


def acknowledged(tmp_path):
    """Of each process the digests of the puts that returned; a torn last line is none."""
    return [
        [bytes.fromhex(line) for line in path.read_text().rpartition("\n")[0].splitlines()]
        for path in sorted(tmp_path.glob("put-*"))
    ]


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.integration)])
def test_sixteen_processes_put_the_same_and_different_content(store, tmp_path, seconds):
    """Nothing is lost, nothing torn, while a collector runs; with the integration tests for a minute. ST-STO-011."""
    launcher, _ = putters(store, tmp_path, 16, seconds)
    collections = 0
    while launcher.poll() is None:
        store.collect(set(), grace_s=3600)
        collections += 1
        time.sleep(0.05)
    launcher.communicate()
    assert launcher.returncode == 0
    assert collections
    put = acknowledged(tmp_path)
    assert len(put) == 16
    assert all(put)
    state = store.verify()
    assert (state.damaged, state.leftovers) == ((), 0)
    assert set(store) == {digest for digests in put for digest in digests}
    assert sum(map(len, put)) > state.objects  # some content was put by several


def test_what_is_put_again_while_the_old_is_collected_stays(store, tmp_path):
    """ST-STO-014, ST-STO-021: old content, put again by some while a collector takes what is old."""
    for content in [*shared_content(), b"what nobody puts again"]:
        age(store, store.put(content))
    launcher, _ = putters(store, tmp_path, 4, 1)
    while sum(map(len, acknowledged(tmp_path))) < 40:
        time.sleep(0.001)
    taken = 0
    while launcher.poll() is None:
        taken += len(store.collect(set(), grace_s=1800).removed)
    launcher.communicate()
    assert launcher.returncode == 0
    assert taken
    assert {digest for digests in acknowledged(tmp_path) for digest in digests} <= set(store)
    assert store.verify().damaged == ()


def test_killed_writers_leave_a_store_that_verifies(store, tmp_path):
    """SIGKILL at any instant: what was acknowledged is there, and nothing is torn."""
    rng = random.Random(1)
    for seed in range(3):
        launcher, children = putters(store, tmp_path, 8, 60, 100 * seed)
        time.sleep(rng.random() * 0.3)
        for child in children:
            os.kill(child, signal.SIGKILL)
        launcher.communicate()
        assert launcher.returncode == 1
    assert store.verify().damaged == ()
    assert {digest for digests in acknowledged(tmp_path) for digest in digests} <= set(store)


# -- traces whose content is in a store --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_content_moves_out_and_back(store, tmp_path, seed):
    """ST-STO-030."""
    built = random_trace(seed)
    whole = write_bundle(tmp_path / "whole.semtrace", built.trace)
    trace = externalize(open_bundle(tmp_path / "whole.semtrace").trace, store)
    write_bundle(tmp_path / "out.semtrace", trace)
    out = open_bundle(tmp_path / "out.semtrace")
    assert check_bundle(out) == []
    assert out.manifest.trace.packs == []
    assert out.manifest.trace.trace_digest == whole.trace.trace_digest
    assert set(trace["artifacts"].ints("availability")) == {Availability.EXTERNAL}
    for operation in range(built.trace.operations.rows):
        if built.trace.operations.ints("kind")[operation] == OperationKind.LLM:
            wanted = rebuild_request(built.trace, operation)
            assert rebuild_request(attach(out.trace, store), operation) == wanted
    write_bundle(tmp_path / "back.semtrace", embed(out.trace, store))
    assert (tmp_path / "back.semtrace").read_bytes() == (tmp_path / "whole.semtrace").read_bytes()
    assert named_digests(out.trace) == set(store)


def test_the_bundle_s_content_is_never_collected(store):
    built = random_trace(1)
    trace = externalize(built.trace, store)
    for digest in store:
        age(store, digest)
    other = store.put(b"of nobody")
    age(store, other)
    assert store.collect(named_digests(trace), grace_s=0).removed == (other,)
    assert embed(trace, store).artifact(0) is not None


def test_missing_and_wrong_content_is_named(store):
    """ST-STO-007, ST-STO-010."""
    built = random_trace(1)
    trace = externalize(built.trace, store)
    assert trace_digest(trace) == trace_digest(built.trace)
    digest = trace["artifacts"].digests()[3]
    path_of(store, digest).unlink()
    with pytest.raises(IntegrityError) as caught:
        embed(trace, store)
    assert show(digest) in caught.value.message
    assert caught.value.requirement == "ST-STO-010"
    store.put(built.trace.content.get(digest))
    embedded = embed(trace, store)
    path_of(store, digest).unlink()  # after the look, before the reading
    with pytest.raises(IntegrityError, match="does not have"):
        embedded.content.get(digest)
    sizes = trace["artifacts"].ints("size") + 1
    data = trace["artifacts"].data.set_column(1, "size", [sizes]).cast(trace["artifacts"].spec.arrow)
    wrong = Trace({**trace.tables, "artifacts": Columns(trace["artifacts"].spec, data)})
    store.put(built.trace.content.get(digest))
    with pytest.raises(IntegrityError) as caught:
        embed(wrong, store).content.get(digest)
    assert caught.value.requirement == "ST-STO-007"


def test_content_that_is_not_what_the_table_says_is_not_put(store):
    built = random_trace(1)
    digest = built.trace["artifacts"].digests()[0]
    built.trace.content[digest] = b"something else"
    with pytest.raises(IntegrityError, match="its digest or size"):
        externalize(built.trace, store)
    del built.trace.content[digest]
    with pytest.raises(IntegrityError, match="is not there"):
        externalize(built.trace, store)
