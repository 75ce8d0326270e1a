"""Migration: quantized models of other tools become programs, with their weights and ranges."""

from __future__ import annotations

from intact8.migration.report import LayerChange, Migrated, MigrationReport
from intact8.migration.run import migrate

__all__ = ["LayerChange", "Migrated", "MigrationReport", "migrate"]
