"""The kernels of xpgrad_torch for Keras on PyTorch: under autograd, and in `torch.compile`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xpgrad_keras._backends import KerasBackend, computed
from xpgrad_keras._calls import LayerCall
from xpgrad_torch import functional
from xpgrad_torch._private import are_transforms_active


class _Torch(KerasBackend):
    where = staticmethod(torch.where)

    def takes(self, X: Any, W: Any, mask: Any) -> bool:
        devices = {X.device.type, W.device.type}
        return devices == {"cpu"} or (X.device.type == "meta" and mask is None)

    def choose(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        # compilers and vmap accept no branches that depend on data; `no` is right for every mask
        if torch.compiler.is_compiling() or are_transforms_active():
            return no()
        return super().choose(condition, yes, no)

    def run(self, call: LayerCall, *arrays: Any) -> tuple[Tensor, list[Tensor]]:
        return computed(functional.run_recurrent, torch, call, *arrays)


BACKEND = _Torch()
