"""Writes docs/correctness.md from one run's measurements."""

from __future__ import annotations

import importlib.resources
import math
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from .matrix import OURS, PEERS, WRONG, Entry, Measured, Peer, interpreter

__all__ = ["REPRODUCERS", "Reproducer", "page", "without_reproducer"]

_FAMILIES = {
    "LSTM": ("lstm",),
    "GRU": ("gru",),
    "RNN": ("rnn",),
    "Layer normalization": ("layer_norm_lstm", "layer_norm_gru"),
    "Cells": ("lstm_cell", "gru_cell", "rnn_cell"),
    "Convolution": ("conv",),
    "Transposed convolution": ("conv_transpose",),
    "Activations and softmax": None,
    "Losses": ("softmax_cross_entropy", "binary_cross_entropy_with_logits"),
}
_LEAD = """\
Other libraries' kernels and xpgrad's, option by option, compared with references in float64. Each number
in the tables below is the largest error of a case. *Wrong* is an error that rounding in float32 cannot
explain. *Refuses* is an error message instead of a result. A library without the operator or the option
is not counted.
"""
_MEASURED = f"""\
Each cell is the largest error of all outputs and gradients of one case, relative to the largest value of
each array. The references are float64: forwards written step by step from the operators' definitions, and
differentiated by the complex step, which has no truncation error. They share no code with any kernel.
Peers run in float32, called as their documentation says, each with its own NumPy. An entry above
{WRONG:.0e} is **wrong**: rounding in float32 stays below a tenth of this bound. "NaN or shape" means an
output or a gradient of another shape, or with NaN where the reference has none. A dash means that the
library has no such operator or option.
"""
_DIFFERENT = """\
A different definition is not an error, so these differences are not counted:

- PyTorch's GRU resets after the product, ONNX's before it by default.
- Keras' layers have one bias. Its gradient counts for both of ONNX's biases.
- thinc's LSTM returns the gradient of the biases' sum as the gradient of the first bias. Its `hard_swish`
  is another function (`hard_swish_mobilenet` is measured). Its losses take probabilities instead of logits.
- PyTorch packs sequences of at least one step.
- ONNX's constants of SELU differ from the paper's in the last digits.
- "peepholes, truncated" is the result of ONNX Runtime's LSTMGrad. It treats the cell state as a constant in
  products with peepholes, so it is not a gradient.
"""
_CALLED = """\
How the libraries are called:

- ONNX Runtime Training: models of one node, if it has a kernel for the gradient.
- onnx.reference has forwards only.
- JAX: the LSTM is `jax.experimental.rnn.lstm_ref`, which runs on CPUs, for sequences of one length. JAX
  has no other recurrent layers.
- Keras: channels last, with its padding and cropping layers around a convolution.
- thinc takes a cotangent of the output sequence only.

Names of options: a "method" is one of our algorithms for a convolution. "per_sample" is the parameters'
gradient of each sample, by `torch.func.vmap` and `jax.vmap`, and "norm" its Euclidean norm. "masks" are
zoneout and recurrent dropout with given masks. "cell states" is a cotangent of the cell state at every
step. Probability targets add up to 1.
"""


class Reproducer(NamedTuple):
    """A program that shows wrong entries of a peer; it needs only that peer and NumPy."""

    peer: str
    kernel: str
    file: str
    title: str
    options: tuple[str, ...] | None = None
    """Words in the options' names; None: any option."""

    def shows(self, entry: Entry) -> bool:
        """Whether the program shows this entry."""
        here = (self.peer, self.kernel) == (entry.peer, entry.kernel)
        return here and (self.options is None or any(text in entry.option for text in self.options))

    @property
    def code(self) -> str:
        """The program's text."""
        folder = importlib.resources.files(__package__) / "reproducers"
        return (folder / self.file).read_text(encoding="utf-8")


