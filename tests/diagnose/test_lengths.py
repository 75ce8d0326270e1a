"""Diagnosis of networks whose sequences may have any length, on batches of different lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.capture.encoder import SEQUENCE, Encoder, call

import intact8


@pytest.fixture(scope="module")
def model() -> Encoder:
    torch.manual_seed(0)
    return Encoder().eval()


@pytest.fixture(scope="module")
def data() -> list[dict[str, torch.Tensor]]:
    return [call(8, length) for length in (7, 9, 12, 9)]


@pytest.fixture(scope="module")
def sim(model: Encoder, data: Any) -> Any:
    sim = intact8.prepare(model, data[0], dynamic_shapes=SEQUENCE).eval()
    intact8.calibrate(sim, data)
    return sim


def test_compare_goes_through_batches_of_any_length(model: Encoder, sim: Any, data: Any) -> None:
    report = intact8.compare(model, sim, data)
    assert report.samples == 32 and report.rows


def test_compare_and_report_take_the_dimensions_of_a_program(model: Encoder, sim: Any, data: Any) -> None:
    program = intact8.convert(sim)
    assert intact8.compare(model, program, data).samples == 32
    page = intact8.report(program, data, model=model, seconds=0.1).to_json()
    assert "sequence" in str(page)


def test_sensitivity_measures_batches_of_any_length(model: Encoder, sim: Any, data: Any) -> None:
    assert intact8.sensitivity(sim, data).rows
    assert intact8.sensitivity(model, data).rows
