"""xpgrad in Keras: its recurrent layers on xpgrad's kernels, and `swap`, which puts them into a model."""

from xpgrad_keras.layers import GRU, LSTM, SimpleRNN
from xpgrad_keras.swap import swap, swap_report, unswap

__all__ = ["GRU", "LSTM", "SimpleRNN", "swap", "swap_report", "unswap"]
