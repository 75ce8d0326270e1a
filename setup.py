"""The compiled module and the tags of wheels. Everything else is in pyproject.toml.

The module is optional: where no C compiler works, the wheel is one of pure Python, and the other engines compute the
same integers. With INTACT8_REQUIRE_EXTENSION=1 the build fails instead.
"""

import os
import re
import runpy
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# One IEEE operation is one rounding: nothing may be contracted, reordered or approximated.
FLAGS = (
    ["/O2", "/fp:precise", "/std:c11"]
    if sys.platform == "win32"
    else [
        "-O3",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-falign-functions=64",
        "-falign-loops=64",
        "-g0",  # Python's own flags say -g, which takes half of the compiler's time
    ]
)
# Free-threaded Python has no limited API: its wheels are for one version of Python each.
LIMITED_API = not sysconfig.get_config_var("Py_GIL_DISABLED")


class BuildExtension(build_ext):
    """Compiles several sources at once."""

    def build_extension(self, extension):
        """Compile and link one extension."""
        compile_sources = self.compiler.compile

        def compile_at_once(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                parts = threads.map(lambda source: compile_sources([source], **options), sources)
                return [name for part in parts for name in part]

        self.compiler.compile = compile_at_once
        super().build_extension(extension)


class BuildWheel(bdist_wheel):
    """Tags a wheel that has no compiled module as one of pure Python."""

    def get_tag(self):
        """Return the tags of Python, ABI and platform."""
        if not any(Path(name).exists() for name in self.get_finalized_command("build_ext").get_outputs()):
            self.root_is_pure = True
        return super().get_tag()


ADDRESSES = runpy.run_path(str(Path(__file__).with_name("src") / "intact8" / "addresses.py"))


def package_page(repository: str) -> str:
    """Return the README for a page outside of the repository: links are absolute, or dropped without an address."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    if not repository:
        return re.sub(r"!?\[([^]]*)\]\((?!https:)[^)]*\)", r"\1", text)
    text = re.sub(r"!\[([^]]*)\]\((?!https:)", rf"![\1]({repository}/raw/main/", text)
    return re.sub(r"\]\((?!https:)", f"]({repository}/blob/main/", text)


def project_urls(repository: str, site: str) -> dict[str, str]:
    """Return the links of the package's page, as far as there are any."""
    if not repository:
        return {}
    changelog, issues = f"{repository}/blob/main/CHANGELOG.md", f"{repository}/issues"
    urls = {"Source": repository, "Issues": issues, "Changelog": changelog}
    return {**urls, "Documentation": site} if site else urls


setup(
    cmdclass={"build_ext": BuildExtension, "bdist_wheel": BuildWheel},
    long_description=package_page(ADDRESSES["REPOSITORY"]),
    long_description_content_type="text/markdown",
    project_urls=project_urls(ADDRESSES["REPOSITORY"], ADDRESSES["SITE"]),
    ext_modules=[
        Extension(
            "intact8.engines.native._library",
            sorted(glob("native/engine/*.c")),
            depends=sorted(glob("native/engine/*.h")),
            define_macros=[("Py_LIMITED_API", "0x030A0000")] if LIMITED_API else [],
            extra_compile_args=FLAGS,
            py_limited_api=LIMITED_API,
            optional=os.environ.get("INTACT8_REQUIRE_EXTENSION") != "1",
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if LIMITED_API else {},
)
