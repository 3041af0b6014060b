"""The manifest of a bundle: what is in it, from where, with which digests (ST-BND-010 …)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from blake3 import blake3
from pydantic import Field

from semtrace.errors import DocumentError, FormatError, IntegrityError, UnsupportedError
from semtrace.records.document import Digest, Document, canonical_json, empty_dict, empty_list
from semtrace.records.execution import ExecutionHeader
from semtrace.store.digests import show

SPEC_VERSION: Final = "1.0-draft"
FEATURES: Final[frozenset[str]] = frozenset()
"""Features beyond the core of the standard that this implementation reads."""
EXECUTION_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
"""What an execution can be named (ST-BND-015)."""
SpecVersion = Annotated[str, Field(json_schema_extra={"pattern": r"^1\."})]
"""The version of the standard that something was written for; another major version is refused before (ST-EVO-001)."""


class StoredFile(Document):
    """A member of the bundle: path, size in bytes and digest of the stored bytes."""

    path: str
    bytes: int = Field(ge=0)
    digest: Digest


class StoredTable(StoredFile):
    """A member that holds a table, with its number of rows."""

    rows: int = Field(ge=0)


class StoredPack(StoredFile):
    """A member that holds artifacts, with their number."""

    artifacts: int = Field(ge=0)


class StoredTrace(Document):
    """The trace in a bundle."""

    work_digest: Digest
    trace_digest: Digest
    content_level: Literal["text", "token_ids", "block_hashes", "shape"]
    tables: dict[str, StoredTable]
    packs: list[StoredPack] = Field(default_factory=empty_list)


class StoredExecution(Document):
    """An execution in a bundle, with the digest of its events and of each detail table recorded."""

    header: ExecutionHeader
    execution_digest: Digest
    detail_digests: dict[str, Digest] = Field(default_factory=empty_dict)
    tables: dict[str, StoredTable]
    packs: list[StoredPack] = Field(default_factory=empty_list)


class Producer(Document):
    """The program that made the bundle."""

    name: str
    version: str


class SourceFile(Document):
    """A file that the trace was made of; its name without the folders it lay in."""

    name: str
    bytes: int = Field(ge=0)
    digest: Digest
    adapter: str
    adapter_version: str


class Loss(Document):
    """Something that a conversion could not carry over, or had to assume.

    Attributes:
        code: a stable name of the kind of loss (`tokens.unknown`).
        effect: `lost` (in the source, not in the trace), `unknown` (not in the source), `estimated`, `inferred`,
            `ignored` (left out on purpose) or `repaired`.
        message: what happened, for people.
        count: how often.
        where: places in the sources, at most ten (`events.jsonl:17`).
    """

    code: str
    effect: Literal["lost", "unknown", "estimated", "inferred", "ignored", "repaired"]
    message: str
    count: int = Field(default=1, ge=1)
    where: list[str] = Field(default_factory=empty_list)


class Manifest(Document):
    """The manifest; its own digest protects every byte that the digests in it do not.

    Attributes:
        format: that it is one.
        spec_version: the version of the standard.
        producer: the program that wrote the bundle.
        required_features: what a reader must know to read it.
        optional_features: what a reader may know.
        trace: the trace in the bundle.
        executions: the executions in the bundle, by name.
        tokenizers: by name, the digest of a tokenizer.
        sources: what the trace was made of.
        loss: the loss report.
        lineage: what traces it was filtered, merged or subsampled from.
        licence, notes: for people.
        digest: of the canonical form of all the rest (ST-BND-011).
    """

    format: Literal["semtrace"]
    spec_version: SpecVersion
    producer: Producer
    required_features: list[str] = Field(default_factory=empty_list)
    optional_features: list[str] = Field(default_factory=empty_list)
    trace: StoredTrace | None = None
    executions: dict[str, StoredExecution] = Field(
        default_factory=empty_dict,
        json_schema_extra={"propertyNames": {"pattern": f"^{EXECUTION_NAME.pattern}$"}},
    )
    tokenizers: dict[str, Digest] = Field(default_factory=empty_dict)
    sources: list[SourceFile] = Field(default_factory=empty_list)
    loss: list[Loss] = Field(default_factory=empty_list)
    lineage: list[dict[str, Any]] = Field(default_factory=empty_list)
    licence: str | None = None
    notes: str | None = None
    digest: Digest | None = None

    def sealed(self) -> bytes:
        """The stored bytes: canonical JSON, with the digest of all the rest in it."""
        values = self.as_json()
        values.pop("digest", None)
        values["digest"] = show(blake3(canonical_json(values)).digest())
        return canonical_json(values)

    @classmethod
    def unseal(cls, raw: bytes, values: dict[str, Any], *, path: str) -> Manifest:
        """Check and read stored bytes.

        Args:
            raw: the stored bytes.
            values: the JSON values that they spell.
            path: where they are, for messages.

        Raises:
            IntegrityError: the bytes are not canonical, or their digest is wrong.
            UnsupportedError: another major version, or a required feature that is not known here.
            FormatError: the values are not a manifest.
        """
        version = values.get("spec_version")
        other = isinstance(version, str) and not version.startswith("1.")
        if values.get("format") == "semtrace" and other:
            raise UnsupportedError(
                f"written for version {version} of the standard, this reads {SPEC_VERSION}",
                code="bundle.version",
                path=path,
                requirement="ST-EVO-001",
            )
        needed = values.get("required_features")
        unknown = sorted(set(map(str, needed)) - FEATURES) if isinstance(needed, list) else []
        if unknown:
            raise UnsupportedError(
                f"needs features that this reader does not have: {', '.join(unknown)}",
                code="bundle.feature",
                path=path,
                requirement="ST-EVO-002",
            )
        try:
            manifest = cls.parse(values, path=path)
        except DocumentError as error:  # nobody wrote it by hand: the bundle is at fault, not its user
            raise FormatError(
                error.message,
                code="bundle.manifest",
                path=path,
                requirement="ST-BND-010" if error.requirement == "ST-DOC-001" else error.requirement,
            ) from error
        rest = {key: value for key, value in values.items() if key != "digest"}
        try:
            canonical, hashed = canonical_json(values), canonical_json(rest)
        except FormatError as error:
            raise FormatError(
                error.message, code="bundle.manifest", path=path, requirement="ST-BND-010"
            ) from error
        if values.get("digest") != show(blake3(hashed).digest()):
            raise IntegrityError(
                "the manifest is not the one that was written: its digest is wrong",
                code="bundle.manifest",
                path=path,
                requirement="ST-BND-011",
            )
        if canonical != raw:
            raise IntegrityError(
                "the manifest is not in canonical JSON form",
                code="bundle.manifest",
                path=path,
                requirement="ST-BND-010",
            )
        return manifest
