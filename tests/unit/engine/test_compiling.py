"""The compiled engine is compiled once, which is told in one line, and then loaded."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from semtrace.engine.fast import compiler

numba = pytest.importorskip("numba")

ARRAYS = (np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.uint32), np.zeros(1))
LINE = "compiling the engine for this machine, "


@pytest.fixture
def small(monkeypatch, tmp_path):
    """A kernel of two small functions in place of the engine, kept in a folder of its own."""

    def translated(compile_):
        options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **compiler._OPTIONS}
        with compiler.for_linking_only():
            inner = compile_("int64(int64)", **options)(lambda count: count + 6)
            return compile_("int64(int64[::1], uint32[::1], float64[::1])", **options)(
                lambda s, b, f: inner(len(s) + len(b) + len(f) - 2)
            )

    monkeypatch.setattr(compiler, "_digest", lambda: 1)
    monkeypatch.setattr(compiler, "_translated", translated)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))


def test_what_is_compiled_is_announced_once_and_then_loaded(small, monkeypatch, caplog):
    assert compiler.compiled.__wrapped__()(*ARRAYS) == 7
    assert [each.getMessage() for each in caplog.records] == [f"{LINE}once: five to twenty seconds"]
    caplog.clear()
    monkeypatch.setattr(compiler, "_translated", None)  # it is not made again
    kernel = compiler.compiled.__wrapped__()
    assert kernel(*ARRAYS) == 7
    assert not kernel.stats.cache_misses
    assert not caplog.records


def test_another_source_is_compiled_again(small, monkeypatch, caplog):
    compiler.compiled.__wrapped__()
    monkeypatch.setattr(compiler, "_digest", lambda: 2)
    compiler.compiled.__wrapped__()
    assert len(caplog.records) == 2


def test_where_nothing_can_be_kept_it_is_compiled_for_the_process(small, monkeypatch, caplog):
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    assert compiler.compiled.__wrapped__()(*ARRAYS) == 7
    assert [each.getMessage().startswith(f"{LINE}for this process only") for each in caplog.records] == [True]


def test_functions_only_linked_have_no_machine_code_and_others_do(small):
    with compiler.for_linking_only():
        linked = numba.njit("int64(int64)", no_cpython_wrapper=True)(lambda count: count + 1)
    usual = numba.njit("int64(int64)")(lambda count: linked(count) + 1)
    assert usual(1) == 3
    (one,), (other,) = linked.overloads.values(), usual.overloads.values()
    assert one.library.get_pointer_to_function(one.fndesc.mangled_name) == 0
    assert other.library.get_pointer_to_function(other.fndesc.mangled_name) != 0


def test_without_the_inner_parts_of_numba_it_is_compiled_all_the_same(small, monkeypatch):
    monkeypatch.setattr("semtrace.engine.fast.linking._USED", {"a name that it does not have"})
    assert compiler.compiled.__wrapped__()(*ARRAYS) == 7


def test_processes_compile_one_after_the_other(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "compiling.lock"
    with compiler._alone(str(tmp_path)), path.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with compiler._alone(str(tmp_path / "missing")):  # where there is no folder, none waits
        pass


def test_the_line_goes_to_standard_error():
    script = "from semtrace.engine.fast.compiler import announce; announce(kept=True)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    assert ran.stderr == f"{LINE}once: five to twenty seconds\n"
