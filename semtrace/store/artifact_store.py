"""The artifact store: content shared between traces, one zstd object a digest, safe from many processes (ST-STO-001 …).

    semtrace-store.json            what the directory is
    objects/ab/cdef….zst           the content with digest abcdef…, one zstd frame that states its size
    objects/ab/.tmp-…              an object while it is written
    objects/ab/.gc-cdef….zst       an object while garbage collection decides on it

No locks are taken. A put writes beside and renames; what is there already it reads, checks and marks as used. Garbage
collection moves an object aside before it looks at the mark a last time, so that either sees the other.
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from semtrace.errors import FormatError, IntegrityError, UnsupportedError, UsageError
from semtrace.records.document import canonical_json, parse_canonical
from semtrace.records.trace import Content
from semtrace.store.objects import OBJECT_LIMIT, damaged, object_bytes, open_object, os_errors, read_object

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

MARKER: Final = "semtrace-store.json"
VERSION: Final = 1
TEMPORARY_AGE_S: Final = 3600
"""Age in seconds from which a temporary file is taken as left behind by a writer that was killed."""

_OBJECTS: Final = "objects"
_SUFFIX: Final = ".zst"
_TEMPORARY: Final = ".tmp-"
_ASIDE: Final = ".gc-"
_SHARD: Final = re.compile(r"[0-9a-f]{2}")
_OBJECT: Final = re.compile(r"[0-9a-f]{62}\.zst")
_ATTEMPTS: Final = 10
_MARKER_LIMIT: Final = 1 << 16


@dataclass(frozen=True)
class StoreState:
    """What a look at every object of a store found.

    Attributes:
        objects: objects that hold what their names say.
        content_bytes: bytes of their content.
        stored_bytes: bytes that they take.
        damaged: what is wrong, each with the path concerned.
        leftovers: temporary files and objects set aside, left by processes that were killed.
    """

    objects: int
    content_bytes: int
    stored_bytes: int
    damaged: tuple[IntegrityError, ...]
    leftovers: int


@dataclass(frozen=True)
class Collected:
    """What garbage collection did.

    Attributes:
        removed: digests of the objects removed, sorted.
        removed_bytes: bytes that they took.
        named: objects kept because they are named.
        fresh: objects that nothing names, kept because they were put within the grace period.
        leftovers: files of killed processes removed.
    """

    removed: tuple[bytes, ...]
    removed_bytes: int
    named: int
    fresh: int
    leftovers: int


class ArtifactStore(Content):
    """Content by digest in a directory, for many processes at once.

    Attributes:
        path: the directory.
        durable: whether a put waits until the disk has what it wrote.
        limit: bytes of content that an object may have.
    """

    def __init__(
        self, path: Path | str, *, create: bool = False, durable: bool = False, limit: int = OBJECT_LIMIT
    ) -> None:
        """Open a store.

        Args:
            path: the directory.
            create: make the store if there is none.
            durable: whether a put waits until the disk has what it wrote.
            limit: bytes of content that an object may have.

        Raises:
            UsageError: there is no store at the path, or something else is; it cannot be read or made.
            UnsupportedError: it is a store of a later version.
        """
        self.path = Path(path)
        self.durable = durable
        self.limit = limit
        with os_errors(self.path):
            if create:
                _create(self.path)
            _check_marker(self.path)

    def _object(self, digest: bytes) -> Path:
        name = digest.hex()
        return self.path / _OBJECTS / name[:2] / (name[2:] + _SUFFIX)

    def __iter__(self) -> Iterator[bytes]:
        """The digests of all objects, sorted; whether they are sound is not looked at."""
        with os_errors(self.path):
            for path, digest in self._files():
                if digest is not None and not path.name.startswith(_ASIDE):
                    yield digest

    def __contains__(self, digest: object) -> bool:
        """Whether there is an object of this digest; whether it is sound is not looked at."""
        return isinstance(digest, bytes) and len(digest) == 32 and self._object(digest).is_file()

    def get(self, digest: bytes) -> bytes | None:
        """The content with this digest, None if the store does not have it.

        Raises:
            IntegrityError: the object is cut, corrupt or another one's; the message names the digest.
            UsageError: it cannot be read.
        """
        path = self._object(digest)
        aside = path.with_name(_ASIDE + path.name)
        with os_errors(path):
            for place in (path, aside, path):  # garbage collection can move it aside, and back
                try:
                    with open_object(place, digest) as file:
                        return read_object(file, digest, self.limit)
                except FileNotFoundError:
                    continue
        return None

    def put(self, content: bytes) -> bytes:
        """Keep content; what is there already is checked, and put again if it is damaged.

        When this returns, the store has an object that was read back and has the digest, and garbage collection will
        not take it before its grace period is over.

        Returns:
            The digest.

        Raises:
            UsageError: the content is larger than an object may be, or cannot be written.
            IntegrityError: what was read back is not what was written.
        """
        digest = blake3(content).digest()
        path = self._object(digest)
        if len(content) > self.limit:
            raise UsageError(
                f"{len(content)} bytes of content, an object may have {self.limit}",
                code="store.size",
                path=str(path),
            )
        with os_errors(path):
            if not self._use_again(path, digest):
                self._write(path, digest, content)
        return digest

    def _use_again(self, path: Path, digest: bytes) -> bool:
        """Mark an object as used now; False if it is not there, damaged, or has just been taken away."""
        try:
            with open_object(path, digest) as file:
                read_object(file, digest, self.limit)
                os.utime(file.fileno())
                if self.durable:  # who put it may not have waited
                    os.fsync(file.fileno())
                    self._settle(path.parent)
                status, now = os.fstat(file.fileno()), path.stat()
        except (IntegrityError, OSError):  # also one that is not ours to mark: written anew
            return False
        return (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino)

    def _write(self, path: Path, digest: bytes, content: bytes) -> None:
        stored = object_bytes(content)
        for _ in range(_ATTEMPTS):
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                self._settle(path.parent.parent)
            temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}")
            try:
                with temporary.open("xb") as file:
                    file.write(stored)
                    if self.durable:
                        file.flush()
                        os.fsync(file.fileno())
                with open_object(temporary, digest) as file:
                    read_object(file, digest, self.limit)
                temporary.replace(path)
                self._settle(path.parent)
            except FileNotFoundError:  # taken for a leftover by garbage collection
                continue
            finally:
                temporary.unlink(missing_ok=True)
            return
        raise damaged(path, digest, f"vanished {_ATTEMPTS} times while it was written")

    def _settle(self, directory: Path) -> None:
        """Wait until the disk has a directory's entries."""
        if self.durable:
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _files(self) -> Iterator[tuple[Path, bytes | None]]:
        """Every file among the objects: path, and digest; None for what is neither object nor set aside."""
        objects = self.path / _OBJECTS
        if not objects.is_dir():
            return
        for shard in sorted(path.name for path in objects.iterdir()):
            if not _SHARD.fullmatch(shard) or not (objects / shard).is_dir():
                yield objects / shard, None
                continue
            for name in sorted(path.name for path in (objects / shard).iterdir()):
                bare = name.removeprefix(_ASIDE)
                formed = _OBJECT.fullmatch(bare)
                digest = bytes.fromhex(shard + bare.removesuffix(_SUFFIX)) if formed else None
                yield objects / shard / name, digest

    def verify(self) -> StoreState:
        """Read and check every object.

        Raises:
            UsageError: the store cannot be read.
        """
        objects = content_bytes = stored_bytes = leftovers = 0
        wrong: list[IntegrityError] = []
        with os_errors(self.path):
            for path, digest in self._files():
                if path.name.startswith((_TEMPORARY, _ASIDE)):
                    leftovers += 1
                    continue
                if digest is None:
                    wrong.append(_strange(path))
                    continue
                try:
                    with open_object(path, digest) as file:
                        content_bytes += len(read_object(file, digest, self.limit))
                        stored_bytes += os.fstat(file.fileno()).st_size
                        objects += 1
                except FileNotFoundError:
                    continue  # garbage collection was faster
                except IntegrityError as error:
                    wrong.append(error)
        return StoreState(objects, content_bytes, stored_bytes, tuple(wrong), leftovers)

    def collect(self, named: Collection[bytes], *, grace_s: float, dry_run: bool = False) -> Collected:
        """Remove the objects that nothing names, those put within the grace period excepted.

        Args:
            named: digests that must stay.
            grace_s: seconds since its last put for which an object stays though nothing names it. It must be longer
                than anybody takes from the put of content to the bundle that names it.
            dry_run: only say what would be removed.

        Raises:
            UsageError: the grace period is negative, or the store cannot be written to.
        """
        if grace_s < 0:
            raise UsageError(f"a grace period of {grace_s} seconds", code="store.grace", path=str(self.path))
        named = frozenset(named)
        removed: list[bytes] = []
        removed_bytes = kept = fresh = leftovers = 0
        with os_errors(self.path):
            now = self._now()
            for path, digest in self._files():
                status = _status(path)
                if status is None:
                    continue
                if path.name.startswith(_TEMPORARY):
                    if now - status.st_mtime > max(grace_s, TEMPORARY_AGE_S):
                        leftovers += 1
                        if not dry_run:
                            path.unlink(missing_ok=True)
                elif digest is None:
                    continue  # not ours; verify reports it
                elif path.name.startswith(_ASIDE):
                    leftovers += 1
                    if not dry_run:
                        _decide(path, keep=digest in named, oldest=now - grace_s)
                elif digest in named:
                    kept += 1
                elif now - status.st_mtime < grace_s:
                    fresh += 1
                elif dry_run or self._remove(path, now - grace_s):
                    removed.append(digest)
                    removed_bytes += status.st_size
                else:
                    fresh += 1
        return Collected(tuple(sorted(removed)), removed_bytes, kept, fresh, leftovers)

    def _remove(self, path: Path, oldest: float) -> bool:
        """Take an object away unless it was put again meanwhile; whether it was taken away."""
        aside = path.with_name(_ASIDE + path.name)
        try:
            path.rename(aside)
        except FileNotFoundError:
            return True
        return not _decide(aside, keep=False, oldest=oldest)

    def _now(self) -> float:
        """The present by the clock of the store's file system, which stamps the objects."""
        probe = self.path / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            probe.touch(exist_ok=False)
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)