REPRODUCERS = (
    Reproducer(
        "onnx_runtime", "lstm", "onnx_runtime_peepholes.py",
        "LSTMGrad with peepholes is truncated", ("peepholes",),
    ),
    Reproducer(
        "onnx_runtime", "conv", "onnx_runtime_auto_pad.py",
        "ConvGrad ignores auto_pad", ("SAME",),
    ),
    Reproducer(
        "onnx_reference", "lstm", "onnx_reference_lstm.py",
        "LSTM ignores lengths, clip, input_forget, activations",
        ("lengths", "clip", "input_forget", "activations", "everything"),
    ),
    Reproducer(
        "onnx_reference", "gru", "onnx_reference_gru_rnn.py",
        "GRU ignores lengths, clip, activations",
        ("lengths", "clip", "activations", "everything"),
    ),
    Reproducer(
        "onnx_reference", "rnn", "onnx_reference_gru_rnn.py",
        "RNN ignores lengths and clip", ("lengths", "clip", "everything"),
    ),
    Reproducer(
        "onnx_reference", "softmax", "onnx_reference_softmax.py",
        "Softmax of opset 12 is that of opset 13", ("flatten",),
    ),
    Reproducer(
        "onnx_reference", "log_softmax", "onnx_reference_softmax.py",
        "LogSoftmax of opset 12 is that of opset 13", ("flatten",),
    ),
    Reproducer(
        "onnx_reference", "conv_transpose", "onnx_reference_conv_transpose.py",
        "ConvTranspose gives every group the first group's biases", ("depthwise",),
    ),
    Reproducer(
        "keras", "lstm", "keras_padding.py",
        "NaN in masked steps reaches gradients of the LSTM", ("NaN padding",),
    ),
    Reproducer(
        "keras", "gru", "keras_padding.py",
        "NaN in masked steps reaches gradients of the GRU", ("NaN padding",),
    ),
    Reproducer(
        "keras", "rnn", "keras_padding.py",
        "NaN in masked steps reaches gradients of the SimpleRNN", ("NaN padding",),
    ),
    Reproducer("thinc", "lstm", "thinc_lstm.py", "the LSTM's gradient is not its forward's"),
)  # fmt: skip


def without_reproducer(entries: Sequence[Entry]) -> list[Entry]:
    """The peers' wrong entries without a program that shows them."""
    ours = {peer.key for peer in OURS}
    wrong = [entry for entry in entries if entry.status == "wrong" and entry.peer not in ours]
    return [entry for entry in wrong if not any(r.shows(entry) for r in REPRODUCERS)]


def page(measured: Measured, given: Mapping[str, str]) -> str:
    """The page's text, of Markdown; `given` are the peers' interpreters, for the reproducers."""
    return "\n".join([*_head(measured), *_tables(measured), *_wrong(measured, given), *_refusals(measured)])


def _head(measured: Measured) -> Iterator[str]:
    yield "# Who is right"
    yield ""
    yield _LEAD
    yield from _summary(measured)
    yield "## How it is measured"
    yield ""
    yield _MEASURED
    yield f"Measured with Python {platform.python_version()} on {platform.system()} {platform.machine()}:"
    yield ""
    for peer in _columns(measured, PEERS):
        yield f"- {peer.title}: {', '.join(measured.versions[peer.key])}"
    yield f"- xpgrad: {', '.join(measured.versions['xpgrad'])}"
    missing = [peer.title for peer in PEERS if peer.key not in measured.versions]
    if missing:
        yield f"- not installed, so not measured: {', '.join(missing)}"
    yield ""
    yield "`python -m xpgrad check --peers --write docs/correctness.md` writes this page."
    yield ""
    yield _DIFFERENT
    yield _CALLED


def _summary(measured: Measured) -> Iterator[str]:
    """The number of right and wrong cases of each library, and the errors."""
    yield "| library | right | wrong | refuses |"
    yield "| --- | ---: | ---: | ---: |"
    for peer in _columns(measured, (*OURS, *PEERS)):
        counts = Counter(entry.status for entry in measured.entries if entry.peer == peer.key)
        wrong = f"**{counts['wrong']}**" if counts["wrong"] else "0"
        yield f"| {peer.title} | {counts['right']} | {wrong} | {counts['refused']} |"
    yield ""
    titles = {peer.key: peer.title for peer in PEERS}
    shown = [r for r in REPRODUCERS if any(e.status == "wrong" and r.shows(e) for e in measured.entries)]
    if shown:
        yield "The errors, each with a program that shows it:"
        yield ""
    for reproducer in shown:
        title = f"{titles[reproducer.peer]}: {reproducer.title}"
        yield f"- [{title}](#{_anchor(title)})"
    yield ""


