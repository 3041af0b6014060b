"""What is asked of a server in what form: chosen by what it was found to do, or refused before the run."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from semtrace.check.finding import found
from semtrace.errors import ReplayError, UnsupportedError
from semtrace.live.asking import Form, Lock
from semtrace.live.doctor import PROMPT, examine
from semtrace.live.examination import named
from semtrace.live.prompts import Inputs
from semtrace.live.settings import Vocabulary
from semtrace.records.enums import OperationKind, Role
from semtrace.replay.controller import runs_on_backend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semtrace.check.finding import Finding
    from semtrace.live.examination import Examination
    from semtrace.live.settings import HttpSettings, Key
    from semtrace.records.trace import Trace
    from semtrace.replay.scenario import Scenario


def _instead(inputs: list[str]) -> str:
    """What to do where a server does not take what would be sent, and takes these inputs."""
    if not inputs:
        return "take another server; semtrace doctor shows what this one does"
    return f"it takes other inputs: {' or '.join(f'--set inputs={each}' for each in inputs)}"


class Choices:
    """What a scenario leaves open, settled with what the server was found to be. The server is asked when it is wanted."""

    def __init__(self, trace: Trace, scenario: Scenario, settings: HttpSettings, key: Key | None) -> None:
        self._trace, self._scenario, self._settings, self._key = trace, scenario, settings, key

    @property
    def asked(self) -> bool:
        """Whether the server was asked."""
        return "examination" in self.__dict__

    @cached_property
    def examination(self) -> Examination:
        """What the server was found to be.

        Raises:
            ReplayError: it cannot be connected to, speaks no HTTP, wants a key, or does not have the model.
        """
        settings, trace = self._settings, self._trace
        names = ["stream", "stream_usage", "token_ids_back", "ignore_eos", "min_tokens", "length"]
        if self._scenario.salt != "none":
            names.append("cache_salt")
        if self._scenario.mode == "token_locked":
            names += (
                ["logits_processor", "trace_replay", "annotation"]
                if settings.lock == "auto"
                else [settings.lock]
            )
        if (runs_on_backend(trace) & (trace.operations.ints("kind") == OperationKind.EMBED)).any():
            names.append("embeddings")
        if settings.vocabulary is None and settings.inputs in ("auto", "token_ids", "synthetic"):
            names.append("vocabulary")
        if settings.inputs in ("auto", "text") and (trace.segments.ints("role") == Role.TOOLS).any():
            names += ["tools", "tools_uncalled"]
        made = examine(settings, self._key, only=names)
        self._insist(made)
        return made

    def _insist(self, found: Examination) -> None:
        """What must be so for anything to be sent."""
        reachable, models = found.probes["reachable"], found.probes.get("models")
        if reachable.found != "yes":
            raise ReplayError(
                f"no server is there that speaks HTTP: {reachable.evidence}",
                code="live.unreachable",
                path=self._settings.url,
                hint="is it running, and listening at this address and port? semtrace doctor says what it sees",
            )
        if models is not None and models.status in (401, 403):
            there = (
                "the one given is not taken"
                if self._key is not None
                else f"{self._settings.api_key_env} is not set"
            )
            raise ReplayError(
                f"the server wants a key: {there} (status {models.status})",
                code="live.key",
                path=self._settings.url,
                hint=f"put the key into the environment variable {self._settings.api_key_env}, "
                "or name another one: api_key_env",
            )
        if found.model is None:
            listed = named(found.models or []) or "none"
            why = f" ({models.evidence})" if models is not None and models.found != "yes" else ""
            at = ", or is the URL not that of the server alone, before /v1?" if why else ""
            raise ReplayError(
                f"which model to ask for is not known: the server lists {listed}{why}",
                code="live.model",
                path="backend.settings.model",
                hint=f"name it: --model NAME, or model: NAME in the backend's settings{at}",
            )
        if self._settings.model is not None and found.models and found.model not in found.models:
            raise ReplayError(
                f"the server does not list model {found.model}: it has {named(found.models)}",
                code="live.model",
                path="backend.settings.model",
                hint="name one of them",
            )

    @cached_property
    def form(self) -> Form:
        """How requests are put."""
        settings, found = self._settings, self.examination
        return Form(
            model=cast("str", found.model),
            stream=settings.stream and not found.cannot("stream"),
            lock=self.lock,
            ignore_eos=not found.refuses("ignore_eos"),
            min_tokens=not found.refuses("min_tokens"),
            return_token_ids=not found.refuses("token_ids_back"),
            cache_salt=found.can("cache_salt"),
            tools_uncalled=found.cannot("tools") and found.can("tools_uncalled"),
            hints=settings.hints,
        )

    @cached_property
    def lock(self) -> Lock | None:
        """How tokens are locked.

        Raises:
            UnsupportedError: the server has no way that was found.
        """
        if self._scenario.mode != "token_locked":
            return None
        found, wanted = self.examination, self._settings.lock
        locks = found.locks()
        if wanted != "auto":
            if wanted in locks:
                return wanted
        elif locks:
            return cast("Lock", locks[0])
        tried = [wanted] if wanted != "auto" else ["logits_processor", "trace_replay", "annotation"]
        said = "; ".join(f"{name}: {found.probes[name].evidence}" for name in tried if name in found.probes)
        raise UnsupportedError(
            f"this server cannot be made to generate recorded tokens ({said})",
            code="live.lock",
            path=self._settings.url,
            requirement="ST-LIV-021",
            hint="start vLLM with --logits-processors semtrace.live.vllm.plugin:ForcedTokens or with --enable-trace-replay --enable-scale-out, "
            "or replay with --mode length-locked",
        )

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """The ids of synthetic prompts: as set, else the ones that the server was found to take."""
        if self._settings.vocabulary is not None:
            return self._settings.vocabulary
        size = self.examination.vocabulary_size
        return None if size is None else Vocabulary(first=min(max(PROMPT) + 1, size - 1), size=size)

    @cached_property
    def generates(self) -> bool:
        """Whether there is anything but embeddings."""
        kinds = self._trace.operations.ints("kind")[runs_on_backend(self._trace)]
        return bool((kinds == OperationKind.LLM).any()) or not len(kinds)

    @cached_property
    def inputs(self) -> Inputs:
        """What is sent as prompts."""
        found, scenario = self.examination, self._scenario
        return Inputs(
            self._trace,
            kind=self._settings.inputs,
            mode=scenario.mode,
            salt=scenario.salt,
            copies=scenario.copies,
            vocabulary=self.vocabulary,
            known_ids=found.vocabulary_size,
            takes_ids=not found.cannot("token_prompts" if self.generates else "embeddings"),
            synthetic_outputs=self._settings.synthetic_outputs,
        )

    def settled(self) -> HttpSettings:
        """The settings with what was left to the server, as it turned out to be."""
        chosen: dict[str, Any] = {"model": self.examination.model, "inputs": self.inputs.kind}
        if self.inputs.kind == "synthetic":
            chosen["vocabulary"] = self.vocabulary
        if self.lock is not None:
            chosen["lock"] = self.lock
        return self._settings.model_copy(update=chosen)

    def findings(self) -> Iterator[Finding]:
        """What cannot be sent to this server, or not be locked on it.

        Raises:
            ReplayError: the server is not there, or does not have the model.
            UnsupportedError: it cannot hold the mode.
        """
        if self._scenario.mode == "token_locked":
            _ = self.lock
        rows = self._trace.operations
        sent = runs_on_backend(self._trace)
        generates = sent & (rows.ints("kind") == OperationKind.LLM)
        prompt, output = rows.ints("prompt_tokens"), rows.ints("output_tokens")
        yield from found(
            "ST-LIV-024",
            generates & (output == 0),
            "operation {row} has no output tokens: servers generate at least one",
            table="operations",
            column="output_tokens",
            hint="leave it out (semtrace filter)",
        )
        longest = self.examination.max_model_len
        if longest is not None:
            total = np.maximum(prompt, 0) + np.maximum(output, 0)
            yield from found(
                "ST-LIV-025",
                sent & (total > longest),
                lambda row: (
                    f"operation {row} has {int(total[row])} tokens, prompt and output; "
                    f"the server takes {longest} of them"
                ),
                table="operations",
                column="prompt_tokens",
                hint="start the server with a larger --max-model-len, or leave long tasks out (semtrace filter)",
            )
        yield from self._unserved(sent, generates)
        yield from self.inputs.findings()

    def _unserved(
        self, sent: np.ndarray[Any, np.dtype[np.bool_]], generates: np.ndarray[Any, np.dtype[np.bool_]]
    ) -> Iterator[Finding]:
        """Interfaces that the trace needs, and the server was found not to have."""
        examination = self.examination
        needs = "chat" if self.inputs.kind == "text" else "token_prompts"
        if self.inputs.kind == "text" and examination.cannot_tools():
            offers = generates.copy()
            for row in np.flatnonzero(generates).tolist():
                offers[row] = "tools" in (self.inputs.messages(row) or ())
            yield from found(
                "ST-LIV-025",
                offers,
                f"operation {{row}} offers tools, which the server refuses ({examination.probes['tools'].evidence})",
                table="operations",
                column="kind",
                hint="start the server so that it takes them (vLLM: --enable-auto-tool-choice and --tool-call-parser)"
                + (", or send no text: --set inputs=synthetic" if examination.can("token_prompts") else ""),
            )
        for name, rows in ((needs, generates), ("embeddings", sent & ~generates)):
            if rows.any() and examination.cannot(name):
                yield from found(
                    "ST-LIV-025",
                    rows,
                    f"operation {{row}} needs what the server does not do ({name}: {examination.probes[name].evidence})",
                    table="operations",
                    column="kind",
                    hint=_instead(examination.inputs() if name == needs else []),
                )
