"""What a person who waits for the compiler is told, and `python -m xpgrad warm`."""

import io
import os
import subprocess
import sys
import time
import types

import pytest

from xpgrad import __main__ as command_line
from xpgrad._operators.units import UNITS
from xpgrad.cli import warm_works
from xpgrad.engine.compiled import machine
from xpgrad.engine.process import compile_message


class Terminal(io.StringIO):
    def isatty(self):
        super().isatty()  # an error where it is closed
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A terminal in the place of the error stream, before which a person does not wait for long."""
    stream = Terminal()
    monkeypatch.setattr(
        compile_message, "sys", types.SimpleNamespace(stderr=stream, modules={})
    )  # pytest sets stderr
    monkeypatch.setattr(compile_message, "_PATIENCE", 0.05)
    monkeypatch.setattr(compile_message, "_LOADING", 0.0)
    monkeypatch.delenv("XPGRAD_NOTICE", raising=False)
    return stream


def wait_for(stream):
    """The text, as soon as there is one."""
    for _ in range(500):
        if stream.getvalue():
            break
        time.sleep(0.01)
    return stream.getvalue()


def test_it_is_told_once(terminal):
    compiling = compile_message._CompileMessage()
    for _ in range(2):
        with compiling(), compiling():  # what is compiled may load something itself
            assert "compiling" in wait_for(terminal)
    assert terminal.getvalue().count("\n") == 1
    assert "XPGRAD_NOTICE=0" in terminal.getvalue()


def test_many_short_ones_add_up(terminal, monkeypatch):
    monkeypatch.setattr(compile_message, "_PATIENCE", 3600.0)
    compiling = compile_message._CompileMessage()
    with compiling():
        time.sleep(0.01)
    assert not terminal.getvalue()
    monkeypatch.setattr(compile_message, "_PATIENCE", 0.01)
    with compiling():
        assert wait_for(terminal)


def test_what_comes_from_the_cache_does_not_count(terminal, monkeypatch):
    monkeypatch.setattr(compile_message, "_LOADING", 3600.0)
    compiling = compile_message._CompileMessage()
    with compiling():
        pass
    assert compiling._spent == 0


@pytest.mark.parametrize("why", ["no terminal", "silenced", "no stream", "closed"])
def test_nothing_is_told(why, terminal, monkeypatch):
    if why == "silenced":
        monkeypatch.setenv("XPGRAD_NOTICE", "0")
    elif why == "no terminal":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    elif why == "closed":
        terminal.close()
    else:
        monkeypatch.setattr(compile_message.sys, "stderr", None)
    compiling = compile_message._CompileMessage()
    with compiling():
        time.sleep(0.1)
    assert not compiling._told
    assert why == "closed" or not terminal.getvalue()


class KernelStream(io.TextIOBase):
    """Like the stream of a kernel: no terminal, and no file."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text
        return len(text)

    def getvalue(self):
        return self.text


def _ipython(shell):
    return {"IPython": types.SimpleNamespace(get_ipython=lambda: shell)}


def test_it_is_told_in_a_notebook(terminal, monkeypatch):
    stream = KernelStream()
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setattr(compile_message, "sys", types.SimpleNamespace(stderr=stream, modules=_ipython(shell)))
    with compile_message._CompileMessage()():
        assert "compiling" in wait_for(stream)


@pytest.mark.parametrize("why", ["no IPython", "no shell", "no kernel", "captured", "a file"])
def test_nothing_is_told_without_a_notebook(why, terminal, monkeypatch):
    stream = {"captured": io.StringIO(), "a file": io.TextIOWrapper(io.BytesIO())}.get(why, KernelStream())
    shells = {"no shell": None, "no kernel": types.SimpleNamespace()}
    shell = shells.get(why, types.SimpleNamespace(kernel=object()))
    modules = {} if why == "no IPython" else _ipython(shell)
    monkeypatch.setattr(compile_message, "sys", types.SimpleNamespace(stderr=stream, modules=modules))
    compiling = compile_message._CompileMessage()
    with compiling():
        time.sleep(0.1)
    assert not compiling._told


def test_a_kernel_shows_it(tmp_path):
    """A real one: the notice is in the cell's output."""
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    import nbformat

    code = (
        "import time\nfrom xpgrad.engine.process import compile_message\ncompile_message._PATIENCE = 0.1\n"
        "with compile_message.compiling():\n    time.sleep(1)"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = "".join(output.get("text", "") for output in notebook.cells[0].outputs)
    assert shown.startswith("xpgrad: compiling for this machine")


def test_an_error_passes_through(terminal):
    compiling = compile_message._CompileMessage()
    with pytest.raises(ZeroDivisionError), compiling():
        raise ZeroDivisionError
    assert not compiling._running


# --- python -m xpgrad warm ------------------------------------------------------------------------------


def test_a_later_process_compiles_nothing(tmp_path):
    """All files that it needs are there, and it writes no others."""
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")
    environment = {**os.environ, "XPGRAD_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-m", "xpgrad", "warm", "losses", "--arrays", "numpy"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "losses" in done.stdout
    assert str(tmp_path) in done.stdout
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert before
    code = """
import numpy as np, xpgrad
x, t = np.zeros((4, 7), np.float32), np.zeros(4, np.int64)
loss = xpgrad.softmax_cross_entropy(x, t)
xpgrad.softmax_cross_entropy_grad(np.ones_like(loss), x, t)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment, check=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before


def test_what_cannot_be_compiled(monkeypatch, capsys):
    assert command_line.main(["warm", "lstn"]) == 2
    assert "no operator is called 'lstn', expected names of lstm, " in capsys.readouterr().err
    monkeypatch.setenv("XPGRAD_JIT", "0")
    assert command_line.main(["warm", "lstm"]) == 1
    assert "XPGRAD_JIT=0" in capsys.readouterr().err


def test_what_cannot_be_kept(monkeypatch, capsys, tmp_path):
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XPGRAD_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert command_line.main(["warm", "losses"]) == 1
    assert f"nothing can be kept in {tmp_path / 'file' / 'cache'} (" in capsys.readouterr().err


def test_what_is_not_installed(monkeypatch, capsys):
    """An error where it was asked for, else nothing to compile."""
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: nothing is compiled")

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delenv("XPGRAD_NOTICE", raising=False)
    assert command_line.main(["warm", "lstm", "--arrays", "torch"]) == 1
    assert "torch is not installed" in capsys.readouterr().err


@pytest.mark.parametrize("operator", warm_works.RECURRENT)
def test_threads_share_columns_in_one_work(operator):
    """These loops are code of their own; see `machine._share_columns`."""
    gates = UNITS[warm_works.RECURRENT[operator].name].rows
    shapes = [work.shape for work in warm_works.WORKS[operator]("float32")]
    height, threads = 4, 2  # of the lowest tall tile
    saved = [(height // 2) * (1 - 1 / threads) * gates * H * H for _, N, _, H in shapes if N == 1]
    assert max(saved) >= machine._SAVED


@pytest.mark.parametrize("operator", warm_works.WORKS)
def test_every_operator_has_works_of_a_dtype(operator):
    works = list(warm_works.WORKS[operator]("float64"))
    assert works
    assert all(work.dtype == "float64" for work in works)
