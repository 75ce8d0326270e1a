"""Repairs of inputs: prepared otherwise, in another order, other numbers of classes or tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, permutations, product
from typing import Any

import torch
from torch import Tensor

from intact8.arithmetic.recurrent import GATES
from intact8.capture.graph import Graph, Node
from intact8.diagnose.doctor.consumers import Users
from intact8.diagnose.doctor.repair import INPUTS_ARE_WRONG, SCALED, Compute, Repair, swapped
from intact8.diagnose.doctor.samples import Samples
from intact8.diagnose.doctor.structural_repairs import filling, tables_of
from intact8.diagnose.executors import FloatExecutor
from intact8.simulation.simulation import Simulation

MOST_COLUMNS, MOST_SWAPPED = 20, 12
"""Columns of a table up to which any two are exchanged, and channels of what has more dimensions."""

SPECIAL = range(5)
"""Indices that may be the last of those of marks, as of the beginning of a text, which come before the words."""

LETTERS_LESS, MOST_LETTERS = (0, 31, 32, -1, -2, -3, -4), (60, 300)
"""What numbers of letters are less than in ASCII, where blanks are 0 or 1, or a few marks come before all; and the
least and most rows of a table for these."""

GAMMA = 2.2
"""Power of the bytes of a picture that light is, about (sRGB)."""

MOST_EXPONENT = 20.0
"""Largest number of which the exponential is tried."""


def _times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: (x * factor).to(x.dtype)


UNITS = {
    ("bohr", "ångström"): 1 / 0.529177,
    ("centimetres", "inches"): 2.54,
    ("metres", "feet"): 0.3048,
    ("kilometres", "miles"): 1.609344,
    ("kilograms", "pounds"): 0.453592,
    ("litres", "gallons"): 3.785412,
    ("joules", "calories"): 4.184,
    ("kilocalories per mole", "electronvolts"): 23.0605,
    ("electronvolts", "hartree"): 27.2114,
    ("kilopascals", "pounds per square inch"): 6.894757,
    ("pascals", "millimetres of mercury"): 133.322,
    ("metres per second squared", "g"): 9.80665,
    ("degrees", "radians"): 57.29578,
    ("kilometres per hour", "metres per second"): 3.6,
    ("seconds", "minutes"): 60.0,
    ("seconds", "hours"): 3600.0,
    ("hours", "days"): 24.0,
}
"""How many of one unit are one of the other, in which the same is measured."""

MU, LONG = 255, 256
"""The constant of µ-law, and the samples of a signal from which it is tried."""

FAR_FROM_0 = 2.0
"""Standard deviations that a column's mean is off 0 where it is counted from elsewhere, which no sign gives back."""

INPUTS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "inputs divided by 255": (2, lambda x: x / 255),
    "inputs multiplied by 255": (2, lambda x: x * 255),
    "inputs with mean 0 and standard deviation 1": (3, lambda x: (x - x.mean()) / x.std().clamp(min=1e-12)),
    "channels with mean 0": (2, lambda x: _centred(x, 1)),
    "channels with mean 0 and standard deviation 1": (2, lambda x: _standard(x, 1)),
    "features with mean 0 and standard deviation 1": (3, lambda x: _standard(x, x.dim() - 1)),
    "channels, or columns, in reverse order": (2, lambda x: x.flip(1)),
    "inputs negated": (2, lambda x: -x),
    "inputs the other way round, the largest for the least": (2, lambda x: x.max() + x.min() - x),
    "inputs from 0 to 1": (2, lambda x: _spread(x, tuple(range(x.dim())))),
    "inputs from -1 to 1": (2, lambda x: 2 * _spread(x, tuple(range(x.dim()))) - 1),
    "channels from 0 to 1": (4, lambda x: _spread(x, (0, *range(2, x.dim())))),
    "inputs upside down": (3, lambda x: x.flip(-2)),
    "inputs left to right": (3, lambda x: x.flip(-1)),
    "inputs transposed": (3, lambda x: x.transpose(-1, -2)),
    **{f"inputs multiplied by {factor:g}": (2, _times(factor)) for factor in (1e-3, 1e-2, 0.1, 10.0, 100.0, 1000.0)},
    "the logarithms of inputs": (2, lambda x: x if float(x.min()) < 0 else x.clamp(min=1e-6).log()),
    "the logarithms of inputs and 1": (2, lambda x: x if float(x.min()) < 0 else x.log1p()),
    "inputs in decibels": (2, lambda x: x if float(x.min()) < 0 else 10 * x.clamp(min=1e-10).log10()),
    "the exponentials of inputs": (2, lambda x: x if float(x.max()) > MOST_EXPONENT else x.exp()),
    "the roots of inputs": (2, lambda x: x if float(x.min()) < 0 else x.sqrt()),
    "inputs as light, not as bytes for screens": (3, lambda x: x if float(x.min()) < 0 else x.pow(GAMMA)),
    "inputs as bytes for screens, not as light": (3, lambda x: x if float(x.min()) < 0 else x.pow(1 / GAMMA)),
    "inputs decoded, as bytes of µ-law are": (2, lambda x: _expanded(x)),
    "the squares of inputs": (2, lambda x: x if float(x.min()) < 0 else x.square()),
    "inputs whose numbers have channels last": (
        3,
        lambda x: x.reshape(len(x), *x.shape[2:], x.shape[1]).movedim(-1, 1),
    ),
}
"""Ways in which inputs are often prepared otherwise than in training, and the dimensions that inputs need for them."""

