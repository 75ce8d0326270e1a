"""The report as one HTML file that holds template, style, scripts, data and the chart library; it fetches nothing.

The chart library is plotly.js as the package ``plotly`` ships it, compressed in the page and unpacked by the browser.
A Content-Security-Policy forbids all scripts but those of the page, which it names by their hashes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.metadata
import importlib.util
import json
import re
from importlib import resources
from typing import TYPE_CHECKING, Any

from intact8.diagnose.lint.rules import load
from intact8.diagnose.report import formatting
from intact8.diagnose.report.chart_data import chart_data
from intact8.diagnose.report.module_tree import rows
from intact8.errors import InputError
from intact8.text import printable_lines

if TYPE_CHECKING:
    from jinja2 import Environment

    from intact8.diagnose.report.contents import Report


def missing() -> tuple[str, ...]:
    """Return the packages of the extra ``report`` that are not installed."""
    return tuple(name for name in ("jinja2", "plotly") if importlib.util.find_spec(name) is None)


def render(report: Report) -> str:
    """Return the page.

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
    layer = environment.get_template("layer.html.j2")
    return environment.get_template("report.html.j2").render(
        report=report,
        rows=rows(report.layers),
        details=_json([layer.render(report=report, op=op, index=i) for i, op in enumerate(report.layers)]),
        data=_json(chart_data(report)),
        style=_asset("report.css"),
        script=script,
        policy=policy,
        library=packed,
        licence=_licence(),
        others={} if report.other is None else {layer.name: layer for layer in report.other.layers},
        severities=("error", "warning", "note"),
        rules=[rule for id, rule in load().items() if id in {finding.id for finding in report.findings}],
    )


def _environment() -> Environment:
    try:
        import jinja2
    except ImportError as error:
        raise _missing(error) from error
    loader, strict = jinja2.PackageLoader("intact8.diagnose.report"), jinja2.StrictUndefined
    blocks: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=strict, finalize=_inert, **blocks)
    environment.filters.update(formatting.FILTERS)
    return environment


def _inert(value: Any) -> Any:
    """Return the escape what is not printable, marks that change the order of letters among it."""
    return printable_lines(value) if type(value) is str else value  # templates and scripts are of other types


def _chart_library() -> str:
    try:
        files = resources.files("plotly")
    except ImportError as error:
        raise _missing(error) from error
    return (files / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _licence() -> str:
    """Return the licence that came with the chart library."""
    distribution = importlib.metadata.distribution("plotly")
    texts = [f for f in distribution.files or () if "LICENSE" in f.name.upper()]
    return "\n\n".join(file.read_text(encoding="utf-8") for file in texts)


def _missing(error: ImportError) -> InputError:
    remedy = "pip install 'intact8[report]'"
    return InputError("the page needs jinja2 and plotly", where="report", why=str(error), remedy=remedy)


def _asset(name: str) -> str:
    return (resources.files("intact8.diagnose.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """Return the hash by which a Content-Security-Policy names a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


_ESCAPE = re.compile(r"\\\\|\\u([0-9a-f]{4})|\\[bfrt]")
"""An escaped backslash, or a character escaped by its number or its letter, in JSON of ASCII alone."""


def _shown(found: re.Match[str]) -> str:
    """Return the text of the escape for a character that is not printable, any other character unchanged."""
    text = found[0]
    half = found[1] is not None and "d800" <= found[1] <= "dfff"  # one half of a surrogate pair
    return text if text == "\\\\" or half or json.loads(f'"{text}"').isprintable() else "\\" + text


def _json(values: Any) -> str:
    """Return JSON for a script element: no character of it opens or closes an element."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    text = _ESCAPE.sub(_shown, text)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
