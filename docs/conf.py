"""How the site is built: `sphinx-build -W -b html docs docs/_build/html`, without a network."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent)]

project = "cqbjax"
html_title = "cqbjax"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
exclude_patterns = ["_build", "jupyter_execute"]

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "myst_nb",
    "math_markup",
    "plain_docstrings",
    "stored_results",
    "paper_items",
]

# Markdown. Headings get anchors, so that pages can link to each other's sections.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "amsmath"]
myst_heading_anchors = 4
math_number_all = False

# The notebook is stored without outputs and run when it changed; an error in it ends the build.
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# The reference is what docstrings say, in the order of the source.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Fields of a frozen class are what its constructor takes; their types are in its signature.
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_attr_annotations = False
napoleon_use_rtype = False
default_role = "code"
highlight_language = "none"
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
