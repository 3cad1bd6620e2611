"""One signature grammar, without exceptions, held over everything that is public."""

from __future__ import annotations

import inspect
import re

import pytest

import xpgrad
from xpgrad._operators.axes import gradient_name
from xpgrad._operators.types import result_type
from xpgrad._operators.units import UNITS

FUNCTIONS = [name for name in xpgrad.__all__ if inspect.isfunction(getattr(xpgrad, name))]
CLASSES = [name for name in xpgrad.__all__ if inspect.isclass(getattr(xpgrad, name))]
FORWARDS = [name for name in FUNCTIONS if f"{name}_grad" in xpgrad.__all__]
GRADIENTS = [f"{name}_grad" for name in FORWARDS]
OUTPUTS = {
    name: result_type(unit.functions[name]).__name__.removesuffix("Forward")
    for unit in UNITS.values()
    for name in unit.kernels
    if not unit.inputs and not name.startswith("layer_norm")  # these need more by name
}
"""What the names of the results' types begin with."""
NO_KERNELS = {"convert", "vjp"}
GRADIENT_ONLY = ["peephole", "per_sample", "sample_weight", "wrt"]


def parameters(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(xpgrad, name)).parameters)


def keyword_only(name: str) -> list[str]:
    return [p.name for p in parameters(name).values() if p.kind is p.KEYWORD_ONLY]


def test_what_is_public() -> None:
    assert xpgrad.__all__ == sorted(xpgrad.__all__)
    assert len(set(xpgrad.__all__)) == len(xpgrad.__all__)
    assert {"lstm", "gru", "lstm_cell", "gru_cell", "relu", "softmax"} <= set(FORWARDS)
    for name in xpgrad.__all__:
        if name != "__version__":
            assert getattr(xpgrad, name).__module__.startswith("xpgrad.")


def test_what_is_declared_is_public() -> None:
    """A recurrent operator's functions, and the named tuples of their results."""
    for unit in UNITS.values():
        pairs = {f"{name}{end}" for name in unit.kernels for end in ("", "_grad")}
        assert {*unit.functions} == pairs
        for name, function in unit.functions.items():
            assert getattr(xpgrad, name, None) is function, name
            assert result_type(function).__name__ in xpgrad.__all__, name


