"""xpgrad_keras beside Keras: layers, masks, wrappers, files, swap. The backend is that of the process.

`test_keras_backends` runs this file on the other backends.
"""

from __future__ import annotations

import copy
import doctest
import importlib
import os
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")

from keras import layers  # noqa: E402

import xpgrad_keras  # noqa: E402
from keras_gradients import BACKEND, flat, pulled_back  # noqa: E402
from xpgrad.engine.process.memory import address_of  # noqa: E402
from xpgrad_keras import _calls  # noqa: E402
from xpgrad_keras import layers as ours_module  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # of Keras and its backends

KINDS = {"LSTM": xpgrad_keras.LSTM, "GRU": xpgrad_keras.GRU, "SimpleRNN": xpgrad_keras.SimpleRNN}
N, T, I = 4, 6, 3
TOLERANCE = {"float32": 1e-5, "float64": 1e-10, "float16": 2e-2, "bfloat16": 1e-1}

MASKS = {
    "none": None,
    "prefix": np.arange(T) < np.array([6, 3, 1, 0])[:, None],
    "suffix": np.arange(T) >= np.array([0, 3, 5, 6])[:, None],
    "holes": np.array([[1, 0, 1, 1, 0, 1], [0, 0, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1], [0] * 6], bool),
}


@pytest.fixture(autouse=True)
def nothing_said():
    """Each test hears each reason for the first time."""
    ours_module._said.clear()


@pytest.fixture
def doubles(monkeypatch):
    """Keras multiplies float64 in float32: its loops would be wrong to 1e-7."""
    from keras.src import backend

    module = importlib.import_module("jax.numpy" if BACKEND == "jax" else BACKEND)
    convert = keras.ops.convert_to_tensor
    monkeypatch.setattr(backend.numpy, "matmul", lambda x, y: module.matmul(convert(x), convert(y)))


@pytest.fixture
def kernels_only(monkeypatch):
    """Keras' own loops fail where a kernel should run."""

    def loop(*args, **kwargs):
        raise AssertionError("Keras' own loop ran")

    return lambda: monkeypatch.setattr(layers.RNN, "inner_loop", loop)


def _pair(kind, **options):
    """Keras' layer and ours, with the same weights, biases other than zero."""
    theirs = getattr(layers, kind)(**options)
    theirs.build((N, T, I))
    rng = np.random.default_rng(3)
    theirs.set_weights([0.5 * rng.normal(size=w.shape).astype(w.dtype) for w in theirs.get_weights()])
    ours = KINDS[kind](**options)
    ours.build((N, T, I))
    ours.set_weights(theirs.get_weights())
    return theirs, ours


def _input(dtype="float32", *shape):
    return np.random.default_rng(1).normal(size=shape or (N, T, I)).astype(dtype)


def _close(found, expected, dtype="float32", tolerance=None):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        scale = max(1.0, float(np.abs(other.astype("float64")).max(initial=0)))
        error = np.abs(one.astype("float64") - other.astype("float64")).max(initial=0)
        assert error <= (tolerance or TOLERANCE[dtype]) * scale, error


@pytest.mark.parametrize(
    ("kind", "options"), [("SimpleRNN", {}), ("GRU", {"recurrent_activation": "sigmoid"})]
)
@pytest.mark.parametrize("number", range(len(_calls._ONNX)))
def test_every_activation(number, kind, options, kernels_only):
    theirs, ours = _pair(kind, units=4, activation=list(_calls._ONNX)[number], **options)
    X = _input()
    expected = np.asarray(keras.ops.convert_to_numpy(theirs(X)))
    kernels_only()
    _close([np.asarray(keras.ops.convert_to_numpy(ours(X)))], [expected])


