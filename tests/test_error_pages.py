"""Errors name the page of the documentation that explains what is expected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import xpgrad

DOCS = Path(__file__).parent.parent / "docs"
X = np.ones((3, 2, 4))

WRONG = {
    "recurrent, lengths": (lambda: xpgrad.lstm(X, X, X, sequence_lens=[9, 9]), "recurrent"),
    "recurrent, shapes": (lambda: xpgrad.gru(X, X, X), "recurrent"),
    "recurrent, options": (lambda: xpgrad.rnn(X, X, X, clip="wide"), "recurrent"),
    "a single step": (lambda: xpgrad.lstm_cell(X, X, X, X, X), "recurrent"),
    "convolution": (lambda: xpgrad.conv(X, X, strides=0), "convolution"),
    "transposed convolution": (lambda: xpgrad.conv_transpose(X, np.ones((2, 4, 3)), pads=-1), "convolution"),
    "activation": (lambda: xpgrad.relu_grad(X, X[:1]), "activations"),
    "softmax": (lambda: xpgrad.softmax(X, axis=7), "activations"),
    "loss": (lambda: xpgrad.softmax_cross_entropy(X, np.ones(3, int), label_smoothing=2.0), "activations"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_error_names_a_page_once(case: str) -> None:
    call, page = WRONG[case]
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert caught.value.__notes__ == [f"docs/{page}.md explains what is expected."]
    assert (DOCS / f"{page}.md").exists()
