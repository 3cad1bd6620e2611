"""How many times as fast as PyTorch's modules ours were; written by asv_bench/gains.py."""

GAINS = {  # by machine: geometric mean, lowest, highest over the shapes of docs/performance.md
    "AMD EPYC, 2 threads": {
        "LSTM": (1.16, 0.93, 1.64),
        "GRU": (3.15, 1.84, 11.42),
        "RNN": (2.73, 1.6, 6.7),
        "Conv1d": (0.94, 0.52, 1.56),
        "Conv2d": (0.94, 0.52, 1.56),
        "Conv3d": (0.94, 0.52, 1.56),
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