def _drawn(number):
    """Options of a layer and of its call."""
    rng = np.random.default_rng(number)
    kind = list(KINDS)[number % 3]
    dtype = ("float64", "float32")[number // 3 % 2]
    if BACKEND == "jax":  # an option of the process
        import jax

        dtype = dtype if jax.config.jax_enable_x64 else "float32"
    pick = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    activations = ("tanh", "sigmoid", "relu", "hard_sigmoid", "linear", "softsign", "elu")
    options = {
        "units": int(rng.integers(1, 6)),
        "activation": pick(*activations),
        "use_bias": bool(rng.integers(4)),
        "return_sequences": bool(rng.integers(2)),
        "return_state": bool(rng.integers(2)),
        "go_backwards": bool(rng.integers(2)),
        "zero_output_for_mask": bool(rng.integers(2)),
        "dropout": pick(0.0, 0.4),
        "seed": 7,
        "dtype": dtype,
    }
    if kind != "SimpleRNN":
        options["recurrent_activation"] = pick("sigmoid", "hard_sigmoid", "tanh")
    if kind == "GRU":
        options["reset_after"] = bool(rng.integers(2))
    mask = pick(*MASKS)
    options["unroll"] = mask == "none" and bool(rng.integers(2))
    compiled = BACKEND != "torch" and bool(rng.integers(2))  # a test of its own compiles in PyTorch
    return kind, options, mask, bool(rng.integers(2)), bool(rng.integers(2)), compiled


@pytest.mark.parametrize("number", range(24))
def test_random_options(number, kernels_only, doubles):
    """Outputs, states and all gradients are those of Keras' layers."""
    kind, options, mask, has_state, training, compiled = _drawn(number)
    theirs, ours = _pair(kind, **options)
    dtype, units = options["dtype"], options["units"]
    states = [_input(dtype, N, units)] * (2 if kind == "LSTM" else 1) if has_state else None
    call = {"training": training} | ({} if mask == "none" else {"mask": MASKS[mask]})
    expected = pulled_back(theirs, _input(dtype), states, **call)
    kernels_only()
    found = pulled_back(ours, _input(dtype), states, compiled, **call)
    # in float32 are PyTorch's sixth in hardsigmoid, Keras' tanh on JAX, and its functions on NumPy
    rounded = {"torch": "hard_sigmoid", "jax": "tanh", "numpy": dtype}.get(BACKEND) in options.values()
    tolerance = max(TOLERANCE[dtype], 1e-6) if rounded else None
    _close(found[0], expected[0], dtype, tolerance)
    _close(found[1], expected[1], dtype, tolerance)


@pytest.mark.parametrize("mask", [name for name in MASKS if name != "none"])
@pytest.mark.parametrize("compiled", [False, True] if BACKEND != "torch" else [False])
@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("zero", [False, True])
def test_masks(mask, compiled, go_backwards, zero, kernels_only):
    """A mask of any form is honoured as Keras does it, by a kernel."""
    options = {"return_sequences": True, "return_state": True, "go_backwards": go_backwards}
    theirs, ours = _pair("GRU", units=5, zero_output_for_mask=zero, **options)
    states = [_input("float32", N, 5)]
    expected = pulled_back(theirs, _input(), states, mask=MASKS[mask])
    kernels_only()
    found = pulled_back(ours, _input(), states, compiled, mask=MASKS[mask])
    _close(found[0], expected[0])
    _close(found[1], expected[1])


def test_what_is_masked_has_no_effect():
    """NaN in masked steps reaches no result and no gradient."""
    _, ours = _pair("LSTM", units=5)
    x = _input()
    for mask in (MASKS["prefix"], MASKS["holes"]):
        expected = pulled_back(ours, np.where(mask[:, :, None], x, 0).astype("float32"), None, mask=mask)
        outputs, grads = pulled_back(
            ours, np.where(mask[:, :, None], x, np.nan).astype("float32"), None, mask=mask
        )
        _close(outputs, expected[0])
        _close(grads[1:], expected[1][1:])


@pytest.mark.parametrize("kind", KINDS)
def test_stateful(kind):
    """A layer goes on from its last state. Keras' own has no gradient on PyTorch, so it gets states."""
    theirs, _ = _pair(kind, units=5, return_state=True)
    _, ours = _pair(kind, units=5, return_state=True, stateful=True)
    states = [np.zeros((N, 5), "float32")] * (2 if kind == "LSTM" else 1)
    for _ in range(2):
        outputs, grads = pulled_back(theirs, _input(), states)
        if BACKEND == "jax":  # states are no variables of a stateless call
            _close([np.asarray(y) for y in ours(_input())], outputs)
        else:
            found = pulled_back(ours, _input(), None)
            _close(found[0], outputs)
            _close(found[1], [*grads[:1], *grads[1 + len(states) :]])
        states = outputs[1:]
    ours.reset_state()
    assert all(float(np.abs(keras.ops.convert_to_numpy(h)).max()) == 0 for h in ours.states)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy, kernels_only):
    theirs, ours = _pair("LSTM", units=5, dtype=policy, return_sequences=True)
    expected = pulled_back(theirs, _input(), None)
    kernels_only()
    outputs, grads = pulled_back(ours, _input(), None)
    assert str(outputs[0].dtype) == policy.removeprefix("mixed_")
    _close(outputs, expected[0], policy.removeprefix("mixed_"))
    _close(grads, expected[1], policy.removeprefix("mixed_"))


