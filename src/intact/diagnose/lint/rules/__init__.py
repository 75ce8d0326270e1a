"""Lint rules, one file per family."""
