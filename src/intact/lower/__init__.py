"""From a calibrated simulation to the program that ships."""

from .lower import lower

__all__ = ["lower"]