# ------------------------------------------------------------------------------------------ wrappers, models


def _same_model(build):
    """A model of Keras' layers, and one of ours with the same weights: `build` takes the classes."""
    theirs, ours = build(layers), build(xpgrad_keras)
    ours.set_weights(theirs.get_weights())
    return theirs, ours


@pytest.mark.parametrize("merge_mode", ["concat", "sum", "mul", "ave", None])
def test_bidirectional(merge_mode):
    mask = MASKS["holes"]
    for sequences in (False, True):

        def wrap(source, sequences=sequences):
            layer = layers.Bidirectional(source.LSTM(4, return_sequences=sequences), merge_mode=merge_mode)
            layer.build((N, T, I))
            return layer

        theirs, ours = _same_model(wrap)
        for options in ({}, {"mask": mask}):
            expected = pulled_back(theirs, _input(), None, **options)
            found = pulled_back(ours, _input(), None, **options)
            _close(found[0], expected[0])
            _close(found[1], expected[1])
        assert type(ours.forward_layer) is type(ours.backward_layer) is xpgrad_keras.LSTM


def _text_model(source):
    """Embedding with a mask, two directions, a layer in TimeDistributed behind."""
    return keras.Sequential(
        [
            layers.Input((T,), dtype="int32"),
            layers.Embedding(9, I, mask_zero=True),
            layers.Bidirectional(source.GRU(4, return_sequences=True)),
            source.SimpleRNN(3, return_sequences=True),
            layers.TimeDistributed(layers.Dense(2)),
            source.LSTM(3, kernel_constraint="unit_norm", bias_regularizer="l2"),
            layers.Dense(1),
        ]
    )


def _tokens():
    return np.array([[1, 2, 3, 4, 5, 6], [0, 0, 1, 2, 0, 3], [5, 6, 0, 0, 0, 0], [0, 0, 0, 7, 8, 1]])


def test_models_with_masks_and_wrappers():
    theirs, ours = _same_model(_text_model)
    _close([ours.predict(_tokens(), verbose=0)], [theirs.predict(_tokens(), verbose=0)])
    x = _input("float32", N, 2, T, I)
    inner = [keras.Sequential([layers.Input((2, T, I)), layers.TimeDistributed(source.LSTM(4))]) for source in
             (layers, xpgrad_keras)]  # fmt: skip
    inner[1].set_weights(inner[0].get_weights())
    _close([inner[1].predict(x, verbose=0)], [inner[0].predict(x, verbose=0)])
    masked = [keras.Sequential([layers.Input((T, I)), layers.Masking(), source.GRU(4)]) for source in
              (layers, xpgrad_keras)]  # fmt: skip
    masked[1].set_weights(masked[0].get_weights())
    x = _input() * MASKS["holes"][:, :, None]
    _close([masked[1].predict(x, verbose=0)], [masked[0].predict(x, verbose=0)])


needs_training = pytest.mark.skipif(BACKEND == "numpy", reason="Keras on NumPy has no gradients")


@needs_training
def test_fit_has_the_same_loss_curve():
    losses = []
    for model in _same_model(_text_model):
        model.compile(optimizer="adam", loss="mse")
        history = model.fit(_tokens(), np.ones((N, 1)), batch_size=2, epochs=4, shuffle=False, verbose=0)
        losses.append(np.array(history.history["loss"]))
    assert losses[0][-1] < losses[0][0]
    _close([losses[1]], [losses[0]])


# -------------------------------------------------------------------------------------- configuration, files


@pytest.mark.parametrize("kind", KINDS)
def test_configuration_names_and_types(kind):
    theirs, ours = _pair(kind, units=5, name="memory")
    assert isinstance(ours, getattr(layers, kind))
    assert ours.get_config() == theirs.get_config()
    assert [v.path for v in ours.weights] == [v.path for v in theirs.weights]
    assert ours.compute_output_shape((None, None, I)) == theirs.compute_output_shape((None, None, I))
    named = KINDS[kind](1).name, getattr(layers, kind)(1).name
    assert len({name.rstrip("_0123456789") for name in named}) == 1
    assert f"<xpgrad_keras.{kind} name=" in repr(ours)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(ours))
    assert type(copy) is KINDS[kind]


