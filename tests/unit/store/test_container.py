"""Containers: names that mean one thing everywhere, bytes that come out the same, all of it or nothing."""

from __future__ import annotations

import errno
import os
import stat
import zipfile
from pathlib import Path

import pytest

from semtrace.errors import FormatError, IntegrityError, UsageError
from semtrace.store import container, zip_container, zip_layout
from semtrace.store.container import (
    MANIFEST,
    check_name,
    open_container,
    replacing,
    write_container,
)

MEMBERS = [(MANIFEST, b"{}"), ("tables/a.arrow", b"abc"), ("executions/x/tables/b.arrow", b"")]


def left_over(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("directory", [False, True])
def test_members_come_back(tmp_path, directory):
    path = tmp_path / "x.semtrace"
    write_container(path, MEMBERS, directory=directory, overwrite=False)
    opened = open_container(path)
    assert opened.names() == sorted(name for name, _ in MEMBERS)
    for name, content in MEMBERS:
        assert opened.read(name).to_pybytes() == content
    with pytest.raises(IntegrityError) as caught:
        opened.read("tables/none.arrow")
    assert caught.value.requirement == "ST-BND-012"
    assert left_over(tmp_path) == ["x.semtrace"]


def test_two_files_are_equal_to_the_byte_whenever_they_are_written(tmp_path, monkeypatch):
    write_container(tmp_path / "a", MEMBERS, directory=False, overwrite=False)
    monkeypatch.setattr("time.time", lambda: 2_000_000_000.0)
    write_container(tmp_path / "b", MEMBERS, directory=False, overwrite=False)
    raw = (tmp_path / "a").read_bytes()
    assert (tmp_path / "b").read_bytes() == raw
    with zipfile.ZipFile(tmp_path / "a") as archive:
        infos = archive.infolist()
    assert [info.filename for info in infos] == [
        MANIFEST,
        *sorted(name for name, _ in MEMBERS if name != MANIFEST),
    ]
    for info in infos:
        assert info.date_time == (1980, 1, 1, 0, 0, 0)
        assert info.compress_type == zipfile.ZIP_STORED
        assert info.extra == info.comment == b""
        assert stat.S_ISREG(info.external_attr >> 16)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../x",
        "a//b",
        "a/",
        "./a",
        ".hidden",
        "a/.hidden",
        "a\\b",
        "a b",
        "a:b",
        "a\0b",
        "a\nb",
        "é",
        "\u212a",  # the Kelvin sign, which is k in lower case
        "a" * 256,
        "C:\\x",
    ],
)
def test_names_that_are_refused(tmp_path, name):
    with pytest.raises(FormatError) as caught:
        check_name(name, "here")
    assert caught.value.requirement == "ST-BND-003"
    for directory in (False, True):
        with pytest.raises(FormatError):
            write_container(tmp_path / "x", [(name, b"")], directory=directory, overwrite=False)
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "tables/a.arrow", "a..b", "executions/Run.1/x"])
def test_names_that_are_allowed(name):
    assert check_name(name, "here") == name


@pytest.mark.parametrize("second", ["tables/a", "tables/A", "TABLES/a"])
def test_a_name_is_there_once_where_upper_and_lower_case_are_one(tmp_path, second):
    with pytest.raises(FormatError, match="twice"):
        write_container(tmp_path / "x", [("tables/a", b""), (second, b"")], directory=False, overwrite=False)


