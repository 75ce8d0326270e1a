"""Reading of samples for calibration, verification and running: arrays from files, images from folders."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from intact8.errors import InputError, IntactError, in_short
from intact8.regular_file import bytes_of, opened

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

    from intact8.opset.op import Array

IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
ARRAYS = frozenset({".npy", ".npz", ".safetensors"})


@dataclass(frozen=True)
class Arrays:
    """Samples held in memory: dimension 0 of every array counts them."""

    arrays: Mapping[str, Array]

    @property
    def names(self) -> tuple[str, ...]:
        """Entries in the order of the file, or of ``--key``; ``""`` where the file names none."""
        return tuple(self.arrays)

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Return samples ``start`` to ``stop`` of every array."""
        return {name: array[start:stop] for name, array in self.arrays.items()}


@dataclass(frozen=True)
class Preprocessing:
    """From an image file to float32 (3, size, size): shorter side to ``size``, centre crop, (x/255 − mean)/std.

    Grey of 16 bits is x/65535 in place of x/255.
    """

    size: int = 224
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    def read(self, path: Path) -> Array:
        """Read one image. Raises InputError where the file is not an image, or Pillow is missing."""
        import numpy as np

        try:
            from PIL import Image
        except ImportError as error:
            raise InputError(
                "reading images needs Pillow", where=str(path), why=str(error), remedy="pip install 'intact8[images]'"
            ) from error
        try:
            with Image.open(io.BytesIO(bytes_of(path))) as file:
                image = _on_255(file, path)
        except IntactError:
            raise
        except Exception as error:  # its readers of many formats raise errors of many kinds
            remedy = "copy it again, or leave it out"
            raise InputError("cannot read this image", where=str(path), why=in_short(error), remedy=remedy) from error
        ratio = self.size / min(image.size)
        width, height = (max(self.size, round(side * ratio)) for side in image.size)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        image = image.crop((left, top, left + self.size, top + self.size))
        pixels = np.asarray(image, np.float32).reshape(self.size, self.size, -1) / np.float32(255)  # one grey, or three
        pixels = np.broadcast_to(pixels, (self.size, self.size, 3))
        normalized = (pixels - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        return np.ascontiguousarray(normalized.transpose(2, 0, 1), dtype=np.float32)


def _on_255(file: ImageFile, path: Path) -> Image:
    """Return an image in colours, or in grey of more than 8 bits, whose values from 0 to 255 mean black to white.

    Pillow clips grey of more than 8 bits to 255 where it is converted to colours.
    """
    import numpy as np
    from PIL import Image

    sixteen = file.mode.startswith("I;16") or (file.mode == "I" and file.format in ("PNG", "PPM"))
    if sixteen:
        return Image.fromarray(np.asarray(file).astype(np.float32) * np.float32(255 / 65535))
    if file.mode[0] in "IF":
        what = f"{'float' if file.mode[0] == 'F' else 'integer'} pixels of 32 bits have no range that is known"
        remedy = "save the image with 8 or 16 bits, or give arrays: .npy"
        raise InputError(what, where=str(path), remedy=remedy)
    return file.convert("RGB")


@dataclass(frozen=True)
class Images:
    """Image files; a file is read when its batch is."""

    files: Sequence[Path]
    preprocessing: Preprocessing
    names: tuple[str, ...] = ("",)

    def __len__(self) -> int:
        return len(self.files)

    def read(self, start: int, stop: int) -> dict[str, Array]:
        """Return images ``start`` to ``stop`` as one array."""
        import numpy as np

        return {"": np.stack([self.preprocessing.read(file) for file in self.files[start:stop]])}


Data = Arrays | Images
"""Samples that can be read in batches."""


def count(data: Data, samples: int | None) -> int:
    """Return how many the first ``samples`` samples are; all of them for None."""
    return len(data) if samples is None else min(samples, len(data))


def batches(data: Data, size: int, samples: int | None = None) -> Iterator[dict[str, Array]]:
    """Yield the first ``samples`` samples (all by default) in batches of at most ``size``."""
    total = count(data, samples)
    for start in range(0, total, size):
        yield data.read(start, min(start + size, total))


def load(path: Path, *, keys: Sequence[str] = (), preprocessing: Preprocessing | None = None) -> Data:
    """Open .npy, .npz or .safetensors arrays, an image, or a folder of images (sub-folders included, sorted by path).

    Args:
        path: the file or folder.
        keys: entries of the file to take, in the order of the network's inputs; all of them by default.
        preprocessing: for images.

    Raises:
        InputError: ``path`` does not exist, is empty, damaged or of another format, or its entries differ in length.
    """
    if not path.exists():
        raise InputError("no such file or folder", where=str(path))
    if path.is_dir() or path.suffix.lower() in IMAGES:
        if keys:
            raise InputError("images have no entries to choose with --key", where=str(path), remedy="leave --key out")
        return _images(path, preprocessing or Preprocessing())
    if path.suffix.lower() not in ARRAYS:
        known = " ".join(sorted(ARRAYS | IMAGES))
        what = f"do not know how to read {f'{path.suffix} files' if path.suffix else 'files without an extension'}"
        raise InputError(what, where=str(path), remedy=f"give {known}")
    arrays = _arrays(path)
    missing = [key for key in keys if key not in arrays]
    if missing:
        what, why = f"no entry {missing[0]!r}", held(Arrays(arrays))
        raise InputError(
            what, where=str(path), why=why, remedy="leave --key out" if "" in arrays else "name one of these"
        )
    chosen = {key: arrays[key] for key in keys} if keys else arrays
    _check_lengths(path, chosen)
    return Arrays(chosen)


def held(data: Data) -> str:
    """Return in words which entries data have."""
    if isinstance(data, Images):
        return "images have no entries"
    named = ", ".join(map(repr, data.names))
    return "a .npy file holds one array, without a name" if "" in data.names else f"the file holds {named}"


def _images(path: Path, preprocessing: Preprocessing) -> Images:
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGES and file.is_file())
    if not files:
        raise InputError("no images in this folder", where=str(path), remedy=f"it looks for {' '.join(sorted(IMAGES))}")
    return Images(files, preprocessing)


def _arrays(path: Path) -> dict[str, Array]:
    import numpy as np

    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.numpy import load_file

            with opened(path):  # safetensors reads by name, and keeps the order of the file's entries only then
                return dict(load_file(path))
        with opened(path) as stream:
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"": loaded}
            with loaded:
                return {name: loaded[name] for name in loaded.files}
    except IntactError:
        raise
    except Exception as error:  # numpy, zip archives and safetensors raise errors of many kinds
        remedy = "copy it again, or write it again as arrays of numbers and nothing else"
        raise InputError("cannot read this file", where=str(path), why=in_short(error), remedy=remedy) from error


def _check_lengths(path: Path, arrays: Mapping[str, Array]) -> None:
    if not arrays:
        raise InputError("holds no arrays", where=str(path))
    for name, array in arrays.items():
        if array.ndim == 0:
            raise InputError(f"entry {name!r} is a single number", where=str(path), remedy="dimension 0 counts samples")
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(
            f"entries have different numbers of samples: {lengths}", where=str(path), remedy="choose entries with --key"
        )
    if 0 in lengths.values():
        raise InputError("holds no samples", where=str(path))
