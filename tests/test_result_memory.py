"""Memory of large results that is used again."""

from __future__ import annotations

import copy
import sys
import threading

import numpy as np
import pytest

import xpgrad
from xpgrad.engine.process import memory

FLOAT = np.dtype(np.float32)


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    monkeypatch.setattr(memory, "LARGE", 1_000)
    monkeypatch.setattr(memory, "_RESULTS_KEPT", 10_000)
    monkeypatch.setattr(memory, "_results", [])


def kept():
    """The sizes of memory that is free, in the order in which it was lent."""
    if not memory._results:
        return []
    (own,) = memory._results
    own._collect_ended()
    free = [loan for size, loans in own._free.items() for loan in loans if len(loan.memory) == size]
    assert len(free) == sum(map(len, own._free.values()))
    loans = [*own._loans.values()]
    assert [loan for loan in loans if loan() is None] == [loan for loan in loans if loan in free]
    assert {*map(id, free)} <= {*own._loans}
    assert own.bytes == sum(len(loan.memory) for loan in loans) <= memory._RESULTS_KEPT
    return [len(loan.memory) for loan in loans if loan in free]


def test_memory_comes_back_with_the_last_view():
    array = memory.result_array((30, 10), FLOAT)
    assert (array.shape, array.dtype) == ((30, 10), FLOAT)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    address, view = array.ctypes.data, array[3, ::2]
    assert address % memory.LINE == 0
    del array
    assert kept() == []
    del view
    assert kept() == [1280]  # rounded up
    smaller = memory.result_array((2, 10, 10), np.dtype(np.float64))
    assert smaller.ctypes.data != address  # 1600 bytes have no room in 1280
    again = memory.result_array((15, 10), np.dtype(np.float64))
    assert again.ctypes.data == address
    assert kept() == []


def test_views_and_copies_of_a_base_give_nothing_back(capsys):
    """Nobody needs a result's base, but anybody may look at it."""
    array = memory.result_array((30, 10), FLOAT)
    part, same = array.base[:5], copy.copy(array.base)
    del same
    assert kept() == []
    del array
    assert kept() == []
    del part
    assert kept() == [1280]
    assert not capsys.readouterr().err


def test_a_small_result_has_its_own():
    array = memory.result_array((10, 10), FLOAT)
    assert array.base is None
    del array
    assert kept() == []


def test_results_begin_with_a_line(monkeypatch):
    """TensorFlow copies arrays that do not."""
    monkeypatch.setattr(memory, "LARGE", 1 << 22)
    held = [memory.result_array((n, 3), FLOAT) for n in range(400, 500)]
    assert {array.ctypes.data % memory.LINE for array in held} == {0}
    assert all(array.flags.c_contiguous and array.dtype == FLOAT for array in held)


def test_the_smallest_that_has_room_is_taken_and_none_twice_as_large():
    arrays = [memory.result_array((n,), FLOAT) for n in (900, 500, 300)]
    addresses = [array.ctypes.data for array in arrays]
    while arrays:
        del arrays[0]
    assert kept() == [4096, 2048, 1280]
    held = [memory.result_array((n,), FLOAT) for n in (260, 400, 440, 520)]
    assert [array.ctypes.data for array in held[:2]] == [addresses[2], addresses[1]]
    assert held[2].ctypes.data not in addresses
    assert held[3].ctypes.data == addresses[0]


def test_what_was_lent_last_is_kept():
    arrays = [memory.result_array((n,), FLOAT) for n in (1000, 800, 1000)]
    del arrays[::2]  # the first is lent no longer, and the last
    assert kept() == [4096]
    held = memory.result_array((900,), FLOAT)  # the last one's memory
    assert kept() == []
    more = memory.result_array((1000,), FLOAT)  # for which the one of 800 is forgotten
    arrays.clear()
    assert kept() == []
    large = memory.result_array((3000,), FLOAT)  # more than all that is kept
    del large, held, more
    assert kept() == [4096, 4096]


def test_what_is_free_goes_too():
    arrays = [memory.result_array((n,), FLOAT) for n in (1000, 800)]
    arrays.clear()
    assert kept() == [4096, 3584]
    held = [memory.result_array((n,), FLOAT) for n in (300, 400, 300)]
    assert kept() == [3584]
    del held
    assert kept() == [3584, 1280, 1792, 1280]


def test_freed_memory_is_used_while_it_is_in_the_caches():
    arrays = [memory.result_array((300,), FLOAT) for _ in range(3)]
    addresses = [array.ctypes.data for array in arrays]
    for k in (1, 2, 0):
        arrays[k] = None
    assert memory.result_array((300,), FLOAT).ctypes.data == addresses[0]
    held = [memory.result_array((300,), FLOAT) for _ in range(3)]
    assert [array.ctypes.data for array in held] == [addresses[k] for k in (0, 2, 1)]


