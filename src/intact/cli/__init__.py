"""The command line: parses, calls the verbs, prints. Results go to stdout, everything else to stderr."""

from __future__ import annotations


def main() -> None:
    """Entry point of the ``intact`` command."""
    from intact.cli.app import app

    app()


__all__ = ["main"]
