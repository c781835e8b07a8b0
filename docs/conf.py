"""Settings of the site: `sphinx-build -W -b html docs docs/_build/html`, without a network."""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent)]

project = "cqbjax"
html_title = "cqbjax"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
html_copy_source = False
html_show_copyright = False
# `examples/README.md` replaces the index that sphinx-gallery writes.
exclude_patterns = ["_build", "gallery/index.rst", "jupyter_execute"]

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "myst_nb",
    "sphinx_gallery.gen_gallery",
    "math_markup",
    "plain_docstrings",
    "stored_results",
]

# Markdown. Headings get anchors, so that pages can link to each other's sections.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "amsmath"]
myst_heading_anchors = 4
math_number_all = False

# The notebook is stored without outputs and is run when it changed; an error fails the build.
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# The examples are run when they changed, and always by CI, since the package may have changed; the
# long example is shown without being run.
# What differs from build to build, such as seconds, is left out.
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "backreferences_dir": "gallery/backreferences",
    "minigallery_sort_order": "examples_in_order.place",
    "filename_pattern": r"/(?!reinforce|ppo)\w+\.py$",
    "abort_on_example_error": True,
    "capture_repr": (),
    "css": ["sg_gallery"],
    "download_all_examples": False,
    "image_srcset": ["2x"],
    "min_reported_time": float("inf"),
    "notebook_extensions": set(),
    "run_stale_examples": "CI" in os.environ,
    "show_signature": False,
    "write_computation_times": False,
}

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
