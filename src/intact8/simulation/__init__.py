"""The simulation: the captured network computing the integers that ship, in floating point, with gradients."""