def test_a_symbolic_length_and_batch():
    for source in (layers, xpgrad_keras):
        inputs = keras.Input((None, I))
        assert source.LSTM(4, return_sequences=True)(inputs).shape == (None, None, 4)
        with pytest.raises(ValueError, match="units"):
            source.LSTM(0)


def test_files_load_in_both_directions(tmp_path):
    theirs, ours = _same_model(_text_model)
    expected = theirs.predict(_tokens(), verbose=0)
    ours.save(tmp_path / "ours.keras")
    theirs.save(tmp_path / "theirs.keras")
    ours.save_weights(tmp_path / "ours.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "ours.keras")
    assert type(loaded.layers[-1 - 1]) is xpgrad_keras.LSTM
    assert type(loaded.layers[1].forward_layer) is xpgrad_keras.GRU
    _close([loaded.predict(_tokens(), verbose=0)], [expected])
    swapped = keras.saving.load_model(tmp_path / "theirs.keras")
    assert type(swapped.layers[-2]) is layers.LSTM
    _close([xpgrad_keras.swap(swapped).predict(_tokens(), verbose=0)], [expected])
    fresh = _text_model(layers)
    fresh.load_weights(tmp_path / "ours.weights.h5")
    _close([fresh.predict(_tokens(), verbose=0)], [expected])


def test_a_file_loads_where_xpgrad_is_not(tmp_path):
    _, ours = _same_model(_text_model)
    ours.save(tmp_path / "ours.keras")
    np.save(tmp_path / "tokens.npy", _tokens())
    source, target = (str(tmp_path / name) for name in ("tokens.npy", "found.npy"))
    program = (
        "import sys, keras, numpy as np\n"
        f"model = keras.saving.load_model({str(tmp_path / 'ours.keras')!r})\n"
        "assert not any(name.startswith('xpgrad') for name in sys.modules)\n"
        "assert type(model.layers[-2]) is keras.layers.LSTM\n"
        f"np.save({target!r}, model.predict(np.load({source!r}), verbose=0))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "KERAS_BACKEND": "numpy"})
    _close([np.load(tmp_path / "found.npy")], [ours.predict(_tokens(), verbose=0)], "float32")


# ------------------------------------------------------------------------------------------ Keras' own loop


@pytest.mark.parametrize(
    ("kind", "options", "call", "said"),
    [
        ("GRU", {"activation": "gelu"}, {}, "activation gelu is none of ONNX's"),
        ("LSTM", {"recurrent_activation": "silu"}, {}, "activation silu is none of ONNX's"),
        ("GRU", {"recurrent_dropout": 0.3, "seed": 2}, {"training": True}, "recurrent_dropout is no option"),
        ("SimpleRNN", {"recurrent_dropout": 0.3, "seed": 2}, {"training": True}, "recurrent_dropout is no"),
    ],
)
def test_what_no_kernel_computes_is_keras_own_and_said_once(kind, options, call, said):
    theirs, ours = _pair(kind, units=5, **options)
    expected = pulled_back(theirs, _input(), None, **call)
    with pytest.warns(UserWarning, match=f"xpgrad_keras.{kind}: .*{said}"):
        found = pulled_back(ours, _input(), None, **call)
    _close(found[0], expected[0])
    _close(found[1], expected[1])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="xpgrad_keras")
        pulled_back(ours, _input(), None, **call)


def test_a_mask_in_an_unrolled_loop_is_keras_own():
    theirs, ours = _pair("LSTM", units=5, unroll=True)
    expected = pulled_back(theirs, _input(), None, mask=MASKS["holes"])
    with pytest.warns(UserWarning, match="unroll is True with a mask"):
        found = pulled_back(ours, _input(), None, mask=MASKS["holes"])
    _close(found[0], expected[0])


# ------------------------------------------------------------------------------------------ swap


class Own(keras.Model):
    """A subclassed model, with layers in a list and one that appears twice."""

    def __init__(self):
        super().__init__()
        self.blocks = [layers.LSTM(4, return_sequences=True, name="a"), layers.GRU(3, name="b")]
        self.again = self.blocks[0]
        self.out = layers.Dense(1)

    def call(self, x):
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def _functional():
    x = keras.Input((T, I))
    y = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    return keras.Model(x, layers.Dense(1)(layers.SimpleRNN(3)(y)))


@needs_training
@pytest.mark.parametrize("build", [_functional, Own, lambda: _text_model(layers)])
def test_swapped_models_go_on(build):
    """Weights, the optimizer's state, and what was compiled go on, there and back."""
    curves = []
    for swaps in (False, True):
        keras.utils.set_random_seed(4)
        model = build()
        x = _tokens() if build not in (_functional, Own) else _input()
        model.compile(optimizer="adam", loss="mse", metrics=["mae"])
        losses = []
        for epoch in range(3):
            if swaps and epoch == 1:
                weights = list(model.trainable_variables)
                assert xpgrad_keras.swap(model) is model
                assert all(v is w for v, w in zip(model.trainable_variables, weights, strict=True))
                assert any(type(layer) in KINDS.values() for layer in model._flatten_layers())
            if swaps and epoch == 2:
                xpgrad_keras.unswap(model)
                assert not any(type(layer) in KINDS.values() for layer in model._flatten_layers())
            losses += model.fit(x, np.ones((N, 1)), batch_size=2, shuffle=False, verbose=0).history["loss"]
        assert int(model.optimizer.iterations) == 6
        curves.append(np.array(losses))
    _close([curves[1]], [curves[0]])


def test_swap_runs_kernels(kernels_only):
    model = _functional()
    expected = model.predict(_input(), verbose=0)
    xpgrad_keras.swap(model)
    kernels_only()
    _close([model.predict(_input(), verbose=0)], [expected])


class _Sub(layers.GRU):
    pass


def test_swap_report():
    model = Own()
    model.blocks.append(_Sub(2, name="sub"))
    model.blocks.append(layers.LSTM(2, activation="silu", name="odd"))
    model.blocks.append(layers.GRU(2, recurrent_dropout=0.1, name="dropped"))
    for block in model.blocks:
        block.build((N, T, I))
    model.out.build((N, 3))
    rows = {row.names[0]: row for row in xpgrad_keras.swap_report(model).rows}
    assert rows["a"].now == "xpgrad_keras.LSTM"
    assert rows["b"].now == "xpgrad_keras.GRU"
    assert rows["sub"].why == "it is a subclass of GRU, which may compute something else"
    assert rows["odd"].now == "unchanged"
    assert "activation silu" in rows["odd"].why
    assert rows["dropped"].now == "xpgrad_keras.GRU"
    assert "in training" in rows["dropped"].why
    assert rows["dense"].why == "xpgrad has no Dense" if "dense" in rows else True
    with pytest.warns(UserWarning, match="swap: its activation silu"):
        xpgrad_keras.swap(model)
    assert type(model.blocks[2]) is _Sub
    assert type(model.blocks[3]) is layers.LSTM
    assert "it is xpgrad's already" in str(xpgrad_keras.swap_report(model))


@pytest.mark.parametrize("function", ["swap", "unswap", "swap_report"])
def test_wrong_models(function):
    with pytest.raises(TypeError, match=f"{function}: model is int, expected a model or a layer of Keras"):
        getattr(xpgrad_keras, function)(3)
    with pytest.raises(TypeError, match=f"{function}: model is the class LSTM, expected a model or a layer"):
        getattr(xpgrad_keras, function)(layers.LSTM)


def test_results_are_lists_of_tensors():
    """A layer alone, called without a model."""
    _, ours = _pair("LSTM", units=5, return_state=True)
    assert [tuple(y.shape) for y in flat(ours(_input()))] == [(N, 5)] * 3


@pytest.mark.parametrize("name", xpgrad_keras.__all__)
def test_docstrings(name):
    public = getattr(xpgrad_keras, name)
    (test,) = doctest.DocTestFinder(recurse=False).find(public, name, module=False)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test).failed == 0


