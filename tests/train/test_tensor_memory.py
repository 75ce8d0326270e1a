"""Memory of tensors that passes of training return is kept, and taken by tensors of about the same size."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from tests.train.networks import batch, prepared
from torch import Tensor

from intact8.train import fused

pytestmark = pytest.mark.skipif(fused._library is None, reason="the compiled module is not there")


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    fused.release_memory()
    fused.keep_memory(True)
    yield
    fused.keep_memory(False)
    fused.release_memory()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.uint8])
@pytest.mark.parametrize(
    "shape", [(1 << 18,), (3, 5, 4, 7, 801), (2, 1 << 21), (1,) * 7 + (1 << 18,), (1,) * 8 + (1 << 18,)]
)
def test_they_are_tensors_as_any_other(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    t = fused._empty(torch.Size(shape), dtype)
    assert (t.shape, t.dtype, t.device.type, t.is_contiguous()) == (shape, dtype, "cpu", True)
    assert t.data_ptr() % 64 == 0 and not t.requires_grad
    assert t.fill_(3).double().sum() == 3 * t.numel()
    assert torch.equal(t.clone(), t) and t.numpy().ctypes.data == t.data_ptr()


def test_memory_is_taken_again() -> None:
    first = fused._empty(torch.Size((1000, 1000)))
    at, view = first.data_ptr(), first[10:20]
    del first
    assert fused._empty(torch.Size((1000, 1000))).data_ptr() != at  # a view is there still
    del view
    assert fused._empty(torch.Size((990, 1000))).data_ptr() == at  # a little more than it needs
    assert fused._empty(torch.Size((500, 1000))).data_ptr() != at
    fused.keep_memory(False)
    assert fused._empty(torch.Size((1000, 1000))).data_ptr() != at


def test_small_ones_and_other_orders_are_torch_s() -> None:
    last = torch.empty(2, 64, 40, 40).to(memory_format=torch.channels_last)
    assert fused._empty_like(last).stride() == last.stride()
    assert fused._empty(torch.Size(())).dim() == 0 and fused._empty(torch.Size((0, 7))).numel() == 0


def test_threads_never_share_memory() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for i in range(300):
            tensors: list[Tensor] = [fused._empty(torch.Size((20000 + 7 * i,))).fill_(number) for _ in range(3)]
            if any(bool((t != number).any()) for t in tensors):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_capsule_nobody_takes_is_freed() -> None:
    assert fused._library is not None
    for _ in range(200):
        fused._library.tensor(2, 32, 1 << 24)
    with pytest.raises(MemoryError):
        fused._library.tensor(2, 32, 1 << 62)
    with pytest.raises(MemoryError):
        fused._library.tensor(2, 32, -1)
    with pytest.raises(TypeError):
        fused._library.tensor(2, 32, *[1] * 9)


@pytest.mark.parametrize("scales", ["fixed", "observed", "learned"])
def test_steps_give_what_they_give_without(scales: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> list[Tensor]:
        sim, out = prepared(scales).train(), []
        for number in range(3):
            x, wanted = batch(number, 256)
            loss = torch.nn.functional.cross_entropy(sim(x), wanted)
            sim.zero_grad()
            loss.backward()
            out += [loss.detach(), *(p.grad.clone() for p in sim.parameters() if p.grad is not None)]
        sim.eval()
        return out

    taken: list[tuple[int, ...]] = []
    given = fused._library.tensor
    monkeypatch.setattr(fused._library, "tensor", lambda *words: taken.append(words) or given(*words))
    with_memory = steps()
    assert len(taken) >= 3
    monkeypatch.setattr(fused, "keep_memory", lambda keep: None)
    fused._kept = False
    count = len(taken)
    assert all(torch.equal(a, b) for a, b in zip(with_memory, steps(), strict=True)) and len(taken) == count


def test_evaluation_keeps_nothing() -> None:
    sim = prepared("fixed").train()
    sim(batch(0, 256)[0]).sum().backward()
    sim.eval()
    with torch.no_grad():
        sim(batch(0, 256)[0])
    assert not fused._kept
