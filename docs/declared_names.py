"""The directives `activations` and `recurrent` of reference pages: part of `conf.py`.

They list those declared operators of the page's module, as `autosummary` lists names.
"""

import importlib
import tempfile
from pathlib import Path

from docutils.statemachine import StringList
from sphinx.ext.autosummary import Autosummary
from sphinx.ext.autosummary.generate import generate_autosummary_docs

from xpgrad._operators.units import UNITS

MODULES = ("xpgrad", "xpgrad_jax", "xpgrad_torch", "xpgrad_torch.functional")
"""Those whose pages have the directives."""
_STUBS = """.. currentmodule:: {module}

.. autosummary::
   :toctree:

   {names}
"""


def _activations(module: str) -> list[str]:
    source = "xpgrad_torch" if module.startswith("xpgrad_torch") else "xpgrad"
    own = importlib.import_module(f"{source}.activations").__all__
    return [name for name in importlib.import_module(module).__all__ if name in own]


def _recurrent(module: str) -> list[str]:
    """Functions, and the types or modules with their names; functions first."""
    package, own = importlib.import_module(module), set()
    for unit in UNITS.values():
        source = unit.functions[unit.name].__module__
        own |= {*unit.kernels, unit.module, f"{unit.module}Cell"}
        own |= {
            name for name in package.__all__ if getattr(getattr(package, name), "__module__", None) == source
        }
    return sorted(own.intersection(package.__all__), key=lambda name: (not name.islower(), name))


KINDS = {"activations": _activations, "recurrent": _recurrent}
"""The names in a module, by directive."""


class _Declared(Autosummary):
    """The list."""

    has_content = False

    def run(self) -> list:
        """Return its nodes."""
        self.env.note_reread()  # names come and go without a change of the page
        names = KINDS[self.name](self.env.ref_context["py:module"])
        self.content = StringList(names, source=self.env.docname)
        self.options |= {"toctree": "generated", "nosignatures": None}
        return super().run()


def add_directives(app) -> None:
    """Add both."""
    for kind in KINDS:
        app.add_directive(kind, _Declared)


def write_stubs(app) -> None:
    """Write the page of each name."""
    folder = Path(app.srcdir) / "reference" / "generated"
    named = ((module, [*_activations(module), *_recurrent(module)]) for module in MODULES)
    texts = (_STUBS.format(module=module, names="\n   ".join(names)) for module, names in named)
    with tempfile.TemporaryDirectory() as place:
        lists = Path(place) / "lists.rst"
        lists.write_text("\n".join(texts), encoding="utf-8")
        generate_autosummary_docs([str(lists)], output_dir=str(folder), app=app)
