"""``x.data`` while a model is exported: torch.export does not see what is taken or given through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

_GET: Any = Tensor.data.__get__  # type: ignore[attr-defined]
_SET: Any = Tensor.data.__set__  # type: ignore[attr-defined]


class DataAttribute(TorchFunctionMode):
    """``x.data`` is ``x.detach()``, and a tensor that was assigned to it stands for x in every operation that follows.

    So networks whose forward computes the weights of a layer from others (re-parameterized convolutions) are exported
    with that computation.
    """

    def __init__(self) -> None:
        super().__init__()
        self._assigned: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == _SET:
            self._assigned[id(args[0])] = args[0], self._now(args[1])  # kept, so that no other tensor gets its id
            return None
        if self._assigned:
            args, kwargs = tree_map_only(Tensor, self._now, (tuple(args), kwargs))
        return args[0].detach() if func == _GET else func(*args, **kwargs)

    def _now(self, x: Tensor) -> Tensor:
        return self._assigned.get(id(x), (x, x))[1]
