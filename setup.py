"""The one compiled module. Everything else is in pyproject.toml.

It is optional: where there is no C compiler, intact8.engines computes the same bits by more calls of torch.
"""

import sys
from glob import glob

from setuptools import Extension, setup

# One IEEE operation is one rounding: nothing may be contracted, reordered or approximated.
FLAGS = (
    ["/O2", "/fp:precise"]
    if sys.platform == "win32"
    else ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
)

setup(
    ext_modules=[
        Extension(
            "intact8.engines.native._library",
            sorted(glob("native/engine/*.c")),
            depends=sorted(glob("native/engine/*.h")),
            extra_compile_args=FLAGS,
            py_limited_api=True,
            optional=True,
        ),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
