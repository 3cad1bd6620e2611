"""How many times as fast as PyTorch's modules ours were; written by asv_bench/gains.py."""

GAINS = {  # by machine: geometric mean, lowest, highest over the shapes of docs/performance.md
    "AMD EPYC, 2 threads": {
        "LSTM": (1.12, 0.87, 1.76),
        "GRU": (3.08, 1.63, 10.81),
    },
    "Intel(R) Xeon(R) Processor, 2 threads": {
        "LSTM": (1.06, 0.88, 1.19),
        "GRU": (3.19, 1.88, 8.92),
        "Conv1d": (0.9, 0.47, 1.67),
        "Conv2d": (0.9, 0.47, 1.67),
        "Conv3d": (0.9, 0.47, 1.67),
    },
}
