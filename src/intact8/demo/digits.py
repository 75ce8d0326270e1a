"""The handwritten digits of scikit-learn: real images that nothing has to download."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intact8.errors import IntactError

HELD_OUT = 450


@dataclass(frozen=True)
class Digits:
    """Images (N, 1, 16, 16) float32 in 0..1 and labels (N,) int64, cut into training and held-out parts."""

    train_images: npt.NDArray[np.float32]
    train_labels: npt.NDArray[np.int64]
    held_out_images: npt.NDArray[np.float32]
    held_out_labels: npt.NDArray[np.int64]


def load(seed: int) -> Digits:
    """Load the 1,797 digits, 8×8 pixels doubled to 16×16, shuffled by ``seed``; the last 450 are held out.

    Raises:
        IntactError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        what = "the demonstration needs scikit-learn, whose digits it trains on"
        raise IntactError(what, why=str(error), remedy="pip install 'intact8[demo]'") from error
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(images))
    small = (images.reshape(-1, 1, 8, 8)[order] / 16).astype(np.float32)
    doubled = np.ascontiguousarray(small.repeat(2, axis=2).repeat(2, axis=3))
    targets = labels[order].astype(np.int64)
    cut = len(doubled) - HELD_OUT
    return Digits(doubled[:cut], targets[:cut], doubled[cut:], targets[cut:])
