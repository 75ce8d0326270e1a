"""Eight small networks of families in use, trained on the spot: solar cells, requests, mushrooms, lawns and more."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from tests.diagnose.doctor.blind_networks_tenth import (
    Arrays,
    Subject,
    classes_right,
    explained,
    generator,
    signs_right,
    trained,
    yes_or_no,
)
from torch import Tensor, nn

SIDE = torch.arange(32.0)


def in_bytes(images: Tensor) -> Tensor:
    """Return pictures between 0 and 1 as they are after they were bytes."""
    return (images.clamp(0, 1) * 255).round() / 255


def paint(red: float, green: float, blue: float) -> Tensor:
    """Return a colour that can be multiplied with pictures."""
    return torch.tensor([red, green, blue])[None, :, None, None]


def rough(count: int, coarse: int, side: int, chance: torch.Generator) -> Tensor:
    """Return smooth noise of one channel, of deviation about 1, that changes over so many steps."""
    noise = torch.randn(count, 1, coarse, coarse, generator=chance)
    return F.interpolate(noise, size=side, mode="bicubic", align_corners=True)


def disc(y: Tensor, x: Tensor, radius: Tensor, sharp: float = 2.0) -> Tensor:
    """Return 1 inside of a circle about the origin, and 0 outside."""
    return torch.sigmoid(sharp * (radius - (y.square() + x.square()).sqrt()))


# --- solar: defects of cells of panels (a GhostNet) -----------------------------------------------------------------

CELL_MEAN, CELL_DEVIATION = 0.55, 0.17


def cells(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return grey pictures of 32 × 32 between 0 and 1 of cells that glow under a voltage, and one of six classes.

    Sound cells, cracks (a jagged dark line), fingers that are interrupted (short dark strokes upright), a part without
    contact (dark beyond a line), corrosion (dark along the bars), and rings of the wafer (dark circles).
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    u = torch.rand(count, 30, 1, 1, generator=chance)
    y, x = SIDE[:, None].expand(32, 32), SIDE[None].expand(32, 32)
    edge = torch.minimum(torch.minimum(y, 31 - y), torch.minimum(x, 31 - x))
    glow = 0.62 + 0.2 * (u[:, 0] - 0.5) + 0.05 * rough(count, 5, 32, chance)[:, 0]
    glow = glow - 0.12 * torch.exp(-edge / 1.5) + 0.03 * torch.cos(x * 2.2 + 6 * u[:, 1])
    bars = torch.exp(-((y - 10) / 0.8).square()) + torch.exp(-((y - 21) / 0.8).square())
    glow = glow - 0.3 * bars
    angle = math.pi * u[:, 2]
    along = (y - 16 + 12 * (u[:, 3] - 0.5)) * angle.sin() + (x - 16 + 12 * (u[:, 4] - 0.5)) * angle.cos()
    aside = (x - 16 + 12 * (u[:, 4] - 0.5)) * angle.sin() - (y - 16 + 12 * (u[:, 3] - 0.5)) * angle.cos()
    jagged = aside + 1.6 * torch.sin(along / (1.2 + 1.5 * u[:, 5]) + 6 * u[:, 6])
    crack = torch.exp(-(jagged / 0.7).square()) * torch.sigmoid(7 + 5 * u[:, 7] - along.abs())
    finger = torch.zeros(count, 32, 32)
    for k in range(8, 14, 2):
        top = 3 + 22 * u[:, k + 1]
        stroke = ((x - (3 + 26 * u[:, k]).round()).abs() < 0.9).float() * ((y > top) & (y < top + 7)).float()
        finger = torch.maximum(finger, stroke)
    beyond = torch.sigmoid(1.2 * (aside - 3 - 5 * u[:, 14]))
    eaten = torch.exp(-((y - 10 - 11 * (u[:, 15] > 0.5).float()) / 2.6).square())
    eaten = eaten * torch.sigmoid(2 * rough(count, 7, 32, chance)[:, 0] + 0.8)
    far = ((y - 16).square() + (x - 16).square()).sqrt()
    ring = 0.5 + 0.5 * torch.cos(far * (0.9 + 0.4 * u[:, 16]) + 6 * u[:, 17])
    dark = torch.stack([0 * ring, 0.38 * crack, 0.26 * finger, 0.3 * beyond, 0.34 * eaten, 0.15 * ring])
    images = glow - dark[labels, torch.arange(count)] * (0.6 + 0.6 * u[:, 18])
    images = images[:, None] + 0.075 * torch.randn(count, 1, 32, 32, generator=chance)
    return in_bytes(images), labels


class Ghost(nn.Module):
    """Half of the maps from a convolution of 1 × 1, the other half from these by a depthwise one of 3 × 3."""

    def __init__(self, before: int, after: int, relu: bool = True) -> None:
        super().__init__()
        half = after // 2
        self.primary_conv = nn.Conv2d(before, half, 1, bias=False)
        self.bn1: nn.Module = nn.BatchNorm2d(half)
        self.cheap_operation = nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False)
        self.bn2: nn.Module = nn.BatchNorm2d(half)
        self.relu1: nn.Module = nn.ReLU() if relu else nn.Identity()
        self.relu2: nn.Module = nn.ReLU() if relu else nn.Identity()
        self.cheap_first = False

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.relu1(self.bn1(self.primary_conv(x)))
        x2 = self.relu2(self.bn2(self.cheap_operation(x1)))
        return torch.cat([x2, x1] if self.cheap_first else [x1, x2], 1)


class Excite(nn.Module):
    """Factors for channels from their means, with a hard sigmoid."""

    def __init__(self, width: int, least: int) -> None:
        super().__init__()
        self.reduce, self.act = nn.Conv2d(width, least, 1), nn.ReLU()
        self.expand = nn.Conv2d(least, width, 1)
        self.gate: nn.Module = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(self.act(self.reduce(x.mean((2, 3), keepdim=True)))))


class GhostBottleneck(nn.Module):
    """Widen, a depthwise step where the picture gets smaller, factors for channels, narrow; and a shortcut."""

    def __init__(self, before: int, inner: int, after: int, stride: int, excited: bool) -> None:
        super().__init__()
        self.ghost1 = Ghost(before, inner)
        self.down = stride > 1
        if self.down:
            self.conv_dw = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
            self.bn_dw = nn.BatchNorm2d(inner)
        self.se = Excite(inner, 8) if excited else None
        self.ghost2 = Ghost(inner, after, relu=False)
        self.shortcut = (
            nn.Sequential(
                nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False),
                nn.BatchNorm2d(before),
                nn.Conv2d(before, after, 1, bias=False),
                nn.BatchNorm2d(after),
            )
            if self.down
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.ghost1(x)
        if self.down:
            out = self.bn_dw(self.conv_dw(out))
        if self.se is not None:
            out = self.se(out)
        return self.ghost2(out) + (x if self.shortcut is None else self.shortcut(x))


class Solar(nn.Module):
    """A stem, four bottlenecks of ghosts, a last convolution, the mean and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem, self.bn1, self.act1 = nn.Conv2d(1, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU()
        self.blocks = nn.Sequential(
            GhostBottleneck(12, 24, 12, 1, False),
            GhostBottleneck(12, 32, 20, 2, True),
            GhostBottleneck(20, 40, 20, 1, True),
            GhostBottleneck(20, 48, 32, 2, True),
        )
        self.conv_head, self.act2 = nn.Conv2d(32, 64, 1), nn.ReLU()
        self.drop, self.classifier = nn.Dropout(0.1), nn.Linear(64, 6)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks(self.act1(self.bn1(self.conv_stem(image))))
        x = self.act2(self.conv_head(x.mean((2, 3), keepdim=True)))
        return self.classifier(self.drop(torch.flatten(x, 1)))


def solar() -> Subject:
    """Return a GhostNet for cells of panels, whose pictures have about mean 0 and deviation 1."""
    images, labels = cells(2900, 2501)
    data = [(images - CELL_MEAN) / CELL_DEVIATION, labels]
    return trained(Solar, data, 500, 11, 8e-3, F.cross_entropy, classes_right, 41)


# --- request: attacks in requests to a web server (a gMLP on bytes) -------------------------------------------------

LETTERS, LONG = 96, 40
ATTACKS = (
    ("id={n}", "q={w}", "p={n}&s={w}", "q=union {w}", "{w}={w};x={n}", "s={w}'s", "t=<{n}", "q=<b>{w}", "f=./{w}"),
    ("id={n}'or {n}={n}--", "id={n} union select {w}", "q=';drop {w}--", "u={w}'and'1'='1", "id={n}%27or%201=1"),
    ("q=<script>{w}()", "q=<img onerror={w}>", "n=%3Cscript%3E{w}", "q=<svg/onload={w}>", "u=javascript:{w}"),
    ("f=../../etc/{w}", "p=..%2F..%2F{w}", "f=....//....//{w}", "page=/etc/passwd", "d=..\\..\\{w}"),
    ("h={w};cat {w}", "ip={n}|id", "h=$({w})", "c={w}&&wget {w}", "h=`{w}`;ls"),
)
"""What is behind the question mark: usual requests, SQL, scripts, paths, and commands of a shell."""


def requests(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return requests as 40 numbers of letters (0 is none, 1 a blank), and one of five classes.

    Some attacks are cut off, and some letters are others by chance.
    """
    chance = generator(seed)

    def pick(count: int) -> int:
        """Return a number of chance."""
        return int(torch.randint(count, (), generator=chance))

    def word() -> str:
        """Return some letters."""
        return "".join(chr(97 + pick(26)) for _ in range(2 + pick(5)))

    labels = torch.randint(5, (count,), generator=chance)
    letters = torch.zeros(count, LONG, dtype=torch.long)
    for row, label in enumerate(labels.tolist()):
        form = ATTACKS[label][pick(len(ATTACKS[label]))]
        while "{" in form:
            form = form.replace("{w}", word(), 1).replace("{n}", str(pick(200)), 1)
        text = "/" + word() + ("." + ("php", "asp", "cgi")[pick(3)] if pick(2) else "/" + word()) + "?" + form
        text = text[:LONG]
        found = torch.tensor([ord(letter) - 31 for letter in text])
        other = torch.rand(len(text), generator=chance) < 0.15
        letters[row, : len(text)] = torch.where(other, torch.randint(1, LETTERS, (len(text),), generator=chance), found)
    return letters, labels


class SpatialGating(nn.Module):
    """Half of the maps, normalized and mixed between places, multiplies the other half."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.proj = nn.LayerNorm(width // 2), nn.Linear(LONG, LONG)
        nn.init.normal_(self.proj.weight, std=1e-3)
        nn.init.ones_(self.proj.bias)
        self.second_is_gate = True

    def forward(self, x: Tensor) -> Tensor:
        u, v = x.chunk(2, -1)
        if not self.second_is_gate:
            u, v = v, u
        return u * self.proj(self.norm(v).transpose(1, 2)).transpose(1, 2)


class GatedBlock(nn.Module):
    """A norm, a map, GELU, gating between places and a map; added to what came in."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.fc1 = nn.LayerNorm(width), nn.Linear(width, inner)
        self.act: nn.Module = nn.GELU()
        self.gate, self.fc2 = SpatialGating(inner), nn.Linear(inner // 2, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(self.gate(self.act(self.fc1(self.norm(x)))))


class Request(nn.Module):
    """Rows of letters, three gated blocks, a norm, the maximum over places and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, 24, padding_idx=0)
        self.blocks = nn.ModuleList([GatedBlock(24, 64) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 5)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.embed(letters)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).amax(1))


