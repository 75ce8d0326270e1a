"""Graph to graph: operations that share one rounding become one node."""
