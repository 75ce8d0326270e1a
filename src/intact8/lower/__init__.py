"""From a calibrated simulation to the program that ships."""

from .lower import draft, lower

__all__ = ["draft", "lower"]
