"""Sessions for versions of Python and of dependencies (``nox --list``). ``make test`` stays the command for a change.

CPU builds of torch are taken from PyTorch's own index where INTACT8_TORCH_INDEX is unset, since PyPI's bring CUDA.
"""

import os

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True

TORCH = ["2.8.0", "2.13.0"]  # small-3.11 has the newest
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
INDEX = os.environ.get("INTACT8_TORCH_INDEX", "https://download.pytorch.org/whl/cpu")
CORE = ("tests/arithmetic", "tests/opset", "tests/recipe", "tests/program", "tests/lower", "tests/calibration")
TOOLS = ("pytest>=8.2", "pytest-timeout>=2.3", "hypothesis>=6.100", "expecttest>=0.2", "jsonschema>=4.20")
SMALL = (*CORE, "tests/simulation", "tests/engines/native", "tests/test_api.py", "tests/test_import.py")


def _test(session: nox.Session, *paths: str) -> None:
    session.run("python", "-m", "pytest", "-q", *(session.posargs or paths), env={"OMP_NUM_THREADS": "1"})


def _torch(session: nox.Session, *requirements: str) -> None:
    session.install("--extra-index-url", INDEX, *requirements)


@nox.session(python=PYTHONS)
def small(session: nox.Session) -> None:
    """Test the core with the newest releases that the version of Python has."""
    _torch(session, "torch")
    session.install("-e", ".[torch]", *TOOLS)
    _test(session, *SMALL)


@nox.session(python="3.11")
@nox.parametrize("version", TORCH, ids=TORCH)
def torch(session: nox.Session, version: str) -> None:
    """Test the core with one version of torch."""
    _torch(session, f"torch=={version}")
    session.install("-e", ".[torch]", *TOOLS)
    _test(session, *SMALL)


@nox.session(python="3.10", venv_backend="uv")
def lowest(session: nox.Session) -> None:
    """Test the core with the lowest version of every direct dependency."""
    session.install("--resolution", "lowest-direct", "--extra-index-url", INDEX, "-e", ".[torch]", *TOOLS)
    _test(session, *CORE, "tests/cli/test_app.py")


@nox.session(python="3.11")
def without_torch(session: nox.Session) -> None:
    """Install the package alone, and verify a stored program on the engines that need no torch."""
    session.install(".")
    session.run("python", "scripts/check_wheel.py")
    session.run("intact8", "verify", "tests/fixtures/0.1.0/network.safetensors")
