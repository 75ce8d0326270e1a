"""Samples matched to the inputs of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intact8.cli.data import Data
from intact8.errors import InputError
from intact8.opset.op import Array
from intact8.program.program import Program

if TYPE_CHECKING:
    import torch


def feed_names(program: Program, data: Data, chosen: bool) -> dict[str, str]:
    """Input name → entry of ``data`` that feeds it.

    One entry feeds the only input. Entries chosen with ``--key`` feed the inputs in order. Otherwise they go by name,
    and entries the program does not know (labels) stay unused.

    Raises:
        InputError: the numbers differ, or an input finds no entry of its name.
    """
    if chosen or len(data.names) == 1:
        if len(data.names) != len(program.inputs):
            raise InputError(
                f"{len(data.names)} entries for {len(program.inputs)} inputs",
                remedy=f"the inputs are {', '.join(program.inputs)}",
            )
        return dict(zip(program.inputs, data.names, strict=True))
    missing = [name for name in program.inputs if name not in data.names]
    if missing:
        raise InputError(
            f"no entry for input {missing[0]!r}",
            why=f"the file holds {', '.join(data.names)}",
            remedy="say with --key which entries feed the inputs, in order",
        )
    return {name: name for name in program.inputs}


def tensors(
    batch: dict[str, Array], names: tuple[str, ...], named: bool
) -> torch.Tensor | tuple[torch.Tensor, ...] | dict[str, torch.Tensor]:
    """Arrays for a model: a dict by name; or a tuple in the order of --key, one entry is the tensor itself."""
    import numpy as np
    import torch

    found = {name: torch.from_numpy(np.array(batch[name])) for name in names}
    if named:
        return found
    return next(iter(found.values())) if len(found) == 1 else tuple(found.values())
