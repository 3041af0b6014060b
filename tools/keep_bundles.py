"""Keep bundles of this release as test data: tests/data/bundles/VERSION/, which later releases must read for ever.

    .venv/bin/python tools/keep_bundles.py         writes the folder of this version, once; it never changes one that exists

Each folder has files of every form that the release writes, and contents.json: what must be read of each of them.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3
from declared import ROOT
from vector_traces import VECTORS

from semtrace.build import TraceBuilder
from semtrace.check import check_bundle, check_execution, check_trace
from semtrace.graph.barrier import barrier
from semtrace.graph.plan import dag
from semtrace.records.enums import ContentLevel, EntityKind, OperationKind, Role
from semtrace.records.media import BLOCK_IDS_TYPE, TOKEN_IDS_TYPE
from semtrace.replay.run import DETAIL, replay
from semtrace.replay.scenario import BackendChoice, Poisson, Scenario
from semtrace.store.artifact_store import ArtifactStore
from semtrace.store.bundle import BundleInfo, open_bundle, write_bundle
from semtrace.store.digests import detail_digest, execution_digest, show, trace_digest, work_digest
from semtrace.store.external import attach, externalize, named_digests
from semtrace.store.manifest import SPEC_VERSION, Loss, SourceFile
from semtrace.stream.exchange import read_stream, write_stream
from semtrace.stream.framing import frame
from semtrace.stream.seal import seal
from semtrace.stream.writer import StreamWriter
from semtrace.testing import TraceShape, random_trace
from semtrace.transform.bundle_parts import Parts
from semtrace.transform.redact import redact

sys.path.append(str(ROOT / "tests"))

from support.captures import as_capture  # found through the path above

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from semtrace.build import BuiltTrace
    from semtrace.records.execution import Execution
    from semtrace.records.trace import Content, Trace

FOLDER: Final = ROOT / "tests" / "data" / "bundles"
CONTENTS: Final = "contents.json"
SMALL: Final = TraceShape(tasks=2, operations=4, sessions=1, stages=1, states=1)
STORE: Final = "store"
COST: Final = {
    "kind": "linear", "c0_ps": 1_000_000, "c_seq_ps": 1000, "c_prefill_ps": 1000, "c_decode_ps": 1000, "c_kv_ps": 10,
}  # fmt: skip
OFFLOADING: Final = {
    "policy": {"name": "offload-lru"},
    "tiers": {"host": {"blocks": 64}},
    "links": {"host": {"out_bytes_per_s": 10**10, "in_bytes_per_s": 10**10}},
}
EXTRA: Final = {"example.org/colour": {"of": ["nothing", None, 1]}}
FEATURE: Final = "example.org/colours"


# -- what is read --------------------------------------------------------------------------------------------------------


def describe(path: Path, kind: str) -> dict[str, Any]:
    """What is read of a kept file.

    Args:
        path: the file or folder.
        kind: `bundle`, `external` (a bundle whose content is in the store beside it), `stream` or `capture`.

    Raises:
        SemtraceError: it cannot be read.
    """
    if kind == "stream":
        held = read_stream(path)
        return _summary(held.trace, held.executions, held.info)
    if kind == "capture":
        sealed = seal([path])
        executions = {} if sealed.execution is None else {"native": sealed.execution}
        made = _summary(sealed.trace, executions, sealed.info)
        losses = [
            [loss.code, loss.effect, loss.count] for loss in sealed.info.loss
        ]  # how they are put may change
        return {**{key: made[key] for key in made if key not in {"sources", "loss"}}, "losses": losses}
    bundle = open_bundle(path)
    trace = bundle.trace if bundle.manifest.trace is not None else None
    if trace is not None and kind == "external":
        trace = attach(trace, ArtifactStore(path.parent / STORE))
    executions = {name: bundle.execution(name) for name in bundle.manifest.executions}
    stated = {"spec_version": bundle.manifest.spec_version, "checked": len(check_bundle(bundle))}
    return {**stated, **_summary(trace, executions, bundle.info)}


def _summary(trace: Trace | None, executions: Mapping[str, Execution], info: BundleInfo) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if trace is not None:
        found = {
            "work_digest": show(work_digest(trace)),
            "trace_digest": show(trace_digest(trace)),
            "content_level": ContentLevel(int(trace["trace"].ints("content_level")[0])).name.lower(),
            "rows": {name: table.rows for name, table in trace.tables.items() if table.rows},
            "content": _content(trace.content, named_digests(trace)),
            "findings": len(check_trace(trace)),
        }
    return {
        **found,
        "executions": {name: _run(run, trace) for name, run in sorted(executions.items())},
        "loss": [loss.as_json() for loss in info.loss],
        "sources": [source.as_json() for source in info.sources],
        "lineage": [dict(step) for step in info.lineage],
        "said": {"licence": info.licence, "notes": info.notes, "tokenizers": dict(info.tokenizers)},
        "optional_features": list(info.optional_features),
        "extra": dict(info.extra),
    }


def _run(run: Execution, trace: Trace | None) -> dict[str, Any]:
    return {
        "execution_digest": show(execution_digest(run)),
        "detail_digests": {table: show(detail_digest(run, table)) for table in run.header.detail},
        "rows": {name: table.rows for name, table in run.tables.items() if table.rows},
        "content": _content(run.content, run.content),
        "mode": run.header.mode,
        "extra": run.header.model_extra or {},
        "findings": None if trace is None else len(check_execution(run, trace)),
    }


def _content(content: Content, digests: Iterable[bytes]) -> dict[str, Any]:
    """How much of this content there is, and the digest of it all."""
    found = {digest: content.get(digest) for digest in sorted(digests)}
    pieces = {digest: piece for digest, piece in found.items() if piece is not None}
    whole = blake3(b"".join(digest + len(piece).to_bytes(8) + piece for digest, piece in pieces.items()))
    return {"pieces": len(pieces), "bytes": sum(map(len, pieces.values())), "digest": show(whole.digest())}


# -- what is kept --------------------------------------------------------------------------------------------------------


def make(folder: Path) -> dict[str, str]:
    """Write the files of this version; their kinds by name."""
    kinds = {}
    parts = _everything()
    write_bundle(folder / "everything.semtrace", parts.trace, parts.executions, info=parts.info)
    kinds["everything.semtrace"] = "bundle"
    write_stream(folder / "everything.stsl", parts.trace, parts.executions, info=parts.info)
    kinds["everything.stsl"] = "stream"

    small = random_trace(2, SMALL)
    native = {} if small.execution is None else {"native": small.execution}
    write_bundle(folder / "directory", small.trace, native, directory=True)
    kinds["directory"] = "bundle"
    least = _least()
    for level in (ContentLevel.TOKEN_IDS, ContentLevel.BLOCK_HASHES, ContentLevel.SHAPE):
        redacted = redact(Parts(least.trace), level)
        name = f"{level.name.lower()}.semtrace"
        write_bundle(folder / name, redacted.trace, info=redacted.info)
        kinds[name] = "bundle"

    runs = VECTORS["execution"]().executions
    write_bundle(folder / "executions.semtrace", executions=runs)
    kinds["executions.semtrace"] = "bundle"

    external = externalize(least.trace, ArtifactStore(folder / STORE, create=True))
    write_bundle(folder / "external.semtrace", external)
    kinds["external.semtrace"] = "external"

    payloads = list(as_capture(least.trace, random.Random(1)))  # noqa: S311  # the same each time
    with StreamWriter(folder / "capture.stsl", run=bytes(range(16))) as stream:
        for payload in payloads:
            stream.append(payload)
    kinds["capture.stsl"] = "capture"
    sealed = seal([folder / "capture.stsl"])
    write_bundle(folder / "sealed.semtrace", sealed.trace, info=sealed.info)
    kinds["sealed.semtrace"] = "bundle"

    killed = folder / "killed.stsl"
    stream = StreamWriter(killed, run=bytes(range(1, 17)))
    for payload in payloads[:-1]:
        stream.append(payload)
    torn = frame(len(payloads), payloads[-1])
    killed.write_bytes(killed.read_bytes() + torn[: len(torn) // 2])
    kinds["killed.stsl"] = "capture"
    return kinds


def _least() -> BuiltTrace:
    """A call with a text, token ids, block ids and settings: something to withhold at each content level."""
    b = TraceBuilder(block_size=2, hash_scope="example.org/bpe")
    call = b.operation(b.task("answer"), OperationKind.LLM, "call", prompt_tokens=6, output_tokens=2)
    b.update_operation(call, settings=b.json_artifact({"temperature": 0}))
    ids = b.artifact(struct.pack("<2I", 1, 2), TOKEN_IDS_TYPE)
    blocks = b.artifact(struct.pack("<2Q", 3, 4), BLOCK_IDS_TYPE)
    b.segment(call, Role.SYSTEM, "Answer.", tokens=2, token_ids=ids, token_ids_start=0)
    b.segment(call, Role.USER, "Où ?", tokens=4, block_ids=blocks, block_ids_start=0)
    b.output(call, {"role": "assistant", "content": "Là."})
    return b.build()


def _everything() -> Parts:
    """A trace with all that a trace can say, its native run and three replays, and all that a bundle can say of itself."""
    vector = VECTORS["annotated"]()
    trace, work = vector.trace, show(work_digest(vector.trace))
    executions = dict(VECTORS["tasks"]().executions)  # of the same work
    scenario = Scenario(copies=2, arrivals=Poisson(mean_ns=1_000_000, seed=3))
    executions["dag"] = replay(trace, dag(work), scenario)
    executions["barrier"] = replay(trace, barrier(trace, "chain"), Scenario())
    engine = BackendChoice(
        name="engine",
        settings={"blocks": 32, "block_size": 2, "cost": COST, "model": "Qwen3-8B", **OFFLOADING},
    )
    executions["engine"] = replay(trace, dag(work), Scenario(backend=engine), detail=DETAIL, simulator="step")
    header = executions["dag"].header
    executions["dag"] = replace(
        executions["dag"], header=header.model_validate({**header.model_dump(), **EXTRA})
    )
    if EntityKind.TRACE not in trace["annotations"].ints("entity_kind"):
        raise SystemExit("the trace has no annotation of the trace as a whole")
    digest = show(blake3(b"").digest())
    info = BundleInfo(
        sources=[SourceFile(name="log", bytes=0, digest=digest, adapter="none", adapter_version="1")],
        loss=[Loss(code="example.lost", effect="lost", message="something", count=2, where=["log:1"])],
        licence="CC0-1.0",
        notes="Kept for ever.",
        tokenizers={"none": digest},
        optional_features=[FEATURE],
        extra=EXTRA,
    )
    return Parts(trace, executions, info)


def main() -> int:
    """Write the folder of this version; the exit code."""
    folder = FOLDER / SPEC_VERSION
    if folder.exists():
        print(f"{folder.relative_to(ROOT)} is there already: what a release wrote is never changed")
        return 1
    folder.mkdir(parents=True)
    try:
        contents = {
            name: {"kind": kind, **describe(folder / name, kind)}
            for name, kind in sorted(make(folder).items())
        }
        (folder / CONTENTS).write_text(json.dumps(contents, indent=1, ensure_ascii=False) + "\n", "utf-8")
    except BaseException:
        shutil.rmtree(folder)
        raise
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder.relative_to(ROOT)}: {len(contents)} of {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
