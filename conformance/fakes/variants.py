"""Wrong variants of our own shim, each with one thing changed: python variants.py NAME."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "testees"))

from semtrace_testee import PROFILES, Json, Testee, serve

from semtrace.check import Finding, check_bundle, check_execution
from semtrace.records.columns import Columns
from semtrace.records.enums import Trigger
from semtrace.records.trace import Trace
from semtrace.store.artifact_store import ArtifactStore
from semtrace.store.bundle import open_bundle, write_bundle
from semtrace.store.digests import artifact_digest, show


class Variant(Testee):
    """Our shim, declaring one profile."""

    profile = "reader"

    def handle(self, message: Json) -> Json | None:
        """The shim's answer, with this profile alone."""
        answer = super().handle(message)
        if answer is not None and answer["type"] == "started":
            answer["profiles"] = {self.profile: PROFILES[self.profile]}
        return answer

    def changed(self, trace: Trace, table: str, **columns: Any) -> Trace:
        """A trace with columns of a table replaced."""
        data = trace[table].data.to_pydict() | columns
        return Trace({**trace.tables, table: Columns.of(trace[table].spec, data)}, trace.content)


# -- readers ------------------------------------------------------------------------------------------------------


class AcceptsWhatOpens(Variant):
    """It looks for nothing that is wrong in a bundle that it can open."""

    def refuse(self, findings: list[Finding]) -> None:
        """Nothing is refused."""


class _Overlooks(Variant):
    """A reader that does not know some requirements."""

    areas: tuple[str, ...] = ()

    def refuse(self, findings: list[Finding]) -> None:
        super().refuse([each for each in findings if not each.requirement.startswith(self.areas)])


class IgnoresOrder(_Overlooks):
    """It does not look whether rows are in order."""

    areas = ("ST-ORD-00", "ST-ORD-01")


class IgnoresContext(_Overlooks):
    """It does not check inherited context."""

    areas = ("ST-CTX",)


class IgnoresImpliedEdges(_Overlooks):
    """It does not compare edges with what implies them."""

    areas = ("ST-EDGE-01",)


class IgnoresMemberDigests(_Overlooks):
    """It takes members as they are."""

    areas = ("ST-BND-012", "ST-DIG", "ST-ART")


class WrongRequirement(Variant):
    """It refuses in the right phase, always by the same requirement of it."""

    def reject(self, requirement: str, message: str, facts: Json) -> Json:
        return super().reject(requirement, message, facts) | {"requirement": "ST-SEG-014"}


class WrongPhase(Variant):
    """It refuses by the right requirement, always as invalid."""

    def reject(self, requirement: str, message: str, facts: Json) -> Json:
        phase = "malformed" if super().reject(requirement, "", {})["phase"] == "invalid" else "invalid"
        return super().reject(requirement, message, facts) | {"phase": phase}


class CrashesOnRefusal(Variant):
    """It ends instead of refusing, with a good exit status."""

    profile = "planner"

    def reject(self, requirement: str, message: str, facts: Json) -> Json:
        raise SystemExit(0)


class NullsAreZero(Variant):
    """It computes digests as if nulls were zeros."""

    def read(self, inputs: Json, ask: Json) -> Json:
        facts = super().read(inputs, ask)
        if "work_digest" in facts:
            from semtrace.store.digests import show, trace_digest, work_digest

            trace = open_bundle(inputs["bundle"]).trace
            prompts = [value or 0 for value in trace.operations.array("prompt_tokens").to_pylist()]
            trace = self.changed(trace, "operations", prompt_tokens=prompts)
            facts |= {"work_digest": show(work_digest(trace)), "trace_digest": show(trace_digest(trace))}
        return facts


class MiscountsRows(Variant):
    """It counts a row more in every table."""

    def read(self, inputs: Json, ask: Json) -> Json:
        facts = super().read(inputs, ask)
        return facts | {"rows": {name: rows + 1 for name, rows in facts.get("rows", {}).items()}}


class NullCellsAreZero(Variant):
    """It gives 0 for null."""

    def read(self, inputs: Json, ask: Json) -> Json:
        facts = super().read(inputs, ask)
        if "cells" in facts:
            facts["cells"] = [value or 0 for value in facts["cells"]]
        return facts


class ForgetsContext(Variant):
    """It gives own segments for the whole input."""

    def pieces(self, trace: Trace, operation: int) -> list[list[Any]]:
        return [
            piece
            for piece in super().pieces(trace, operation)
            if piece[0] == "segment" and self._own(trace, operation, piece[1])
        ]

    def _own(self, trace: Trace, operation: int, segment: int) -> bool:
        return int(trace.segments.ints("operation")[segment]) == operation


class ForgetsNames(Variant):
    """It rebuilds messages without their names."""

    def read(self, inputs: Json, ask: Json) -> Json:
        facts = super().read(inputs, ask)
        for request in facts.get("requests", ()):
            for message in request["messages"]:
                message.pop("name", None)
        return facts


class ExecutionsByTrace(Variant):
    """It gives the digest of the trace for that of an execution."""

    def execution(self, bundle: Any, name: str) -> Json:
        return super().execution(bundle, name) | {
            "execution_digest": bundle.manifest.executions[name].header.work_digest
        }


