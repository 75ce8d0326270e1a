"""Mutated files of torch.save and torch.export.save through their readers: nothing is run, time and memory are bounded.

Half of the mutations are of the file's bytes. The others are of the pickle in it: opcodes, names, numbers and stretches
of it exchanged, doubled or left out, or of the graph in it: values exchanged, in an archive that is right again.
"""

from __future__ import annotations

import io
import json
import sys
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz.run import Found, forked

from intact8.errors import InputError
from intact8.migration.checkpoint import scripted_entries
from intact8.migration.entries import entries_of
from intact8.migration.exported_file import damaged, read_exported
from intact8.migration.torch_file import STORAGES, Archive, PickleError, StoredTensor, read_torch_bytes

CHUNK = 500
"""Mutations by one child."""

SLOW = 2.0
"""Seconds of CPU that no file may take."""

MULTIPLE, FIXED = 100, 1 << 21
"""Reading and taking out all tensors takes at most MULTIPLE times the file's size and FIXED bytes."""

FORBIDDEN = ("exec", "compile", "import", "open", "os.", "subprocess.", "socket.", "ctypes.", "pickle.", "marshal.")
"""Beginnings of the names of audit events that running code or touching the system would raise."""

EVIL = (b"cos\nsystem\n", b"cbuiltins\neval\n", b"csubprocess\nPopen\n", b"c__torch__.os\nsystem\n", b"ctorch\nload\n")
"""Names of pickles that would do harm."""

MADE_UP = (
    "__import__('os').system('true')",
    "torch.ops.aten.from_file.default",
    2**62,
    -1,
    1.5,
    None,
    [],
    {},
    "",
    True,
)
"""Values for graphs, the first of which would run where text is evaluated."""


@cache
def sources() -> dict[str, bytes]:
    """State dicts of quantized layers in the formats of torch, and TorchScript files, scripted and traced."""
    import torch
    import torch.ao.nn.quantized as quantized

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = torch.quantize_per_channel(
            torch.randn(4, 3), torch.rand(4).double() + 0.1, torch.zeros(4).long(), 0, torch.qint8
        )
        packed = torch.quantize_per_tensor(rows.dequantize(), 0.1, 0, torch.qint8)
        state = {
            "conv.weight": rows,
            "conv.bias": torch.nn.Parameter(torch.randn(4)),
            "conv.scale": torch.tensor(0.1),
            "conv.zero_point": torch.tensor(3),
            "fc._packed_params._packed_params": (packed, None),
            "fc._packed_params.dtype": torch.qint8,
            "other": {"step": [1, 2.5, None, True, torch.Size([1, 2])], "text": "a"},
            "norm.running_mean": torch.arange(12.0).reshape(3, 4).t(),
        }
        dynamic = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.LSTM(2, 2)), {torch.nn.LSTM})
        state |= dynamic.state_dict()
        out = {}
        for name, how in (("zip", True), ("legacy", False)):
            stream = io.BytesIO()
            torch.save(state, stream, _use_new_zipfile_serialization=how)
            out[name] = stream.getvalue()
        stream = io.BytesIO()
        scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)))
        torch.jit.save(scripted, stream)
        out["script"] = stream.getvalue()
        stream, steps = io.BytesIO(), (quantized.Quantize(0.1, 0, torch.quint8), quantized.Linear(3, 4))
        torch.jit.save(torch.jit.trace(torch.nn.Sequential(*steps), torch.randn(2, 3)), stream)
        out["traced"] = stream.getvalue()
        out["exported"] = exported()
    return out


