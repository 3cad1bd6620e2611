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
        "LSTM": (1.43, 1.14, 2.19),
        "GRU": (3.29, 1.78, 12.96),
        "RNN": (2.51, 1.69, 6.05),
        "Conv1d": (1.5, 1.16, 2.05),
        "Conv2d": (1.5, 1.16, 2.05),
        "Conv3d": (1.5, 1.16, 2.05),
    },
}
