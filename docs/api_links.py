"""Links from names in the text of guides to their pages of the reference: part of `conf.py`.

Markdown has no role for names in code. So each piece of inline code that is a public name becomes a link:
with its module (`xpgrad.lstm`, `xpgrad_torch.LSTM`), without it (`lstm`), or as a call (`lstm(X, W, R)`).
"""

import importlib
import re
from collections.abc import Iterator

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.transforms import SphinxTransform

MODULES = (
    "xpgrad",
    "xpgrad.testing",
    "xpgrad.cells",
    "xpgrad_torch",
    "xpgrad_torch.functional",
    "xpgrad_jax",
    "xpgrad_keras",
    "xpgrad_onnx",
)
ALL = ("xpgrad", "xpgrad.testing", "xpgrad_torch", "xpgrad_onnx")
"""Where a name without a module is looked for, in this order."""
PAGES = {
    "pytorch": ("xpgrad_torch", "xpgrad_torch.functional", "xpgrad"),
    "start_pytorch": ("xpgrad_torch", "xpgrad_torch.functional", "xpgrad"),
    "jax": ("xpgrad_jax", "xpgrad"),
    "start_jax": ("xpgrad_jax", "xpgrad"),
    "keras": ("xpgrad_keras",),  # activations are Keras' there
    "own_cells": ("xpgrad.cells", *ALL),
}
"""Where it is looked for on a page."""
WORDS = {"activation", "mean", "relu", "sigmoid", "softmax", "tanh"}
"""Public names that mean other things too: links without a module in PAGES and `activations` only."""
_CODE = re.compile(r"([A-Za-z_][\w.]*)(\(.*\))?", re.S)


def public_names(module: str) -> list[str]:
    """The names that a module offers."""
    return [
        name for name in importlib.import_module(module).__all__ if name not in ("__version__", "functional")
    ]


def full_name(code: str, page: str) -> str | None:
    """The name of the reference that a piece of inline code means, or None."""
    found = _CODE.fullmatch(code.strip())
    if found is None:
        return None
    module, _, name = found[1].rpartition(".")
    module = {"functional": "xpgrad_torch.functional", "testing": "xpgrad.testing"}.get(module, module)
    if module:
        candidates: tuple[str, ...] = (module,) if module in MODULES else ()
    else:
        candidates = PAGES.get(page, ALL)
        if name in WORDS and page != "activations":
            candidates = candidates[:1] if page in PAGES else ()
    return next((f"{found}.{name}" for found in candidates if name in public_names(found)), None)


class ApiLinks(SphinxTransform):
    """Inline code that is a public name becomes a reference to its page."""

    default_priority = 5  # before references are resolved

    def apply(self, **kwargs: object) -> None:
        """Replace the nodes of one page."""
        if self.env.docname.startswith("reference/"):
            return  # docstrings have references of their own
        for literal in list(self._inline_code()):
            target = full_name(literal.astext(), self.env.docname)
            if target is not None:
                reference = pending_xref(
                    "", refdomain="py", reftype="obj", reftarget=target, refexplicit=True, refwarn=True,
                    refdoc=self.env.docname,
                )  # fmt: skip
                literal.replace_self(reference)
                reference += literal

    def _inline_code(self) -> Iterator[nodes.literal]:
        for literal in self.document.findall(nodes.literal):
            around = literal.parent
            while around is not None and not isinstance(around, (nodes.reference, pending_xref, nodes.title)):
                around = around.parent
            if around is None:
                yield literal