# ------------------------------------------------------------------------------------------ one backend's own


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_masks_and_states_of_one_sequence_are_broadcast(kind, dtype):
    """TensorFlow's programs read such lengths beyond their end. Keras' variables may hold float32."""
    theirs, ours = _pair(kind, units=5, return_sequences=True, dtype=dtype)
    x, mask, state = (
        _input(dtype),
        np.asarray([[True, False, True, True, False, True]]),
        np.ones((1, 5), dtype),
    )
    calls = [lambda layer: layer(x, mask=mask)]
    if BACKEND != "jax":  # where Keras' own layers refuse the state
        states = [keras.ops.convert_to_tensor(state)] * (2 if kind == "LSTM" else 1)
        calls.append(lambda layer: layer(x, initial_state=states))
    for call in calls:
        found, expected = (keras.ops.convert_to_numpy(call(layer)) for layer in (ours, theirs))
        np.testing.assert_allclose(found, expected, atol=1e-6)
    for steps in (T - 1, T + 1):
        with pytest.raises(Exception, match=r"(?i)shape|broadcast|expand|size|dimension"):
            ours(x, mask=np.ones((N, steps), bool))


@pytest.mark.skipif(BACKEND != "torch", reason="a matter of PyTorch")
def test_masks_under_vmap():
    import torch

    theirs, ours = _pair("GRU", units=5, return_sequences=True)
    X, mask = torch.tensor(_input()), torch.rand(N, T) < 0.6

    def gradients(layer):
        return torch.func.vmap(torch.func.grad(lambda x, m: layer(x[None], mask=m[None]).sum()))(X, mask)

    torch.testing.assert_close(gradients(ours), gradients(theirs))


