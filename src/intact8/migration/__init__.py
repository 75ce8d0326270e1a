"""Migration: quantized models of other tools become programs, with their weights and ranges."""