def test_every_kernel_is_a_pair() -> None:
    assert sorted([*FORWARDS, *GRADIENTS, *NO_KERNELS]) == [n for n in FUNCTIONS if n != "use_engine"]


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_gradient_takes_what_the_forward_takes(name: str) -> None:
    forward, gradient = parameters(name), parameters(f"{name}_grad")
    for argument, parameter in forward.items():
        assert gradient[argument].default == parameter.default, argument
    # what must be given comes first, by position, in one order; all else of the gradient goes by name
    required = [n for n, p in forward.items() if p.default is p.empty]
    positional = [n for n, p in gradient.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == required
    assert all(n.isupper() or "_" in n for n in required)


@pytest.mark.parametrize("name", OUTPUTS)
def test_options_go_by_name_in_the_same_order(name: str) -> None:
    options, gradient = keyword_only(name), keyword_only(f"{name}_grad")
    arrays = [n for n in parameters(name) if n not in options]
    assert [n for n in gradient if n in options] == options
    assert [n for n in gradient if n in arrays] == [n for n in arrays if n not in "XHCWR"]
    own = [n for n in gradient if n not in options and n not in arrays]
    saved = [n for n in own if not n.startswith("grad_") and n not in GRADIENT_ONLY]
    cotangents = [n for n in own if n.startswith("grad_")]
    only = [n for n in GRADIENT_ONLY if n in own]
    assert saved
    assert cotangents
    # saved arrays, cotangents, arrays, the forward's options, the gradient's
    assert gradient == [*saved, *cotangents, *[n for n in gradient if n in arrays], *options, *only]
    for argument, parameter in parameters(f"{name}_grad").items():
        assert (parameter.default is parameter.empty) == (argument in saved or argument in "XHCWR")
        if argument in cotangents:
            assert parameter.default is None


ONE_OUTPUT = [
    name
    for name in FORWARDS
    if getattr(xpgrad, name).__module__ in ("xpgrad.activations", "xpgrad.softmax", "xpgrad.losses")
]


@pytest.mark.parametrize("name", ONE_OUTPUT)
def test_kernels_of_one_output(name: str) -> None:
    """`f(X, ..., *, attributes, out)` and `f_grad(dY, X or Y, ..., *, attributes, out)`."""
    forward, gradient = parameters(name), parameters(f"{name}_grad")
    assert next(iter(forward)) == "X"
    assert next(iter(gradient)) == "dY"
    assert list(forward)[-1] == list(gradient)[-1] == "out"
    assert list(gradient)[1:] in (
        list(forward), ["Y", *list(forward)[1:]], [*list(forward)[:-1], "wrt", "out"]
    )  # fmt: skip
    shared = [argument for argument in forward if argument in gradient]
    for argument in shared:
        assert gradient[argument].default == forward[argument].default, argument
        assert gradient[argument].kind == forward[argument].kind, argument
    assert all(p.annotation is not p.empty for p in (*forward.values(), *gradient.values()))
    assert keyword_only(name)[-1] == "out"


@pytest.mark.parametrize("name", OUTPUTS)
def test_results_are_named_tuples_of_the_same_grammar(name: str) -> None:
    forward = getattr(xpgrad, f"{OUTPUTS[name]}Forward")
    gradients = getattr(xpgrad, f"{OUTPUTS[name]}Grads")
    gradient = parameters(f"{name}_grad")
    saved = [n for n, p in gradient.items() if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    assert set(saved) <= set(forward._fields)
    for cotangent in [n.removeprefix("grad_") for n in gradient if n.startswith("grad_")]:
        assert {cotangent, f"{cotangent}_next"} & set(forward._fields)
    floats = [n for n in parameters(name) if n not in keyword_only(name) and n != "sequence_lens"]
    expected = {gradient_name(n) for n in floats}
    expected |= {"dS"} & {f"d{n}" for n in keyword_only(name)}  # masks have no gradient
    assert set(gradients._fields) == expected


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_have_their_sections(name: str) -> None:
    text = inspect.getdoc(getattr(xpgrad, name)) or ""
    sections = re.findall(r"^(\w[\w ]+)\n-+$", text, re.M)
    assert {"Parameters", "Examples"} <= set(sections), f"{name} has {sections}"
    if name.removesuffix("_grad") in FORWARDS:
        assert {"Returns", "Raises"} <= set(sections), f"{name} has {sections}"
    described = text[text.index("Parameters\n") :]
    for argument in parameters(name):
        assert re.search(rf"(^|\W){argument}\W", described), f"{name}: {argument} is not described"


def described(text: str) -> list[str]:
    """The names that a docstring's section of parameters describes."""
    section = text.split("Parameters\n----------\n")[1].split("\n\n")[0]
    heads = [line.split(" : ")[0] for line in section.splitlines() if line[:1] != " "]
    return [name for head in heads for name in head.split(", ")]


@pytest.mark.parametrize("name", [name for unit in UNITS.values() for name in unit.functions])
def test_recurrent_docstrings_describe_each_parameter_and_result_once(name: str) -> None:
    function = getattr(xpgrad, name)
    assert sorted(described(inspect.getdoc(function) or "")) == sorted(parameters(name))
    result = result_type(function)
    assert sorted(described(inspect.getdoc(result) or "")) == sorted(result._fields)
    titles = re.findall(r"^(\w[\w ]+)\n-+$", inspect.getdoc(function) or "", re.M)
    order = ["Parameters", "Returns", "Raises", "See Also", "Notes", "References", "Examples"]
    assert titles == [title for title in order if title in titles]


@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
def test_convolutions_follow_the_grammar(name: str) -> None:
    """The cotangent first, what the forward needs, then its options in its order, then the gradient's own."""
    forward, gradient = parameters(name), parameters(f"{name}_grad")
    assert list(gradient)[:3] == ["dY", "X", "W"]
    assert keyword_only(f"{name}_grad") == [*keyword_only(name), "per_sample", "sample_weight", "wrt"]
    for option in keyword_only(name):
        assert gradient[option].default == forward[option].default, option
    grads = {"conv": xpgrad.ConvGrads, "conv_transpose": xpgrad.ConvTransposeGrads}[name]
    assert grads._fields == tuple(f"d{n}" for n in forward if n not in keyword_only(name))


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_described(name: str) -> None:
    text = inspect.getdoc(getattr(xpgrad, name)) or ""
    assert text.splitlines()[0].endswith("."), name
    if hasattr(getattr(xpgrad, name), "_fields"):
        assert "Parameters\n----------\n" in text, name