def request() -> Subject:
    """Return a gMLP for requests."""
    return trained(Request, list(requests(4500, 2502)), 500, 10, 8e-3, F.cross_entropy, classes_right, 42)


# --- mushroom: kinds of mushrooms (a DeiT with a token for the class and one for the teacher) -----------------------


def mushrooms(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and one of six classes.

    Chanterelles (a yellow funnel), fly agarics (red, with white dots), porcini (brown, on a thick foot), puffballs
    (round, without a foot), ink caps (a tall grey bell), and parasols (a wide cap with dark scales, on a thin foot).
    """
    chance = generator(seed)
    labels = torch.randint(6, (count,), generator=chance)
    u = torch.rand(count, 40, 1, 1, generator=chance)
    lean = 0.35 * (u[:, 0] - 0.5)
    y = SIDE[:, None] - (14 + 5 * (u[:, 1] - 0.5))
    x = SIDE[None] - (16 + 8 * (u[:, 2] - 0.5)) - lean * y
    size = 0.8 + 0.4 * u[:, 3]
    wide = torch.tensor([7.5, 8.5, 8.0, 7.0, 4.2, 10.0])[labels][:, None, None] * size
    tall = torch.tensor([6.0, 5.5, 5.5, 6.5, 8.5, 4.0])[labels][:, None, None] * size
    foot = torch.tensor([2.6, 1.9, 3.8, 0.1, 1.5, 1.2])[labels][:, None, None] * size
    kind = F.one_hot(labels, 6).float()[:, :, None, None]
    whole = torch.sigmoid(5 * (1 - ((x / wide).square() + (y / tall).square()).sqrt()))
    below = torch.sigmoid(2 * (0.15 * tall - y))
    cap = whole * (kind[:, 3] + kind[:, 4] + (1 - kind[:, 3] - kind[:, 4]) * below)
    slope = wide * (1 - (y + tall) / (2.4 * tall)).clamp_min(0.2)
    funnel = torch.sigmoid(2 * (slope - x.abs())) * torch.sigmoid(2 * (y + 0.7 * tall)) * torch.sigmoid(2 * (9 - y))
    cap = torch.where(kind[:, 0] > 0, funnel, cap)
    stem = torch.sigmoid(2 * (foot - x.abs())) * torch.sigmoid(2 * y) * torch.sigmoid(2 * (11 * size - y))
    stem = stem * (1 - kind[:, 3])
    dots = torch.zeros(count, 32, 32)
    for k in range(4, 18, 2):
        apart_y, apart_x = y + tall * (0.1 + 0.8 * u[:, k]), x - wide * 1.4 * (u[:, k + 1] - 0.5)
        dots = torch.maximum(dots, disc(apart_y, apart_x, 0.9 + 0 * u[:, k]))
    yellow, red, brown = paint(0.85, 0.62, 0.2), paint(0.8, 0.2, 0.14), paint(0.55, 0.36, 0.2)
    white, grey, cream = paint(0.86, 0.84, 0.78), paint(0.66, 0.64, 0.6), paint(0.76, 0.66, 0.5)
    colour = torch.cat([yellow, red, brown, white, grey, cream])[labels] + 0.28 * (u[:, 18:21] - 0.5)
    mark = 0.75 * (kind[:, 1] * dots)[:, None] * (white - colour) - 0.35 * (kind[:, 5] * dots)[:, None]
    top = colour + mark - 0.1 * ((y + tall) / (2 * tall)).clamp(0, 1)[:, None]
    leg = torch.cat([yellow, white, cream, white, white, cream])[labels] + 0.15 * (u[:, 21:24] - 0.5)
    forest = torch.where(u[:, 24:25] > 0.5, paint(0.3, 0.38, 0.2), paint(0.42, 0.32, 0.24))
    ground = forest + 0.2 * (u[:, 25:28] - 0.5) + 0.08 * rough(count, 9, 32, chance)
    images = ground + stem[:, None] * (leg - ground)
    images = images + cap[:, None] * (top - images)
    images = images * (0.7 + 0.5 * u[:, 28:29]) + 0.11 * torch.randn(count, 3, 32, 32, generator=chance)
    return in_bytes(images), labels


class Attention(nn.Module):
    """Attention with packed queries, keys and values, as in timm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale, self.axis = heads, (width // heads) ** -0.5, -1
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q * self.scale @ k.transpose(-2, -1), self.axis)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, count, width))


