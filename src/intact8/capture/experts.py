"""Mixtures of experts of transformers, in a form that takes any number of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HOME = "transformers.integrations.moe"
"""The module that says how experts are computed."""

LAYOUT = ("has_gate", "has_bias", "is_transposed")
"""Attributes of experts that say how their weights lie."""


def by_row(default: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward in which every expert computes all rows, each weighted by what the router gives it.

    What transformers does sorts the rows of a whole batch by expert: a graph of it is for one number of samples, and
    how many rows an expert gets is known only when it runs. The results are the same. Experts of another layout
    compute by ``default``.
    """

    def forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Any:
        first = "gate_up_proj" if getattr(self, "has_gate", True) else "up_proj"
        weights = (getattr(self, name, None) for name in (first, "down_proj"))
        if not all(hasattr(self, name) for name in LAYOUT) or not all(isinstance(w, Tensor) for w in weights):
            return default(self, hidden_states, top_k_index, top_k_weights)
        found: Any = 0.0
        for expert in range(getattr(self, first).shape[0]):
            share = torch.where(top_k_index == expert, top_k_weights, 0.0).sum(-1, keepdim=True)
            y = _linear(self, first, expert, hidden_states)
            y = self._apply_gate(y) if self.has_gate else self.act_fn(y)
            y = _linear(self, "down_proj", expert, y)
            if getattr(self, "has_post_expert_norm", False):
                y = self.post_expert_norm(y)
            found = found + y * share.to(y.dtype)
        return found

    return forward


def _linear(experts: nn.Module, name: str, expert: int, x: Tensor) -> Tensor:
    """Return what a matrix of one expert makes of all rows."""
    weight: Tensor = getattr(experts, name)[expert]
    bias = getattr(experts, f"{name}_bias")[expert] if experts.has_bias else None
    return F.linear(x, weight.t() if experts.is_transposed else weight, bias)
