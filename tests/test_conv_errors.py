"""Bad input to convolutions: each kind raises, and the message names operator, argument, rule and values."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import xpgrad

X, W, B = np.ones((2, 4, 7, 6)), np.ones((6, 4, 3, 2)), np.ones(6)
Y = np.ones((2, 6, 5, 5))
W_T = np.ones((4, 6, 3, 2))
Y_T = np.ones((2, 6, 9, 7))


def conv(X: Any = X, W: Any = W, B: Any = B, **attributes: Any) -> Any:
    return xpgrad.conv(X, W, B, **attributes)


def conv_transpose(X: Any = X, W: Any = W_T, B: Any = B, **attributes: Any) -> Any:
    return xpgrad.conv_transpose(X, W, B, **attributes)


def conv_grad(dY: Any = Y, X: Any = X, W: Any = W, **attributes: Any) -> Any:
    return xpgrad.conv_grad(dY, X, W, **attributes)


def conv_transpose_grad(dY: Any = Y_T, X: Any = X, W: Any = W_T, **attributes: Any) -> Any:
    return xpgrad.conv_transpose_grad(dY, X, W, **attributes)


ALL = [conv, conv_grad, conv_transpose, conv_transpose_grad]
CONVS, TRANSPOSED = ALL[:2], ALL[2:]
EVERYWHERE = [
    ({"strides": 0}, ValueError, "strides is 0, expected at least 1"),
    ({"strides": [1, -2]}, ValueError, "strides is -2, expected at least 1"),
    ({"strides": [1, 2, 3]}, ValueError, r"strides is \[1, 2, 3\] of length 3, expected 2"),
    ({"strides": 1.5}, TypeError, "strides is 1.5 of type float, expected whole numbers"),
    ({"strides": True}, TypeError, "strides is True of type bool"),
    ({"strides": "1"}, TypeError, "strides is '1' of type str"),
    ({"dilations": 0}, ValueError, "dilations is 0, expected at least 1"),
    ({"dilations": [1]}, ValueError, r"dilations is \[1\] of length 1, expected 2"),
    ({"pads": -1}, ValueError, "pads is -1, expected at least 0"),
    ({"pads": [1, 1, 1]}, ValueError, r"pads is \[1, 1, 1\] of length 3, expected one number, 2 .* or 4"),
    ({"pads": [0, 0, 0, 0.5]}, TypeError, "pads is 0.5 of type float"),
    ({"pads": 1, "auto_pad": "VALID"}, ValueError, "pads is 1, expected 0 where auto_pad is 'VALID'"),
    ({"auto_pad": "SAME"}, ValueError, "auto_pad is 'SAME', expected one of 'NOTSET', 'SAME_UPPER'"),
    ({"pads": 10**30}, ValueError, f"pads is {10**30}, expected at most 2147483647"),
    ({"pads": b"ab"}, TypeError, "pads is b'ab' of type bytes, expected whole numbers"),
    ({"strides": 10**30}, ValueError, f"strides is {10**30}, expected at most 2147483647"),
    (
        {"strides": np.array([1, 2])},
        TypeError,
        r"strides is array\(\[1, 2\]\) of type ndarray, expected",
    ),
    ({"strides": bytearray(b"ab")}, TypeError, r"strides is bytearray\(b'ab'\) of type bytearray"),
    ({"dilations": [1, 10**30]}, ValueError, f"dilations is {10**30}, expected at most 2147483647"),
    ({"group": 0}, ValueError, "group is 0, expected at least 1"),
    ({"group": 1.0}, TypeError, "group is 1.0 of type float"),
    ({"method": "gemm"}, ValueError, "method is 'gemm', expected one of 'auto', 'pointwise'"),
    ({"method": "pointwise"}, ValueError, r"method is 'pointwise', .*: the kernel has shape \(3, 2\)"),
    ({"method": "winograd", "strides": [1, 2]}, ValueError, r"'winograd', .*: .* strides are \(1, 2\)"),
    ({"X": np.ones((2, 4))}, ValueError, r"X has 2 dimensions with shape \(2, 4\), expected at least 3"),
    ({"W": np.ones((6, 4, 3))}, ValueError, "W has 3 dimensions .*, expected X's 4"),
    ({"X": np.ones((2, 4, 0, 6))}, ValueError, r"X has shape \(2, 4, 0, 6\), expected spatial dimensions of"),
    ({"X": X.astype("float32")}, TypeError, "dtype float"),
    ({"X": X.tolist()}, TypeError, "list"),
    ({"X": X.astype(int)}, TypeError, "dtype"),
    ({"W": None}, TypeError, "W is None, expected an array"),
]


@pytest.mark.parametrize("function", ALL, ids=lambda f: f.__name__)
def test_arrays_that_no_machine_holds(function: Any) -> None:
    more = {"pads": 10**9} if function in CONVS else {"strides": 10**9}
    message = r"make a padded input of shape \(.*\), expected one of at most 281474976710656 elements(?m:$)"
    with pytest.raises(ValueError, match=f"^{function.__name__}: pads, strides, dilations .* {message}"):
        function(**more)


@pytest.mark.parametrize("function", ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("given", "error", "message"), EVERYWHERE)
def test_what_all_refuse(function: Any, given: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=f"^{function.__name__}: .*{message}"):
        function(**given)


@pytest.mark.parametrize("function", CONVS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group": 2}, r"X has 4 channels, expected group \* W.shape\[1\] = 2 \* 4 = 8"),
        (
            {"W": np.ones((5, 2, 3, 2)), "group": 2, "B": np.ones(5)},
            "W.shape.0. is 5, expected a multiple of",
        ),
        (
            {"W": np.ones((6, 4, 8, 2))},
            r"W spans 8 elements of spatial dimension 0 .*padded input's 0 \+ 7 \+ 0",
        ),
        ({"dilations": [1, 7]}, r"W spans 8 elements of spatial dimension 1 \(kernel 2, dilation 7\)"),
    ],
)
def test_what_a_convolution_refuses(function: Any, given: dict[str, Any], message: str) -> None:
    if function is conv_grad:
        given = {name: value for name, value in given.items() if name != "B"}
    with pytest.raises(ValueError, match=f"^{function.__name__}: {message}"):
        function(**given)


@pytest.mark.parametrize("function", TRANSPOSED, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"W": np.ones((3, 6, 3, 2))}, ValueError, r"X has 4 channels, expected W.shape\[0\] = 3"),
        ({"group": 3}, ValueError, "X has 4 channels, expected a multiple of group = 3"),
        ({"output_padding": 1}, ValueError, "output_padding is 1 in spatial dimension 0, .*stride 1 and dil"),
        ({"output_padding": -1}, ValueError, "output_padding is -1, expected at least 0"),
        ({"pads": 5}, ValueError, r"pads 5 \+ 5 in spatial dimension 0 leave -1 elements of the output's 9"),
        ({"output_shape": [9]}, ValueError, r"output_shape is \[9\] of length 1, expected 2"),
        ({"output_shape": 9}, TypeError, "output_shape is 9, expected a sequence of 2"),
        ({"output_shape": [9, 0]}, ValueError, "output_shape is 0, expected at least 1"),
        (
            {"output_shape": [9, 7], "pads": 1},
            ValueError,
            "pads is .*, expected 0 where output_shape is given",
        ),
        (
            {"output_shape": [9, 7], "auto_pad": "VALID"},
            ValueError,
            "auto_pad is 'VALID', expected 'SAME_UPPER'",
        ),
    ],
)
def test_what_a_transposed_one_refuses(
    function: Any, given: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error, match=f"^{function.__name__}: {message}"):
        function(**given)


@pytest.mark.parametrize("function", [conv, conv_transpose], ids=lambda f: f.__name__)
def test_biases_have_one_number_an_output_channel(function: Any) -> None:
    message = rf"^{function.__name__}: B has shape \(5,\), expected \(O,\) = \(6,\)"
    with pytest.raises(ValueError, match=message):
        function(B=np.ones(5))


@pytest.mark.parametrize(
    ("function", "shape"),
    [(conv_grad, Y.shape), (conv_transpose_grad, Y_T.shape)],
    ids=["conv", "conv_transpose"],
)
def test_the_cotangent_has_the_outputs_shape(function: Any, shape: tuple[int, ...]) -> None:
    wrong = (*shape[:3], shape[3] + 1)
    said = re.escape(f"dY has shape {wrong}, expected (N, O, *output_size) = {shape}")
    with pytest.raises(ValueError, match=f"^{function.__name__}: {said}"):
        function(dY=np.ones(wrong))


@pytest.mark.parametrize("function", [conv_grad, conv_transpose_grad], ids=lambda f: f.__name__)
def test_options_of_gradients(function: Any) -> None:
    with pytest.raises(ValueError, match="wrt has 'P', expected names of 'X', 'W', 'B'"):
        function(wrt=("X", "P"))
    with pytest.raises(ValueError, match="per_sample is 2, expected one of False, True"):
        function(per_sample=2)
    with pytest.raises(TypeError, match="dY is None, expected an array"):
        function(dY=None)


def test_fft_needs_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    from xpgrad.engine.images.methods import Images

    monkeypatch.setattr(Images, "can_transform", lambda self: False)
    with pytest.raises(ValueError, match=r"^conv: method is 'fft', .*: the namespace has no fft extension"):
        conv(method="fft")
    large = np.ones((1, 2, 40, 40)), np.ones((3, 2, 31, 31))
    assert xpgrad.conv(*large).shape == (1, 3, 10, 10)  # and the automatic choice goes without


@pytest.mark.parametrize(("method", "kernel"), [("winograd", 3), ("fft", 3), ("pointwise", 1)])
@pytest.mark.parametrize("attributes", [{"strides": 2}, {"dilations": 2}, {"strides": [1, 2]}, {"group": 2}])
def test_methods_refuse_what_they_cannot_compute(
    method: str, kernel: int, attributes: dict[str, Any]
) -> None:
    W = np.ones((6, 4 // attributes.get("group", 1), kernel, kernel))
    possible = [("fft", {"group": 2}), ("pointwise", {"group": 2}), ("pointwise", {"dilations": 2}),
                ("winograd", {"group": 2}), ("winograd", {"strides": 2}),
                ("winograd", {"dilations": 2})]  # fmt: skip
    if (method, attributes) in possible:
        assert xpgrad.conv(X, W, method=method, **attributes).shape[1] == 6
    else:
        with pytest.raises(
            ValueError, match=f"^conv: method is '{method}', expected one that computes this: "
        ):
            xpgrad.conv(X, W, method=method, **attributes)


@pytest.mark.parametrize("name", ["strides", "dilations", "group"])
@pytest.mark.parametrize("wrong", [True, 1.0, [1, True], (True, 1), [1.0, 1]])
def test_what_equals_an_allowed_number_is_refused_after_it(name: str, wrong: object) -> None:
    """Geometries are kept for calls of the same form; True and 1.0 equal 1."""
    X, W = np.ones((1, 1, 4, 4)), np.ones((1, 1, 2, 2))
    xpgrad.conv(X, W, **{name: 1})
    if name != "group":
        xpgrad.conv(X, W, **{name: [1, 1]})
    with pytest.raises(TypeError, match=f"conv: {name} is"):
        xpgrad.conv(X, W, **{name: wrong})