class EncoderBlock(nn.Module):
    """Attention and two maps, each behind a norm and added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), Attention(width, heads)
        self.norm2, self.fc1 = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 3 * width)
        self.act: nn.Module = nn.GELU()
        self.fc2 = nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class Mushroom(nn.Module):
    """Patches of 4 × 4 behind two tokens, rows for places, three blocks, a norm, and the mean of two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 32, 4, 4)
        self.cls_token, self.dist_token = (nn.Parameter(0.02 * torch.randn(1, 1, 32)) for _ in range(2))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 66, 32))
        self.blocks = nn.ModuleList([EncoderBlock(32, 4) for _ in range(3)])
        self.norm = nn.LayerNorm(32, eps=1e-6)
        self.head, self.head_dist = nn.Linear(32, 6), nn.Linear(32, 6)
        self.tokens_first = True

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch_embed(image).flatten(2).transpose(1, 2)
        tokens = [self.cls_token.expand(x.shape[0], -1, -1), self.dist_token.expand(x.shape[0], -1, -1)]
        x = torch.cat([*tokens, x] if self.tokens_first else [x, *tokens], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        first, second = (0, 1) if self.tokens_first else (64, 65)
        return (self.head(x[:, first]) + self.head_dist(x[:, second])) / 2


MUSHROOM_MEANS = torch.tensor([0.5, 0.45, 0.35])[:, None, None]
MUSHROOM_DEVIATIONS = torch.tensor([0.2, 0.18, 0.17])[:, None, None]


def mushroom() -> Subject:
    """Return a DeiT for mushrooms, whose pictures have about mean 0 and deviation 1 in each channel."""
    images, labels = mushrooms(3000, 2503)
    data = [(images - MUSHROOM_MEANS) / MUSHROOM_DEVIATIONS, labels]
    return trained(Mushroom, data, 500, 12, 3e-3, F.cross_entropy, classes_right, 43, decay=0.05)


# --- lawn: what is before a robot that mows (a BiSeNet) -------------------------------------------------------------


def gardens(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures of 32 × 32 between 0 and 1, and for each pixel one of five classes.

    Lawn, paths, beds of flowers, things in the way (balls, with a shadow), and fence or hedge behind it all.
    """
    chance = generator(seed)
    u = torch.rand(count, 40, 1, 1, generator=chance)
    y, x = SIDE[:, None].expand(32, 32), SIDE[None].expand(32, 32)
    labels = torch.zeros(count, 32, 32, dtype=torch.long)
    green = paint(0.3, 0.5, 0.22) + 0.2 * (u[:, 0:3] - 0.5)
    images = green + 0.05 * rough(count, 12, 32, chance) + 0.04 * torch.sin(x * 1.9 + 6 * u[:, 3])[:, None]
    middle, slope = 32 * u[:, 4], 1.2 * (u[:, 5] - 0.5)
    path = ((x - middle - slope * (y - 10)).abs() < (1.5 + 2 * u[:, 6]) * (0.5 + y / 16)) & (u[:, 7] > 0.35)
    stone = torch.where(u[:, 8:9] > 0.5, paint(0.6, 0.57, 0.52), paint(0.62, 0.5, 0.38)) + 0.15 * (u[:, 9:10] - 0.5)
    images = torch.where(path[:, None], stone + 0.03 * rough(count, 16, 32, chance), images)
    labels = torch.where(path, 1, labels)
    bed_y, bed_x = 12 + 16 * u[:, 10], 32 * u[:, 11]
    bed = ((y - bed_y) / (3 + 3 * u[:, 12])).square() + ((x - bed_x) / (4 + 5 * u[:, 13])).square() < 1
    bed = bed & (u[:, 14] > 0.3)
    bright = (torch.rand(count, 1, 32, 32, generator=chance) < 0.35).float()
    petals = torch.where(u[:, 15:16] > 0.5, paint(0.75, 0.3, 0.45), paint(0.8, 0.7, 0.25)) + 0.2 * (u[:, 16:19] - 0.5)
    soil = paint(0.3, 0.36, 0.2) + 0.1 * (u[:, 19:20] - 0.5)
    images = torch.where(bed[:, None], soil + bright * (petals - soil), images)
    labels = torch.where(bed, 2, labels)
    for k in (20, 26):
        ball_y, ball_x, radius = 12 + 17 * u[:, k], 2 + 28 * u[:, k + 1], 2 + 2.5 * u[:, k + 2]
        there = u[:, k + 3] > 0.35
        shade = (((y - ball_y - radius) / (0.5 * radius)).square() + ((x - ball_x - 1) / radius).square() < 1) & there
        images = torch.where(shade[:, None], 0.6 * images, images)
        ball = ((y - ball_y).square() + (x - ball_x).square() < radius.square()) & there
        light = 1 + 0.25 * (ball_y - y) / radius
        colour = torch.where(u[:, k + 4 : k + 5] > 0.5, paint(0.75, 0.35, 0.2), paint(0.35, 0.4, 0.7))
        images = torch.where(ball[:, None], colour * light[:, None], images)
        labels = torch.where(ball, 3, labels)
    hedge = y < 3 + 8 * u[:, 32] + 1.0 * torch.sin(x / 2.5 + 6 * u[:, 33])
    boards = paint(0.45, 0.36, 0.28) + 0.08 * torch.sign(torch.sin(x * 1.3))[None, None]
    leaves = paint(0.2, 0.34, 0.18) + 0.08 * rough(count, 20, 32, chance)
    images = torch.where(hedge[:, None], torch.where(u[:, 34:35] > 0.5, boards, leaves), images)
    labels = torch.where(hedge, 4, labels)
    images = images * (0.65 + 0.6 * u[:, 35:36]) * (1 + 0.12 * (u[:, 36:39] - 0.5))
    return in_bytes(images + 0.06 * torch.randn(count, 3, 32, 32, generator=chance)), labels


class ConvBNReLU(nn.Module):
    """A convolution, its norm and ReLU."""

    def __init__(self, before: int, after: int, size: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)
        self.relu: nn.Module = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.bn(self.conv(x)))


class Refine(nn.Module):
    """A convolution, whose channels are multiplied with factors from their means."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv = ConvBNReLU(before, after)
        self.conv_atten, self.bn_atten = nn.Conv2d(after, after, 1, bias=False), nn.BatchNorm2d(after)
        self.sigmoid = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x * self.sigmoid(self.bn_atten(self.conv_atten(x.mean((2, 3), keepdim=True))))


class Fusion(nn.Module):
    """Both paths joined, a convolution of 1 × 1, and factors for channels, whose product is added."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.convblk = ConvBNReLU(before, width, 1)
        self.conv1, self.relu, self.conv2 = nn.Conv2d(width, width // 4, 1), nn.ReLU(), nn.Conv2d(width // 4, width, 1)
        self.sigmoid = nn.Sigmoid()
        self.detail_first = True

    def forward(self, detail: Tensor, context: Tensor) -> Tensor:
        x = self.convblk(torch.cat([detail, context] if self.detail_first else [context, detail], 1))
        return x + x * self.sigmoid(self.conv2(self.relu(self.conv1(x.mean((2, 3), keepdim=True)))))


class Lawn(nn.Module):
    """A path of details at half the size, a path of context down to an eighth, and both fused."""

    def __init__(self) -> None:
        super().__init__()
        self.sp = nn.Sequential(ConvBNReLU(3, 12, 3, 2), ConvBNReLU(12, 16), ConvBNReLU(16, 16, 1))
        self.cp1, self.cp2 = ConvBNReLU(3, 12, 3, 2), ConvBNReLU(12, 16, 3, 2)
        self.cp3, self.cp4 = ConvBNReLU(16, 24, 3, 2), ConvBNReLU(24, 24)
        self.arm16, self.arm32, self.conv_avg = Refine(16, 16), Refine(24, 16), ConvBNReLU(24, 16, 1)
        self.conv_head32, self.conv_head16 = ConvBNReLU(16, 16), ConvBNReLU(16, 16)
        self.ffm, self.conv_out = Fusion(32, 24), nn.Conv2d(24, 5, 1)
        self.aligned, self.up = False, "nearest"

    def larger(self, x: Tensor, times: int) -> Tensor:
        """Return maps that are so many times as large."""
        if self.up == "nearest":
            return F.interpolate(x, scale_factor=times, mode="nearest")
        return F.interpolate(x, scale_factor=times, mode="bilinear", align_corners=self.aligned)

    def forward(self, image: Tensor) -> Tensor:
        context16 = self.cp2(self.cp1(image))
        context32 = self.cp4(self.cp3(context16))
        overall = self.conv_avg(context32.mean((2, 3), keepdim=True))
        deep = self.conv_head32(self.larger(self.arm32(context32) + overall, 2))
        context = self.conv_head16(self.larger(self.arm16(context16) + deep, 2))
        x = self.ffm(self.sp(image), context)
        return F.interpolate(self.conv_out(x), scale_factor=2, mode="bilinear", align_corners=self.aligned)


def lawn() -> Subject:
    """Return a BiSeNet for gardens, whose pictures lie between -1 and 1."""
    images, labels = gardens(1500, 2504)
    return trained(Lawn, [2 * images - 1, labels], 300, 8, 8e-3, F.cross_entropy, classes_right, 44)


# --- appliance: what runs in a house, from its meter (long convolutions as of a state space) ------------------------

STEPS, APPLIANCES = 96, 5
METER_MEANS, METER_DEVIATIONS = torch.tensor([700.0, 150.0])[:, None], torch.tensor([800.0, 160.0])[:, None]


def meters(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return watts and reactive volt-amperes of 96 steps of half a minute, and yes or no for five appliances.

    A fridge (its motor runs now and then), a kettle (2 kW for some minutes), a washing machine (a heater, then a drum
    that turns this way and that), a television (a little that trembles), an oven (1.5 kW, by a thermostat).
    """
    chance = generator(seed)
    labels = (torch.rand(count, APPLIANCES, generator=chance) < 0.42).float()
    u = torch.rand(count, 24, 1, generator=chance)
    t = torch.arange(float(STEPS))[None]

    def between(first: Tensor, last: Tensor) -> Tensor:
        """Return 1 between two times."""
        return ((t >= first) & (t < last)).float()

    phase = (t + 60 * u[:, 0]) % (34 + 16 * u[:, 1])
    motor = (phase < 14 + 6 * u[:, 2]).float() * (1 + 1.2 * torch.exp(-phase / 0.7))
    start = 86 * u[:, 3]
    boils = between(start, start + 5 + 5 * u[:, 4])
    begin = 50 * u[:, 5] - 10
    heats = between(begin, begin + 14 + 6 * u[:, 6])
    turns = between(begin + 20, begin + 100) * (torch.sin(t * (1.4 + 0.5 * u[:, 7]) + 6 * u[:, 8]) > -0.2).float()
    on = 70 * u[:, 9] - 20
    shows = between(on, on + 60) * (1 + 0.35 * torch.randn(count, STEPS, generator=chance))
    bakes = between(on * 0 + 60 * u[:, 10] - 25, 60 * u[:, 10] + 50)
    bakes = bakes * ((t + 20 * u[:, 11]) % (9 + 5 * u[:, 12]) < 5).float()
    watts = torch.stack(
        [
            95 * motor * (0.8 + 0.5 * u[:, 13]),
            2000 * boils * (0.85 + 0.3 * u[:, 14]),
            (1900 * heats + 230 * turns) * (0.85 + 0.3 * u[:, 15]),
            120 * shows * (0.7 + 0.6 * u[:, 16]),
            1500 * bakes * (0.85 + 0.3 * u[:, 17]),
        ],
        1,
    )
    factors = torch.tensor([0.75, 0.0, 0.0, 0.25, 0.03])[:, None]
    reactive = watts * factors
    reactive[:, 2] = 210 * turns * (0.85 + 0.3 * u[:, 15])
    drift = torch.sin(t / (20 + 20 * u[:, 18]) + 6 * u[:, 19])
    both = torch.stack([(watts * labels[:, :, None]).sum(1), (reactive * labels[:, :, None]).sum(1)], 1)
    rest = torch.stack([160 + 120 * u[:, 20] + 30 * drift, 40 + 30 * u[:, 21] + 8 * drift], 1)
    noise = torch.tensor([38.0, 26.0])[:, None] * torch.randn(count, 2, STEPS, generator=chance)
    return both + rest + noise, labels


class LongConv(nn.Module):
    """A norm, a filter of 32 steps back for each channel and what came in, GELU, a gated map; added to what came in."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.kernel = nn.Conv1d(width, width, length, groups=width, bias=False)
        self.D = nn.Parameter(torch.ones(width, 1))
        self.act: nn.Module = nn.GELU()
        self.output_linear = nn.Conv1d(width, 2 * width, 1)
        self.before, self.after = length - 1, 0
        self.gate_behind = True
        rate = torch.exp(torch.linspace(math.log(0.02), math.log(0.6), width))
        fades = torch.exp(-rate[:, None] * torch.arange(length - 1.0, -1.0, -1.0))
        self.kernel.weight.data = (self.kernel.weight.data.sign() * 0.3 * fades[:, None]).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        y = self.act(self.kernel(F.pad(y, (self.before, self.after))) + y * self.D)
        value, gate = self.output_linear(y).chunk(2, 1)
        if not self.gate_behind:
            value, gate = gate, value
        return x + value * torch.sigmoid(gate)


class Appliance(nn.Module):
    """A map of the meter's numbers, four layers of long filters, the maximum over time, and a logit for each."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(2, 24, 3, padding=1)
        self.layers = nn.ModuleList([LongConv(24, 32) for _ in range(4)])
        self.norm, self.decoder = nn.BatchNorm1d(24), nn.Linear(48, APPLIANCES)

    def forward(self, meter: Tensor) -> Tensor:
        x = self.encoder(meter)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.decoder(torch.cat([x.mean(2), x.amax(2)], 1))


def appliance() -> Subject:
    """Return a network of long convolutions for meters, whose numbers have about mean 0 and deviation 1."""
    found, labels = meters(3000, 2505)
    data = [(found - METER_MEANS) / METER_DEVIATIONS, labels]
    return trained(Appliance, data, 500, 12, 6e-3, yes_or_no, signs_right, 45)


# --- radiance: a scene as a field of density and colour (a NeRF) ----------------------------------------------------

WAVES, TURNS = 4, 2


def encoded(x: Tensor, count: int, factor: float = math.pi, cosines_first: bool = False) -> Tensor:
    """Return numbers, and their sines and cosines at frequencies that double."""
    found = [x]
    for k in range(count):
        pair = [torch.sin(factor * 2**k * x), torch.cos(factor * 2**k * x)]
        found += pair[::-1] if cosines_first else pair
    return torch.cat(found, 1)


def rays(count: int, seed: int) -> Arrays:
    """Return points within 1 of the origin on each axis, directions of length 1, and density and colour there.

    The scene has five soft balls, a floor with squares, and balls shine where one looks along the light.
    """
    world, chance = generator(25060), generator(seed)
    centres, sizes = 1.3 * torch.rand(5, 3, generator=world) - 0.65, 0.22 + 0.2 * torch.rand(5, generator=world)
    colours = torch.rand(5, 3, generator=world)
    points = 2 * torch.rand(count, 3, generator=chance) - 1
    views = F.normalize(torch.randn(count, 3, generator=chance), dim=1)
    far = (points[:, None] - centres).square().sum(2).sqrt()
    inside = torch.sigmoid(14 * (sizes - far))
    density = 2.5 * inside.amax(1)
    share = torch.softmax(-6 * (far - sizes), 1)
    colour = share @ colours
    outwards = F.normalize(points - share @ centres, dim=1)
    light = F.normalize(torch.tensor([0.5, 0.3, 0.8]), dim=0)
    mirrored = views - 2 * (views * outwards).sum(1, keepdim=True) * outwards
    shine = torch.relu((mirrored * light).sum(1, keepdim=True)) ** 2
    colour = 0.65 * colour + 0.1 * (outwards * light).sum(1, keepdim=True) + 0.35 * shine * inside.amax(1, keepdim=True)
    floor = torch.sigmoid(20 * (-0.7 - points[:, 2:]))
    squares = torch.sigmoid(8 * torch.sin(4 * points[:, :1]) * torch.sin(4 * points[:, 1:2]))
    colour = colour * (1 - floor) + floor * squares * torch.tensor([0.8, 0.7, 0.6])
    density = torch.maximum(density[:, None], 2 * floor)
    return [points, views, torch.cat([density, colour.clamp(0, 1)], 1)]


class Radiance(nn.Module):
    """Five maps of points, the third of which reads points again; a density, and from views besides it a colour."""

    def __init__(self) -> None:
        super().__init__()
        self.pts_linears = nn.ModuleList(
            [nn.Linear(27, 64), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(91, 64), nn.Linear(64, 64)]
        )
        self.alpha_linear, self.feature_linear = nn.Linear(64, 1), nn.Linear(64, 48)
        self.views_linear, self.rgb_linear = nn.Linear(48 + 15, 48), nn.Linear(48, 3)
        self.act: nn.Module = nn.ReLU()
        self.density: nn.Module = nn.ReLU()
        self.shade: nn.Module = nn.Sigmoid()
        self.points_first, self.features_first = True, True

    def forward(self, points: Tensor, views: Tensor) -> Tensor:
        x = points
        for k, layer in enumerate(self.pts_linears):
            if k == 3:
                x = torch.cat([points, x] if self.points_first else [x, points], 1)
            x = self.act(layer(x))
        density = self.density(self.alpha_linear(x))
        features = self.feature_linear(x)
        seen = torch.cat([features, views] if self.features_first else [views, features], 1)
        colour = self.shade(self.rgb_linear(self.act(self.views_linear(seen))))
        return torch.cat([density, colour], 1)


def in_parts(outputs: Tensor, labels: Tensor) -> float:
    """Return how much of the variance of density and of colours is explained, on the average, at least 0."""
    missed = (outputs - labels).square().mean(0) / labels.var(0)
    return max(0.0, 1 - missed.mean().item())


def radiance() -> Subject:
    """Return a NeRF, whose points and views are encoded before it; four numbers come out of it."""
    points, views, answers = rays(24000, 2506)
    data = [encoded(points, WAVES), encoded(views, TURNS), answers]
    weights = 1 / answers.var(0)
    subject = trained(
        Radiance, data, 1000, 14, 4e-3, lambda found, right: (weights * (found - right).square()).mean(), in_parts, 46
    )
    subject.options["metric"] = in_parts
    return subject


# --- shelf: what a shop sells in the next week (a TiDE) -------------------------------------------------------------

DAYS, WEEK = 28, 7
SHELF_MEAN, SHELF_DEVIATION = 3.0, 0.8


def shelves(count: int, seed: int) -> Arrays:
    """Return logarithms of sales of 28 days, covariates of 35 days, facts of the article, and the next week's sales.

    Covariates are how much less it costs, whether it is in the leaflet, and the day of the week as sine and cosine;
    facts are size, distance, income around, and shares of three kinds of articles.
    """
    chance = generator(seed)
    total = DAYS + WEEK
    u = torch.rand(count, 12, 1, generator=chance)
    facts = torch.randn(count, 3, generator=chance)
    kinds = torch.softmax(2 * torch.randn(count, 3, generator=chance), 1)
    t = torch.arange(float(total))[None]
    day = (t + (7 * u[:, 0]).floor()) % 7
    begins = (torch.rand(count, total, generator=chance) < 0.09).float()
    cheap = F.max_pool1d(F.pad(begins, (4, 0))[:, None], 5, 1)[:, 0]
    discount = cheap * (0.1 + 0.4 * u[:, 1])
    leaflet = cheap * (u[:, 2] > 0.4).float()
    level = 3 + 0.35 * facts[:, :1] - 0.15 * facts[:, 1:2] + 0.6 * (u[:, 3] - 0.5)
    weekend = (0.35 + 0.5 * kinds[:, :1]) * torch.exp(-((day - 5) / 0.9).square())
    season = 0.25 * torch.sin(t / (9 + 8 * u[:, 4]) + 6 * u[:, 5]) * kinds[:, 1:2]
    walk = 0.05 * torch.randn(count, total, generator=chance).cumsum(1)
    elastic = 1.0 + 2.2 * kinds[:, 2:] - 0.4 * facts[:, 2:]
    slump = 0.3 * F.pad(cheap, (5, 0))[:, :total] * (1 - cheap)
    sold = level + weekend + season + walk + elastic * discount + 0.35 * leaflet - slump
    sold = sold + 0.12 * torch.randn(count, total, generator=chance)
    angle = 2 * math.pi * day / 7
    covariates = torch.stack([discount / 0.2, leaflet, angle.sin(), angle.cos()], 2)
    return [sold[:, :DAYS].contiguous(), covariates, torch.cat([facts, kinds], 1), sold[:, DAYS:].contiguous()]


class Dense(nn.Module):
    """Two maps with ReLU between, and a map beside them; their sum, normalized."""

    def __init__(self, before: int, inner: int, after: int, normed: bool = True) -> None:
        super().__init__()
        self.fc1, self.relu, self.fc2 = nn.Linear(before, inner), nn.ReLU(), nn.Linear(inner, after)
        self.drop, self.skip = nn.Dropout(0.05), nn.Linear(before, after)
        self.norm: nn.Module = nn.LayerNorm(after) if normed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.drop(self.fc2(self.relu(self.fc1(x)))) + self.skip(x))


class Shelf(nn.Module):
    """Covariates of each day made fewer, an encoder and a decoder, a decoder for each day, and the past by one map."""

    def __init__(self) -> None:
        super().__init__()
        self.feature = Dense(4, 16, 3)
        self.encoder1, self.encoder2 = Dense(DAYS + 3 * (DAYS + WEEK) + 6, 64, 48), Dense(48, 64, 48)
        self.decoder1, self.decoder2 = Dense(48, 64, 48), Dense(48, 64, 6 * WEEK)
        self.temporal = Dense(6 + 3, 24, 1, normed=False)
        self.residual = nn.Linear(DAYS, WEEK)
        self.days_first, self.by_day = True, True

    def forward(self, past: Tensor, covariates: Tensor, facts: Tensor) -> Tensor:
        batch = past.shape[0]
        small = self.feature(covariates)
        flat = small.reshape(batch, 3 * (DAYS + WEEK))
        joined = [past, flat, facts] if self.days_first else [facts, past, flat]
        x = self.encoder2(self.encoder1(torch.cat(joined, 1)))
        x = self.decoder2(self.decoder1(x))
        x = x.reshape(batch, WEEK, 6) if self.by_day else x.reshape(batch, 6, WEEK).transpose(1, 2)
        ahead = self.temporal(torch.cat([x, small[:, DAYS:]], 2)).reshape(batch, WEEK)
        return ahead + self.residual(past)


def shelf() -> Subject:
    """Return a TiDE for sales; logarithms of sales have about mean 0 and deviation 1, and so have answers."""
    past, covariates, facts, ahead = shelves(8000, 2507)
    data = [(past - SHELF_MEAN) / SHELF_DEVIATION, covariates, facts, (ahead - SHELF_MEAN) / SHELF_DEVIATION]
    subject = trained(Shelf, data, 600, 14, 4e-3, F.mse_loss, explained, 47)
    subject.options["metric"] = explained
    return subject


# --- wine: grapes by what a laboratory measures (a TabNet) ----------------------------------------------------------

MEASURED, GRAPES = 12, 6
WINE_MEANS = torch.tensor([7.2, 0.34, 0.3, 5.4, 0.056, 30.0, 110.0, 0.9947, 3.2, 0.53, 10.5, 1.6])
WINE_DEVIATIONS = torch.tensor([1.3, 0.16, 0.15, 4.7, 0.03, 17.0, 50.0, 0.003, 0.16, 0.15, 1.2, 0.7])


def wines(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return twelve numbers of a wine in their own units, and one of six grapes.

    Fixed and volatile acids, citric acid, sugar, chlorides, free and bound sulphur, density, pH, sulphates, alcohol,
    and phenols; some are skewed, and density follows from sugar and alcohol.
    """
    world, chance = generator(25080), generator(seed)
    means = torch.randn(GRAPES, MEASURED, generator=world)
    ways = 0.8 * torch.randn(GRAPES, 2, MEASURED, generator=world)
    labels = torch.randint(GRAPES, (count,), generator=chance)
    which = torch.randint(2, (count,), generator=chance)
    z = 0.75 * means[labels] + ways[labels, which] + 0.75 * torch.randn(count, MEASURED, generator=chance)
    z[:, 3] = torch.exp(0.5 * z[:, 3]) - 1.1
    z[:, 7] = 0.6 * z[:, 3] - 0.7 * z[:, 10] + 0.3 * torch.randn(count, generator=chance)
    z[:, 6] = 0.6 * z[:, 5] + 0.7 * z[:, 6]
    return z * WINE_DEVIATIONS + WINE_MEANS, labels


class GluLayer(nn.Module):
    """A map to twice the width, its norm, and one half multiplied with the sigmoid of the other."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.fc, self.bn = nn.Linear(before, 2 * after, bias=False), nn.BatchNorm1d(2 * after)
        self.after = after
        self.gate_behind = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.fc(x))
        value, gate = x[:, : self.after], x[:, self.after :]
        return value * torch.sigmoid(gate) if self.gate_behind else gate * torch.sigmoid(value)


class FeatTransformer(nn.Module):
    """A layer that all steps share, and two of its own, each added to what came in and divided by a root of 2."""

    def __init__(self, shared: GluLayer, width: int) -> None:
        super().__init__()
        self.shared, self.first, self.second = shared, GluLayer(width, width), GluLayer(width, width)
        self.scale = math.sqrt(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(x)
        x = (x + self.first(x)) * self.scale
        return (x + self.second(x)) * self.scale


class AttentiveTransformer(nn.Module):
    """Shares of features, of a map, its norm and what earlier steps left."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.fc, self.bn = nn.Linear(before, MEASURED, bias=False), nn.BatchNorm1d(MEASURED)
        self.axis = -1

    def forward(self, x: Tensor, left: Tensor) -> Tensor:
        return torch.softmax(self.bn(self.fc(x)) * left, self.axis)


class Wine(nn.Module):
    """A norm of what is measured, a first transformer, three steps of shares and decisions, and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.initial_bn = nn.BatchNorm1d(MEASURED)
        shared = GluLayer(MEASURED, 32)
        self.initial_splitter = FeatTransformer(shared, 32)
        self.att_transformers = nn.ModuleList([AttentiveTransformer(16) for _ in range(3)])
        self.feat_transformers = nn.ModuleList([FeatTransformer(shared, 32) for _ in range(3)])
        self.relu, self.final_mapping = nn.ReLU(), nn.Linear(16, GRAPES)
        self.gamma, self.decision_first = 1.3, True

    def forward(self, measured: Tensor) -> Tensor:
        x = self.initial_bn(measured)
        attention = self.initial_splitter(x)[:, 16:]
        left = torch.ones_like(x)
        decided = torch.zeros_like(x[:, :1])
        for choose, transform in zip(self.att_transformers, self.feat_transformers, strict=True):
            share = choose(attention, left)
            left = left * (self.gamma - share)
            out = transform(share * x * 6.0)
            decision, attention = out[:, :16], out[:, 16:]
            if not self.decision_first:
                decision, attention = attention, decision
            decided = decided + self.relu(decision)
        return self.final_mapping(decided)


def wine() -> Subject:
    """Return a TabNet for wines, whose numbers have about mean 0 and deviation 1."""
    found, labels = wines(7000, 2508)
    data = [(found - WINE_MEANS) / WINE_DEVIATIONS, labels]
    return trained(Wine, data, 700, 14, 1e-2, F.cross_entropy, classes_right, 48)


# --- all ------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "solar": solar,
    "request": request,
    "mushroom": mushroom,
    "lawn": lawn,
    "appliance": appliance,
    "radiance": radiance,
    "shelf": shelf,
    "wine": wine,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
