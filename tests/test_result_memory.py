"""Memory of large results that is used again."""

from __future__ import annotations

import copy
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
    monkeypatch.setattr(memory, "_results", memory._ResultMemory())


def kept():
    own = memory._results
    sizes = [(one.kept, len(one), room) for room, each in own._kept.items() for one in each]
    assert own._bytes == sum(room for _, room, _ in sizes)
    assert all(room == of_list for _, room, of_list in sizes)
    return [room for _, room, _ in sorted(sizes)]


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


def test_what_came_last_is_kept():
    arrays = [memory.result_array((n,), FLOAT) for n in (1000, 900, 800)]
    while arrays:
        arrays.pop()  # 3200 bytes, then 3600, then 4000
    assert kept() == [4096, 4096]
    large = memory.result_array((3000,), FLOAT)
    del large
    assert kept() == []  # it is larger than all that is kept


def test_a_finalizer_within_another_step():
    """It gets no memory that is kept, and what it frees is not kept: nothing waits for the step."""
    first, second = (memory.result_array((300,), FLOAT) for _ in range(2))
    address = first.ctypes.data
    del first
    with memory._results._lock:
        del second
        assert memory.result_array((300,), FLOAT).ctypes.data != address
    assert kept() == [1280]
    assert memory.result_array((300,), FLOAT).ctypes.data == address


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
    taken, take = [], memory._results.take
    monkeypatch.setattr(memory._results, "take", lambda size: taken.append(take(size)) or taken[-1])
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
