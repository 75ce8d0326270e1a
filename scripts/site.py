"""Hooks of MkDocs: pages may refer to files of the repository, and notebooks become pages.

The Markdown files under docs/ are read on a code host, too, so their links are those between files:
``../examples/qat.py`` leads out of the site to the repository, ``tutorials/cnn.ipynb`` to the page made of it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every notebook; the notebook stays beside it, for download."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        content = notebook_page(Path(str(file.abs_src_path)))
        files.append(File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return the page with links to the repository's other files made absolute."""
    docs = Path(config.docs_dir).resolve()
    root = docs.parent

    def mended(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        if "://" in target or page.file.src_uri.endswith(".ipynb"):
            return found[0]
        path = (docs / page.file.src_uri).parent.joinpath(target).resolve()
        if path.is_relative_to(docs) or not path.is_relative_to(root):
            return before + re.sub(r"\.ipynb$", ".md", target) + after
        kind = "tree" if path.is_dir() else "blob"
        return f"{before}{config.extra['repository']}/{kind}/main/{path.relative_to(root).as_posix()}{after}"

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
