"""GRU-D as a layer."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from xpgrad_torch import functional
from xpgrad_torch._fx import Unscripted
from xpgrad_torch._kernel import is_single, type_of
from xpgrad_torch._lengths import in_time_major, lengths_tensor
from xpgrad_torch._memory import check_save
from xpgrad_torch._sequence_layer import check_sizes

__all__ = ["GRUD"]


class GRUD(Unscripted, nn.Module):
    """GRU-D for series with missing values; what it computes is described in `xpgrad.gru_d`.

    It is called as ``layer(values, mask, delta, hx=None, lengths=None, reset=None)``.

    Parameters
    ----------
    input_size, hidden_size : int
        I and H.
    mean : Tensor, optional
        Each variable's mean, (I,), a buffer of the layer; zero by default.
    bias : bool
        Whether there are biases B.
    batch_first : bool
        Whether input and output are (N, T, ...).
    bidirectional : bool
        Whether a second set of parameters runs from the sequences' ends.
    device, dtype
        Of the parameters.
    save : {"all", "states"}
        What is kept for the gradient; see `xpgrad_torch.run_cell`.

    Attributes
    ----------
    W, R, B, decay_x, decay_h : Parameter
        As `xpgrad.gru_d` has them, gates in the order z r h. They begin as those of `torch.nn.GRU`.
    mean : Tensor
        (I,).

    Raises
    ------
    ValueError, TypeError
        From the constructor and from a call, where a size or an attribute breaks the operator's rules.

    Examples
    --------
    >>> import torch
    >>> from xpgrad_torch import GRUD
    >>> values, delta = torch.randn(7, 2, 3), torch.rand(7, 2, 3)
    >>> mask = (torch.rand(7, 2, 3) < 0.5).float()
    >>> output, h_n = GRUD(3, 5)(values, mask, delta, lengths=[7, 4])
    >>> output.shape, h_n.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    W: Tensor
    R: Tensor
    B: Tensor | None
    decay_x: Tensor
    decay_h: Tensor
    mean: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        mean: Tensor | None = None,
        bias: bool = True,
        batch_first: bool = False,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        save: str = "all",
    ) -> None:
        super().__init__()
        check_sizes("GRUD", input_size=input_size, hidden_size=hidden_size)
        check_save("GRUD", save)
        if save not in ("all", "states"):
            raise ValueError(f"GRUD: save is {save!r}, expected 'all' or 'states'")
        self.input_size, self.hidden_size, self.save = input_size, hidden_size, save
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        D, I, H = (2 if bidirectional else 1), input_size, hidden_size
        shapes: dict[str, tuple[int, ...]] = {"W": (3 * H, 2 * I), "R": (3 * H, H)}
        shapes |= {"B": (3 * H,)} if bias else {}
        shapes |= {"decay_x": (2, I), "decay_h": (H, I + 1)}
        for name, shape in shapes.items():
            parameter = nn.Parameter(torch.empty((D, *shape), device=device, dtype=dtype))
            self.register_parameter(name, parameter)
        if not bias:
            self.register_parameter("B", None)
        if mean is not None and (not isinstance(mean, Tensor) or mean.shape != (I,)):
            shown = tuple(mean.shape) if isinstance(mean, Tensor) else type_of(mean)
            raise ValueError(f"GRUD: mean is {shown}, expected a tensor of shape (I,) = ({I},)")
        zeros = torch.zeros(I, device=device, dtype=dtype)
        self.register_buffer("mean", zeros if mean is None else mean.to(zeros))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters, uniform between -1/sqrt(H) and 1/sqrt(H) as those of `torch.nn.GRU`."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        """Return the constructor's arguments."""
        extra = "" if self.bias else ", bias=False"
        extra += ", bidirectional=True" if self.bidirectional else ""
        extra += ", batch_first=True" if self.batch_first else ""
        return f"{self.input_size}, {self.hidden_size}{extra}"

    def forward(
        self,
        values: Tensor,
        mask: Tensor,
        delta: Tensor,
        hx: Tensor | None = None,
        lengths: Any = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the layer over a batch of series.

        Parameters
        ----------
        values, mask, delta : Tensor
            (T, N, I), (N, T, I) where `batch_first`, or (T, I) for a single series: values, 1 where one was
            observed and 0 where none was, and the time since each variable's last observation.
        hx : Tensor, optional
            Initial state (D, N, H), without N for a single series; default zeros.
        lengths : Tensor or sequence of int, optional
            Length of each series, (N,).
        reset : Tensor, optional
            Booleans (T, N), (N, T) where `batch_first`, or (T,): the state starts at zero before these steps,
            and the last value is forgotten.

        Returns
        -------
        output, h_n : Tensor
            The state over time, (T, N, D·H), (N, T, D·H) or (T, D·H), and at the ends, (D, N, H) or (D, H).
        """
        single = is_single("GRUD", values, 2)

        def turned(x: Any) -> Any:
            if not isinstance(x, Tensor) or x.dim() != values.dim():
                return x  # wrong, as the operator says
            return x.unsqueeze(1) if single else x.transpose(0, 1) if self.batch_first else x

        hx = hx.unsqueeze(1) if single and isinstance(hx, Tensor) else hx
        D = self.W.shape[0]
        H_all, H_t = functional.gru_d(
            turned(values), turned(mask), turned(delta), self.W, self.R, self.decay_x, self.decay_h, self.B,
            self.mean.expand(D, -1), lengths_tensor("GRUD", "lengths", lengths), hx,
            direction="bidirectional" if self.bidirectional else "forward",
            reset=in_time_major(reset, single, self.batch_first), save=self.save,
        )  # fmt: skip
        output = H_all.transpose(1, 2).flatten(2)
        if single:
            return output.squeeze(1), H_t.squeeze(1)
        return (output.transpose(0, 1) if self.batch_first else output), H_t
