"""From what an adapter has read to a bundle: the sources under their digests, the loss report, the findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import blake3

from semtrace.check import check_trace
from semtrace.cli.printing import visible
from semtrace.store.bundle import BundleInfo, write_bundle
from semtrace.store.digests import show
from semtrace.store.manifest import SourceFile

if TYPE_CHECKING:
    from pathlib import Path

    from semtrace.check.finding import Finding
    from semtrace.store.manifest import Manifest
    from semtrace_adapters.base import Adapter, ImportResult


@dataclass(frozen=True)
class Imported:
    """A bundle that was made.

    Attributes:
        manifest: its manifest.
        files: the sources.
        findings: what the standard says against the trace.
    """

    manifest: Manifest
    files: list[SourceFile]
    findings: list[Finding]

    @property
    def trace_digest(self) -> str | None:
        """The trace's digest."""
        return self.manifest.trace.trace_digest if self.manifest.trace else None


def write_imported(
    output: Path, adapter: Adapter, result: ImportResult, *, directory: bool, overwrite: bool
) -> Imported:
    """Write the bundle of what an adapter has read."""
    files = [
        SourceFile(
            name=visible(path.name),
            bytes=path.stat().st_size,
            digest=show(blake3.blake3(path.read_bytes()).digest()),
            adapter=adapter.name,
            adapter_version=adapter.version,
        )
        for path in result.sources
    ]
    findings = check_trace(result.trace)
    executions = {"native": result.execution} if result.execution is not None else {}
    info = BundleInfo(sources=files, loss=result.loss)
    manifest = write_bundle(
        output, result.trace, executions, info=info, directory=directory, overwrite=overwrite
    )
    return Imported(manifest, files, findings)
