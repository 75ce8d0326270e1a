"""Finding out why accuracy fell, and showing it."""
