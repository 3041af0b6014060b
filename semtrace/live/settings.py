"""Settings of the backend `http`: which server, how it is asked, and where the key's name is (spec, live.md)."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from semtrace.errors import UsageError
from semtrace.records.document import Document

if TYPE_CHECKING:
    from collections.abc import Mapping

_VISIBLE: Final = re.compile(r"[\x21-\x7e]+")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _url(text: str) -> str:
    """What a URL must be, said without showing it: it may hold a password."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise PydanticCustomError(
            "url", "must be http:// or https:// with a host and a port below 65536"
        ) from None
    if parts.username is not None or parts.password is not None:
        raise PydanticCustomError(
            "url",
            "must hold no user name or password: it is recorded; a key belongs in api_key_env's variable",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise PydanticCustomError(
            "url", "must be http:// or https:// with a host, such as http://127.0.0.1:8000"
        )
    if not _VISIBLE.fullmatch(text):
        raise PydanticCustomError("url", "must be of visible ASCII characters")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise PydanticCustomError("url", "must end with its path: no query and no fragment")
    return text


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise PydanticCustomError(
            "api_key_env", "must be the name of an environment variable, not a key: letters, digits and _"
        )
    return name


class Vocabulary(Document):
    """Token ids that synthetic prompts are drawn from.

    Attributes:
        first: the lowest of them; those below are left out, as special tokens often are.
        size: the number of ids of the vocabulary: the highest id is one less.
    """

    first: int = Field(default=0, ge=0, lt=1 << 31)
    size: int = Field(ge=1, le=1 << 31)


class HttpSettings(Document):
    """How a server that speaks the OpenAI protocol is asked.

    Attributes:
        url: where the server is, with or without a path prefix or `/v1`.
        model: the model's name; if left out, the only one that the server lists.
        inputs: what is sent as prompts: recorded token ids, recorded texts as chat messages, or synthetic token ids of
            the recorded length; `auto` takes the first of these that trace and server allow.
        lock: how the server is made to give recorded tokens, in mode `token_locked`; `auto` takes what the server has.
        vocabulary: token ids of synthetic prompts, where the server does not tell.
        synthetic_outputs: whether, in mode `token_locked`, outputs without recorded token ids are locked to synthetic ones.
        hints: whether requests carry the headers that name task, stage, session and expected tool time.
        stream: whether answers are streamed, so that the first token is seen.
        connections: most connections that are open at once.
        api_key_env: name of the environment variable that holds the key, if the server wants one.
    """

    HINT: ClassVar[str | None] = (
        "for example --url http://127.0.0.1:8000; in a scenario: "
        "backend: {name: http, settings: {url: 'http://127.0.0.1:8000'}}"
    )

    url: Annotated[str, AfterValidator(_url)]
    model: str | None = Field(default=None, min_length=1, max_length=512)
    inputs: Literal["auto", "token_ids", "text", "synthetic"] = "auto"
    lock: Literal["auto", "logits_processor", "trace_replay", "annotation"] = "auto"
    vocabulary: Vocabulary | None = None
    synthetic_outputs: bool = False
    hints: bool = False
    stream: bool = True
    connections: int = Field(default=1024, ge=1, le=60_000)
    api_key_env: Annotated[str, AfterValidator(_variable)] = "OPENAI_API_KEY"


class Target:
    """Where requests go.

    Attributes:
        url: as it was given.
        tls: whether the connection is encrypted.
        host: name or address of the server.
        port: its port.
        root: the path before `/v1`, without a slash at its end.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url = url
        self.tls = parts.scheme == "https"
        self.host: str = parts.hostname or ""
        self.port: int = parts.port or (443 if self.tls else 80)
        path = parts.path.rstrip("/")
        self.root = path.removesuffix("/v1")
        named = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.tls else 80)
        self.host_field = named if usual else f"{named}:{self.port}"

    def __repr__(self) -> str:
        return f"Target({self.url!r})"


class Key:
    """The key that the server is shown. Nothing prints it: not `str`, not `repr`, no error."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "Key(not shown)"

    __str__ = __repr__

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a key is not written down")

    def field(self) -> bytes:
        """The header line that carries it."""
        return b"Authorization: Bearer " + self._value.encode("ascii") + b"\r\n"

    def hide(self, text: str) -> str:
        """A server's text without the key, should the server repeat it."""
        return text.replace(self._value, "***")


def read_key(settings: HttpSettings, environment: Mapping[str, str] | None = None) -> Key | None:
    """The key in the environment variable that the settings name, None if there is none.

    Raises:
        UsageError: it has characters that no header takes.
    """
    value = (os.environ if environment is None else environment).get(settings.api_key_env, "").strip()
    if not value:
        return None
    if not _VISIBLE.fullmatch(value):
        raise UsageError(
            f"the value of {settings.api_key_env} cannot be sent: it has characters other than visible ASCII",
            code="live.key",
            path=settings.api_key_env,
            hint="look for a line break or a space inside of it",
        )
    return Key(value)