REVERSED = {
    "inputs upside down": "inputs in reverse order along dimension 1",
    "inputs left to right": "inputs in reverse order along dimension 2",
}
"""What turned pictures are where inputs have three dimensions."""

MEASURED: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    **{f"inputs multiplied by {n:.4g}, {one} for {other}": (2, _times(n)) for (one, other), n in UNITS.items()},
    **{f"inputs multiplied by {1 / n:.4g}, {other} for {one}": (2, _times(1 / n)) for (one, other), n in UNITS.items()},
    "inputs in degrees Celsius, not Fahrenheit": (2, lambda x: (x - 32) / 1.8),
    "inputs in degrees Fahrenheit, not Celsius": (2, lambda x: x * 1.8 + 32),
    "inputs in degrees Celsius, not kelvin": (2, lambda x: x - 273.15),
    "inputs in kelvin, not degrees Celsius": (2, lambda x: x + 273.15),
}
"""The same for what is measured, and no picture."""

INDICES: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "indices one less": (1, lambda x: (x - 1).clamp(min=0)),
    "indices one more": (1, lambda x: torch.where(x < x.max(), x + 1, x)),
    "indices one more, column by column": (2, lambda x: torch.where(x < x.amax(0), x + 1, x)),
    "indices in reverse order": (2, lambda x: x.flip(-1)),
    "indices one place later": (2, lambda x: x.roll(1, -1)),
    "indices one place earlier": (2, lambda x: x.roll(-1, -1)),
    "padding at the other end": (2, lambda x: _other_end(x)),
}
"""The same for indices, of words say."""


COUNTED: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    f"inputs multiplied by {factor:g}": (1, _times(factor)) for factor in (1e-3, 1e-2, 0.1, 10.0, 100.0, 1000.0)
}
"""The same for whole numbers that are no indices, as of steps."""

BANDS = {
    "the first half of dimension {} stretched over all of it, as bands up to half the frequency": True,
    "all of dimension {} in its first half, as bands up to twice the frequency": False,
}
"""How pictures of bands of frequencies are seen otherwise, and whether less of them is seen."""

RATES = (1 / 2, 2 / 3, 3 / 4, 4 / 3, 3 / 2, 2.0)
"""Ratios of rates at which signals are often sampled."""

MOST_OF_A_TABLE = 100
"""Columns up to which numbers are looked at for markers of missing values."""

BLANKS = 0.05, 0.9
"""Shares of a column's numbers, least and most, that are one number, the marker of missing values."""

STEPS = 16
"""Steps of a signal below which it has no rate to speak of."""


