"""What the doctor logs is a fault of its own, of which a user's examination does not end, and a test does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    logged = [r for r in caplog.get_records("call") if r.name.startswith("intact8.diagnose.doctor") and r.exc_info]
    assert not logged, logged[0].getMessage()
