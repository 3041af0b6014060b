"""Media types that have a meaning in the standard, and the content level that each kind of content needs."""

from __future__ import annotations

from typing import Final

from semtrace.records.chat import JSON_TYPE, MESSAGE_TYPE, TEXT_TYPE
from semtrace.records.enums import ContentLevel

TOKEN_IDS_TYPE: Final = "application/vnd.semtrace.token-ids"  # noqa: S105  # the tokens of a model
"""Token ids: uint32, little-endian, without gaps."""
BLOCK_IDS_TYPE: Final = "application/vnd.semtrace.block-ids"
"""Block ids: uint64, little-endian, without gaps."""

__all__ = ["BLOCK_IDS_TYPE", "JSON_TYPE", "MESSAGE_TYPE", "TEXT_TYPE", "TOKEN_IDS_TYPE", "content_level"]


def content_level(media_type: str) -> ContentLevel:
    """The level, the least open one, at which content of this type may be in a bundle."""
    if media_type == BLOCK_IDS_TYPE:
        return ContentLevel.BLOCK_HASHES
    if media_type == TOKEN_IDS_TYPE:
        return ContentLevel.TOKEN_IDS
    return ContentLevel.TEXT
