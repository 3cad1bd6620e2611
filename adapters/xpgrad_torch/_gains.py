"""How many times as fast as PyTorch's modules ours were; written by asv_bench/gains.py."""

GAINS = {  # by machine: geometric mean, lowest, highest over the shapes of docs/performance.md
    "AMD EPYC, 2 threads": {
        "LSTM": (1.38, 1.08, 1.93),
        "GRU": (3.29, 1.65, 12.64),
        "RNN": (2.87, 1.75, 8.4),
        "Conv1d": (1.79, 1.1, 2.74),
        "Conv2d": (1.79, 1.1, 2.74),
        "Conv3d": (1.79, 1.1, 2.74),
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