def _decide(aside: Path, *, keep: bool, oldest: float) -> bool:
    """Put an object that was set aside back if it is to be kept or was put again; else remove it.

    Returns:
        Whether it was put back.
    """
    status = _status(aside)
    if status is None:
        return False
    if not keep and status.st_mtime <= oldest:
        aside.unlink(missing_ok=True)
        return False
    path = aside.with_name(aside.name.removeprefix(_ASIDE))
    try:
        os.link(aside, path)
    except FileExistsError:
        pass
    except FileNotFoundError:
        return False
    except OSError:  # a file system without links
        aside.rename(path)
    aside.unlink(missing_ok=True)
    return True


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _strange(path: Path) -> IntegrityError:
    return IntegrityError(
        "is no object, and has no place among objects",
        code="store.name",
        path=str(path),
        requirement="ST-STO-002",
        hint="move it elsewhere",
    )


def _create(path: Path) -> None:
    """Make a store where there is nothing, or an empty directory; who is second finds that of the first."""
    path.mkdir(parents=True, exist_ok=True)
    if (path / MARKER).is_file():
        return
    if (
        any(not other.name.startswith(_TEMPORARY) for other in path.iterdir())
        and not (path / MARKER).is_file()
    ):
        raise UsageError(
            "is a directory that holds other things than a store",
            code="store.directory",
            path=str(path),
            hint="name an empty directory, or one that does not exist",
        )
    temporary = path / f"{_TEMPORARY}{secrets.token_hex(8)}"
    try:
        temporary.write_bytes(canonical_json({"format": "semtrace-store", "version": VERSION}))
        temporary.replace(path / MARKER)
    finally:
        temporary.unlink(missing_ok=True)


def _check_marker(path: Path) -> None:
    marker = path / MARKER
    if not marker.is_file():
        raise UsageError(
            "there is no artifact store",
            code="store.missing",
            path=str(path),
            requirement="ST-STO-001",
            hint="`semtrace artifacts put` and `externalize` make one where there is none",
        )
    try:
        with marker.open("rb") as file:
            values = parse_canonical(file.read(_MARKER_LIMIT))
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"is no JSON: {error}", code="store.marker", path=str(marker), requirement="ST-STO-001"
        ) from error
    if not isinstance(values, dict) or values.get("format") != "semtrace-store":
        raise FormatError(
            "does not say that this is an artifact store",
            code="store.marker",
            path=str(marker),
            requirement="ST-STO-001",
        )
    if values.get("version") != VERSION:
        raise UnsupportedError(
            f"a store of version {values.get('version')}, this reads version {VERSION}",
            code="store.version",
            path=str(marker),
            requirement="ST-STO-003",
        )
