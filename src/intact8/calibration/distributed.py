"""Several processes under torch.distributed: who observes which batch, and how all come to the same numbers.

Ranks take batches in turn: batch i belongs to rank i mod n. So there is one order of all batches, that of a single
process, and whatever depends on the order (moving averages, sums in floating point) is computed in it.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from intact8.calibration.data import samples
from intact8.errors import CalibrationError

SHARDS = ("auto", "split", "given", "off")


@dataclass(frozen=True)
class Ranks:
    """The processes that work together, and how the data are shared out among them.

    Attributes:
        rank: this process's number.
        size: how many there are.
        given: whether every rank was given its own share of the data; else all were given the same.
        group: their process group; None for the default one.

    Example:
        >>> [turn for turn, _ in Ranks(1, 3).turns("abcdefg", None)], list(Ranks(1, 3, given=True).turns("ab", None))
        ([1, 4], [(1, 'a'), (4, 'b')])
    """

    rank: int = 0
    size: int = 1
    given: bool = False
    group: Any = None

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in order of ranks, on every rank."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    @contextmanager
    def together(self) -> Iterator[None]:
        """End normally on every rank, or raise on every rank, so that none waits for one that failed.

        Raises:
            CalibrationError: another rank raised an exception; names the rank and repeats its message.
        """
        try:
            yield
        except Exception as error:
            self.gather(f"{type(error).__name__}: {error}")
            raise
        failed = [(rank, told) for rank, told in enumerate(self.gather("")) if told]
        if failed:
            rank, told = failed[0]
            raise CalibrationError(f"rank {rank} of {self.size} failed", why=told, remedy="see that rank's traceback")

    def turns(self, calls: Iterable[Any], limit: int | None) -> Iterator[tuple[int, Any]]:
        """Yield this rank's share of ``calls`` with their numbers among those of all ranks; ``limit`` is for all."""
        if self.given:
            own = None if limit is None else max(0, -(-(limit - self.rank) // self.size))
            yield from ((i * self.size + self.rank, call) for i, call in enumerate(itertools.islice(calls, own)))
            return
        for i, call in enumerate(itertools.islice(calls, limit)):
            if i % self.size == self.rank:
                yield i, call

    def first(self, calls: Iterator[Any], wanted: int, limit: int | None) -> tuple[list[Any], list[Any]]:
        """Return the first calls of all ranks, in order, up to ``wanted`` samples, and those taken from ``calls``."""
        taken: list[Any] = []
        own = limit if limit is None or not self.given else max(0, -(-(limit - self.rank) // self.size))
        with self.together():
            while sum(samples(call) for call in taken) < wanted and (own is None or len(taken) < own):
                call = next(calls, None)
                if call is None:
                    break
                taken.append(call)
        if self.size == 1 or not self.given:
            return taken, taken
        sizes = self.gather([samples(call) for call in taken])
        order, seen = [], 0
        for i, rank in itertools.product(range(max(map(len, sizes))), range(self.size)):
            if i < len(sizes[rank]) and seen < wanted:
                order.append((rank, i))
                seen += sizes[rank][i]
        sent = self.gather({i: taken[i] for rank, i in order if rank == self.rank})
        return [sent[rank][i] for rank, i in order], taken

    def require_same(self, what: str, value: Any, *, why: str, remedy: str) -> None:
        """Raise CalibrationError on every rank unless all have the same tensors and values in ``value``."""
        if self.size == 1:
            return
        numbers = self.gather(checksum(value))
        odd = [rank for rank, n in enumerate(numbers) if n != numbers[0]]
        if odd:
            raise CalibrationError(f"rank {odd[0]} has {what} than rank 0", why=why, remedy=remedy)


def ranks_for(data: Any, shard: str) -> Ranks:
    """Return the ranks that calibrate together on ``data``.

    Args:
        data: as for :func:`intact8.calibrate`.
        shard: see there.

    Raises:
        CalibrationError: another word.
    """
    if shard not in SHARDS:
        raise CalibrationError(f"shard = {shard!r}", remedy="choose " + ", ".join(SHARDS))
    if shard == "off" or not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return Ranks()
    given = shard == "given" or (shard == "auto" and _has_distributed_sampler(data))
    return Ranks(dist.get_rank(), dist.get_world_size(), given)


def _has_distributed_sampler(data: Any) -> bool:
    from torch.utils.data.distributed import DistributedSampler

    batched = getattr(data, "batch_sampler", None)
    samplers = (getattr(data, "sampler", None), batched, getattr(batched, "sampler", None))
    return any(isinstance(sampler, DistributedSampler) for sampler in samplers)


def checksum(value: Any) -> int:
    """Return a number that differs, nearly surely, where any bit of the tensors and values in ``value`` does."""
    return _update(0, value)


def _update(crc: int, value: Any) -> int:
    if isinstance(value, Tensor):
        crc = zlib.crc32(f"{value.dtype}{tuple(value.shape)}".encode(), crc)
        raw = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        return zlib.crc32(raw.view(torch.uint8).numpy().data, crc) if raw.numel() else crc
    if isinstance(value, Mapping):
        return _update(crc, [*itertools.chain.from_iterable(value.items())])
    if isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            crc = _update(crc, item)
        return crc
    return zlib.crc32(repr(value).encode(), crc)


def synchronize(module: Any, ranks: Ranks) -> bool:
    """Make buffers and quantization state of ``module`` what they are on rank 0; parameters stay.

    Args:
        module: a simulation (anything with ``state_dict``), the same on every rank.

    Returns:
        Whether any rank had others.
    """
    if ranks.size == 1:
        return False
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    state = {name: value for name, value in module.state_dict().items() if name not in parameters}
    if len(set(ranks.gather(checksum(state)))) == 1:
        return False
    sent = [state]
    dist.broadcast_object_list(sent, group_src=0, group=ranks.group)
    if ranks.rank:
        module.load_state_dict(sent[0], strict=False)  # parameters are missing
    return True