# -- writers ------------------------------------------------------------------------------------------------------


class Writer(Variant):
    """A wrong writer."""

    profile = "writer"


class WritesNothing(Writer):
    """It says that it wrote, and did not."""

    def write(self, inputs: Json, ask: Json, output: Path) -> Json:
        facts = super().write(inputs, ask, output)
        shutil.rmtree(output) if output.is_dir() else output.unlink()
        return facts


class WritesOtherForm(Writer):
    """It writes directories for ZIP files, and the other way round."""

    def write(self, inputs: Json, ask: Json, output: Path) -> Json:
        return super().write(inputs, {"form": "zip" if ask["form"] == "directory" else "directory"}, output)


class LeavesFiles(Writer):
    """It leaves a file in the bundle that the manifest does not name."""

    def write(self, inputs: Json, ask: Json, output: Path) -> Json:
        facts = super().write(inputs, ask, output)
        if output.is_dir():
            (output / "notes.txt").write_text("made by hand", "utf-8")
        return facts


class LosesNulls(Writer):
    """It writes 0 where nothing is known."""

    def trace_of(self, tables: dict[str, list[Json]]) -> Trace:
        trace = super().trace_of(tables)
        delays = [value or 0 for value in trace.operations.array("duration_ns").to_pylist()]
        return self.changed(trace, "operations", duration_ns=delays)

    def refuse(self, findings: list[Finding]) -> None:
        """What it spoils, it does not check."""


class LosesContent(Writer):
    """It leaves out the content of the last artifact."""

    def trace_of(self, tables: dict[str, list[Json]]) -> Trace:
        trace = super().trace_of(tables)
        if trace.content:
            del trace.content[list(trace.content)[-1]]  # type: ignore[attr-defined]  # it is held in memory
        return trace

    def refuse(self, findings: list[Finding]) -> None:
        """What it spoils, it does not check."""
        super().refuse([each for each in findings if each.requirement != "ST-ART-005"])


class LosesExtensions(Writer):
    """It writes a bundle again without what it does not know."""

    def rewrite(self, inputs: Json, ask: Json, output: Path) -> Json:
        bundle = open_bundle(inputs["bundle"])
        self.refuse(check_bundle(bundle))
        executions = {name: bundle.execution(name) for name in bundle.manifest.executions}
        write_bundle(output, bundle.trace, executions, directory=ask["form"] == "directory")
        return self.read(inputs, {})


class NumbersByPlace(Writer):
    """It leaves operations in the order of the source."""

    def number(self, inputs: Json, ask: Json) -> Json:
        return {"order": sorted(super().number(inputs, ask)["order"])}


# -- planners -----------------------------------------------------------------------------------------------------


class Planner(Variant):
    """A wrong planner."""

    profile = "planner"


class AlwaysLegal(Planner):
    """It finds every plan legal."""

    def judge(self, inputs: Json, ask: Json) -> Json:
        from semtrace.graph.plan import Plan

        plan = Plan.read(inputs["plan"])
        return {"verdicts": ["independent" for _ in plan.edges], "plan_digest": plan.content_digest()}


class NoCircles(Planner):
    """It judges constraints one by one."""

    def judge(self, inputs: Json, ask: Json) -> Json:
        from semtrace.graph import legality

        known = legality._joint_cycle  # noqa: SLF001  # the one thing that is changed
        legality._joint_cycle = lambda *_: iter(())  # noqa: SLF001
        try:
            return super().judge(inputs, ask)
        finally:
            legality._joint_cycle = known  # noqa: SLF001


class NoPaths(Planner):
    """It refuses plans without saying which path forbids them."""

    def reject(self, requirement: str, message: str, facts: Json) -> Json:
        return super().reject(requirement, message, {})


class PathsBackwards(Planner):
    """It gives paths from their end to their beginning."""

    def reject(self, requirement: str, message: str, facts: Json) -> Json:
        path = facts.get("path")
        return super().reject(requirement, message, {"path": path and path[::-1]})


class OtherPlanDigest(Planner):
    """It takes the digest of a plan as it was written."""

    def judge(self, inputs: Json, ask: Json) -> Json:
        from blake3 import blake3

        return super().judge(inputs, ask) | {
            "plan_digest": f"blake3:{blake3(inputs['plan'].read_bytes()).hexdigest()}"
        }


class GroupsBackwards(Planner):
    """It makes the groups of barrier plans the wrong way round."""

    def barrier(self, inputs: Json, ask: Json) -> Json:
        facts = super().barrier(inputs, ask)
        return facts | {"groups": [{"wait": each["hold"], "hold": each["wait"]} for each in facts["groups"]]}


# -- replayers ----------------------------------------------------------------------------------------------------


class Replayer(Variant):
    """A wrong replayer."""

    profile = "release"


class EarlyByOne(Replayer):
    """It says that everything was submitted 1 ns before it was, where that is possible."""

    def replay(self, inputs: Json, ask: Json) -> Json:
        facts = super().replay(inputs, ask)
        return facts | {"times": [[*times[:2], max(times[2] - 1, 0), *times[3:]] for times in facts["times"]]}


