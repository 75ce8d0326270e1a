"""Weights of layers: batch norm and equalization folded in, then rounded to their integer grid."""
