"""What torch makes by default, where a call needs that to be float32 and values."""

from __future__ import annotations

import torch

from intact8.errors import InputError


def require_defaults() -> None:
    """Refuse to go on where torch makes numbers of another dtype than float32, or tensors without values, by default.

    Models make tensors in their forward pass, and a simulation computes in float32: with others they would be mixed.

    Raises:
        InputError: ``torch.set_default_dtype`` or ``torch.device("meta")`` has set another default.

    Example:
        >>> require_defaults()
    """
    dtype = torch.get_default_dtype()
    if dtype is not torch.float32:
        what, why = f"torch makes numbers of dtype {str(dtype)[6:]} here", "its default dtype was set to that"
        raise InputError(what, why=why, remedy="call torch.set_default_dtype(torch.float32) before this")
    if torch.get_default_device().type == "meta":
        what, why = "torch makes tensors without values here", "its default device is meta"
        raise InputError(what, why=why, remedy='call this outside of torch.device("meta")')
