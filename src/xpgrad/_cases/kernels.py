"""The table of kernels with their options and oracles; a new kernel needs an entry here."""

from .activations import ACTIVATIONS
from .case import KernelCases
from .cell_operators import CELL_OPERATORS
from .convolution import CONVOLUTIONS
from .layer_norm import LAYER_NORM
from .recurrent import CELLS, SEQUENCES

__all__ = ["KERNELS"]

KERNELS: tuple[KernelCases, ...] = (
    *SEQUENCES,
    *CELLS,
    *LAYER_NORM,
    *CELL_OPERATORS,
    *ACTIVATIONS,
    *CONVOLUTIONS,
)
