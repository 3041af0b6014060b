"""The suite as files: cases, expected answers, requirements, and the digest over all of them."""

from __future__ import annotations

import os
import shutil
import time
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from blake3 import blake3
from pydantic import Field, ValidationError

from semtrace.errors import UsageError
from semtrace_conformance.live.work import Live  # noqa: TC001  # pydantic reads it
from semtrace_conformance.messages import BadMessageError, Model, Phase, explain, parse_json
from semtrace_conformance.witness.script import Script  # noqa: TC001  # the same

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

SPEC: Final = "1.0-draft"
"""The version of the standard that the suite is for."""
DEFLATED: Final = ".deflated"
"""What the names of files of inputs end with that are kept in the form of RFC 1950, to be small."""
_AGE_S: Final = 10 * 86_400
_PARTS: Final = ("cases", "expected", "requirements")


class Case(Model):
    """One case.

    Attributes:
        id: `profile/name`, which is where it lies.
        title: what it shows, in a sentence.
        profile: the profile that it is scored in.
        kind: what the testee is asked to do.
        requirements: requirements of the spec that it tests.
        features: features of the profile that a testee must have declared for it to apply.
        since: first version of the spec that it holds for.
        until: last one, if it does not hold any more.
        budget_s: seconds that the testee has for it.
        base: the accept case of which it is a one-step mutation; the two are scored together.
        mutation: what the step is.
        like: a case whose inputs it begins with, if it has no base, whose inputs it begins with otherwise; of any profile.
        inputs: by name, a file or folder below `input/`.
        removed: what of the inputs that it begins with is not there any more.
        links: symbolic links among the inputs, by name, with what they point to.
        ages: in the profile store, how many seconds ago a file was last changed; ten days, where nothing is said.
        parallel: how many testees are asked at once.
        output: what a testee writes, if it writes something.
        ask: further members of the question.
        witness: what the server is like that a replay is sent to, if it is sent to one.
    """

    id: str = Field(pattern=r"^[a-z_]+/[a-z0-9-]+$")
    title: str
    profile: str
    kind: str
    requirements: list[str] = Field(min_length=1)
    features: list[str] = Field(default_factory=list)
    since: str = SPEC
    until: str | None = None
    budget_s: int = Field(default=10, ge=1, le=120)
    base: str | None = None
    mutation: str | None = None
    like: str | None = None
    inputs: dict[str, str]
    removed: list[str] = Field(default_factory=list)
    links: dict[str, str] = Field(default_factory=dict)
    ages: dict[str, int] = Field(default_factory=dict)
    parallel: int = Field(default=1, ge=1, le=16)
    output: Literal["zip", "directory"] | None = None
    ask: dict[str, Any] = Field(default_factory=dict)
    witness: Script | None = None


