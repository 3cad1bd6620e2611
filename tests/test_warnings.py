"""Whose warnings are errors: ours; those of PyTorch's own lines on its older parts are PyTorch's."""

from __future__ import annotations

import re
import warnings

import pytest

OF_TORCH = [
    ("torch.jit._script", DeprecationWarning, "`torch.jit.script` is deprecated"),
    ("torch.testing._internal.optests.autograd_registration", UserWarning,
     "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed"),
    ("torch.utils._pytree", FutureWarning, "something changes"),
    ("torch", DeprecationWarning, "something goes"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "category", "text"), OF_TORCH, ids=[module for module, *_ in OF_TORCH])
def test_pytorch_may_deprecate_what_it_uses_itself(module: str, category: type[Warning], text: str) -> None:
    warnings.warn_explicit(text, category, "file.py", 1, module=module)
    for other in ("xpgrad_torch._kernel", "test_torch_library", "torchvision"):
        with pytest.raises(category, match=re.escape(text)):
            warnings.warn_explicit(text, category, "file.py", 1, module=other)
