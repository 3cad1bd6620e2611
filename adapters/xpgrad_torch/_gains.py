"""Speedups of our modules over PyTorch's; written by asv_bench/gains.py."""

GAINS = {  # by machine: geometric mean, lowest, highest over the shapes of docs/performance.md
    "AMD EPYC, 2 threads": {
        "LSTM": (1.34, 0.82, 2.05),
        "GRU": (3.11, 1.62, 11.62),
        "RNN": (2.74, 1.67, 7.16),
        "Conv1d": (1.57, 1.05, 2.12),
        "Conv2d": (1.57, 1.05, 2.12),
        "Conv3d": (1.57, 1.05, 2.12),
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
