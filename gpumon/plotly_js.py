"""plotly's JavaScript, for the plots of the live page and of reports: ``plotly.min.js`` of the package plotly, 4.8 MB.

It is read when it is asked for and not kept. Where the package is not installed, or came without that file, there is
none: whoever asked says so, or leaves its plots out.
"""

from __future__ import annotations

import importlib.resources


def plotly_js(package: str = "plotly") -> bytes | None:
    """The file as it is."""
    try:
        return (importlib.resources.files(package) / "package_data" / "plotly.min.js").read_bytes()
    except (ModuleNotFoundError, OSError):
        return None
