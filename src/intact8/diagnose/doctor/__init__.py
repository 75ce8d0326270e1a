"""The doctor: a whole examination in one call, from symptom to recipe. See docs/diagnosis.md."""

from intact8.diagnose.doctor.report import DoctorReport, Finding
from intact8.diagnose.doctor.run import doctor

__all__ = ["DoctorReport", "Finding", "doctor"]
