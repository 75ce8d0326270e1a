"""The demonstration behind ``intact8 demo``: a small network, real data, the whole way to a verified program."""

from __future__ import annotations
