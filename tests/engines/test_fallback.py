"""Engines tried one after another, wherever "auto" is asked for."""

from __future__ import annotations

import pytest
from tests.program.build import network

from intact8 import engines
from intact8.engines import get_runner
from intact8.engines.fallback import no_engine_error, startable
from intact8.engines.onednn import OnednnEngine
from intact8.errors import EngineError


def refuse(*args: object, **named: object) -> None:
    raise EngineError("not today")


def test_what_does_not_start_is_told() -> None:
    refused: dict[str, EngineError] = {}

    def start(name: str) -> int:
        return len(name) if name != "bad" else int(bool(refuse()))

    assert list(startable(["bad", "good", "better"], start, refused)) == [("good", 4), ("better", 6)]
    assert list(refused) == ["bad"] and no_engine_error(refused) is refused["bad"]
    refused["worse"] = EngineError("never")
    told = no_engine_error(refused, "a place")
    assert told.where == "a place" and "bad, worse" in str(told) and "not today" in str(told) and "never" in str(told)
    assert told.__cause__ is refused["worse"]


def test_auto_takes_the_next_and_the_reference_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "present_engines", lambda program: ["reference", "onednn"])
    monkeypatch.setattr(OnednnEngine, "prepare", refuse)
    program = network()
    assert get_runner(program) is get_runner(program, "reference")
    monkeypatch.setattr(engines, "present_engines", lambda program: ["onednn"])
    with pytest.raises(EngineError, match="not today"):
        get_runner(network())