def _spread(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    low, high = x.amin(axes, keepdim=True), x.amax(axes, keepdim=True)
    return (x - low) / (high - low).clamp(min=1e-12)


def _centred(x: Tensor, axis: int) -> Tensor:
    return x - x.mean([d for d in range(x.dim()) if d != axis], keepdim=True)


def _standard(x: Tensor, axis: int) -> Tensor:
    x = _centred(x, axis)
    return x / x.std([d for d in range(x.dim()) if d != axis], keepdim=True).clamp(min=1e-12)


def of_inputs(sim: Simulation, samples: Samples) -> Iterator[Repair]:
    """Yield inputs prepared otherwise, one at a time."""
    graph, users = sim.graph, sim.graph.users()
    for name, x in zip(graph.inputs, samples.batches[0].inputs, strict=True):
        of = f" as {name}" if len(graph.inputs) > 1 else ""
        if x.dtype == torch.bool:
            ways: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {"the mask inverted": (1, lambda x: ~x)}
        elif x.is_floating_point():
            measured = MEASURED if x.dim() < 4 else {}
            ways = {**INPUTS, **measured, **_columns(x), **_signs(x), **_resampled(x), **_bands(x)}
            ways |= _without_blanks(x)
        else:
            mask = bool(((x == 0) | (x == 1)).all())
            inverted = {"the mask inverted": (2, lambda x: 1 - x)} if mask else {}
            scaled = COUNTED if not mask and _is_number(graph, users, name) else {}
            ways = {**INDICES, **_filled(sim, name, x), **_letters(sim, name, x), **inverted, **scaled}
        for text, (least, change) in ways.items():
            if x.dim() < least:
                continue
            text = REVERSED.get(text, text) if x.dim() == 3 else text
            least_share = SCALED if text.startswith("inputs multiplied") else 0.0
            changed = change(x)
            if changed.shape == x.shape and not torch.equal(changed, x):
                yield Repair(
                    INPUTS_ARE_WRONG, f"it sees {text}{of}", graph.nodes[name], change=change, least=least_share
                )
    yield from _exchanged(sim, samples)
    yield from _masked(sim, samples)
    yield from _moved_to_other_end(sim, samples)
    yield from _other_way_round(sim, samples)


def _other_way_round(sim: Simulation, samples: Samples) -> Iterator[Repair]:
    """Yield sequences in reverse order with the answers to their places, and with channels in reverse order: letters of
    the other strand of DNA, say. Without these, convolutions whose kernels are turned would do the same."""
    graph, compute = sim.graph, FloatExecutor(sim.tensors)
    recurrent = any(node.op in GATES for node in graph)
    ways = ((1, 2), (2,), (1,)) if recurrent else ((1, 2),)

    def turned(node: Node, axis: int) -> Compute:
        return lambda inputs, _: compute(node, inputs).flip(axis)

    for name, x in zip(graph.inputs, samples.batches[0].inputs, strict=True):
        for out in (graph.nodes[other] for other in dict.fromkeys(graph.outputs)):
            if x.dim() != 3 or not x.is_floating_point() or len(out.shape) not in (2, 3):
                continue
            for axis, along in product(range(1, len(out.shape)), ways):
                if along == (1,) and graph.nodes[name].shape[1] != out.shape[axis]:
                    continue
                text = f"it sees {name} in reverse order along dimension{'s' * (len(along) > 1)} "
                text += f"{' and '.join(map(str, along))}, and its answers are in reverse order along dimension {axis}"
                change = _flipped(along)
                answers = Repair(INPUTS_ARE_WRONG, "", out, compute=turned(out, axis))
                yield Repair(INPUTS_ARE_WRONG, text, graph.nodes[name], change=change, also=(answers,))


def _flipped(axes: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    return lambda x: x.flip(axes)


def _exchanged(sim: Simulation, samples: Samples) -> Iterator[Repair]:
    """Yield any two inputs of one form, each in the place of the other."""
    given = dict(zip(sim.graph.inputs, samples.batches[0].inputs, strict=True))
    for a, b in combinations(given, 2):
        if given[a].shape == given[b].shape and given[a].dtype == given[b].dtype:
            one, other = (
                Repair(INPUTS_ARE_WRONG, "", sim.graph.nodes[at], change=torch.clone, source=of)
                for at, of in ((a, b), (b, a))
            )
            yield replace(one, text=f"it sees {b} as {a}, and {a} as {b}", also=(other,))


def _masked(sim: Simulation, samples: Samples) -> Iterator[Repair]:
    """Yield masks that are 1 everywhere with 0 where another input has nothing but what fills the ends of its rows."""
    given = dict(zip(sim.graph.inputs, samples.batches[0].inputs, strict=True))
    masks = [name for name, x in given.items() if x.dim() > 1 and bool((x == 1).all())]
    for mask, name in ((m, n) for m in masks for n, x in given.items() if n not in masks and x.dim() > 1):
        like, x = given[mask], given[name]
        if x.shape[:2] != like.shape[:2] or like.numel() != like.shape[0] * like.shape[1]:
            continue
        shape, dtype = like.shape[1:], like.dtype
        fills = None if x.is_floating_point() or x.dim() > 2 else filling(x)
        blank = 0 if fills is None else fills

        def filled(x: Tensor, shape: Any = shape, dtype: Any = dtype, blank: int = blank) -> Tensor:
            return (x.reshape(*x.shape[:2], -1) != blank).any(2).to(dtype).reshape(-1, *shape)

        if not bool((filled(x) == 1).all()):
            text = f"{mask}, which is 1 everywhere, is 0 where {name} has nothing but {blank}"
            yield Repair(INPUTS_ARE_WRONG, f"it sees a mask: {text}", sim.graph.nodes[mask], change=filled, source=name)


def _resampled(x: Tensor) -> dict[str, tuple[int, Callable[[Tensor], Tensor]]]:
    """Return signals sampled at other rates: a part of each stretched, or all of it and its beginning again."""

    def at(rate: float) -> Callable[[Tensor], Tensor]:
        def change(x: Tensor) -> Tensor:
            size = x.shape[2]
            other = torch.nn.functional.interpolate(x, round(size * rate), mode="linear")
            return torch.cat([other] * (1 + int(rate < 1)), 2)[..., :size]

        return change

    if x.dim() != 3 or x.shape[2] < STEPS:
        return {}
    return {f"signals sampled at {rate:.3g} times the rate": (3, at(rate)) for rate in RATES}


def _is_number(graph: Graph, users: Users, name: str) -> bool:
    """Return whether whole numbers of an input are read as numbers only, and not as indices."""
    pending, seen = [name], set[str]()
    while pending:
        for reader in (graph.nodes[n] for n in users[pending.pop()]):
            if reader.moves and reader.name not in seen:
                seen.add(reader.name)
                pending.append(reader.name)
            elif reader.op != "cast" or reader.dtype != "float32":
                return False
    return bool(users[name])


def _bands(x: Tensor) -> dict[str, tuple[int, Callable[[Tensor], Tensor]]]:
    """Return pictures of one channel, as of bands of frequencies, that reach half as far, or twice as far, one way."""

    def reaching(axis: int, less: bool) -> Callable[[Tensor], Tensor]:
        def change(x: Tensor) -> Tensor:
            size = list(x.shape[2:])
            size[axis - 2] = 2 * size[axis - 2] if less else size[axis - 2] // 2
            other = torch.nn.functional.interpolate(x, size, mode="bilinear", align_corners=False)
            rest = x.shape[axis] - other.shape[axis]
            quiet = x.amin((2, 3), keepdim=True)
            if rest > 0:
                shape = [rest if d == axis else -1 if d < 2 else n for d, n in enumerate(x.shape)]
                other = torch.cat([other, quiet.expand(shape)], axis)
            return other.narrow(axis, 0, x.shape[axis])

        return change

    if x.dim() != 4 or x.shape[1] != 1:
        return {}
    return {
        text.format(axis): (4, reaching(axis, less))
        for axis in (2, 3)
        for text, less in BANDS.items()
        if x.shape[axis] >= STEPS
    }


def _other_end(ids: Tensor) -> Tensor:
    """Return rows of indices whose ends, or beginnings, are filled with one index, with that at the other end."""
    rows = ids.reshape(-1, ids.shape[-1])
    places = _filled_places(rows)
    return ids if places is None else _rolled(rows, places).reshape(ids.shape)


def _filled_places(ids: Tensor) -> Tensor | None:
    """Return of rows how many of their ends are filled with one index, int64 (N,), less than 0 of their beginnings."""
    for sign in (1, -1):
        given = ids if sign == 1 else ids.flip(-1)
        fills = filling(given)
        if fills is not None:
            return sign * (given.flip(-1) == fills).long().cumprod(-1).sum(-1)
    return None


def _rolled(x: Tensor, places: Tensor, axis: int = 1) -> Tensor:
    """Return every sample with what it has along an axis so many places later; what ends there begins it."""
    size = x.shape[axis]
    at = (torch.arange(size, device=x.device) - places[:, None].to(x.device)) % size
    shape = [size if d == axis else len(x) if d == 0 else 1 for d in range(x.dim())]
    return x.gather(axis, at.reshape(shape).expand(x.shape))


def _moved_to_other_end(sim: Simulation, samples: Samples) -> Iterator[Repair]:
    """Yield words and what goes with each of them, as masks, with what fills the ends of words at the other end, and
    the answers to them back at the words that they answer."""
    graph, compute = sim.graph, FloatExecutor(sim.tensors)
    given = dict(zip(graph.inputs, samples.batches[0].inputs, strict=True))
    rows = {name: x for name, x in given.items() if x.dim() == 2 and not x.is_floating_point()}
    for name, words in rows.items():
        if words.dtype == torch.bool or int(words.max()) < 2 or _filled_places(words) is None:
            continue
        length = graph.nodes[name].shape[1]
        beside = [other for other, x in rows.items() if x.shape == words.shape]
        answers = [out for out in dict.fromkeys(graph.outputs) if length in graph.nodes[out].shape[1:3]]

        def moved(inputs: Sequence[Tensor], given: Mapping[str, Tensor], words: str = name) -> Tensor:
            places = _filled_places(given[words])
            return inputs[0] if places is None else _rolled(inputs[0], places)

        def back(node: Node, axis: int, words: str = name) -> Compute:
            def answered(inputs: Sequence[Tensor], given: Mapping[str, Tensor]) -> Tensor:
                places, y = _filled_places(given[words]), compute(node, inputs)
                return y if places is None else _rolled(y, -places, axis)

            return answered

        parts = [Repair(INPUTS_ARE_WRONG, "", graph.nodes[other], compute=moved) for other in beside]
        for node in map(graph.nodes.__getitem__, answers):
            axis = 1 + node.shape[1:3].index(length)
            parts.append(Repair(INPUTS_ARE_WRONG, "", node, compute=back(node, axis)))
        if answers:  # else it is one of those of :data:`INDICES`
            text = f"it sees padding at the other end of {', '.join(beside)}"
            yield replace(parts[0], text=text, also=tuple(parts[1:]))


def _without_blanks(x: Tensor) -> dict[str, tuple[int, Callable[[Tensor], Tensor]]]:
    """Return columns of a table in which many numbers are one marker of missing values, with the mean of the others."""
    blanks: dict[int, tuple[float, float]] = {}
    for k in range(x.shape[1] if x.dim() == 2 and x.shape[1] <= MOST_OF_A_TABLE else 0):  # else they may be pixels
        values, counts = torch.unique(x[:, k], return_counts=True)
        blank = float(values[counts.argmax()])
        others = x[:, k][x[:, k] != blank]
        apart = len(others) > 0 and not float(others.min()) <= blank <= float(others.max())
        if apart and BLANKS[0] <= int(counts.max()) / len(x) <= BLANKS[1] and 2 * (len(values) - 1) > len(others):
            blanks[k] = blank, float(others.mean())

    def filled(x: Tensor) -> Tensor:
        y = x.clone()
        for k, (blank, mean) in blanks.items():
            y[:, k] = torch.where(x[:, k] == blank, mean, x[:, k])
        return y

    where = ", ".join(f"{k} is {blank:.3g}" for k, (blank, _) in blanks.items())
    return {f"the mean of a column where number {where}, as if nothing was measured": (2, filled)} if blanks else {}


def _expanded(x: Tensor) -> Tensor:
    """Return signals, (N, …, samples), as if their numbers were codes of µ-law (ITU-T G.711), as loud as before."""
    if x.shape[-1] < LONG or float(x.min()) >= 0:
        return x
    code = x / x.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    wave = code.sign() * ((1 + MU) ** code.abs() - 1) / MU
    return wave * (x.std(-1, keepdim=True) / wave.std(-1, keepdim=True).clamp(min=1e-12))


def _columns(x: Tensor) -> dict[str, tuple[int, Callable[[Tensor], Tensor]]]:
    """Return any two columns of a table swapped, and up to four channels, or sensors, in any order."""
    count = x.shape[1] if x.dim() == 2 else 0
    pairs = combinations(range(count), 2) if count <= MOST_COLUMNS else ()

    found = {f"columns {a} and {b} swapped": (1, swapped(a, b, count)) for a, b in pairs}
    for axis in {1, x.dim() - 1} if x.dim() > 2 else ():
        if 4 < x.shape[axis] <= MOST_SWAPPED:
            swaps = list(combinations(range(x.shape[axis]), 2))
            found |= {
                f"numbers {a} and {b} of dimension {axis} swapped": (axis, swapped(a, b, x.shape[axis]))
                for a, b in swaps
            }
        elif 2 < x.shape[axis] <= 4:
            orders = list(permutations(range(x.shape[axis])))[1:-1]  # the last one is the reverse
            found |= {f"dimension {axis} in the order {order}": (axis, order) for order in orders}

    def taken(axis: int, order: Sequence[int]) -> Callable[[Tensor], Tensor]:
        return lambda x: x.index_select(axis, torch.tensor(order, device=x.device))

    def standard(at: int, sign: int = 1) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.cat([x[:, :at], sign * _standard(x[:, at : at + 1], 1), x[:, at + 1 :]], 1)

    columns = range(count * (count <= MOST_COLUMNS))
    alone = {f"column {i} with mean 0 and standard deviation 1": (2, standard(i)) for i in columns}
    # Years for ages: elsewhere a column is tried with the other sign alone.
    far = [i for i in columns if abs(float(x[:, i].mean())) > FAR_FROM_0 * float(x[:, i].std())]
    alone |= {f"column {i} negated, with mean 0 and standard deviation 1": (2, standard(i, -1)) for i in far}
    return {text: (2, taken(axis, order)) for text, (axis, order) in found.items()} | alone


def _signs(x: Tensor) -> dict[str, tuple[int, Callable[[Tensor], Tensor]]]:
    """Return any one column of a table negated, or any of a few channels, or sensors, of signals."""
    found: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {}
    for axis in {1, x.dim() - 1} if x.dim() < 4 else {1}:
        if 1 < x.shape[axis] <= MOST_COLUMNS:
            what = "column {}" if x.dim() == 2 else f"number {{}} of dimension {axis}"
            found |= {f"{what.format(i)} negated": (2, _negated(axis, i)) for i in range(x.shape[axis])}
    return found


def _negated(axis: int, at: int) -> Callable[[Tensor], Tensor]:
    def change(x: Tensor) -> Tensor:
        sign = torch.ones(x.shape[axis], device=x.device)
        sign[at] = -1
        return x * sign.reshape(-1, *[1] * (x.dim() - 1 - axis))

    return change


def _letters(sim: Simulation, name: str, x: Tensor) -> dict[str, tuple[int, Callable[[Tensor], Tensor]]]:
    """Return texts of letters by their numbers in ASCII with all of them small, or capital."""
    tables = tables_of(sim.graph, name)
    rows = len(sim.tensors[tables[0].params["weight"]]) if tables and x.dim() == 2 else 0

    def between(first: str, last: str, less: int, step: int) -> Callable[[Tensor], Tensor]:
        low, high = ord(first) - less, ord(last) - less
        return lambda ids: torch.where((low <= ids) & (ids <= high), ids + step, ids)

    found: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {}
    for less in LETTERS_LESS if MOST_LETTERS[0] <= rows <= MOST_LETTERS[1] else ():
        if ord("z") - less < rows:
            of = f"where A is {ord('A') - less}"
            found[f"small letters for capitals, {of}"] = (2, between("A", "Z", less, ord("a") - ord("A")))
            found[f"capitals for small letters, {of}"] = (2, between("a", "z", less, ord("A") - ord("a")))
    return found


def _filled(sim: Simulation, name: str, x: Tensor) -> dict[str, tuple[int, Callable[[Tensor], Tensor]]]:
    """Return other indices than the one that fills the ends of rows moved by one, and this one become what the table
    holds nothing of, as of padding."""
    tables = tables_of(sim.graph, name)
    if x.dim() != 2 or x.shape[1] < 3 or not tables:
        return {}
    fills = filling(x)
    moved = {}

    def by(step: int, last: int = -1) -> Callable[[Tensor], Tensor]:
        """Move indices beyond the last one that is kept, and of others than that which fills rows."""
        kept = -1 if fills is None else fills
        return lambda ids: torch.where((ids == kept) | (ids <= last), ids, (ids + step).clamp(0, int(x.max())))

    if fills is not None:
        more = f"but {fills}, which fills rows"
        moved = {f"indices one more, {more}": (2, by(1)), f"indices one less, {more}": (2, by(-1))}
    for last in (i for i in SPECIAL if bool((x == i).any())):
        beyond = f"beyond {last}"
        moved |= {f"indices one more {beyond}": (2, by(1, last)), f"indices one less {beyond}": (2, by(-1, last))}
    empty = (sim.tensors[tables[0].params["weight"]].detach() == 0).all(1).nonzero().reshape(-1).tolist()
    if fills is None or fills in empty:
        return moved

    def become(index: int) -> Callable[[Tensor], Tensor]:
        return lambda ids: torch.where(ids == fills, index, ids)

    return {**moved, **{f"padding of {index}, not {fills}": (2, become(index)) for index in empty[:3]}}
