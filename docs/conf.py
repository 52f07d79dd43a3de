"""Sphinx: how the pages of this folder become a site. Nothing is fetched, when it is built or when it is read."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "Headrace"
author = "the Headrace contributors"
version = release = version_of("headrace")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "command_help", "plain_docstrings"]
exclude_patterns = ["_build"]
nitpicky = False
default_role = "code"  # docstrings put names in single backticks

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = "Headrace"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_css_files = ["wide.css"]
html_static_path = ["static"]
pygments_style = "tango"
pygments_dark_style = "monokai"