class Mutation(Model):
    """A one-step mutation of an accept case: what is not said here is as in its base.

    Attributes:
        id: `profile/name`, which is where it lies.
        base: the accept case that it is a mutation of.
        mutation: what the step is, in words that follow "…, but".
        requirements: requirements of the spec that it tests.
        removed: what of the base's inputs is not there any more.
        links: symbolic links among the inputs, by name, with what they point to.
        witness: the server, if the step is one of it.
    """

    id: str = Field(pattern=r"^[a-z_]+/[a-z0-9-]+$")
    base: str
    mutation: str
    requirements: list[str] = Field(min_length=1)
    removed: list[str] = Field(default_factory=list)
    links: dict[str, str] = Field(default_factory=dict)
    witness: Script | None = None

    def of(self, base: Case) -> Case:
        """The whole case."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        own["witness"] = self.witness or base.witness
        return base.model_copy(update={**own, "title": f"{base.title}, but {self.mutation}", "like": None})


class Expected(Model):
    """The expected answer to a case.

    Attributes:
        case: the case.
        verdict: `accept` or `reject`.
        facts: of an accepted input, the facts; each is compared.
        phase: of a refused one, the phase.
        requirements: of a refused one, the requirements of which any is right.
        path: of a refused plan, what a path that shows why must be.
        written: what the testee must have written.
        live: of a replay in the world, what must come to the server.
    """

    case: str
    verdict: Literal["accept", "reject"]
    facts: dict[str, Any] = Field(default_factory=dict)
    phase: Phase | None = None
    requirements: list[str] = Field(default_factory=list)
    path: dict[str, Any] | None = None
    written: dict[str, Any] | None = None
    live: Live | None = None


class Requirement(Model):
    """A requirement of the spec: with the cases that test it, or the reason why none does.

    Attributes:
        id: its id.
        page: the page of the spec that states it.
        cases: the cases that test it.
        excluded: why no case does.
    """

    id: str
    page: str
    cases: list[str] = Field(default_factory=list)
    excluded: str | None = None


class Requirements(Model):
    """The frozen list of what is scored for a version of the spec.

    Attributes:
        spec: the version.
        phases: by requirement or area (`ST-BND`), the phase in which it is violated; `invalid` if not named.
        profiles: by profile, its features and what each means.
        requirements: every requirement of the spec.
    """

    spec: str
    phases: dict[str, Phase]
    profiles: dict[str, dict[str, str]]
    requirements: list[Requirement]


M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class Suite:
    """The suite in a folder."""

    root: Path

    @cached_property
    def requirements(self) -> Requirements:
        """What is scored."""
        return _read(self.root / "requirements" / f"{SPEC}.json", Requirements)

    @cached_property
    def cases(self) -> dict[str, Case]:
        """All cases by id, in order of id.

        Raises:
            UsageError: a case cannot be read, or does not lie where its id says.
        """
        found: dict[str, Case | Mutation] = {}
        for path in sorted((self.root / "cases").glob("*/*/case.json")):
            case = _read_case(path)
            if case.id != f"{path.parent.parent.name}/{path.parent.name}":
                raise broken(f"the case {case.id} does not lie where its id says", path)
            found[case.id] = case
        if not found:
            raise broken("there are no cases", self.root / "cases")
        return {name: self._whole(case, found) for name, case in found.items()}

    def _whole(self, case: Case | Mutation, cases: Mapping[str, Case | Mutation]) -> Case:
        if isinstance(case, Case):
            return case
        base = cases.get(case.base)
        if not isinstance(base, Case) or case.id.split("/")[0] != base.profile:
            raise broken(
                f"{case.id}: its base {case.base} is no accept case of its profile",
                self.root / "cases" / case.id,
            )
        return case.of(base)

    def expected(self, case: Case) -> Expected:
        """The expected answer to a case.

        Raises:
            UsageError: there is none, or it cannot be read.
        """
        return _read(self.root / "expected" / f"{case.id}.json", Expected)

    @cached_property
    def digest(self) -> str:
        """Digest of the names and bytes of all files of the suite, `blake3:` and 64 hex digits."""
        hasher = blake3(derive_key_context="semtrace conformance suite 1")
        for name, path in self.files():
            content = path.read_bytes()
            hasher.update(f"{len(name.encode())}:{name}{len(content)}:".encode() + content)
        return f"blake3:{hasher.hexdigest()}"

    def files(self) -> Iterator[tuple[str, Path]]:
        """Every file of the suite, by name relative to its folder, in order of name."""
        found = {}
        for part in _PARTS:
            for path in (self.root / part).rglob("*"):
                if path.is_file():
                    found[path.relative_to(self.root).as_posix()] = path
        yield from sorted(found.items())

    def lay_out(self, case: Case, folder: Path) -> dict[str, Path]:
        """Make a copy of a case's inputs: those of the case that it begins with, with its own over them.

        Returns:
            Where each input is.
        """
        chain = [case]
        while (before := chain[-1].base or chain[-1].like) is not None:
            chain.append(self.cases[before])
        for each in reversed(chain):
            source = self.root / "cases" / each.id / "input"
            if source.is_dir():
                shutil.copytree(source, folder, dirs_exist_ok=True, copy_function=_copy)
            for name in each.removed:
                (folder / name).unlink()
            for name, target in each.links.items():
                (folder / name).symlink_to(target)
        if case.profile == "store":
            _set_ages(case, folder)
        return {name: folder / path for name, path in case.inputs.items()}

    def applies(self, case: Case, declared: dict[str, Collection[str]]) -> bool:
        """Whether a testee that declared these features by profile has to answer a case."""
        return case.profile in declared and set(case.features) <= set(declared[case.profile])


def find_suite() -> Suite:
    """The suite that came with this package.

    Raises:
        UsageError: it is not there.
    """
    here = Path(__file__).resolve().parent
    for root in (here / "suite", here.parent):  # installed, or in a checkout
        if (root / "cases").is_dir():
            return Suite(root)
    raise broken("the cases of the suite are missing from this installation", here)


def _copy(source: str, target: str) -> None:
    """Copy a file of the suite; one that is kept deflated as what it is."""
    if source.endswith(DEFLATED):
        Path(target.removesuffix(DEFLATED)).write_bytes(zlib.decompress(Path(source).read_bytes()))
    else:
        shutil.copyfile(source, target)


def _set_ages(case: Case, folder: Path) -> None:
    now = time.time()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            age = case.ages.get(path.relative_to(folder).as_posix(), _AGE_S)
            os.utime(path, (now - age, now - age))


def broken(message: str, path: Path) -> UsageError:
    """The error for a suite that is not whole: the harness is at fault, not the testee."""
    return UsageError(
        f"the suite is broken: {message}",
        code="certify.suite",
        path=str(path),
        hint="nothing was judged; install it again, or run make_cases.py",
    )


def _read_case(path: Path) -> Case | Mutation:
    values = _values(path)
    if isinstance(values, dict) and "base" in values:
        return _made(path, Mutation, values)
    return _made(path, Case, values)


def _read(path: Path, kind: type[M]) -> M:
    return _made(path, kind, _values(path))


def _values(path: Path) -> Any:
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise broken(f"cannot be read: {error.strerror}", path) from error
    except BadMessageError as error:
        raise broken(str(error), path) from error


def _made(path: Path, kind: type[M], values: Any) -> M:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise broken(explain(error), path) from error
