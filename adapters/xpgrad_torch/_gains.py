"""Speedups of our modules over PyTorch's; written by asv_bench/gains.py."""

GAINS = {  # by machine: geometric mean, lowest, highest over the shapes of docs/performance.md
    "AMD EPYC, 2 threads": {
        "LSTM": (1.56, 1.05, 4.28),
        "GRU": (3.26, 1.84, 14.28),
        "RNN": (2.57, 1.61, 7.38),
        "Conv1d": (1.67, 1.08, 2.14),
        "Conv2d": (1.67, 1.08, 2.14),
        "Conv3d": (1.67, 1.08, 2.14),
    },
    "AMD EPYC without AVX-512, 2 threads": {
        "LSTM": (1.47, 1.06, 2.3),
        "GRU": (3.29, 1.73, 16.71),
        "RNN": (2.59, 1.74, 8.22),
        "Conv1d": (1.53, 1.36, 1.77),
        "Conv2d": (1.53, 1.36, 1.77),
        "Conv3d": (1.53, 1.36, 1.77),
    },
    "Intel(R) Xeon(R) Processor, 2 threads": {
        "LSTM": (1.55, 1.02, 2.64),
        "GRU": (4.04, 1.97, 15.61),
        "RNN": (2.84, 1.83, 7.75),
        "Conv1d": (1.52, 1.11, 1.97),
        "Conv2d": (1.52, 1.11, 1.97),
        "Conv3d": (1.52, 1.11, 1.97),
    },
}
