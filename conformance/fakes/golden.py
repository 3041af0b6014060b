"""The scores that the wrong testees must get: python conformance/fakes/golden.py writes golden.json anew."""

from __future__ import annotations

import atexit
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "testees")]

import semtrace_testee  # noqa: E402
from blake3 import blake3  # noqa: E402

import live_variants  # noqa: E402  # they lie beside this file
import standalone  # noqa: E402
import variants  # noqa: E402
from semtrace.errors import UsageError  # noqa: E402
from semtrace_conformance.certificate import make  # noqa: E402
from semtrace_conformance.known import verdict  # noqa: E402
from semtrace_conformance.process import Process, TroubleError  # noqa: E402
from semtrace_conformance.runner import Limits, Runner, order  # noqa: E402
from semtrace_conformance.suite import Suite, find_suite  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from semtrace_conformance.certificate import Certificate
    from semtrace_conformance.process import Connection
    from semtrace_conformance.suite import Case

GOLDEN = HERE / "golden.json"
LIMITS = {name: Limits(scale=0.03) for name in ("silent", "hangs")}
"""Nobody need wait long for those who never answer."""


THOROUGH = frozenset({"accept-all", "reject-all", *standalone.STARTS})
"""Who is asked every case there is; what the others do is the same everywhere, and they are asked for one profile."""


def remembered(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A check of bundles that is not done again for a bundle with the same bytes: the fakes share most of it."""
    known: dict[str, Any] = {}

    def look(bundle: Any) -> Any:
        hasher = blake3()
        for path in [bundle.path] if bundle.path.is_file() else sorted(bundle.path.rglob("*")):
            hasher.update(path.name.encode() + b"\0" + (path.read_bytes() if path.is_file() else b""))
        content = hasher.hexdigest()
        if content not in known:
            known[content] = check(bundle)
        return list(known[content])

    return look


PLAIN = semtrace_testee.check_bundle
REMEMBERED = remembered(PLAIN)


LAID_OUT = Path(tempfile.mkdtemp(prefix="semtrace-fakes-"))
atexit.register(shutil.rmtree, LAID_OUT, ignore_errors=True)


class Kept(Suite):
    """The suite, with inputs that nobody changes laid out once: the fakes share them."""

    _known: ClassVar[dict[str, dict[str, Path]]] = {}

    def lay_out(self, case: Case, folder: Path) -> dict[str, Path]:
        """A copy of a case's inputs; for readers the one that was made before."""
        if case.kind != "read":
            return super().lay_out(case, folder)
        if case.id not in self._known:
            self._known[case.id] = super().lay_out(case, LAID_OUT / case.id)
        return self._known[case.id]


class Inside:
    """A testee in this process: as a process would answer, without the time that it takes to start one."""

    def __init__(self, testee: Any) -> None:
        self._testee = testee

    def ask(self, line: bytes, budget_s: float) -> bytes:
        """Its answer; whatever it raises is the end of it."""
        del budget_s
        try:
            return json.dumps(self._testee.handle(json.loads(line))).encode()
        except SystemExit as error:
            raise TroubleError(f"it exited with status {error.code}") from error
        except Exception as error:  # a process would have ended with a traceback
            raise TroubleError(f"{type(error).__name__}: {error}") from error

    def stderr(self) -> str:
        """It writes none."""
        return ""

    def close(self, farewell: bytes) -> None:
        """Nothing is held."""

    def kill(self) -> None:
        """Nothing is held."""


def names() -> list[str]:
    """All fakes."""
    return [*standalone.RUNS, *standalone.STARTS, *variants.variants()]


def connect(name: str) -> Callable[[Path], Connection]:
    """What starts a fake."""
    if name in {*standalone.RUNS, *standalone.STARTS}:
        command = [sys.executable, "-I", "-S", str(HERE / "standalone.py"), name]
        return lambda folder: Process(command, folder)
    return lambda _: Inside(variants.variants()[name]())


def score(name: str, suite: Suite) -> dict[str, Any]:
    """What a fake gets."""
    alone = name in {*standalone.RUNS, *standalone.STARTS}
    what = (
        standalone.RUNS.get(name) or standalone.STARTS.get(name) if alone else variants.variants()[name]
    ).__doc__
    entry: dict[str, Any] = {"what": what} if what and "lambda" not in str(what) else {}
    profile = variants.variants()[name].profile if not alone else None if name in THOROUGH else "planner"
    live = variants.variants().get(name)
    asked = live.cases if live is not None and issubclass(live, live_variants.Live) else None
    cases = order(
        suite.cases,
        lambda case: case.id in asked if asked is not None else profile is None or case.profile == profile,
    )
    runner = Runner(suite if alone else Kept(suite.root), connect(name), limits=LIMITS.get(name))
    semtrace_testee.check_bundle = REMEMBERED
    try:
        outcome = runner.run(cases)
    except UsageError as error:
        return {**entry, "exit": int(error.exit_code), "says": error.code}
    finally:
        semtrace_testee.check_bundle = PLAIN
    certificate = make(suite, outcome, [name])
    fails = set(failed(certificate))
    if live is not None and issubclass(live, live_variants.Live):
        fails &= set(live.fails)  # how busy the machine is makes no difference to a score
    points = {each: f"{claim.points} of {claim.of}" for each, claim in certificate.profiles.items()}
    return {
        **entry,
        "exit": int(verdict(certificate, suite)[0]),
        "points": points,
        "fails": sorted(fails),
    }


def failed(certificate: Certificate) -> Iterator[str]:
    """The checks that failed at least once."""
    yield from {failure.check for result in certificate.results for failure in result.failures}


if __name__ == "__main__":
    wanted = sys.argv[1:] or names()
    found = json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() and sys.argv[1:] else {}
    for each in wanted:
        found[each] = score(each, find_suite())
        print(each, found[each])
    GOLDEN.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