@pytest.mark.parametrize("kind", KINDS)
def test_pickles(kind):
    """A class has Keras' name, for files; pickle looks for it there."""
    layer = KINDS[kind](5)
    expected = layer(_input())
    for twin in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert type(twin) is KINDS[kind]
        found = keras.ops.convert_to_numpy(twin(_input()))
        np.testing.assert_array_equal(found, keras.ops.convert_to_numpy(expected))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a matter of TensorFlow")
def test_tensorflow_refuses_what_it_cannot():
    import tensorflow as tf

    _, ours = _pair("SimpleRNN", units=5)
    with pytest.raises(ValueError, match="jit_compile is True on TensorFlow"):
        tf.function(ours, jit_compile=True)(tf.constant(_input()))
    x = tf.constant(_input())
    for layer, error in ((ours, ValueError), (tf.function(ours), tf.errors.InvalidArgumentError)):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(layer(x))
            grad = inner.gradient(y, x)
        with pytest.raises(error, match="second derivative"):
            outer.gradient(grad, x)
    model = keras.Sequential([layers.Input((T, I)), layers.SimpleRNN(3)])
    for asked, before in ((True, True), (False, False)):
        model.compile(loss="mse", jit_compile=asked)
        assert model.jit_compile is before
        assert not xpgrad_keras.swap(model).jit_compile
        assert xpgrad_keras.unswap(model).jit_compile is before


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a matter of TensorFlow")
@pytest.mark.parametrize("compiled", [False, True])
def test_tensorflow_computes_the_gradients_that_are_asked_for(compiled, monkeypatch):
    """Those of tensors that a tape watches; of all for `tf.gradients`, which has no tape."""
    import tensorflow as tf

    from xpgrad_keras import _programs, _tensorflow

    theirs, ours = _pair("LSTM", units=5, return_state=True)
    x, state = tf.constant(_input()), tf.ones((N, 5))
    asked = []
    monkeypatch.setattr(_programs, "why_not", lambda: "the kernels that run are counted")
    run, way = _tensorflow._KERNELS["lstm"].ways

    def noted(**arguments):
        asked.append(arguments["wrt"])
        return way(**arguments)

    monkeypatch.setattr(_tensorflow._KERNELS["lstm"], "ways", [run, noted])

    def loss(layer, x, state):
        return tf.reduce_sum(layer(x, initial_state=[state, 2 * state])[2] ** 2)

    def by_tape(layer, name, x, state):
        source = {"x": x, "state": state, "bias": layer.cell.bias.value}[name]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(source)
            y = loss(layer, x, state)
        return tape.gradient(y, source)

    def by_graph(layer, x, state):
        return tf.gradients(loss(layer, x, state), x)[0]

    wanted = {"x": ["X"], "state": ["initial_h", "initial_c"], "bias": ["B"]}
    for name, wrt in wanted.items():
        found = (tf.function(by_tape) if compiled else by_tape)(ours, name, x, state)
        np.testing.assert_allclose(found, by_tape(theirs, name, x, state), atol=1e-5)
        assert asked == [wrt]
        asked.clear()
    found = tf.function(by_graph)(ours, x, state)
    np.testing.assert_allclose(found, by_tape(theirs, "x", x, state), atol=1e-5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a matter of TensorFlow")
@pytest.mark.parametrize("kind", KINDS)
def test_tensorflow_tapes_around_functions_loops_and_branches(kind):
    """A graph's own inputs may be watched from outside of it."""
    import tensorflow as tf

    def stepped(layer, x, h):
        return layer(x, initial_state=[h, h] if kind == "LSTM" else h)

    def once(layer, x):
        return tf.reduce_sum(layer(x) ** 2)

    def in_a_loop(layer, x):
        h = x[:, 0]
        for _ in tf.range(3):
            h = stepped(layer, x, h)
        return tf.reduce_sum(h)

    def scanned(layer, x):
        factors = tf.constant([1.0, 2.0, 3.0])
        return tf.reduce_sum(tf.scan(lambda h, a: stepped(layer, a * x, h), factors, initializer=x[:, 0]))

    def in_a_branch(layer, x):
        return tf.cond(tf.reduce_sum(x) < 1e9, lambda: once(layer, x), lambda: tf.reduce_sum(x))

    def gradients(function, layer, x, persistent=False):
        with tf.GradientTape(persistent=persistent) as tape:
            tape.watch(x)
            y = function(layer, x)
        return tape.gradient(y, [x, *layer.trainable_variables])

    theirs, ours = _pair(kind, units=I)
    x = tf.constant(_input())
    for function in (once, in_a_loop, scanned, in_a_branch):
        expected = gradients(function, theirs, x)
        ways = {
            "around": lambda f: gradients(tf.function(f), ours, x),
            "a persistent tape": lambda f: gradients(tf.function(f), ours, x, persistent=True),
            "within": lambda f: tf.function(gradients)(f, ours, x),
            "between": lambda f: tf.function(gradients)(tf.function(f), ours, x),
        }
        for way in ways.values():
            for a, b in zip(way(function), expected, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.fixture
def programs():
    """What runs kernels as TensorFlow's own operations."""
    from xpgrad_keras import _programs

    if (reason := _programs.why_not()) is not None:
        pytest.skip(reason)
    return _programs


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a matter of TensorFlow")
def test_tensorflow_runs_programs_without_python(programs, monkeypatch):
    """Python is asked once for each shape, and computes nothing."""
    import tensorflow as tf

    theirs, ours = _pair("GRU", units=11, return_sequences=True)  # as many as in no other test
    shapes, found = [], programs.OperationCall.found
    monkeypatch.setattr(
        programs.OperationCall,
        "found",
        lambda call, sizes: shapes.append((call, tuple(sizes))) or found(call, sizes),
    )
    monkeypatch.setattr(programs.OperationCall, "computed", None)

    @tf.function(input_signature=[tf.TensorSpec((None, None, I))])
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ours(x)
            loss = tf.reduce_sum(y * y)
        return y, *tape.gradient(loss, [x, *(v.value for v in ours.trainable_variables)])

    def expected(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = theirs(x)
            loss = tf.reduce_sum(y * y)
        return y, *tape.gradient(loss, [x, *(v.value for v in theirs.trainable_variables)])

    for size in ((4, 6), (2, 3), (4, 6), (2, 3)):
        x = tf.constant(_input("float32", *size, I))
        _close([y.numpy() for y in step(x)], [y.numpy() for y in expected(x)])
    assert len(shapes) == len({*shapes}) == 4


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a matter of TensorFlow")
@pytest.mark.parametrize("masked", [False, True])
def test_tensorflow_forgets_the_oldest_sizes(masked, programs, monkeypatch):
    """Calls of ever new sizes, in several threads, keep few programs; most need no recording."""
    import tensorflow as tf

    from xpgrad._calls import host_programs

    theirs, ours = _pair("LSTM", units=13 + masked, return_sequences=True)
    recorded, record = [], host_programs._HostCall._recorded
    monkeypatch.setattr(
        host_programs._HostCall, "_recorded", lambda *call: recorded.append(call) or record(*call)
    )
    monkeypatch.setattr(programs.OperationCall, "MOST", 3)

    @tf.function(input_signature=[tf.TensorSpec((None, None, I)), tf.TensorSpec((None, None), tf.bool)])
    def step(x, mask):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ours(x, mask=mask if masked else None)
            loss = tf.reduce_sum(y * y)
        return y, tape.gradient(loss, x)

    def given(size):
        draw = np.random.default_rng(size)
        lengths = draw.integers(1, size[1] + 1, size[0])
        return draw.normal(size=(*size, I)).astype("float32"), np.arange(size[1]) < lengths[:, None]

    def check(sizes):
        for size in sizes:
            x, mask = map(tf.constant, given(size))
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = theirs(x, mask=mask if masked else None)
                loss = tf.reduce_sum(y * y)
            where = mask[..., None] if masked else True
            for a, b in zip(step(x, mask), (y, tape.gradient(loss, x)), strict=True):
                _close(np.where(where, a, 0), np.where(where, b, 0))

    some = [(N, T) for N in (4, 5) for T in (20, 11, 12, 13, 14, 15, 16)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(check, [some, some[::-1], some[5:] + some[:5]]))
    check([(6, 19)])
    kept = [call for call in programs._calls.values() if len(call._forms) == 3]
    assert len(kept) >= 2  # the kernel and its gradient
    for call in kept:
        assert len(call._replaced) <= 1  # only what the last new size replaced
        assert {address for address, (own, _) in programs._forms.items() if own is call} == {
            address_of(form.record) for form in (*call._forms.values(), *call._replaced)
        }
    assert len(recorded) < 2 * 6 * (1 + masked)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a matter of TensorFlow")
@pytest.mark.parametrize("has_programs", [False, True])
@pytest.mark.parametrize("mask", ["none", "holes"])
def test_tensorflow_on_an_empty_batch_and_without_programs(has_programs, mask, programs, monkeypatch):
    """Where there is no program, NumPy's functions compute the same."""
    if not has_programs:
        monkeypatch.setattr(programs, "why_not", lambda: "a test")
    theirs, ours = _pair("LSTM", units=5, return_sequences=True, return_state=True)
    options = {} if mask == "none" else {"mask": MASKS[mask]}
    states = [_input("float32", N, 5)] * 2
    expected = pulled_back(theirs, _input(), states, **options)
    found = pulled_back(ours, _input(), states, True, **options)
    _close(found[0], expected[0])
    _close(found[1], expected[1])
    # Keras' own layer takes no empty batch
    options = {name: mask[:0] for name, mask in options.items()}
    outputs, (*by_batch, W, R, B) = pulled_back(ours, _input()[:0], [h[:0] for h in states], True, **options)
    assert [y.shape for y in outputs] == [(0, T, 5), (0, 5), (0, 5)]
    assert [g.shape for g in by_batch] == [(0, T, I), (0, 5), (0, 5)]
    assert [g.shape for g in (W, R, B)] == [w.shape for w in ours.get_weights()]
    assert not any(g.any() for g in (W, R, B))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a matter of TensorFlow")
def test_tensorflow_goes_on_after_an_interrupted_registration(programs):
    """A second registration of an operation ends the process; of a kernel, the operation fails."""
    programs._register()
    theirs, ours = _pair("SimpleRNN", units=17)
    x = _input()
    _close([np.asarray(ours(x))], [np.asarray(theirs(x))])


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a matter of TensorFlow")
def test_tensorflow_refuses_a_graph_of_another_process(programs, monkeypatch):
    import tensorflow as tf

    _, ours = _pair("SimpleRNN", units=5)
    monkeypatch.setattr(programs, "_number", lambda: 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="this graph was made by another process"):
        tf.function(ours)(tf.constant(_input()))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a matter of TensorFlow")
def test_tensorflow_hears_what_is_wrong(programs, monkeypatch):
    """An error of Python's, while a program is written, is TensorFlow's error."""
    import tensorflow as tf

    def broken(*arguments, **options):
        raise RuntimeError("no program today")

    _, ours = _pair("GRU", units=7, use_bias=False)
    monkeypatch.setattr(programs, "write_program", broken)
    with pytest.raises(tf.errors.InternalError, match="RuntimeError: no program today"):
        ours(tf.constant(_input()))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="a matter of TensorFlow")
@pytest.mark.parametrize(("step", "is_raised"), [("found", True), ("found", False), ("compute_at", True)])
def test_tensorflow_hears_of_an_interrupt(step, is_raised, programs, monkeypatch):
    """Python may raise it outside our functions too: then compiled code gets a 0."""
    import tensorflow as tf

    theirs, ours = _pair("GRU", units=7 + 2 * is_raised, go_backwards=step == "found")
    x = tf.constant(_input())
    batch = N if step == "found" else 0  # there is no program for an empty batch

    def interrupted(*arguments):
        if is_raised:
            raise KeyboardInterrupt
        return 0

    with monkeypatch.context() as patched:
        patched.setattr(programs.OperationCall, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            ours(x[:batch])
    _close([np.asarray(ours(x))], [np.asarray(theirs(x))])


@pytest.mark.skipif(BACKEND != "torch", reason="a matter of PyTorch")
def test_torch_compiles_one_graph():
    import torch

    _, ours = _pair("GRU", units=5)
    x, mask = torch.tensor(_input()), torch.tensor(MASKS["holes"])
    expected = ours(x, mask=mask)
    found = torch.compile(ours, backend="aot_eager")(x, mask=mask)
    torch.testing.assert_close(found, expected)