def test_a_finalizer_within_another_step(monkeypatch):
    """It gets memory of its own: nothing waits for the step. Then the memory of one of them is kept."""
    arrays = [memory.result_array((300,), FLOAT) for _ in range(3)]
    addresses = [array.ctypes.data for array in arrays]
    arrays.clear()
    inner, taken = [], memory._ResultMemory._taken

    def interrupted(own, size):
        monkeypatch.setattr(memory._ResultMemory, "_taken", taken)
        inner.append(memory.result_array((300,), FLOAT))
        return taken(own, size)

    monkeypatch.setattr(memory._ResultMemory, "_taken", interrupted)
    outer = memory.result_array((300,), FLOAT)
    assert outer.ctypes.data in addresses
    assert inner[0].ctypes.data not in addresses
    assert kept() == [1280, 1280]
    inner.clear()
    assert kept() == [1280, 1280]


def test_a_lease_that_ends_while_it_is_forgotten(monkeypatch):
    arrays = [memory.result_array((n,), FLOAT) for n in (1000, 800)]
    taken = memory._ResultMemory._taken

    def interrupted(own, size):
        arrays.clear()
        return taken(own, size)

    monkeypatch.setattr(memory._ResultMemory, "_taken", interrupted)
    held = memory.result_array((900,), FLOAT)  # for which the one of 1000 is forgotten
    assert kept() == [3584]
    del held
    assert kept() == [3584, 4096]


def test_no_code_of_ours_runs_when_a_lease_ends():
    """An interrupt that came there would be lost: Python only prints what a finalizer raises."""
    frames = []
    array = memory.result_array((300,), FLOAT)
    sys.setprofile(lambda frame, event, argument: frames.append((event, argument)))
    del array
    sys.setprofile(None)
    assert [event for event, argument in frames if argument is not sys.setprofile] == []
    assert kept() == [1280]


def test_an_interrupted_step_loses_memory_alone(monkeypatch):
    held = memory.result_array((300,), FLOAT)
    with monkeypatch.context() as patch:
        patch.setattr(memory._ResultMemory, "_taken", lambda self, size: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            memory.result_array((300,), FLOAT)
    del held
    assert kept() == []
    for _ in range(2):
        memory.result_array((300,), FLOAT)
    assert kept() == [1280]


def test_threads_share_no_memory():
    wrong = []

    def work(number):
        for _ in range(300):
            array = memory.result_array((300,), FLOAT)
            array[:] = number
            other = memory.result_array((400,), FLOAT)
            other[:] = -number
            if not ((array == number).all() and (other == -number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    kept()


def test_training_steps_use_it(monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: there are no programs")
    import xpgrad_torch

    monkeypatch.setattr(xpgrad_torch.engine, "LARGE", 0)  # these are in PyTorch's memory
    monkeypatch.setattr(memory, "_RESULTS_KEPT", 1 << 20)
    taken, take = [], memory._ResultMemory._taken
    monkeypatch.setattr(
        memory._ResultMemory, "_taken", lambda own, size: taken.append(take(own, size)) or taken[-1]
    )
    layers = [lib.LSTM(5, 8) for lib in (xpgrad_torch, torch.nn)]
    layers[0].load_state_dict(layers[1].state_dict())
    outputs = []
    for _ in range(4):
        X = torch.randn(9, 4, 5)
        pair = []
        for layer in layers:
            layer.zero_grad()
            pair.append(layer(X)[0])
            pair[-1].square().sum().backward()
        outputs.append(pair)  # held, so its memory is not used again
        for ours, theirs in zip(*(layer.parameters() for layer in layers), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
    for ours, theirs in outputs:
        torch.testing.assert_close(ours, theirs)
    assert any(one is not None for one in taken)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("function", [xpgrad.relu, xpgrad.softmax], ids=["relu", "softmax"])
def test_large_results_of_activations_use_it(function, library, monkeypatch):
    pytest.importorskip("llvmlite", reason="llvmlite is not installed: blocks of NumPy's results are small")
    x = np.linspace(-1, 1, 400, dtype="float32").reshape(4, 100)
    monkeypatch.setattr(memory, "LARGE", 1_600)
    if library == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed: there are no tensors")
        import xpgrad_torch

        monkeypatch.setattr(xpgrad_torch.engine, "LARGE", 1_600)
        x = torch.from_numpy(x)
    expected, first = np.asarray(function(x)).copy(), function(x)
    assert function(x[:3]).shape == (3, 100)  # smaller: its memory is the C library's
    held = function(x)
    assert kept() == []
    del first
    assert kept() == [1792]
    again = function(x)
    assert kept() == []
    for one in (held, again):
        np.testing.assert_array_equal(np.asarray(one), expected)
