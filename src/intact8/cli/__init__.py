"""The command line interface. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``intact8`` command."""
    try:
        from intact8.cli.app import app

        app()
    except KeyboardInterrupt:  # before a command had begun: while its libraries were imported
        sys.exit(130)


__all__ = ["main"]
