"""What was found of a server, and what follows from it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Found = Literal["yes", "no", "unknown"]

EVIDENCE_CHARACTERS: Final = 200
"""Longest message of a server that is quoted."""
MOST_NAMED: Final = 10
"""Most names of a server's models that a message has."""


def clean(text: str) -> str:
    """A text in one line of printable characters, cut to `EVIDENCE_CHARACTERS`."""
    text = re.sub(r"\s+", " ", text).strip()
    text = "".join(each for each in text if each.isprintable())
    return text if len(text) <= EVIDENCE_CHARACTERS else text[: EVIDENCE_CHARACTERS - 1] + "…"


def named(names: list[str]) -> str:
    """Names of models that a server told, for a message."""
    shown = ", ".join(clean(name) for name in names[:MOST_NAMED])
    return shown if len(names) <= MOST_NAMED else f"{shown} and {len(names) - MOST_NAMED:,} more"


@dataclass(frozen=True)
class Probe:
    """One thing that a server can do, or cannot.

    Attributes:
        name: what it is.
        found: `yes`, `no`, or `unknown` where the answers do not tell.
        evidence: what was asked, and what came.
        status: HTTP status of the answer that decided it, None without one.
        asked: whether anything was asked for it; if not, `evidence` says why.
    """

    name: str
    found: Found
    evidence: str
    status: int | None = None
    asked: bool = True

    @classmethod
    def left_out(cls, name: str, why: str) -> Probe:
        """One for which nothing was asked."""
        return cls(name, "unknown", f"not asked: {why}", asked=False)

    def as_json(self) -> dict[str, Any]:
        """Its fields as JSON values."""
        return {
            "name": self.name,
            "found": self.found,
            "evidence": self.evidence,
            "status": self.status,
            "asked": self.asked,
        }


@dataclass
class Examination:
    """What was found of a server.

    Attributes:
        url: the server.
        models: the models that it lists; None if it could not be told.
        model: the model that was asked.
        max_model_len: most tokens of a request, prompt and output, for this model; None if it is not told.
        vocabulary_size: how many token ids the model has; None if it is not known.
        server: the `Server` header.
        version: the version that it tells.
        too_long: how many output tokens came, and how many had been asked for, where more came; None elsewhere.
        probes: what was found, by name.
    """

    url: str
    models: list[str] | None = None
    model: str | None = None
    max_model_len: int | None = None
    vocabulary_size: int | None = None
    server: str | None = None
    version: str | None = None
    too_long: tuple[int, int] | None = None
    probes: dict[str, Probe] = field(default_factory=dict)

    def can(self, name: str) -> bool:
        """Whether a thing is known to be there."""
        return name in self.probes and self.probes[name].found == "yes"

    def cannot(self, name: str) -> bool:
        """Whether a thing is known not to be there."""
        return name in self.probes and self.probes[name].found == "no"

    def refuses(self, name: str) -> bool:
        """Whether a member is refused, and not merely read over: then it cannot be sent at all."""
        return self.cannot(name) and self.probes[name].status != 200

    def locks(self) -> list[str]:
        """The ways in which recorded tokens can be locked, the surest first."""
        return [name for name in ("logits_processor", "trace_replay", "annotation") if self.can(name)]

    def cannot_tools(self) -> bool:
        """Whether chat messages that offer tools are known not to be taken, in neither way."""
        return self.cannot("tools") and self.cannot("tools_uncalled")

    def inputs(self) -> list[str]:
        """The kinds of inputs that it takes."""
        ids = ["token_ids", "synthetic"] if self.can("token_prompts") else []
        return ids + (["text"] if self.can("chat") else [])

    def no_model(self) -> str | None:
        """Why no model can be asked, None if one can."""
        names = named(self.models or [])
        if self.models and self.model is not None and self.model not in self.models:
            return f"the server has no model {clean(self.model)}: it has {names}"
        if self.model is None and self.models is not None and len(self.models) > 1:
            return f"which of its models to ask is not known: it has {names} (name one: --model)"
        return None

    def refused(self) -> dict[str, str]:
        """The modes that it is known to break, each with how."""
        if not self.inputs() or self.no_model() is not None or self.too_long is None:
            return {}
        came, asked = self.too_long
        return {"length_locked": f"outputs are longer than they are told to be, {came} tokens for {asked}"}

    def modes(self) -> dict[str, str]:
        """The modes that it can be replayed in, each with what holds of it."""
        made: dict[str, str] = {}
        if self.inputs() and self.no_model() is None:
            if self.too_long is not None:
                pass
            elif self.cannot("length"):
                made["length_locked"] = "but outputs end early: only their most can be told"
            elif self.can("min_tokens") and self.can("ignore_eos"):
                made["length_locked"] = "lengths can be told"
            else:
                made["length_locked"] = "lengths were right in a trial, but outputs may end early"
            if self.locks():
                made["token_locked"] = f"by {', '.join(self.locks())}"
        return made

    def without(self) -> list[str]:
        """What traces must not have for that, in words."""
        return ["messages that offer tools, sent as text"] if self.can("chat") and self.cannot_tools() else []

    def as_json(self) -> dict[str, Any]:
        """It all as JSON values."""
        return {
            "url": self.url,
            "models": self.models,
            "model": self.model,
            "max_model_len": self.max_model_len,
            "vocabulary_size": self.vocabulary_size,
            "server": self.server,
            "version": self.version,
            "probes": [probe.as_json() for probe in self.probes.values()],
            "inputs": self.inputs(),
            "locks": self.locks(),
            "modes": self.modes(),
            "without": self.without(),
            "refused": self.refused(),
        }
