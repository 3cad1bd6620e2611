"""Speedups of our modules over PyTorch's; written by asv_bench/gains.py."""

GAINS = {  # by machine: geometric mean, lowest, highest over the shapes of docs/performance.md
    "AMD EPYC, 2 threads": {
        "LSTM": (1.31, 0.86, 1.9),
        "GRU": (3.55, 1.92, 13.87),
        "RNN": (2.84, 1.71, 6.85),
        "Conv1d": (1.57, 1.06, 2.1),
        "Conv2d": (1.57, 1.06, 2.1),
        "Conv3d": (1.57, 1.06, 2.1),
    },
    "Intel(R) Xeon(R) Processor, 2 threads": {
        "LSTM": (1.59, 1.24, 2.24),
        "GRU": (3.81, 1.96, 15.55),
        "RNN": (2.95, 2.06, 7.09),
        "Conv1d": (1.51, 1.14, 2.1),
        "Conv2d": (1.51, 1.14, 2.1),
        "Conv3d": (1.51, 1.14, 2.1),
    },
}
