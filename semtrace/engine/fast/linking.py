"""What numba does slower than it must: compiling many functions into one, and loading one that is cached.

Each function is translated by itself here, and all are optimised together, once.

numba optimises each function that it compiles together with all that it calls, and makes machine code of it. For a kernel of
a hundred functions, of which only one is ever called from Python, that is nearly half of the time. Here, functions are
linked into their callers as they are, and what calls the outermost is optimised as a whole.
"""
# ruff: noqa: SLF001  # numba offers nothing public for this

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_USED = {
    "_linking_libraries", "_reload_init", "_final_module", "_get_module_for_linking", "_finalize_dynamic_globals", "_finalized",
}  # fmt: skip


@contextmanager
def for_linking_only() -> Iterator[None]:
    """What numba compiles in this context gets no machine code: it can only be called by functions compiled later.

    Where numba's inner parts are not as they are known here, functions are compiled as usual.
    """
    generator = _generator()
    if generator is None:
        yield
        return
    from numba.core.compiler_lock import global_compiler_lock

    class NoAddresses:
        """The code generator, without telling machine code where its function's environment is."""

        def __getattr__(self, name: str) -> Any:
            return getattr(generator, name)

        def set_env(self, name: str, env: object) -> None:
            """There is no machine code."""

    usual: Any = generator._library_class

    class Linked(usual):  # type: ignore[misc]  # known only when it runs
        codegen = NoAddresses()

        def finalize(self) -> None:
            for library in dict.fromkeys(self._linking_libraries):
                self._reload_init.update(library._reload_init)
                self._final_module.link_in(library._get_module_for_linking(), preserve=True)
            self._finalize_dynamic_globals()
            self._finalized = True

        def get_pointer_to_function(self, name: str) -> int:
            del name
            return 0

    with global_compiler_lock:  # nobody else compiles meanwhile
        generator._library_class = Linked
        try:
            yield
        finally:
            generator._library_class = usual


def load(kernel: Any, signature: str) -> bool:
    """Load a cached function of numba's, without all that numba prepares for compiling another. False if it is not cached."""
    cache, target = kernel._cache, kernel.targetctx
    find = getattr(cache, "_load_overload", None)
    if find is None:  # there is no cache, or another one than is known here, which prepares everything
        find = cache.load_overload
    else:
        from numba.core.runtime.nrt import rtsys

        rtsys.initialize(target)  # machine code that Python calls may refer to it
    found = find(signature, target)
    if found is None:
        return False
    kernel.add_overload(found)
    return True


def _generator() -> Any:
    """The code generator of numba, None if it is not as it is known here."""
    try:
        from numba.core.registry import cpu_target

        generator: Any = cpu_target.target_context.codegen()
        has = {*dir(generator.create_library("probe"))}
    except (ImportError, AttributeError, TypeError):
        return None
    return generator if has >= _USED and hasattr(generator, "set_env") else None
