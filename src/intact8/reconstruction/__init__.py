"""Reconstruction: weights rounded, and scales learned, so that layers and blocks give what the float network gives."""
