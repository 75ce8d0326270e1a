"""A detector whose post-processing stays in torch: trained in seconds, split, compared with float32.

    python examples/detector.py [--steps 200]

Non-maximum suppression depends on the values of scores, so no graph holds it. ``intact8.split`` converts
the backbone and the heads, and returns a model that is called as the detector was.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intact8

SIZE, STRIDE = 64, 4


class Detector(nn.Module):
    """Squares in an image: at every cell a score and the distances to the four sides, as in FCOS."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 32)
        self.backbone = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, stride, 1), nn.BatchNorm2d(b), nn.SiLU())
                for a, b, stride in zip(widths, widths[1:], (2, 2, 1), strict=False)
            )
        )
        self.score = nn.Conv2d(32, 1, 3, padding=1)
        self.sides = nn.Conv2d(32, 4, 3, padding=1)

    def maps(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores (N, cells) before the sigmoid and the boxes (N, cells, 4) in pixels, x1 y1 x2 y2."""
        features = self.backbone(images)
        cells = torch.arange(SIZE // STRIDE) * STRIDE + STRIDE / 2
        y, x = torch.meshgrid(cells, cells, indexing="ij")
        left, top, right, bottom = (F.softplus(self.sides(features)) * STRIDE).unbind(1)
        boxes = torch.stack([x - left, y - top, x + right, y + bottom], -1)
        return self.score(features).flatten(1), boxes.flatten(1, 2)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the boxes (found, 4) of every image."""
        scores, boxes = self.maps(images)
        return [suppressed(box[score > 0], score[score > 0]) for score, box in zip(scores, boxes, strict=True)]


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Return the intersection over union of every box of ``a`` (n, 4) with every one of ``b`` (m, 4)."""
    inside = (torch.minimum(a[:, None, 2:], b[:, 2:]) - torch.maximum(a[:, None, :2], b[:, :2])).clamp(min=0).prod(-1)
    areas = [(box[:, 2:] - box[:, :2]).prod(-1) for box in (a, b)]
    return inside / (areas[0][:, None] + areas[1] - inside)


def suppressed(boxes: Tensor, scores: Tensor) -> Tensor:
    """Non-maximum suppression at an overlap of one half."""
    boxes, kept = boxes[scores.argsort(descending=True)], []
    while len(boxes):
        kept.append(boxes[0])
        boxes = boxes[overlap(boxes[:1], boxes)[0] < 0.5]
    return torch.stack(kept) if kept else boxes


def images(count: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    """Return noisy images with one to three bright squares in each, and the boxes around these."""
    g = torch.Generator().manual_seed(seed)
    pictures, truth = 0.3 * torch.randn(count, 3, SIZE, SIZE, generator=g), []
    for picture in pictures:
        boxes = torch.zeros(0, 4)
        for _ in range(int(torch.randint(1, 4, (1,), generator=g))):
            side = int(torch.randint(8, 25, (1,), generator=g))
            x, y = torch.randint(0, SIZE - side, (2,), generator=g).tolist()
            box = torch.tensor([[x, y, x + side, y + side]], dtype=torch.float32)
            if not len(boxes) or float(overlap(box, boxes).max()) == 0:
                boxes = torch.cat([boxes, box])
                picture[:, y : y + side, x : x + side] += torch.rand(3, 1, 1, generator=g) + 0.5
        truth.append(boxes)
    return pictures, truth


def train(steps: int) -> Detector:
    """Return a detector that finds most squares."""
    torch.manual_seed(0)
    model = Detector()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    cells = torch.arange(SIZE // STRIDE) * STRIDE + STRIDE / 2
    y, x = (c.flatten() for c in torch.meshgrid(cells, cells, indexing="ij"))
    for step in range(steps):
        pictures, truth = images(16, seed=step)
        scores, boxes = model.maps(pictures)
        loss = torch.zeros(())
        for score, box, true in zip(scores, boxes, truth, strict=True):
            near = (true[:, :2] + true[:, 2:]) / 2 - torch.stack([x, y], -1)[:, None]
            inside = near.abs() < (true[:, 2:] - true[:, :2]) / 4 + STRIDE / 2
            owner, positive = inside.all(-1).float().argmax(-1), inside.all(-1).any(-1)
            loss = loss + F.binary_cross_entropy_with_logits(score, positive.float())
            loss = loss + 0.1 * F.smooth_l1_loss(box[positive], true[owner[positive]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


class Result(NamedTuple):
    """Share of squares that were found (overlap of at least one half), and of boxes that are squares."""

    recall: float
    precision: float


@torch.no_grad()
def score(model: nn.Module, pictures: Tensor, truth: list[Tensor]) -> Result:
    """Return how well a detector finds the squares."""
    hits = boxes = squares = 0
    for found, true in zip(model(pictures), truth, strict=True):
        hits += int((overlap(true, found) >= 0.5).any(1).sum()) if len(found) else 0
        boxes, squares = boxes + len(found), squares + len(true)
    return Result(hits / squares, hits / max(boxes, 1))


def run(steps: int = 200) -> tuple[Result, Result]:
    """Train, split and measure; float32's and int8's results."""
    model = train(steps)
    converted = intact8.split(model, [images(16, seed=1000 + i)[0] for i in range(8)])
    held_out = images(200, seed=5000)
    results = score(model, *held_out), score(converted, *held_out)
    for path, program in intact8.torch.programs(converted).items():
        print(f"{path}: {program}")
    for name, result in zip(("float32", "int8"), results, strict=True):
        print(f"{name}: finds {result.recall:.1%} of the squares, {result.precision:.1%} of its boxes are squares")
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    run(parser.parse_args().steps)
