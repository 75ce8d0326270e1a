"""The report as one HTML file: template, style, scripts, figures and the chart library in it; nothing is fetched.

The chart library is plotly.js as the package ``plotly`` ships it, compressed in the page and unpacked by the browser.
A Content-Security-Policy forbids everything but the scripts of the page, named by their hashes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from intact8.diagnose.report import formatting
from intact8.diagnose.report.chart_data import payload
from intact8.diagnose.report.module_tree import rows
from intact8.errors import InputError
from intact8.text import printable_lines

if TYPE_CHECKING:
    from jinja2 import Environment

    from intact8.diagnose.report.contents import Report


def missing() -> tuple[str, ...]:
    """Packages of the extra ``report`` that are not installed."""
    return tuple(name for name in ("jinja2", "plotly") if importlib.util.find_spec(name) is None)


def render(report: Report) -> str:
    """The page.

    Raises:
        InputError: jinja2 or plotly is not installed.
    """
    environment, library = _environment(), _chart_library()
    script = _asset("report.js") + "\n" + _asset("charts.js")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}' '{_hash(library)}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    packed = base64.b64encode(gzip.compress(library.encode(), 9, mtime=0)).decode()
    return environment.get_template("report.html.j2").render(
        report=report,
        rows=rows(report.layers),
        data=_json(payload(report)),
        style=_asset("report.css"),
        script=script,
        policy=policy,
        library=packed,
        licence=_licence(),
        severities=("error", "warning", "note"),
    )


def _environment() -> Environment:
    try:
        import jinja2
    except ImportError as error:
        raise _missing(error) from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("intact8.diagnose.report"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_inert,
    )  # fmt: skip
    environment.filters.update(formatting.FILTERS)
    return environment


def _inert(value: Any) -> Any:
    """Marks that turn the order of letters around, and their like, have no place in a page either."""
    return printable_lines(value) if type(value) is str else value  # templates and scripts are of a type of their own


def _chart_library() -> str:
    try:
        files = resources.files("plotly")
    except ImportError as error:
        raise _missing(error) from error
    return (files / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _licence() -> str:
    """The chart library's licence, as it came with it."""
    distribution = importlib.metadata.distribution("plotly")
    texts = [f for f in distribution.files or () if "LICENSE" in f.name.upper()]
    return "\n\n".join(file.read_text(encoding="utf-8") for file in texts)


def _missing(error: ImportError) -> InputError:
    return InputError(
        "the page needs jinja2 and plotly", where="report", why=str(error), remedy="pip install 'intact8[report]'"
    )


def _asset(name: str) -> str:
    return (resources.files("intact8.diagnose.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """What a Content-Security-Policy calls a script by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


_ESCAPE = re.compile(r"\\\\|\\u([0-9a-f]{4})|\\[bfrt]")
"""In JSON of ASCII alone: an escaped backslash, a character by its number, or one by its letter."""


def _shown(found: re.Match[str]) -> str:
    """A character that is not printable as the text of its escape, any other as it is."""
    text = found[0]
    half = found[1] is not None and "d800" <= found[1] <= "dfff"  # of a pair that stands for one character
    return text if text == "\\\\" or half or json.loads(f'"{text}"').isprintable() else "\\" + text


def _json(values: Mapping[str, Any]) -> str:
    """JSON that can stand in a script element: no character of it opens or closes one."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    text = _ESCAPE.sub(_shown, text)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