def test_a_directory_with_names_that_differ_in_case_alone(tmp_path):
    for name in ("semtrace.json", "tables/a", "tables/A"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(FormatError) as caught:
        open_container(tmp_path).names()
    assert caught.value.requirement == "ST-BND-003"


def test_members_lie_in_eight_folders_at_most(tmp_path):
    for folders in (8, 9):
        name = "f/" * folders + "x"
        packed = tmp_path / f"zip{folders}"
        if folders == 8:
            write_container(packed, [(name, b"")], directory=False, overwrite=False)
        else:
            zipped(packed, [(name, b"")])
        (tmp_path / f"directory{folders}" / name).parent.mkdir(parents=True)
        (tmp_path / f"directory{folders}" / name).touch()
        (tmp_path / f"directory{folders}" / MANIFEST).touch()
        for path in (packed, tmp_path / f"directory{folders}"):
            if folders == 8:
                assert name in open_container(path).names()
            else:
                with pytest.raises(FormatError) as caught:
                    open_container(path).names()
                assert caught.value.requirement == "ST-BND-005"


# -- replacing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("new", [False, True])
def test_one_bundle_replaces_another_of_either_form(tmp_path, old, new):
    path = tmp_path / "x"
    write_container(path, MEMBERS, directory=old, overwrite=False)
    with pytest.raises(UsageError) as caught:
        write_container(path, [(MANIFEST, b"[]")], directory=new, overwrite=False)
    assert caught.value.code == "file.exists"
    assert open_container(path).read(MANIFEST).to_pybytes() == b"{}"
    write_container(path, [(MANIFEST, b"[]")], directory=new, overwrite=True)
    assert open_container(path).names() == [MANIFEST]
    assert open_container(path).read(MANIFEST).to_pybytes() == b"[]"
    assert left_over(tmp_path) == ["x"]


def test_a_folder_that_is_no_bundle_is_never_replaced(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    for directory in (False, True):
        with pytest.raises(UsageError) as caught:
            write_container(folder, MEMBERS, directory=directory, overwrite=True)
        assert caught.value.code == "file.directory"
    assert (folder / "thesis.tex").read_text() == "years of work"


def test_an_empty_folder_may_be_replaced(tmp_path):
    (tmp_path / "x").mkdir()
    write_container(tmp_path / "x", MEMBERS, directory=True, overwrite=True)
    assert len(open_container(tmp_path / "x").names()) == 3


@pytest.mark.parametrize("path", [".", "..", "/"])
def test_paths_without_a_name_are_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        write_container(Path(path), MEMBERS, directory=True, overwrite=True)


def test_a_link_is_replaced_itself_not_what_it_points_to(tmp_path):
    write_container(tmp_path / "target", MEMBERS, directory=False, overwrite=False)
    before = (tmp_path / "target").read_bytes()
    (tmp_path / "x").symlink_to("target")
    write_container(tmp_path / "x", [(MANIFEST, b"[]")], directory=False, overwrite=True)
    assert (tmp_path / "target").read_bytes() == before
    assert not (tmp_path / "x").is_symlink()


def test_a_dangling_link_is_something_that_exists(tmp_path):
    (tmp_path / "x").symlink_to("nowhere")
    with pytest.raises(UsageError) as caught:
        write_container(tmp_path / "x", MEMBERS, directory=False, overwrite=False)
    assert caught.value.code == "file.exists"


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(UsageError) as caught:
        write_container(tmp_path / "no" / "x", MEMBERS, directory=False, overwrite=False)
    assert caught.value.code == "file.folder"
    assert caught.value.path == str(tmp_path / "no")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes where it may not")
def test_a_folder_that_may_not_be_written_to(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError) as caught:
        write_container(tmp_path / "x", MEMBERS, directory=False, overwrite=False)
    assert caught.value.code == "file.unwritable"


@pytest.mark.parametrize("directory", [False, True])
@pytest.mark.parametrize("old", [None, False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, directory, old):
    path = tmp_path / "x"
    if old is not None:
        write_container(path, MEMBERS, directory=old, overwrite=False)

    def full():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        # the second member does not fit any more
        written = []
        real_bytes, real_header = Path.write_bytes, container.local_header

        def write_bytes(self, content):
            return written.append(self) or (real_bytes(self, content) if len(written) < 2 else full())

        def local_header(entry):
            return written.append(entry) or (real_header(entry) if len(written) < 2 else full())

        patch.setattr(Path, "write_bytes", write_bytes)
        patch.setattr(container, "local_header", local_header)
        with pytest.raises(UsageError, match="No space left") as caught:
            write_container(path, [(MANIFEST, b"[]"), ("a", b"")], directory=directory, overwrite=True)
    assert caught.value.code == "file.unwritable"
    assert left_over(tmp_path) == ([] if old is None else ["x"])
    if old is not None:
        assert open_container(path).read(MANIFEST).to_pybytes() == b"{}"


def test_a_rename_that_fails_half_way_is_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write_container(path, MEMBERS, directory=True, overwrite=False)
    real = Path.replace

    def fail_second(self, target):
        if self.name.endswith(".tmp"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail_second)
        with pytest.raises(UsageError):
            write_container(path, [(MANIFEST, b"[]")], directory=True, overwrite=True)
    assert open_container(path).read(MANIFEST).to_pybytes() == b"{}"
    assert left_over(tmp_path) == ["x"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_block_leaves_nothing(tmp_path, error):
    def interrupted():
        with replacing(tmp_path / "x", overwrite=False) as temporary:
            temporary.mkdir()
            (temporary / "half").write_text("written")
            raise error

    with pytest.raises(error):
        interrupted()
    assert left_over(tmp_path) == []


def test_a_block_that_writes_nothing_is_an_error_and_keeps_the_old(tmp_path):
    (tmp_path / "x").write_text("old")
    with pytest.raises(UsageError), replacing(tmp_path / "x", overwrite=True):
        pass
    assert (tmp_path / "x").read_text() == "old"
    assert left_over(tmp_path) == ["x"]


# -- what is no container ---------------------------------------------------------------------------------------


def zipped(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def test_things_that_are_no_container(tmp_path):
    with pytest.raises(UsageError):
        open_container(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FormatError) as caught:
        open_container(tmp_path / "folder")
    assert caught.value.requirement == "ST-BND-001"
    assert "semtrace import" in caught.value.hint
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("not a ZIP file")
    (tmp_path / "short").write_bytes(b"PK\x03\x04")
    for name in ("empty", "text", "short"):
        with pytest.raises(FormatError) as caught:
            open_container(tmp_path / name)
        assert caught.value.requirement == "ST-BND-002"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="neither a directory nor a file"):
        open_container(tmp_path / "pipe")


def test_compressed_members_are_refused(tmp_path):
    path = zipped(tmp_path / "x", [("a", b"a" * 1000)], zipfile.ZIP_DEFLATED)
    with pytest.raises(FormatError, match="stored"):
        open_container(path)


@pytest.mark.parametrize("name", ["../x", "/x", "a/", "a\\..\\b", "..", "semtrace.json/../x"])
def test_members_that_would_leave_the_bundle(tmp_path, name):
    path = zipped(tmp_path / "x", [("a", b""), (name, b"")])
    with pytest.raises(FormatError) as caught:
        open_container(path)
    assert caught.value.requirement == "ST-BND-003"


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("second", ["a", "A"])
def test_members_that_are_there_twice(tmp_path, second):
    path = zipped(tmp_path / "x", [("a", b"1"), (second, b"2")])
    with pytest.raises(FormatError, match="twice"):
        open_container(path)


def test_a_link_in_a_zip_file(tmp_path):
    info = zipfile.ZipInfo("a")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(FormatError, match="plain file"):
        open_container(tmp_path / "x")


def test_an_encrypted_member(tmp_path):
    path = zipped(tmp_path / "x", [("a", b"1")])
    raw = bytearray(path.read_bytes())
    raw[6] |= 1
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="encrypted"):
        open_container(path)


def test_members_that_overlap(tmp_path):
    path = zipped(tmp_path / "x", [("a", b"1" * 50), ("b", b"2" * 50)])
    raw = bytearray(path.read_bytes())
    second = raw.rindex(b"PK\x01\x02")
    raw[second + 42 : second + 46] = (10).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="overlap"):
        open_container(path)


def test_a_member_whose_header_names_another(tmp_path):
    path = zipped(tmp_path / "x", [("aaa", b"1"), ("b", b"2")])
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"aaa", b"aab", 1))
    with pytest.raises(FormatError, match="not written as the standard says") as caught:
        open_container(path)
    assert caught.value.requirement == "ST-BND-009"


