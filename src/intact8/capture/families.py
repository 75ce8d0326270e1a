"""Every family of operators: importing one enters its functions in HANDLERS or FORMULAS."""

from . import (
    formulas,
    formulas_index,
    formulas_linalg,
    formulas_polynomials,
    formulas_sampling,
    marks,
    ops_index,
    ops_layers,
    ops_pointwise,
    ops_products,
    ops_rearrange,
    ops_recurrent,
    ops_reduce,
    ops_scatter,
    ops_shape,
    ops_slice,
)

__all__ = [
    "marks",
    "formulas",
    "formulas_index",
    "formulas_linalg",
    "formulas_polynomials",
    "formulas_sampling",
    "ops_index",
    "ops_layers",
    "ops_pointwise",
    "ops_products",
    "ops_rearrange",
    "ops_recurrent",
    "ops_reduce",
    "ops_scatter",
    "ops_shape",
    "ops_slice",
]
