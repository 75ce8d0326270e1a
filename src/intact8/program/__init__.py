"""The integer program: its specification, checker, certificates, file and views. Imports no torch."""
