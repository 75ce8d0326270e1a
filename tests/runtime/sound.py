"""What must hold of a damaged file that is accepted all the same."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema

from intact8.engines import get_runner
from intact8.engines.memory import predicted
from intact8.errors import InputError
from intact8.opset.op import Array
from intact8.program.check import check
from intact8.program.dimensions import SAMPLE, sized_near
from intact8.program.document import from_document, to_document
from intact8.program.file import arrays_by_name, digest
from intact8.program.golden import Golden, index_bounds, sample
from intact8.program.program import Program
from intact8.program.recheck import recheck
from intact8.program.schema import schema

LARGEST_RUN = 1 << 28
"""Bytes; programs that need more are not run here."""


def accepted_is_sound(program: Program) -> None:
    """An accepted program is one the format allows, by three accounts that share no code with each other:

    the published JSON schema validates its document; the checks pass once more on what its own document gives back,
    which is the same program; and run by the reference, every tensor has the dtype, shape and range declared for it.
    """
    document = json.loads(json.dumps(to_document(program)))
    assert not list(_schema().iter_errors(document))
    golden = {} if program.golden is None else program.golden.arrays()
    again = from_document(document, {**arrays_by_name(program), **golden})
    check(again)
    recheck(again)
    assert digest(again) == digest(program)
    if program.inputs and predicted(program, "reference") < LARGEST_RUN:
        _runs_as_declared(program)


@cache
def _schema() -> Any:
    return jsonschema.Draft202012Validator(schema())


def _runs_as_declared(program: Program) -> None:
    try:
        values = get_runner(program, "reference").tensors(
            sample(program, Golden((("noise", 1),), index_bounds(program)), 0)
        )
    except InputError:  # this sample is one the network has no answer to, and it said so
        return
    for name, tensor in sized_near(program, SAMPLE).tensors.items():
        value: Array = values[name]
        assert value.dtype.name == tensor.dtype, name
        assert value.shape == tuple(1 if d is None else d for d in tensor.shape), name
    for op in program.ops:
        if "lo" in op.attrs and program.tensors[op.name].quantized:
            assert values[op.name].size == 0 or op.attrs["lo"] <= values[op.name].min(), op.name
            assert values[op.name].size == 0 or op.attrs["hi"] >= values[op.name].max(), op.name
