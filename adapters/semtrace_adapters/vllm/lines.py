"""The lines that a recorded server adds to the step log of vLLM (docs/record.md)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

_Count = Annotated[int, Field(ge=0, lt=1 << 32, strict=True)]
_Text = Annotated[str, Field(min_length=1, max_length=4096)]


class _Line(BaseModel):
    """A line. What it does not know is passed over, as a later version may say more."""

    model_config = ConfigDict(extra="ignore", strict=True)


class HintLine(_Line):
    """What a client said of a request.

    Attributes:
        unix_ns: when; the time of the line before it, if it does not say.
        request: its `X-Request-Id`.
        task, stage, session: what it belongs to.
        user: the member of this name.
    """

    unix_ns: Annotated[int, Field(ge=0, lt=1 << 61)] | None = None
    request: _Text
    task: _Text | None = None
    stage: _Text | None = None
    session: _Text | None = None
    user: _Text | None = None


class ModelLine(_Line):
    """The model that is served, with its shape as far as it is known."""

    name: _Text
    layers: _Count | None = None
    hidden_size: _Count | None = None
    heads: _Count | None = None
    kv_heads: _Count | None = None
    head_dim: _Count | None = None
    intermediate_size: _Count | None = None
    vocab_size: _Count | None = None


class PromptLine(_Line):
    """What a request held beside its token ids.

    Attributes:
        arrival_unix_ns: when the server had it.
        pooling: whether it is an embedding, or the like.
        sampling: its generation settings.
        session: vLLM's own session id.
        hints: what the client said in `vllm_xargs`.
        salted: whether it had a cache salt.
        adapter: the LoRA adapter that it was for.
    """

    arrival_unix_ns: Annotated[int, Field(ge=0, lt=1 << 61)]
    pooling: bool = False
    sampling: dict[str, Any] = Field(default_factory=dict)
    session: _Text | None = None
    hints: dict[str, _Text] = Field(default_factory=dict)
    salted: bool = False
    adapter: _Text | None = None
