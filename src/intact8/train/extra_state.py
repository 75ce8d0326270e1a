"""Extra state of modules as one tensor: trainers that write checkpoints as .safetensors take nothing else."""

from __future__ import annotations

import json
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

TENSOR = "tensor:"
"""Beginning of the text that stands for a tensor in the JSON."""


def pack(state: dict[str, Any]) -> Tensor:
    """Return nested dicts of tensors and JSON values as the bytes of a .safetensors file, uint8, on the CPU.

    Keys are texts, and no text begins with ``tensor:``.

    Example:
        >>> import torch
        >>> unpack(pack({"phase": "learn", "observer": {"count": 3, "low": torch.tensor([0.5])}}))
        {'phase': 'learn', 'observer': {'count': 3, 'low': tensor([0.5000])}}
    """
    tensors: dict[str, Tensor] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, Tensor):
            name = f"{TENSOR}{len(tensors)}"
            tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
            return name
        return value

    text = json.dumps(plain(state))
    return torch.frombuffer(bytearray(safetensors.torch.save(tensors, {"state": text})), dtype=torch.uint8)


def unpack(packed: Tensor) -> dict[str, Any]:
    """Return what :func:`pack` was given."""
    data = packed.cpu().numpy().tobytes()
    tensors = safetensors.torch.load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])

    def rich(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: rich(item) for key, item in value.items()}
        if isinstance(value, str) and value.startswith(TENSOR):
            return tensors[value]
        return value

    state: dict[str, Any] = rich(json.loads(header["__metadata__"]["state"]))
    return state
