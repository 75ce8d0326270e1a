from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from intact8.cli.data import Preprocessing, batches, load
from intact8.errors import InputError


@pytest.fixture
def images(tmp_path: Path) -> Path:
    from PIL import Image

    folder = tmp_path / "images"
    (folder / "cats").mkdir(parents=True)
    Image.new("RGB", (40, 30), (255, 0, 51)).save(folder / "b.png")
    Image.new("L", (16, 64), 128).save(folder / "cats" / "a.png")
    (folder / "notes.txt").write_text("not an image")
    return folder


def test_npy_is_cut_into_batches_and_keeps_order(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(10).reshape(5, 2))
    data = load(tmp_path / "x.npy")
    parts = [batch[""] for batch in batches(data, 2)]
    assert [len(part) for part in parts] == [2, 2, 1]
    assert np.array_equal(np.concatenate(parts), np.arange(10).reshape(5, 2))


def test_samples_limits_what_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((5, 2)))
    assert [len(batch[""]) for batch in batches(load(tmp_path / "x.npy"), 2, samples=3)] == [2, 1]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_entries_are_named_and_chosen_in_order(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    arrays = {"a": np.zeros((3, 1), np.float32), "b": np.ones((3, 2), np.float32), "c": np.ones((4, 2), np.float32)}
    if suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file(arrays, path)
    assert load(path, keys=["b", "a"]).names == ("b", "a")
    with pytest.raises(InputError, match="different numbers of samples"):
        load(path)
    with pytest.raises(InputError, match=r"no entry 'z'.*'a', 'b', 'c'"):
        load(path, keys=["z"])


def test_images_are_resized_cropped_normalized(images: Path) -> None:
    data = load(images, preprocessing=Preprocessing(8, (0.5, 0.0, 0.2), (0.5, 1.0, 0.1)))
    (batch,) = batches(data, 4)
    assert batch[""].shape == (2, 3, 8, 8) and batch[""].dtype == np.float32
    first = batch[""][0]
    assert np.allclose(first[0], 1.0) and np.allclose(first[1], 0.0) and np.allclose(first[2], 0.0, atol=1e-6)


@pytest.mark.parametrize("suffix", ["png", "tiff", "ppm"])
def test_grey_of_16_bits_is_scaled_by_its_own_range(tmp_path: Path, suffix: str) -> None:
    from PIL import Image

    grey = np.arange(24, dtype=np.uint16).reshape(4, 6) * 2849
    Image.fromarray(grey).save(tmp_path / f"x.{suffix}")
    found = Preprocessing(4).read(tmp_path / f"x.{suffix}")
    assert found.shape == (3, 4, 4) and np.allclose(found, grey[:, 1:5] / 65535, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_without_a_known_range_are_refused(tmp_path: Path, dtype: type) -> None:
    from PIL import Image

    Image.fromarray(np.full((4, 4), 7, dtype)).save(tmp_path / "x.tiff")
    with pytest.raises(InputError, match=r"x\.tiff: .*32 bits have no range.*8 or 16 bits"):
        Preprocessing(4).read(tmp_path / "x.tiff")


def test_one_image_is_one_sample(images: Path) -> None:
    assert len(load(images / "b.png")) == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.npy", None, "no such file"),
        ("x.csv", b"1,2", "do not know how to read .csv"),
        ("x", b"1,2", "do not know how to read files without an extension"),
        ("x.npy", b"", r"cannot read this file.*Remedy: copy it again"),
        ("x.npy", b"\x93NUMPY\x01\x00broken", r"cannot read this file.*Remedy: copy it again"),
        ("x.npz", b"PK\x03\x04broken", r"cannot read this file.*Remedy: copy it again"),
        ("x.safetensors", b"\xff" * 20, r"cannot read this file.*Remedy: copy it again"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="cannot read this file.*arrays of numbers"):
        load(tmp_path / "x.npy")


@pytest.mark.parametrize(("array", "words"), [(np.float32(1), "single number"), (np.zeros((0, 2)), "no samples")])
def test_arrays_without_samples_are_refused(tmp_path: Path, array: np.ndarray, words: str) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(InputError, match=words):
        load(tmp_path / "x.npy")


def test_a_folder_without_images_and_a_broken_image(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no images in this folder"):
        load(tmp_path)
    (tmp_path / "a.png").write_bytes(b"no")
    with pytest.raises(InputError, match="cannot read this image"):
        load(tmp_path).read(0, 1)
