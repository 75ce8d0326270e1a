"""The simulation: the captured network computing the deployed integers in floating point, with gradients."""