def exported() -> bytes:
    """A file of torch.export.save with operators of PT2E."""
    import torch
    import torch.ao.quantization.fx._decomposed

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(2, 4, 3)
            self.register_buffer("table", torch.arange(3.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            grid = (0.05, 3, 0, 255, torch.uint8)
            y = torch.ops.quantized_decomposed.quantize_per_tensor(self.conv(x).relu(), *grid)
            y = torch.ops.quantized_decomposed.dequantize_per_tensor(y, *grid)
            first, second = y.flatten(2).split(2, 1)
            return first[..., :3] + second[..., :3] * self.table

    stream, images = io.BytesIO(), torch.randn(5, 2, 4, 4)
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    torch.export.save(torch.export.export(Network(), (images,), dynamic_shapes=shapes), stream)
    return stream.getvalue()


def fuzz_checkpoints(seed: int, count: int, total: Found | None = None) -> Found:
    """Read ``count`` mutations in forked children; add to ``total``."""
    total, done = total or Found(), 0
    names = list(sources())
    while done < count:
        number, size = seed + done // CHUNK, min(CHUNK, count - done)
        found, status = forked(partial(chunk, names[number % len(names)], number, size))
        total.add(found)
        if status:
            total.fault("death", source=names[number % len(names)], seed=number, status=status)
        done += size
    return total


def chunk(name: str, seed: int, count: int) -> Found:
    """In a child: mutations of one source, and what reading them did."""
    found, events = Found(), []
    whole = sources()[name]
    taken_apart(whole)  # what is imported when first used is imported now
    watching = [False]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching[0] and event.startswith(FORBIDDEN):
            events.append(event)

    sys.addaudithook(hook)
    for i, data in enumerate(mutations(whole, seed, count)):
        where = {"source": name, "seed": seed, "mutation": i}
        found.counts["checkpoints"] += 1
        measured = i % 10 == 0
        if measured:
            tracemalloc.start()
        began = time.process_time()
        watching[0] = True
        try:
            taken_apart(data)
            outcome = "read"
        except (InputError, PickleError):
            outcome = "refused"
        except BaseException as error:  # noqa: BLE001 - any other exception is what is looked for
            outcome = "foreign error"
            found.fault("foreign error", **where, error=f"{type(error).__name__}: {error!s:.80}")
        watching[0] = False
        seconds = time.process_time() - began
        found.counts[f"checkpoint {outcome}"] += 1
        found.most("seconds of a checkpoint", seconds)
        if measured:
            taken = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            found.most("memory of a checkpoint / its size", taken / max(len(data), 1))
            if taken > MULTIPLE * len(data) + FIXED:
                found.fault("memory", **where, bytes=taken)
        if events:
            found.fault("code ran", **where, events=events[:5])
            events.clear()
        if seconds > SLOW:
            found.fault("slow", **where, seconds=seconds)
    return found


def taken_apart(data: bytes) -> None:
    """Read a file in every way, and take all numbers out of it."""
    if b"archive_format" in data:
        with damaged(Path("fuzzed")):
            read_exported(data)
        return
    if b"code/" in data:
        scripted_entries(Archive(data), "fuzzed")
        return
    value = read_torch_bytes(data, "fuzzed")
    if isinstance(value, dict):
        for tensor in value.values():
            if isinstance(tensor, StoredTensor):
                tensor.array()
        entries_of(value, "fuzzed")


def mutations(whole: bytes, seed: int, count: int) -> Iterator[bytes]:
    """``count`` mutated files."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        if i % 2 or whole[:2] != b"PK":
            yield mutated(whole, rng)
        else:
            yield repacked(whole, rng)


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes of a file or pickle changed."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        a, b = sorted(int(v) for v in rng.integers(0, max(len(out), 1), 2))
        choice = int(rng.integers(8))
        if choice < 3 and out:
            out[a % len(out)] ^= 1 << int(rng.integers(8))
        elif choice == 3 and out:
            out[a % len(out)] = int(rng.integers(256))
        elif choice == 4:
            out[a:a] = out[b : b + int(rng.integers(1, 64))]
        elif choice == 5:
            del out[a : a + int(rng.integers(1, 32))]
        elif choice == 6:
            out[a:a] = bytes(rng.integers(0, 256, int(rng.integers(1, 8)), dtype=np.uint8))
        elif rng.integers(4) == 0:
            del out[a:]
    return bytes(out)


def repacked(whole: bytes, rng: np.random.Generator) -> bytes:
    """The same archive with another pickle or graph."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as before, zipfile.ZipFile(stream, "w") as after:
        graphs = [name for name in before.namelist() if name.endswith(".json")]
        chosen = graphs[int(rng.integers(len(graphs)))] if graphs else ""
        for name in before.namelist():
            data = before.read(name)
            data = crafted(data, rng) if name.endswith("data.pkl") else data
            after.writestr(name, rewired(data, rng) if name == chosen else data)
    return stream.getvalue()


def rewired(text: bytes, rng: np.random.Generator) -> bytes:
    """A graph with some of its values exchanged with each other or with made-up ones."""
    graph = json.loads(text)
    places: list[tuple[Any, Any]] = []
    todo = [graph]
    while todo:
        at = todo.pop()
        pairs = list(at.items() if isinstance(at, dict) else enumerate(at))
        places += [(at, key) for key, _ in pairs]
        todo += [value for _, value in pairs if isinstance(value, (dict, list))]
    for _ in range(int(rng.integers(0, 4))):
        holder, key = places[int(rng.integers(len(places)))]
        other = places[int(rng.integers(len(places)))]
        made_up = MADE_UP[int(rng.integers(len(MADE_UP)))]
        holder[key] = made_up if rng.integers(2) else json.loads(json.dumps(other[0][other[1]]))
    return json.dumps(graph).encode()


def crafted(pickle: bytes, rng: np.random.Generator) -> bytes:
    """A pickle with other names, opcodes or numbers."""
    choice = int(rng.integers(12))
    at = int(rng.integers(2, len(pickle)))
    if choice == 0:
        return pickle[:at] + EVIL[int(rng.integers(len(EVIL)))] + b"(X\x04\x00\x00\x00ls -ltR" + pickle[at:]
    if choice == 1:
        names = [n.encode() for n in STORAGES]
        a, b = (names[int(i)] for i in rng.integers(0, len(names), 2))
        return pickle.replace(b"ctorch\n" + a, b"ctorch\n" + b)
    if choice == 2:
        deep = int(rng.integers(1, 5_000))
        return pickle[:2] + b"(" * deep + b"t" * deep + pickle[2:]
    if choice == 3:
        huge = int(rng.integers(1, 2**62)).to_bytes(8, "little")
        return pickle[:at] + b"\x8a\x08" + huge + pickle[at:]
    return mutated(pickle, rng)
