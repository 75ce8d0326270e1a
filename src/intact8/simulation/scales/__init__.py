"""Scales and multipliers: quantization points, and the solver that makes multipliers tie-free."""
