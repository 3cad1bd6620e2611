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
        "LSTM": (1.38, 1.07, 1.98),
        "GRU": (3.25, 1.67, 13.45),
        "RNN": (2.49, 1.57, 6.04),
        "Conv1d": (1.26, 0.92, 2.07),
        "Conv2d": (1.26, 0.92, 2.07),
        "Conv3d": (1.26, 0.92, 2.07),
    },
}
