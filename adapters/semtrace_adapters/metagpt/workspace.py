"""The workspace that a team wrote: its files, and which depend on which."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from semtrace.errors import UsageError

from .lines import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semtrace_adapters.base import LossReport

    from .run import Run

DEPENDENCIES: Final = ".dependencies.json"
_LARGEST: Final = 16 << 20
_MOST: Final = 10_000


@dataclass
class Workspace:
    """The files of a workspace by their path in it, as they were at the end, and what each depends on."""

    root: Path
    files: dict[str, bytes] = field(default_factory=dict)
    depends_on: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read_workspace(root: Path, loss: LossReport) -> Workspace:
    """Read the files under a folder; links are not followed, the git folder is left out."""
    found = Workspace(root)
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name for name in folders if name != ".git" and not Path(folder, name).is_symlink()
        )
        for name in sorted(names):
            path = Path(folder, name)
            relative = path.relative_to(root).as_posix()
            if path.is_symlink() or not path.is_file():
                loss.add("file.link", "ignored", "a link or special file in the workspace", where=relative)
            elif relative == DEPENDENCIES:
                found.depends_on = _dependencies(path, loss)
            elif len(found.files) >= _MOST or path.stat().st_size > _LARGEST:
                loss.add(
                    "file.large",
                    "lost",
                    "a file of the workspace beyond 16 MiB or the first 10,000",
                    where=relative,
                )
            else:
                try:
                    found.files[relative] = path.read_bytes()
                except OSError as error:
                    raise UsageError(
                        f"cannot be read: {error.strerror or error}", code="source.unreadable", path=str(path)
                    ) from error
    return found


def _dependencies(path: Path, loss: LossReport) -> dict[str, tuple[str, ...]]:
    text, _ = read_text(path, document=True)
    try:
        value = json.loads(text)
        return {str(key): tuple(sorted(str(each) for each in on)) for key, on in value.items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        loss.add(
            "dependency.unreadable",
            "lost",
            f"{DEPENDENCIES} is not the object it must be",
            where=str(path.name),
        )
        return {}


class Names:
    """From the paths in a log to names within the workspace, which moved while it was written."""

    def __init__(
        self, run: Run, workdir: str | None, workspace: Workspace | None, carried: Iterable[str] = ()
    ) -> None:
        roots = {root for pair in run.renamed for root in pair}
        roots |= {workdir} if workdir else set()
        self.roots = sorted(roots, key=len, reverse=True)
        # Files that are known by their place in it: from the workspace itself, or from messages that carry them.
        self.known = {*(workspace.files if workspace else ()), *carried}
        outside = [path for path in (written.path for written in run.written) if self._under(path) is None]
        try:
            self.common = os.path.commonpath([str(PurePosixPath(path).parent) for path in outside])
        except ValueError:  # none, or absolute and relative ones
            self.common = ""

    def _under(self, path: str) -> str | None:
        for root in self.roots:
            if path.startswith(root.rstrip("/") + "/"):
                return path[len(root.rstrip("/")) + 1 :]
        parts = path.strip("/").split("/")
        endings = ["/".join(parts[at:]) for at in range(len(parts))]
        return next((ending for ending in endings if ending in self.known), None)

    def name(self, path: str) -> str:
        """The path within the workspace."""
        within = self._under(path)
        if within is None and self.common:
            within = os.path.relpath(path, self.common)
        return within if within is not None else path


def documents_in(content: str) -> dict[str, str]:
    """Files that a message carries along, by their path: MetaGPT's `{root_path, filename, content}` objects."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    found: dict[str, str] = {}
    stack: list[object] = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, dict):
            root, name, text = each.get("root_path"), each.get("filename"), each.get("content")
            if isinstance(root, str) and isinstance(name, str) and isinstance(text, str) and name:
                found[f"{root}/{name}" if root else name] = text
            stack.extend(each.values())
        elif isinstance(each, list):
            stack.extend(each)
    return found


def files_of(run: Run, workspace: Workspace) -> int:
    """How many files of a workspace a run wrote."""
    names = Names(run, None, workspace)
    return sum(names.name(written.path) in workspace.files for written in run.written)
