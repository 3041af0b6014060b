"""The book of cases: collects them, and writes them as the files of the suite."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from semtrace_conformance.making.draft import tables_file
from semtrace_conformance.making.phases import PHASES, PROFILES, phase_of
from semtrace_conformance.suite import DEFLATED, SPEC, Case, Expected, Mutation, Requirement, Requirements

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from semtrace_conformance.live.work import Live
    from semtrace_conformance.messages import Model
    from semtrace_conformance.witness.script import Script

Inputs = dict[str, bytes]
_WIDTH = 118
_MUCH = 4000
"""Bytes of inputs that two cases share from which on they are kept once."""
_WORTH = 1000
"""Bytes that must be saved for a file to be kept deflated."""
_LONG = 12
"""Members from which on a list of lists is written in full lines."""


@dataclass
class Page:
    """A case with its expected answer and all files of its inputs, those of its base included."""

    case: Case
    expected: Expected
    files: Inputs


@dataclass
class Book:
    """All cases."""

    pages: dict[str, Page] = field(default_factory=dict)

    def accept(
        self,
        name: str,
        title: str,
        requirements: Sequence[str],
        *,
        kind: str,
        files: Mapping[str, bytes],
        inputs: Mapping[str, str],
        facts: Mapping[str, Any],
        features: Sequence[str] = (),
        ask: Mapping[str, Any] | None = None,
        output: Literal["zip", "directory"] | None = None,
        written: Mapping[str, Any] | None = None,
        parallel: int = 1,
        ages: Mapping[str, int] | None = None,
        witness: Script | None = None,
        live: Live | None = None,
        budget_s: int = 10,
    ) -> None:
        """Add a case with right input.

        Args:
            name: `profile/name`.
            title: what it shows.
            requirements: what it tests.
            kind: what is asked.
            files: the files of its inputs.
            inputs: by name, a file or folder among them.
            facts: the facts expected.
            features: features that it needs.
            ask: further members of the question.
            output: the form of what is to be written.
            written: what is expected of it.
            parallel: how many testees are asked at once.
            ages: how old files of the inputs are said to be, in s.
            witness: the server that it is sent to.
            live: what must come there.
            budget_s: seconds that a testee has for it.
        """
        case = Case(
            id=name,
            title=title,
            profile=name.split("/", maxsplit=1)[0],
            kind=kind,
            requirements=sorted(requirements),
            features=sorted(features),
            inputs=dict(inputs),
            output=output,
            ask=dict(ask or {}),
            parallel=parallel,
            ages=dict(ages or {}),
            witness=witness,
            budget_s=budget_s,
        )
        expected = Expected(
            case=name,
            verdict="accept",
            facts=dict(facts),
            written=None if written is None else dict(written),
            live=live,
        )
        self._add(Page(case, expected, dict(files)))

    def change(
        self,
        base: str,
        name: str,
        mutation: str,
        requirements: Sequence[str],
        *,
        files: Mapping[str, bytes | None],
        links: Mapping[str, str] | None = None,
        path: Mapping[str, Any] | None = None,
        facts: Mapping[str, Any] | None = None,
        tests: Sequence[str] | None = None,
        written: Mapping[str, Any] | None = None,
        witness: Script | None = None,
    ) -> None:
        """Add a one-step mutation of a case.

        Args:
            base: the case that it is a mutation of.
            name: `profile/name`.
            mutation: what the step is, in words that follow "…, but".
            requirements: those of which any is a right reason, the first one meant.
            files: files that are other than the base's, None for one that is gone.
            links: links in the inputs, by name.
            path: of a plan, what the path must be.
            facts: of a fault that is found rather than refused, the facts expected.
            tests: requirements that it tests, if not those that are right reasons.
            written: what must be there afterwards all the same.
            witness: the server, if the step is one of it.
        """
        before = self.pages[base]
        whole = {**before.files, **files}
        kept = {key: value for key, value in whole.items() if value is not None}
        case = before.case.model_copy(
            update={
                "id": name,
                "requirements": sorted(tests or requirements),
                "base": base,
                "mutation": mutation,
                "removed": sorted(
                    key for key, value in files.items() if value is None and key in before.files
                ),
                "links": dict(links or {}),
                "witness": witness,
            }
        )
        if facts is not None:
            expected = Expected(case=name, verdict="accept", facts=dict(facts))
        else:
            phases = {phase_of(each) for each in requirements}
            if len(set(requirements)) != len(requirements):
                raise ValueError(f"{name}: a reason stands twice: {list(requirements)}")
            if len(phases) != 1:
                raise ValueError(f"{name}: reasons of several phases: {sorted(phases)}")
            expected = Expected(
                case=name,
                verdict="reject",
                phase=phases.pop(),
                requirements=list(requirements),
                path=None if path is None else dict(path),
                written=None if written is None else dict(written),
            )
        self._add(Page(case, expected, kept))

    def _add(self, page: Page) -> None:
        if page.case.id in self.pages:
            raise ValueError(f"{page.case.id} is there twice")
        self.pages[page.case.id] = page

    def requirements(self, pages: Mapping[str, str], excluded: Mapping[str, str]) -> Requirements:
        """The list of what is scored.

        Args:
            pages: by requirement, the page of the spec that states it.
            excluded: by requirement that no case tests, why.
        """
        tested: dict[str, list[str]] = {}
        for page in self.pages.values():
            for requirement in page.case.requirements:
                tested.setdefault(requirement, []).append(page.case.id)
        wrong = sorted(set(tested) - set(pages))
        if wrong:
            raise ValueError(f"cases test what the spec does not state: {wrong}")
        return Requirements(
            spec=SPEC,
            phases=PHASES,
            profiles=PROFILES,
            requirements=[
                Requirement(
                    id=each,
                    page=pages[each],
                    cases=sorted(tested.get(each, ())),
                    excluded=None if each in tested else excluded.get(each),
                )
                for each in sorted(pages)
            ],
        )

    def write(self, root: Path) -> None:
        """Write cases, expected answers and the tables below a folder."""
        for page in self.pages.values():
            case, before = page.case, {}
            if case.base is not None:
                before = self.pages[case.base].files
            elif (alike := self._alike(page)) is not None:
                before = alike.files
                case = case.model_copy(
                    update={"like": alike.case.id, "removed": sorted(set(before) - set(page.files))}
                )
            folder = root / "cases" / case.id
            _write(folder / "case.json", case if case.base is None else _mutation(case))
            _write(root / "expected" / f"{case.id}.json", page.expected)
            for name, content in page.files.items():
                if before.get(name) != content:
                    path = folder / "input" / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    _write_input(path, content)
        _write(root / "requirements" / f"tables-{SPEC}.json", tables_file())

    def _alike(self, page: Page) -> Page | None:
        """The earlier case with which a case shares most of its inputs, if that is much."""
        best, most = None, _MUCH
        for other in self.pages.values():
            if other is page:
                break
            if other.case.base is None:
                shared = sum(
                    len(content) for name, content in page.files.items() if other.files.get(name) == content
                )
                if shared > most:
                    best, most = other, shared
        return best


def _write_input(path: Path, content: bytes) -> None:
    """Write a file of inputs; deflated, where that is much smaller."""
    small = zlib.compress(content, 9)
    if len(content) - len(small) >= _WORTH:
        path.with_name(path.name + DEFLATED).write_bytes(small)
    else:
        path.write_bytes(content)


def _mutation(case: Case) -> Mutation:
    return Mutation.model_validate({name: getattr(case, name) for name in Mutation.model_fields})


def _write(path: Path, model: Model) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(laid_out(model.model_dump(exclude_defaults=True)) + "\n", "utf-8")


def laid_out(value: Any, indent: int = 0) -> str:
    """JSON in which what fits in a line stands in a line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= _WIDTH or not value or not isinstance(value, (dict, list)):
        return flat
    margin = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {laid_out(each, indent + 1)}"
            for key, each in value.items()
        ]
        return "{\n" + ",\n".join(margin + part for part in parts) + f"\n{' ' * indent}}}"
    if all(not isinstance(each, (dict, list)) or not each for each in value) or len(value) > _LONG:
        return _wrapped(value, indent)
    return "[\n" + ",\n".join(margin + laid_out(each, indent + 1) for each in value) + f"\n{' ' * indent}]"


def _wrapped(values: Sequence[Any], indent: int) -> str:
    """A long list in lines that are full."""
    lines, line = [], " " * (indent + 1)
    for at, each in enumerate(values):
        text = json.dumps(each, ensure_ascii=False) + ("," if at + 1 < len(values) else "")
        if line.strip() and len(line) + len(text) > _WIDTH:
            lines.append(line.rstrip())
            line = " " * (indent + 1)
        line += text + " "
    return "[\n" + "\n".join([*lines, line.rstrip()]) + f"\n{' ' * indent}]"


def write_requirements(root: Path, requirements: Requirements) -> None:
    """Write the list of what is scored below a folder."""
    _write(root / "requirements" / f"{SPEC}.json", requirements)
