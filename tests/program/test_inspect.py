"""Views of a program."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from rich.console import Console
from tests.program.build import certified, network, with_op

from intact8.program.file import load, save
from intact8.program.inspect import table, to_json, tree
from intact8.program.remarks import remarks
from intact8.runtime import load as load_for_running
from intact8.runtime.check import check_file


def rendered(view: object) -> str:
    console = Console(width=300, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view)
    return console.export_text()


def test_rows() -> None:
    rows = {row.op: row for row in table(certified())}
    conv = rows["net.c1"]
    assert (conv.kind, conv.inputs, conv.shape, conv.zero_point) == ("conv", ("xq",), (None, 4, 8, 8), 100)
    assert conv.fused == "c1 + bn1 + relu, clamp 100..255"
    assert conv.certificate.startswith("exact, margin")
    assert conv.bytes == 4 * 27 + 3 * 16
    assert rows["net.c2"].fused == "adds net.c1" and rows["cat"].fused == rows["real"].fused == ""
    assert rows["softmax"].certificate == "float" and rows["softmax"].note == "no integer form yet"
    assert rows["cat"].certificate == "" and rows["real"].scale is None


def test_missing_and_failed_certificates_are_named() -> None:
    assert {row.certificate for row in table(network()) if row.op == "net.c1"} == {"none"}
    from intact8.program.certify import certify

    bad = certify(with_op(network(), "net.c1", arrays={"b": np.full(4, 8191, np.int32)}))
    row = next(row for row in table(bad) if row.op == "net.c1")
    assert row.certificate.startswith("not exact: b = 8191")


def test_tables_and_trees_print() -> None:
    text = rendered(table(certified()))
    assert "N×4×8×8" in text and "proved exact" in text and "needs nothing special" in text
    text = rendered(tree(certified()))
    assert "net\n" in text and "net.c1: conv N×4×8×8" in text


def test_cells_are_empty_where_there_is_no_grid() -> None:
    grid = table(certified()).grid()
    place = [column.title for column in grid.columns].index("zero point")
    cells = {row[0]: row[place - 1 : place + 1] for row in grid.rows}
    assert cells["net.c1"][1] == "100" and float(cells["net.c1"][0]) > 0
    assert cells["real"] == cells["softmax"] == ("", "")


def test_brackets_in_names_are_no_markup() -> None:
    program = with_op(certified(), "net.c1", source=("[red]x[/red]", "y"))
    assert "[red]x[/red]" in rendered(table(program))


def test_json_is_json() -> None:
    values = json.loads(json.dumps(to_json(certified())))
    assert len(values["rows"]) == len(values["ops"]) and len(values["digest"]) == 64


def test_remarks_name_the_operations_without_proof(tmp_path: Path) -> None:
    assert remarks(certified()) == ()
    bare = with_op(certified(), "net.c1", certificate=None)
    (said,) = remarks(load(save(bare, tmp_path / "bare")))
    assert "not proved exact" in said and "net.c1 (conv: no certificate)" in said
    assert said in table(bare).caption and to_json(bare)["remarks"] == (said,)
    assert "and 1 other operation" in remarks(with_op(bare, "sum", certificate=None))[0]
    assert said in load_for_running(tmp_path / "bare", engine="reference").info.remarks
    row = next(row for row in check_file(tmp_path / "bare", "reference", probe=False).file if row.what == "remark")
    assert row.found == said


def test_a_table_says_what_function_it_is() -> None:
    program = certified()
    functions = {op.name: op.attrs["fn"] for op in program.ops if op.kind == "table"}
    assert functions and all(fn in row.fused for row in table(program) for fn in [functions.get(row.op, "")])
