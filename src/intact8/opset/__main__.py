"""``python -m intact8.opset`` prints the table of all kinds: docs/opset.md."""

import sys

from .table import markdown

sys.stdout.write(markdown())