def test_every_bit_around_the_members_is_fixed(tmp_path):
    path = tmp_path / "x"
    write_container(path, MEMBERS, directory=False, overwrite=False)
    raw = path.read_bytes()
    contents = [raw.index(content) for _, content in MEMBERS if content]
    inside = {
        at + offset
        for at, (_, content) in zip(contents, MEMBERS, strict=False)
        for offset in range(len(content))
    }
    for at in range(len(raw)):
        if at in inside:
            continue
        for bit in range(8):
            flipped = bytearray(raw)
            flipped[at] ^= 1 << bit
            path.write_bytes(flipped)
            try:
                opened = open_container(path)
            except FormatError:
                continue
            assert list(opened.check_content()), (at, bit)
    for junk in (b"x" + raw, raw + b"x", raw[:-1]):
        path.write_bytes(junk)
        with pytest.raises(FormatError):
            open_container(path)


def test_the_layout_is_that_of_the_zip_format(tmp_path):
    path = tmp_path / "x"
    write_container(path, MEMBERS, directory=False, overwrite=False)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert sorted((info.filename, archive.read(info)) for info in archive.infolist()) == sorted(MEMBERS)


def test_large_sizes_and_places_are_zip64(tmp_path):
    path = tmp_path / "x"
    entries = [zip_layout.Entry("a", 5 << 30, 0), zip_layout.Entry("b", 3, 0)]
    layout = zip_layout.Layout.of(entries)
    with path.open("wb") as file:  # five GiB of nothing take no space
        for entry, offset in zip(entries, layout.offsets, strict=True):
            file.seek(offset)
            file.write(zip_layout.local_header(entry))
        file.write(b"abc")
        file.write(layout.directory)
    with zipfile.ZipFile(path) as archive:
        assert [(info.filename, info.file_size, info.header_offset) for info in archive.infolist()] == [
            ("a", 5 << 30, 0),
            ("b", 3, layout.offsets[1]),
        ]
    opened = open_container(path)
    assert opened.read("b").to_pybytes() == b"abc"
    assert opened.read("a").size == 5 << 30


