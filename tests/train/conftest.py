"""What tests of the fused passes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with one thread of torch's, and with three."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)
