"""The kernel compiled by numba, where that is installed; its functions stay plain Python, for where it is not.

numba's cache would not see a change in a function that a cached one calls. So what is cached is the entry alone, and its
cache key has a digest of all that the kernel is made of. It lies beside this module, or, where that cannot be written to, in
the user's folder for caches; `NUMBA_CACHE_DIR` names another. Processes that need it at once wait for the one that makes it.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import inspect
import types
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from semtrace.engine.fast.linking import for_linking_only, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


_OPTIONS: Final = {"_nrt": False, "error_model": "numpy", "no_rewrites": True}
"""References are not counted: the kernel makes no arrays. Nor are expressions rewritten: it has none of whole arrays, and numba
would look for them for half a second."""


@functools.cache
def compiled() -> Callable[[Any, Any, Any], int] | None:
    """`loop.run`, compiled for arrays; None without numba."""
    try:
        import numba
    except ImportError:
        return None
    compiler: Any = numba.njit
    plain = _entry(_digest())
    space = {**globals(), "_run": None}
    entry = types.FunctionType(plain.__code__, space, "entry", closure=plain.__closure__)
    entry.__module__, entry.__qualname__ = __name__, "entry"
    try:
        kernel: Any = compiler(cache=True, **_OPTIONS)(entry)
        folder = kernel.stats.cache_path
    except RuntimeError:  # there is no folder that can be written to
        kernel, folder = compiler(**_OPTIONS)(entry), None
    signature = f"int64{_signature(loop.run)}"
    with _alone(folder):
        if not load(kernel, signature):
            announce(kept=folder is not None)
            with _uncollected():
                space["_run"] = _translated(compiler)
                try:
                    kernel.compile(signature)
                except OSError:
                    if not kernel.signatures:
                        raise
                    # Else it is compiled, and could not be kept.
    kernel.disable_compile()
    found: Callable[[Any, Any, Any], int] = kernel
    return found


def _translated(compiler: Any) -> Any:
    """`loop.run` as numba calls it, with all that it calls."""
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
        made[id(function)] = compiler(copy, no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)
    for space in spaces.values():
        space.update({name: made[id(value)] for name, value in space.items() if id(value) in made})
    with for_linking_only():
        # Each function once, in the order of definition, callees first: else numba would compile one more for every
        # constant that it is called with.
        for function in functions:
            made[id(function)].compile(_signature(function))
            made[id(function)].disable_compile()
    return made[id(loop.run)]


def announce(*, kept: bool) -> None:
    """Say in one line on standard error, or to the logger `semtrace`, why nothing seems to happen for some seconds.

    Args:
        kept: whether what is compiled is there for the next process.
    """
    import logging

    how = "once" if kept else "for this process only: no folder can be written to (NUMBA_CACHE_DIR names one)"
    logging.getLogger("semtrace").warning(
        "compiling the engine for this machine, %s: five to twenty seconds", how
    )


@contextmanager
def _alone(folder: str | None) -> Iterator[None]:
    """Keep other processes from compiling the same meanwhile; where files cannot be locked, each of them would."""
    with ExitStack() as held:
        if folder is not None:
            with suppress(ImportError, OSError):
                import fcntl

                lock = held.enter_context((Path(folder) / "compiling.lock").open("wb"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage meanwhile: compiling makes millions of objects, and going through them takes a sixth of its time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


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