def test_too_many_members(tmp_path, monkeypatch):
    for module in (container, zip_container):
        monkeypatch.setattr(module, "MAX_MEMBERS", 2)
    path = zipped(tmp_path / "x", [(name, b"") for name in "abc"])
    with pytest.raises(FormatError, match="too many"):
        open_container(path)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in (MANIFEST, "a", "b"):
        (folder / name).touch()
    with pytest.raises(FormatError, match="too many"):
        open_container(folder).names()


def zip64(raw):
    """A ZIP file with the ends that one of 2^16 members has."""
    end = len(raw) - 22
    count, size, offset = (
        int.from_bytes(raw[end + at : end + at + n], "little") for at, n in ((10, 2), (12, 4), (16, 4))
    )
    return raw[:end] + zip_layout.end_records(1 << 16, size, offset).replace(
        (1 << 16).to_bytes(8, "little"), count.to_bytes(8, "little")
    )


def test_the_directory_is_counted_before_it_is_read(tmp_path, monkeypatch):
    """Whatever its end says of the number of entries, with and without a comment or ZIP64's records."""
    path = zipped(tmp_path / "x", [(name, b"") for name in "abc"])
    raw = path.read_bytes()
    lies = bytearray(raw)
    lies[-14:-10] = b"\1\0\1\0"
    comment = bytearray(raw + b"note")
    comment[len(raw) - 2 : len(raw)] = b"\4\0"
    for file in (raw, bytes(lies), bytes(comment), zip64(raw)):
        assert zip_layout.too_many_entries(memoryview(file), 2)
        assert not zip_layout.too_many_entries(memoryview(file), 3)
    long = zipped(tmp_path / "long", [(name * 500, b"") for name in "abc"]).read_bytes()
    assert zip_layout.too_many_entries(memoryview(long), 3)
    for file in (b"", b"PK", b"PK\x05\x06", raw[:-22], raw[-22:], b"PK\x05\x06" + b"\xff" * 18, raw[:-10]):
        assert not zip_layout.too_many_entries(memoryview(file), 2)
    monkeypatch.setattr(zip_container, "MAX_MEMBERS", 2)
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("was read"))
    for file in (raw, bytes(lies), long):
        path.write_bytes(file)
        with pytest.raises(FormatError) as caught:
            open_container(path)
        assert caught.value.requirement == "ST-BND-005"


def bundle_folder(tmp_path):
    write_container(tmp_path / "x", MEMBERS, directory=True, overwrite=False)
    return tmp_path / "x"


