"""The one family of errors, and the exit codes that commands end with."""

from __future__ import annotations

import functools
from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended, the same for every command (README, exit codes)."""

    OK = 0
    FINDINGS = 1
    """The input is not right: findings, violations, differences, damage."""
    USAGE = 2
    """Wrong use: a missing file or one of another kind, inputs that do not belong together, a bad document or option."""
    NOTHING_RAN = 3
    """Nothing ran, or too little could be judged."""
    INTERNAL = 4
    """Our fault."""


class SemtraceError(Exception):
    """Something a person must act upon: what is wrong, where, by which requirement, and what to do.

    Attributes:
        code: a short stable name of the kind of error, for programs (`bundle.truncated`).
        path: the file, table or document position concerned, if any.
        requirement: the id of the violated requirement of the spec, if any.
        hint: what to do about it, if anything is known.
        exit_code: how a command that meets it ends.
    """

    exit_code = ExitCode.FINDINGS

    def __init__(
        self,
        message: str,
        *,
        code: str,
        path: str | None = None,
        requirement: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.path = path
        self.requirement = requirement
        self.hint = hint

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        rule = f" [{self.requirement}]" if self.requirement and self.requirement not in self.message else ""
        return f"{where}{self.message}{rule}"

    def __reduce__(self) -> tuple[object, ...]:
        """So that it passes from one process to another."""
        made = functools.partial(
            type(self),
            self.message,
            code=self.code,
            path=self.path,
            requirement=self.requirement,
            hint=self.hint,
        )
        return (made, ())

    def as_dict(self) -> dict[str, str | None]:
        """The error as JSON-ready fields."""
        return {
            "code": self.code,
            "message": self.message,
            "path": self.path,
            "requirement": self.requirement,
            "hint": self.hint,
        }


class FormatError(SemtraceError):
    """The input is not what it claims to be: it cannot be read as a bundle, document or log."""


class WrongKindError(FormatError):
    """The input is nothing that the command takes: a log where a bundle is wanted, no log at all where one is."""

    exit_code = ExitCode.USAGE


class DocumentError(FormatError):
    """A document that a person wrote (plan, scenario, settings) is not what it must be."""

    exit_code = ExitCode.USAGE


class IntegrityError(SemtraceError):
    """Stored bytes and their digests or sizes disagree."""


class UnsupportedError(SemtraceError):
    """Well formed, but needs a feature, version or tool that is not here."""


class ReplayError(SemtraceError):
    """A replay, plan or comparison that would not be faithful is refused."""


class OtherWorkError(ReplayError):
    """Inputs that do not belong together: a plan, an execution and a trace of different work."""

    exit_code = ExitCode.USAGE


class UsageError(SemtraceError):
    """A command was called wrongly: a missing file, an option out of range, an existing output."""

    exit_code = ExitCode.USAGE


class FaultError(SemtraceError):
    """A mistake of ours, not of the input."""

    exit_code = ExitCode.INTERNAL


def not_installed(error: ModuleNotFoundError) -> SemtraceError:
    """What to tell a person of a package that is not there; of a module of our own, that it is our fault."""
    name = (error.name or "").partition(".")[0]
    if name.startswith("semtrace"):
        return FaultError(f"a part of semtrace is missing: {error.name}", code="internal")
    return UsageError(
        f"{name} is not installed: recorders can run in this environment, commands cannot",
        code="usage.not_installed",
        hint="run commands (seal, import) in an environment of semtrace's own, on any machine: pip install . in the clone",
    )
