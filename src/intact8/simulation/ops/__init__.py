"""How the simulation computes each family of kinds of operations."""