def test_links_in_a_folder_are_refused(tmp_path):
    """ST-BND-004, ST-BND-031."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    folder = bundle_folder(tmp_path)
    (folder / "link").symlink_to(secret)
    (folder / "tables" / "way").symlink_to(tmp_path)
    opened = open_container(folder)
    for name in ("link", "tables/way/secret"):
        with pytest.raises(FormatError) as caught:
            opened.read(name)
        assert caught.value.requirement == "ST-BND-004"
    with pytest.raises(FormatError, match="link"):
        opened.names()


def test_a_pipe_in_a_folder_is_refused(tmp_path):
    folder = bundle_folder(tmp_path)
    os.mkfifo(folder / "pipe")
    with pytest.raises(FormatError, match="special file"):
        open_container(folder).names()


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "tables/../../secret"])
def test_reading_never_leaves_the_folder(tmp_path, name):
    (tmp_path / "secret").write_text("secret")
    folder = bundle_folder(tmp_path)
    with pytest.raises(FormatError):
        open_container(folder).read(name)


def test_a_folder_in_the_place_of_a_member(tmp_path):
    folder = bundle_folder(tmp_path)
    (folder / "tables" / "b.arrow").mkdir()
    with pytest.raises(IntegrityError):
        open_container(folder).read("tables/b.arrow")


def write_twice(path, *, directory):
    """Write to a path while another process does."""
    with replacing(path, overwrite=False) as temporary:
        write_container(temporary, MEMBERS, directory=directory, overwrite=False)
        write_container(path, [(MANIFEST, b"[]")], directory=directory, overwrite=False)  # the other one


def test_of_several_writers_to_a_new_path_one_wins(tmp_path):
    for directory in (False, True):
        path = tmp_path / f"x{directory}"
        with pytest.raises(UsageError) as caught:
            write_twice(path, directory=directory)
        assert caught.value.code == "file.exists"
        assert open_container(path).read(MANIFEST).to_pybytes() == b"[]"
    assert left_over(tmp_path) == ["xFalse", "xTrue"]


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(_source, _target):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "x"
    write_container(path, MEMBERS, directory=False, overwrite=False)
    assert open_container(path).read(MANIFEST).to_pybytes() == b"{}"
    monkeypatch.setattr(os.path, "lexists", lambda _: False)  # not there yet when it was looked for
    with pytest.raises(UsageError) as caught:
        write_container(path, [(MANIFEST, b"[]")], directory=False, overwrite=False)
    assert caught.value.code == "file.exists"
    assert open_container(path).read(MANIFEST).to_pybytes() == b"{}"
    assert left_over(tmp_path) == ["x"]


def test_what_is_no_file_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "round").symlink_to("round")
    for name in ("fifo", "null", "round"):
        with pytest.raises(UsageError) as caught:
            write_container(tmp_path / name, MEMBERS, directory=False, overwrite=True)
        assert caught.value.path == str(tmp_path / name)
    assert left_over(tmp_path) == ["fifo", "null", "round"]


def test_names_that_the_file_system_does_not_take(tmp_path):
    with pytest.raises(UsageError):
        write_container(tmp_path / ("x" * 300), MEMBERS, directory=False, overwrite=True)
    with pytest.raises(UsageError):
        open_container(tmp_path / ("x" * 5000))


def test_a_path_that_is_not_utf8(tmp_path):
    path = tmp_path / "x\udcff"
    for directory in (False, True):
        write_container(path, MEMBERS, directory=directory, overwrite=True)
        assert open_container(path).read("tables/a.arrow").to_pybytes() == b"abc"


def test_folders_count_and_mean_nothing(tmp_path, monkeypatch):
    write_container(tmp_path / "x", MEMBERS, directory=True, overwrite=False)
    for number in range(10):
        (tmp_path / "x" / f"empty{number}").mkdir()
    assert len(open_container(tmp_path / "x").names()) == 3
    monkeypatch.setattr(container, "MAX_MEMBERS", 15)
    with pytest.raises(FormatError) as caught:
        open_container(tmp_path / "x").names()
    assert caught.value.requirement == "ST-BND-005"