def _anchor(title: str) -> str:
    """The address of a heading on its page, as Markdown makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _columns(measured: Measured, peers: Sequence[Peer]) -> list[Peer]:
    return [peer for peer in peers if any(entry.peer == peer.key for entry in measured.entries)]


def _tables(measured: Measured) -> Iterator[str]:
    columns = _columns(measured, (*OURS, *PEERS))
    named = [name for names in _FAMILIES.values() if names for name in names]
    for title, kernels in _FAMILIES.items():
        rows: dict[tuple[str, str], dict[str, Entry]] = {}
        for entry in measured.entries:
            if entry.kernel in (kernels or ()) or (kernels is None and entry.kernel not in named):
                rows.setdefault((entry.kernel, entry.option), {})[entry.peer] = entry
        if not rows:
            continue
        yield f"## {title}"
        yield ""
        yield f"| option | {' | '.join(peer.title for peer in columns)} |"
        yield f"| --- |{' --- |' * len(columns)}"
        for (kernel, option), row in rows.items():
            label = option if len(kernels or ()) == 1 else f"{kernel}, {option}".removesuffix(", plain")
            yield f"| {label} | {' | '.join(_cell(row.get(peer.key)) for peer in columns)} |"
        yield ""


def _cell(entry: Entry | None) -> str:
    if entry is None or entry.status == "absent":
        return "-"
    if entry.status == "refused":
        return "refuses"
    return f"**{_number(entry.error)}**" if entry.status == "wrong" else _number(entry.error)


def _number(error: float) -> str:
    if math.isinf(error):
        return "NaN or shape"
    return "0" if error == 0 else f"{error:.1g}"


def _wrong(measured: Measured, given: Mapping[str, str]) -> Iterator[str]:
    yield "## Errors, with programs that show them"
    yield ""
    yield "Each program needs its library and NumPy. Below it is its output in this page's run."
    yield ""
    for reproducer in REPRODUCERS:
        shown = [e for e in measured.entries if e.status == "wrong" and reproducer.shows(e)]
        if not shown:
            continue
        peer = next(peer for peer in PEERS if peer.key == reproducer.peer)
        yield f"### {peer.title}: {reproducer.title}"
        yield ""
        yield f"| {reproducer.kernel}, option | errors |"
        yield "| --- | --- |"
        for entry in shown:
            errors = ", ".join(
                f"{name.replace('gradient of ', 'd')} {_number(error)}"
                for name, error in entry.errors.items()
                if error > WRONG
            )
            yield f"| {entry.option} | {errors} |"
        yield ""
        yield "```py"  # not "python": the documentation's examples run without these libraries
        yield reproducer.code.rstrip()
        yield "```"
        yield ""
        python = interpreter(peer, given)
        if python is not None:
            yield "```"
            yield _printed(python, reproducer.code)
            yield "```"
            yield ""
    for entry in without_reproducer(measured.entries):
        yield f"- {entry.peer}, {entry.kernel}, {entry.option}: off by {_number(entry.error)}; no program yet"


def _printed(python: str, code: str) -> str:
    """The output of a reproducer."""
    done = subprocess.run(
        [python, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    return (done.stdout or done.stderr[-500:]).strip()


def _refusals(measured: Measured) -> Iterator[str]:
    refused = [entry for entry in measured.entries if entry.status == "refused"]
    if not refused:
        return
    yield "## Refused cases"
    yield ""
    yield "An error is better than a wrong number. Libraries have operators for these cases, but refuse them."
    yield ""
    yield "| library | kernel | options | message |"
    yield "| --- | --- | --- | --- |"
    titles = {peer.key: peer.title for peer in PEERS}
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for entry in refused:
        grouped.setdefault((titles[entry.peer], entry.kernel, _short(entry.message)), []).append(entry.option)
    for (title, kernel, text), options in grouped.items():
        yield f"| {title} | {kernel} | {'; '.join(options)} | {text} |"
    yield ""


def _short(message: str) -> str:
    """The message without its file and signature."""
    text = message.split(" was false. ")[-1] if " was false. " in message else message
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = text.rsplit("Error: ", 1)[-1].replace("|", "\\|").replace("\n", " ").strip()
    return text if len(text) <= 140 else f"{text[:137]}..."
