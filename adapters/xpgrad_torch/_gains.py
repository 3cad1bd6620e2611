"""Speedups of our modules over PyTorch's; written by asv_bench/gains.py."""

GAINS = {  # by machine: geometric mean, lowest, highest over the shapes of docs/performance.md
    "AMD EPYC, 2 threads": {
        "LSTM": (1.37, 0.84, 2.26),
        "GRU": (4.24, 2.44, 16.55),
        "RNN": (2.82, 1.62, 8.08),
        "Conv1d": (1.59, 1.09, 2.06),
        "Conv2d": (1.59, 1.09, 2.06),
        "Conv3d": (1.59, 1.09, 2.06),
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
