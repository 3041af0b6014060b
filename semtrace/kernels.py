"""Loops that are compiled where numba is installed, and run as plain Python where it is not, with the same result."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

WORTH_COMPILING: Final = 200_000
"""Steps of a loop from which on loading the compiler pays."""


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any] | None:
    try:
        import numba
    except ImportError:
        return None
    compiler: Any = numba.njit
    try:
        made: Callable[..., Any] = compiler(cache=True)(function)
    except RuntimeError:  # there is no folder in which it could be kept
        made = compiler(function)
    return made


def run(function: Callable[..., Any], steps: int, *arguments: Any) -> None:
    """Run a loop over one-dimensional arrays, some of which it writes to.

    Args:
        function: plain Python in numba's subset: it indexes its arguments, and returns nothing.
        steps: about how many steps it takes; short loops are not worth loading the compiler.
        arguments: arrays and numbers. Arrays that it writes to are changed in place.
    """
    fast = _compiled(function) if steps >= WORTH_COMPILING else None
    if fast is not None:
        fast(*arguments)
        return
    lists = [
        each.tolist() if isinstance(each, np.ndarray) else each for each in arguments
    ]  # lists index faster
    function(*lists)
    for given, computed in zip(arguments, lists, strict=True):
        if isinstance(given, np.ndarray) and given.flags.writeable:
            given[:] = computed
