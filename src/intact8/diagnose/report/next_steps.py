"""What to do next, in sentences: the doctor's findings, or what the figures of a report suggest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact8.diagnose.report.contents import Report

if TYPE_CHECKING:
    from intact8.diagnose.doctor.report import DoctorReport

DROP = 0.01
"""Loss of accuracy from which the doctor is worth asking."""
LOW_SQNR = 20.0
"""SQNR of the outputs in dB from which the doctor is worth asking where there are no labels."""
MOST = 3
"""Findings that are repeated."""


def next_steps(report: Report, doctor: DoctorReport | None) -> tuple[str, ...]:
    """Return what to do next, the most urgent first; at least one sentence."""
    steps = _from_figures(report) if doctor is None else _from_doctor(doctor)
    urgent = [found for found in report.findings if found.severity == "error"][:MOST]
    steps = [f"{found.where or 'the network'}: {found.remedy} ({found.id})." for found in urgent] + steps
    return tuple(steps) or ("Nothing stands out. On the machine that will run it: intact8 check FILE.",)


def _from_doctor(doctor: DoctorReport) -> list[str]:
    steps = [f"{found.place}, {found.cause}: {found.remedy}." for found in doctor.findings[:MOST]]
    if any(trial.accepted for trial in doctor.trials):
        steps.append(
            "Quantize again with the doctor's recipe: report.save_recipe(…), or intact8 doctor -o better.toml."
        )
    if not doctor.verdict.pays:
        steps.append(f"Do not quantize this as it is: {doctor.verdict.reason}.")
    return steps


def _from_figures(report: Report) -> list[str]:
    steps = []
    accuracy, speed, sqnr = report.accuracy, report.speed, report.end_sqnr
    lost = accuracy is not None and accuracy.float32 is not None and accuracy.float32 - accuracy.int8 > DROP
    if lost or (accuracy is None and sqnr is not None and sqnr < LOW_SQNR):
        worst = report.worst(1)
        first = f" {worst[0].name} has the largest error of its own." if worst else ""
        steps.append(f"Ask for the cause: intact8.doctor(model, data), or intact8 doctor MODEL DATA.{first}")
    if not report.compared:
        steps.append("Give the float32 network and samples to see where accuracy is lost: model= and data=.")
    elif accuracy is None:
        steps.append("Give labels to see the accuracy: batches of (inputs, labels), or labels=.")
    if speed is not None and speed.float32 is not None and speed.whole.median > speed.float32.median:
        steps.append("int8 is slower than float32 here: try other engines and batch sizes with intact8 bench.")
    return steps
