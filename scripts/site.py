"""Hooks of MkDocs: pages may refer to files of the repository, and notebooks become pages.

The Markdown files under docs/ are read on a code host, too, so their links are those between files:
``../examples/qat.py`` becomes a text file of the site, ``tutorials/cnn.ipynb`` the page made of it.
"""

from __future__ import annotations

import json
import os
import re
import runpy
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def on_config(config: Any) -> Any:
    """Set the addresses of the site and of the repository, where there are any."""
    addresses = runpy.run_path(str(ROOT / "src" / "intact8" / "addresses.py"))
    config.site_url, config.repo_url = addresses["SITE"] or None, addresses["REPOSITORY"] or None
    config.repo_name = "/".join(addresses["REPOSITORY"].split("/")[-2:])
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every notebook, and the files of the repository that pages link to."""
    linked: set[Path] = set()
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            content = notebook_page(Path(str(file.abs_src_path)))
            files.append(File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=content))
        elif file.is_documentation_page():
            targets = LINK.findall(file.content_string)
            linked |= {path for _, target, _ in targets if (path := outside(file.src_uri, target))}
    for path in sorted(linked):
        files.append(File.generated(config, copy_of(path), content=path.read_text(encoding="utf-8")))
    return files


def outside(page: str, target: str) -> Path | None:
    """Return the file of the repository that a page links to, where it is not under docs/."""
    path = (DOCS / page).parent.joinpath(target).resolve()
    inside = "://" in target or path.is_relative_to(DOCS) or not path.is_relative_to(ROOT)
    return None if inside else path


def copy_of(path: Path) -> str:
    """Return the place in the site of a file of the repository; browsers show text files and store others."""
    return f"repository/{path.relative_to(ROOT).as_posix()}.txt"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return the page with links to notebooks and to the repository's other files as the site has them."""

    def mended(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        if page.file.src_uri.endswith(".ipynb"):
            return found[0]
        path = outside(page.file.src_uri, target)
        if path:
            return before + os.path.relpath(copy_of(path), Path(page.file.src_uri).parent) + after
        return before + re.sub(r"\.ipynb$", ".md", target) + after

    return LINK.sub(mended, markdown)


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown: its texts, its code, and what the code printed."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        shown = [output for output in cell["outputs"] if output.get("name") == "stdout"]
        printed = "".join("".join(output["text"]) for output in shown).strip()
        if printed:
            parts.append(f"```text\n{printed}\n```")
    source = f"This page is a notebook: [{path.name}]({path.name}){{ download }}."
    return "\n\n".join([parts[0], source, *parts[1:]]) + "\n"
