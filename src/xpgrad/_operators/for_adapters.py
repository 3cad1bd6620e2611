"""The core's functions for adapters: calls and maps of kernels, and parts of operators.

This package describes operators, and is the only private package that adapters import. This module re-exports
objects of other packages for them.
"""

from xpgrad._calls.adapter_calls import run_foreign
from xpgrad._calls.families import PlannedCall
from xpgrad._calls.host_programs import write_parts, write_program
from xpgrad._calls.mapped_call import Mapped, MappedCall
from xpgrad._calls.plans import lengths_of
from xpgrad._calls.shared_steps import largest_steps
from xpgrad._conv.geometry import ConvGeometry
from xpgrad._recurrent.activation_choice import halves as halves_of_activations
from xpgrad.gru_d import FILL as GRU_D_FILL
from xpgrad.gru_d import GRU as GRU_D_GRU
from xpgrad.gru_d import GRUDCall
from xpgrad.slstm import cell_of_gates as slstm_of_gates

__all__ = [
    "GRU_D_FILL",
    "GRU_D_GRU",
    "ConvGeometry",
    "GRUDCall",
    "Mapped",
    "MappedCall",
    "PlannedCall",
    "halves_of_activations",
    "largest_steps",
    "lengths_of",
    "run_foreign",
    "slstm_of_gates",
    "write_parts",
    "write_program",
]
