"""Compiling a program until what is executed is on the list of what is proved (see ``execution_graph``)."""

from __future__ import annotations

from collections.abc import Sequence

from .build import Built, build
from .compile import refusal
from .execution_graph import trusted, unknown
from .infer_requests import Compiled
from .plan import Feeds, Plan
from .products import fails_in


def compile_checked(
    plan: Plan, batch: int, feeds: Feeds, wanted: Sequence[str], threads: int | None
) -> tuple[Compiled, Plan]:
    """Build and compile until every evaluation is a proved one; return the model and the plan it was built with.

    Products without an exact int8 kernel are built from float32 integers, and results whose rounding is not found get a
    Round.

    Raises:
        EngineError: OpenVINO cannot compile the program, or an evaluation is not a proved one after all that.
    """
    kinds = {op.name: op.kind for op in plan.program.ops}
    while True:
        fixed = plan.at(dict(feeds.sizes))
        built = build(fixed, batch, wanted, feeds)
        compiled = Compiled(fixed.program, {batch: built}, threads)
        inexact, lost = _differences(fixed, built, compiled)
        if not inexact and lost <= plan.rounded:
            if not lost:
                return compiled, plan
            what = f"OpenVINO executes this {kinds[min(lost)]} in a way that is not proved"
            why = "neither its rounding nor a kernel that is known to do it is among what was compiled"
            raise refusal(what, min(lost), why)
        plan = plan.extended(float_products=inexact, rounded=lost)


def _differences(plan: Plan, built: Built, compiled: Compiled) -> tuple[set[str], set[str]]:
    """Return the products in inexact kernels, and the lost roundings."""
    kernels = compiled.kernels()
    ops = {op.name: op for op in plan.program.ops if not op.is_float and op.name in kernels}
    inexact = {n for n, op in ops.items() if not trusted(kernels[n]) or fails_in(op, kernels[n])} - plan.float_products
    inexact |= built.products - kernels.keys()  # they became part of a kernel of which nothing is known
    evaluated = {name: kind for name, (_, kind) in built.checked.items()}
    return inexact, {built.checked[name][0] for name in unknown(compiled.nodes, evaluated)}
