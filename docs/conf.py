"""How Sphinx builds the site: ``python -m sphinx -W -b html docs OUT``."""

import gc
import os
import re
import sys
import warnings
from pathlib import Path

import xpgrad

gc.set_threshold(100_000)  # Python's collector would take a seventh of the time

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))
os.environ.setdefault("KERAS_BACKEND", "torch")

project = "xpgrad"
author = "xpgrad developers"
copyright = "xpgrad developers"  # noqa: A001 - Sphinx's own name
release = version = xpgrad.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_parser",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
]
# A brief build, for checks: without the tutorials that train for a minute, and without links in code, which
# take a third of the time.
IS_BRIEF = os.environ.get("XPGRAD_DOCS") == "brief"
if not IS_BRIEF:
    extensions.append("sphinx_codeautolink")
exclude_patterns = ["_build"]
templates_path = ["_templates"]
default_role = "py:obj"
html_theme = "pydata_sphinx_theme"
html_title = f"xpgrad {version}"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "navbar_align": "left",
    "show_nav_level": 1,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "pygments_dark_style": "github-dark-high-contrast",  # the default shows keywords as text
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"index": []}
html_show_sourcelink = False
nitpicky = False

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = [
    "codeautolink.match_name",  # sphinx-gallery marks some names up differently: these get no link
    "config.cache",  # functions in a configuration cannot be pickled
]

copybutton_prompt_text = r">>> |\.\.\. "  # of docstrings' examples: prompts and output stay behind
copybutton_prompt_is_regexp = True

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say more: shapes and dtypes
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
numpydoc_xref_param_type = False

# Links to other projects need their lists of names, which a build without a network cannot read.
intersphinx_mapping = (
    {
        "jax": ("https://docs.jax.dev/en/latest/", None),
        "numpy": ("https://numpy.org/doc/stable/", None),
        "python": ("https://docs.python.org/3/", None),
        "torch": ("https://docs.pytorch.org/docs/stable/", None),
    }
    if os.environ.get("XPGRAD_DOCS_ONLINE") == "1"
    else {}
)

LONG_TUTORIALS = ("plot_5_private_training", "plot_10_missing_values", "plot_12_episodes")
sphinx_gallery_conf = {
    "examples_dirs": [str(ROOT / "examples" / "tutorials")],
    "gallery_dirs": ["tutorials"],
    "filename_pattern": rf"/(?!{'|'.join(LONG_TUTORIALS)})\w+\.py$" if IS_BRIEF else r"/\w+\.py$",
    "remove_config_comments": True,
    "download_all_examples": False,
    "show_memory": False,
    "abort_on_example_error": True,
    "within_subsection_order": "gallery_order.by_number",
}
import activations  # noqa: E402 - these are beside this file
from api_links import ApiLinks  # noqa: E402
from declared_names import add_directives, write_stubs  # noqa: E402

warnings.filterwarnings("ignore", message="Matplotlib is currently using agg")


def _plain_stars(app, what, name, obj, options, lines):
    """Shapes such as (N, C, *size) are no emphasis. Examples and literals stay as they are: they are code."""
    lines[:] = [
        line
        if line.lstrip().startswith((">>>", "..."))
        else "``".join(
            part if number % 2 else re.sub(r"(?<=[ (])\*(?=\w+\))", r"\\*", part)
            for number, part in enumerate(line.split("``"))
        )
        for line in lines
    ]


def _fields_are_described(app, what, name, obj, options, lines):
    """Named tuples: their docstring describes the fields, so the members' generated lines are left out."""
    if what == "attribute" and lines and lines[0].startswith("Alias for field number"):
        lines[:] = []


def setup(app):
    """Connect what is above; called by Sphinx."""
    if not activations.is_current():
        activations.plot()
    add_directives(app)
    app.connect("builder-inited", write_stubs)
    app.add_transform(ApiLinks)
    app.connect("autodoc-process-docstring", _plain_stars, priority=400)
    app.connect("autodoc-process-docstring", _fields_are_described)
