"""Which tensors of a fused graph are quantized, and by which scale and zero point."""
