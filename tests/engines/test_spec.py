"""What an engine needs and how it rounds stands in one place, and engines of other packages can be certified."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from tests.program.build import certified

from intact8.arithmetic.tie_free import FORMS, ROUNDINGS, Roundings
from intact8.engines import ENGINES, get_engine
from intact8.engines.reference import ReferenceEngine
from intact8.engines.spec import SPECS
from intact8.errors import EngineError, ProgramError
from intact8.opset.proof import Evaluation
from intact8.program.certify import EVALUATIONS, certify, register, unclaimed
from intact8.program.recheck import recheck


class Theirs(ReferenceEngine):
    """An engine of another package, which rounds in float32."""

    name = "theirs"
    evaluation = Evaluation(FORMS)


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    entry = EntryPoint("theirs", f"{__name__}:Theirs", "intact8.engines")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Theirs)
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda **wanted: [entry] if wanted["name"] == "theirs" else []
    )
    yield
    EVALUATIONS.pop("theirs", None)
    ROUNDINGS.pop("theirs", None)


def test_every_engine_has_a_spec() -> None:
    assert tuple(SPECS) == ENGINES and ENGINES[0] == "reference"
    for name, spec in SPECS.items():
        assert spec.make().name == name == spec.name
        assert (spec.evaluation is None) == (name == "reference")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> Any:
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr("intact8.engines.spec.import_module", missing)
    with pytest.raises(EngineError, match=r"onednn: .*missing.*torch.*pip install 'intact8\[torch\]'"):
        SPECS["onednn"].make()


@pytest.mark.usefixtures("plugged")
def test_an_engine_of_another_package_is_certified_by_how_it_rounds() -> None:
    program = certified()
    with pytest.raises(ProgramError, match="unknown engine 'theirs'"):
        certify(program, ("reference", "theirs"))
    assert get_engine("theirs").name == "theirs"
    claimed = certify(program, ("reference", "theirs"))
    assert unclaimed(claimed, "theirs") is None
    recheck(claimed)
    rough = {form: Roundings(*(1000 * n for n in roundings)) for form, roundings in FORMS.items()}
    register("theirs", Evaluation(rough, by_margin=True))
    assert unclaimed(certify(program, ("reference", "theirs")), "theirs") is not None


def test_names_of_this_package_are_taken() -> None:
    with pytest.raises(ProgramError, match="onednn is an engine of intact8"):
        register("onednn", Evaluation(FORMS))
