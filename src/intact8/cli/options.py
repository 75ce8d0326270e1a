"""Arguments and options that several commands share, and what their texts mean."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from intact8.cli.console import stderr
from intact8.cli.data import Data, Images, Preprocessing, load
from intact8.errors import InputError

DATA_HELP = "Samples: .npy, .npz or .safetensors arrays (dimension 0 counts samples), an image, or a folder of images."
MODEL_HELP = "package.module:factory; called without arguments."

ProgramFile = Annotated[Path, typer.Argument(metavar="FILE", help="A program written by intact8.")]
Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
StateDict = Annotated[
    Path | None,
    typer.Option(help="Weights of the network: .safetensors, or a torch.save file (read with weights_only)."),
]
RecipeName = Annotated[str, typer.Option("--recipe", help="A preset of intact8.recipes, or a recipe in TOML.")]
Samples = Annotated[Path, typer.Option("--data", help=DATA_HELP)]
OptionalSamples = Annotated[Path | None, typer.Option("--data", help=DATA_HELP)]
Limit = Annotated[int | None, typer.Option("--samples", min=1, help="Use the first this many; all by default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON in place of tables.")]
PublicKey = Annotated[
    Path | None,
    typer.Option(metavar="PEM", help="Demand a signature of this Ed25519 key (FILE.sig). Default: INTACT8_PUBLIC_KEY."),
]
Expect = Annotated[
    str | None,
    typer.Option(metavar="NAME[@N]", help="Demand that this name was signed, and version N or a later one."),
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="NAME", help="Entry of the data file that feeds an input; repeat it, in order."),
]
Labels = Annotated[
    str, typer.Option(metavar="NAME", help="One class index per sample: an entry of the data, or a .npy file.")
]
Size = Annotated[int, typer.Option(min=1, help="Images: side in pixels after resizing and centre crop.")]
Mean = Annotated[str | None, typer.Option(metavar="R,G,B", help="Images: mean to subtract, of pixels in 0..1.")]
Std = Annotated[str | None, typer.Option(metavar="R,G,B", help="Images: standard deviation to divide by.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Samples per batch.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of engine and framework; all by default.")]


def samples(path: Path, key: list[str] | None, size: int, mean: str | None, std: str | None) -> Data:
    """Open the samples at ``path`` as ``--key``, ``--size``, ``--mean`` and ``--std`` ask. Raises InputError.

    Says on stderr how images are normalized where neither option is given.
    """
    means, stds = _three("--mean", mean or "0"), _three("--std", std or "1")
    if 0.0 in stds:
        raise InputError(f"{std} would divide by zero", where="--std")
    found = load(path, keys=key or (), preprocessing=Preprocessing(size, means, stds))
    if isinstance(found, Images) and mean is None and std is None:
        text = "images are scaled to 0..1 and not normalized (mean 0, standard deviation 1); --mean and --std change it"
        stderr().print(text, style="yellow", highlight=False)
    return found


def _three(option: str, text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) == 1:
        values *= 3
    if len(values) != 3:
        raise InputError(f"{text!r} is not one number or three", where=option, remedy="for instance 0.485,0.456,0.406")
    return values


def shape(text: str) -> tuple[int, ...]:
    """Return ``1,3,224,224`` as a tuple. Raises InputError."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise InputError(f"{text!r} is not a shape", where="--example-shape", remedy="for instance 1,3,224,224")
    return sizes


def dynamic(entries: list[str] | None) -> dict[str, dict[int, Any]] | None:
    """Return ``ids:1=sequence:1-512`` as ``dynamic_shapes`` of :func:`intact8.quantize`. Raises InputError."""
    if not entries:
        return None
    from torch.export import Dim

    found: dict[str, dict[int, Any]] = {}
    for entry in entries:
        parts = re.fullmatch(r"(.+):(\d+)=([A-Za-z_]\w*)(?::(\d+)-(\d+))?", entry)
        if parts is None:
            remedy = "for instance ids:1=sequence:1-512"
            raise InputError(f"{entry!r} names no dimension", where="--dynamic", remedy=remedy)
        key, axis, name, least, most = parts.groups()
        dim: Any = name if least is None else Dim(name, min=int(least), max=int(most))
        found.setdefault(key, {})[int(axis)] = dim
    return found


def names(text: str) -> tuple[str, ...]:
    """Return ``reference,onednn`` as a tuple. Raises InputError."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:
        raise InputError("no engine named", where="--engines", remedy="for instance reference,onednn")
    return parts
