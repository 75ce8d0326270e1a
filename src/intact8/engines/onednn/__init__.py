"""The ``onednn`` engine: a flat, prepacked plan over the int8 operators of torch's own oneDNN (x86 CPUs)."""

from __future__ import annotations

from .engine import OnednnEngine, OnednnRunner

__all__ = ["OnednnEngine", "OnednnRunner"]