class OtherDigest(Replayer):
    """It gives the right times, under the digest of another run."""

    def replay(self, inputs: Json, ask: Json) -> Json:
        return super().replay(inputs, ask) | {"execution_digest": "blake3:" + 64 * "0"}


class LateArrivals(Replayer):
    """It says that instances arrived 1 ns later."""

    def replay(self, inputs: Json, ask: Json) -> Json:
        facts = super().replay(inputs, ask)
        return facts | {"arrivals": [arrival + 1 for arrival in facts["arrivals"]]}


class _Constrained(Replayer):
    """A replayer that takes constraints otherwise."""

    def change(self, constraints: Any) -> Any:
        raise NotImplementedError

    def replay(self, inputs: Json, ask: Json) -> Json:
        from semtrace.replay import run

        known = run.resolve
        run.resolve = lambda trace, plan: self.change(known(trace, plan))
        try:
            return super().replay(inputs, ask)
        finally:
            run.resolve = known


class NoBarriers(_Constrained):
    """It does not honour groups."""

    def change(self, constraints: Any) -> Any:
        from dataclasses import replace

        return replace(constraints, waits=(), holds=())


class NoLags(_Constrained):
    """It does not honour lags."""

    def change(self, constraints: Any) -> Any:
        from dataclasses import replace

        return replace(constraints, lag_ns=constraints.lag_ns * 0)


class OnlyFinishes(_Constrained):
    """It waits for the finish, whatever the trigger."""

    def change(self, constraints: Any) -> Any:
        from dataclasses import replace

        return replace(constraints, trigger=constraints.trigger * 0 + int(Trigger.FINISH))


# -- auditors -----------------------------------------------------------------------------------------------------


class Auditor(Variant):
    """A wrong auditor."""

    profile = "audit"


class FindsNothing(Auditor):
    """It finds nothing wrong."""

    def audit(self, inputs: Json, ask: Json) -> Json:
        return {"violations": [], "verdict": "clean"}


class FindsEverything(Auditor):
    """It finds every rule violated."""

    def audit(self, inputs: Json, ask: Json) -> Json:
        from semtrace.measure.report import RULES

        return {"violations": [{"requirement": rule, "table": None, "rows": []} for rule in RULES]}


class FindsOneMore(Auditor):
    """It finds what is wrong, and an early submission beside it."""

    def audit(self, inputs: Json, ask: Json) -> Json:
        found = super().audit(inputs, ask)["violations"]
        return {"violations": [*found, {"requirement": "ST-AUD-032", "table": "events", "rows": [0]}]}


class OnlyWellFormed(Auditor):
    """It looks whether executions are well formed, not whether they are right."""

    def audit(self, inputs: Json, ask: Json) -> Json:
        trace, execution = open_bundle(inputs["trace"]).trace, open_bundle(inputs["execution"]).execution()
        return {"violations": [self.violation(each) for each in check_execution(execution, trace)]}


# -- stores -------------------------------------------------------------------------------------------------------


class Store(Variant):
    """A wrong store."""

    profile = "store"


class GetsWithoutLooking(Store):
    """It gives out whatever an object holds."""

    def get(self, inputs: Json, ask: Json) -> Json:
        from base64 import b64encode

        from zstandard import ZstdDecompressor

        contents = []
        for digest in ask["digests"]:
            name = digest.removeprefix("blake3:")
            path = inputs["store"] / "objects" / name[:2] / f"{name[2:]}.zst"
            raw = path.read_bytes() if path.exists() else None
            contents.append(
                raw and b64encode(ZstdDecompressor().decompress(raw, max_output_size=1 << 20)).decode()
            )
        return {"contents": contents}


class MarksNothing(Store):
    """It does not touch an object that is there already."""

    def put(self, inputs: Json, ask: Json) -> Json:
        store = ArtifactStore(inputs["store"])
        digests = []
        for name in ask["files"]:
            content = (inputs["contents"] / name).read_bytes()
            digest = artifact_digest(content)
            digests.append(show(digest if digest in store else store.put(content)))
        return {"digests": digests}


class CollectsWhatIsFresh(Store):
    """It knows no grace period."""

    def collect(self, inputs: Json, ask: Json) -> Json:
        return super().collect(inputs, ask | {"grace_s": 0})


class CollectsEverything(Store):
    """It removes what bundles name too."""

    def collect(self, inputs: Json, ask: Json) -> Json:
        collected = ArtifactStore(inputs["store"]).collect((), grace_s=ask["grace_s"])
        return {"removed": [show(digest) for digest in collected.removed]}


def variants() -> dict[str, type[Variant]]:
    """The variants by name, in the form `accepts-what-opens`."""
    found: dict[str, type[Variant]] = {}
    pending = [Variant]
    while pending:
        for each in pending.pop(0).__subclasses__():
            pending.append(each)
            if not each.__subclasses__():
                found[
                    "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in each.__name__)[
                        1:
                    ]
                ] = each
    return dict(sorted(found.items()))


if __name__ == "__main__":
    serve(variants()[sys.argv[1]]())
