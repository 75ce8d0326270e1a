"""What the numbers mean: affine quantization, tie-free multipliers, integer operations, pure functions on arrays."""
