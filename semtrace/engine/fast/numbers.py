"""The type of what the kernel works on."""

from __future__ import annotations

from typing import Any, Protocol, overload


class Numbers(Protocol):
    """A list of integers, or an array of one dimension: indexed by an integer it gives an integer."""

    @overload
    def __getitem__(self, at: int, /) -> int: ...

    @overload
    def __getitem__(self, at: slice, /) -> Any: ...

    def __setitem__(self, at: int, value: int, /) -> None: ...
