"""The directive `activations` of reference pages: part of `conf.py`.

It lists the activations of the page's module, as `autosummary` lists names.
"""

import importlib
import tempfile
from pathlib import Path

from docutils.statemachine import StringList
from sphinx.ext.autosummary import Autosummary
from sphinx.ext.autosummary.generate import generate_autosummary_docs

MODULES = ("xpgrad", "xpgrad_jax", "xpgrad_torch", "xpgrad_torch.functional")
"""Those whose pages have the directive."""
_STUBS = """.. currentmodule:: {module}

.. autosummary::
   :toctree:

   {names}
"""


def activation_names(module: str) -> list[str]:
    """The names of a module's activations."""
    source = "xpgrad_torch" if module.startswith("xpgrad_torch") else "xpgrad"
    own = importlib.import_module(f"{source}.activations").__all__
    return [name for name in importlib.import_module(module).__all__ if name in own]


class Activations(Autosummary):
    """The list."""

    has_content = False

    def run(self) -> list:
        """Return its nodes."""
        self.env.note_reread()  # names come and go without a change of the page
        names = activation_names(self.env.ref_context["py:module"])
        self.content = StringList(names, source=self.env.docname)
        self.options |= {"toctree": "generated", "nosignatures": None}
        return super().run()


def write_stubs(app) -> None:
    """Write the page of each name."""
    folder = Path(app.srcdir) / "reference" / "generated"
    texts = (_STUBS.format(module=m, names="\n   ".join(activation_names(m))) for m in MODULES)
    with tempfile.TemporaryDirectory() as place:
        lists = Path(place) / "lists.rst"
        lists.write_text("\n".join(texts), encoding="utf-8")
        generate_autosummary_docs([str(lists)], output_dir=str(folder), app=app)
