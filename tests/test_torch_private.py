"""PyTorch's private names stand in one module, which says what is missing."""

import re
from pathlib import Path

import pytest
import torch

import xpgrad_torch
from xpgrad_torch import _private

PRIVATE = re.compile(
    r"\btorch\.(\w+\.)*_[a-zA-Z]\w*"  # torch._C, torch.utils._pytree
    r"|\bnn\.(\w+\.)*_[a-zA-Z]\w*"
    r"|\bforward_ad\._"
    r"|from torch[\w.]* import .*\b_[a-zA-Z]"
    r"|\._(base|is_zerotensor)\b"
)


def test_private_names_stand_in_one_module():
    found = {}
    for path in Path(xpgrad_torch.__file__).parent.glob("*.py"):
        code = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.S)
        found[path.name] = [match.group() for match in PRIVATE.finditer(code)]
    assert found.pop("_private.py")
    assert {name: names for name, names in found.items() if names} == {}


def test_what_is_missing_is_named_with_the_version():
    assert _private._found("_C.no_such_name.at_all") is None
    with pytest.raises(ImportError, match=rf"PyTorch {re.escape(torch.__version__)} has no torch\._C\.gone"):
        _private._needed("_C.gone")
    assert _private._imported("nn.no_such_module", "name") is None


def test_every_plain_way_is_a_way():
    """Of what may be missing, this version has all, so that the tests are of that."""
    assert _private.ExpandedWeight.__module__.startswith("torch.")
    assert _private.set_grad_sample is not None
    assert _private.is_functional is torch._is_functional_tensor
    assert _private.is_of_older_vmap is torch._C._functorch.is_legacy_batchedtensor
