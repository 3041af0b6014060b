"""The kernel compiled by numba, where that is installed; its functions stay plain Python, for where it is not.

numba's cache would not see a change in a function that a cached one calls. So what is cached is the entry alone, and its
cache key has a digest of all that the kernel is made of.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semtrace.engine import cost
from semtrace.engine.fast import (
    admission,
    ahead_runs,
    asynchronous,
    commands,
    heap,
    layout,
    loop,
    news,
    pool,
    queue,
    release,
    runs,
    scheduler,
    wheel,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULES = (
    heap, news, pool, queue, release, wheel, runs, admission, scheduler, ahead_runs, asynchronous, commands, loop,
)  # fmt: skip
_ARRAYS = {
    "s": "int64[::1]",
    "b": "uint32[::1]",
    "f": "float64[::1]",
    "ints": "int64[::1]",
    "floats": "float64[::1]",
    "geometry": "int64[::1]",
}


@functools.cache
def compiled() -> Callable[[Any, Any, Any], int] | None:
    """`loop.run`, compiled for arrays; None without numba."""
    try:
        import numba
    except ImportError:
        return None
    compiler: Any = numba.njit
    options = {
        "_nrt": False,
        "error_model": "numpy",
    }  # references are not counted: the kernel makes no arrays
    functions: list[Any] = [cost.step_ns]
    for module in _MODULES:
        functions += [
            value
            for value in vars(module).values()
            if isinstance(value, types.FunctionType) and value.__module__ == module.__name__
        ]
    spaces = {module.__name__: dict(vars(module)) for module in (cost, *_MODULES)}
    made: dict[int, Any] = {}
    for function in functions:
        copy = types.FunctionType(function.__code__, spaces[function.__module__], function.__name__)
        copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
        made[id(function)] = compiler(copy, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)
    for space in spaces.values():
        space.update({name: made[id(value)] for name, value in space.items() if id(value) in made})
    run = made[id(loop.run)]
    find = run.get_call_template

    def compile_all(*arguments: Any) -> Any:
        # Only asked for where the cache has no entry. Each function once, in the order of definition, callees first: else
        # numba would compile one more for every constant that it is called with.
        run.get_call_template = find
        for function in functions:
            made[id(function)].compile(_signature(function))
            made[id(function)].disable_compile()
        return find(*arguments)

    run.get_call_template = compile_all
    plain = _entry(_digest())
    entry = types.FunctionType(plain.__code__, {**globals(), "_run": run}, "entry", closure=plain.__closure__)
    entry.__module__, entry.__qualname__ = __name__, "entry"
    kernel: Callable[[Any, Any, Any], int] = compiler(f"int64{_signature(loop.run)}", cache=True, **options)(
        entry
    )
    return kernel


def _signature(function: Callable[..., Any]) -> str:
    """The types of a function's arguments: one set for each, whatever constants it is called with."""
    kinds = {"int": "int64", "bool": "boolean"}
    names = inspect.signature(function).parameters.values()
    return f"({''.join(f'{_ARRAYS.get(each.name) or kinds[each.annotation]}, ' for each in names)})"


_run = loop.run


def _entry(digest: int) -> Any:
    def entry(s: Any, b: Any, f: Any) -> int:
        return _run(s, b, f) if digest != 0 else 0  # what a function closes over is part of its cache key

    return entry


def _digest() -> int:
    """A number that changes with the source of the kernel, and with whether bounds are checked."""
    from numba import config

    checks: Any = config
    digest = hashlib.sha256(str(checks.BOUNDSCHECK).encode())
    for module in (cost, layout, *_MODULES):
        digest.update(Path(str(module.__file__)).read_bytes())
    return int.from_bytes(digest.digest()[:7], "big") + 1
