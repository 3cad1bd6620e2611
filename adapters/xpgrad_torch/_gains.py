"""How many times as fast as PyTorch's modules ours were; written by asv_bench/gains.py."""

GAINS = {  # by machine: geometric mean, lowest, highest over the shapes of docs/performance.md
    "AMD EPYC, 2 threads": {
        "LSTM": (1.19, 0.94, 2.28),
        "GRU": (3.39, 1.85, 13.72),
        "RNN": (2.67, 1.64, 6.28),
        "Conv1d": (0.86, 0.45, 1.76),
        "Conv2d": (0.86, 0.45, 1.76),
        "Conv3d": (0.86, 0.45, 1.76),
    },
    "Intel(R) Xeon(R) Processor, 2 threads": {
        "LSTM": (1.06, 0.88, 1.19),
        "GRU": (3.19, 1.88, 8.92),
        "Conv1d": (0.9, 0.47, 1.67),
        "Conv2d": (0.9, 0.47, 1.67),
        "Conv3d": (0.9, 0.47, 1.67),
    },
}
