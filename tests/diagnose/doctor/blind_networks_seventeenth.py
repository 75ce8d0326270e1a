"""Eight small networks of further trades, trained on the spot: depth, dates, wind, crops, news, objects and more."""

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
    generator,
    trained,
    variance_explained,
    words_right,
)
from torch import Tensor, nn

# --- scores ---------------------------------------------------------------------------------------------------------


def near_enough(outputs: Tensor, labels: Tensor) -> float:
    """Return the share of pixels whose disparity is off by less than half a pixel."""
    return ((outputs - labels).abs() < 0.5).float().mean().item()


def skill(outputs: Tensor, labels: Tensor) -> float:
    """Return how much smaller the pinball loss is than that of the labels' own quantiles."""
    usual = torch.quantile(labels, torch.tensor(QUANTILES)).expand(len(labels), -1)
    return (1 - pinball(outputs, labels) / pinball(usual, labels)).item()


def pinball(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of quantiles."""
    off, share = labels[:, None] - outputs, torch.tensor(QUANTILES)
    return torch.maximum(share * off, (share - 1) * off).mean()


def objects_found(outputs: Tensor, labels: Tensor) -> float:
    """Return F1 of objects: a cell says there is one, of the right kind, in a box that overlaps by half."""
    there, said = labels[:, 0] > 0.5, outputs[:, 0] > 0
    right = outputs[:, 5:].argmax(1) == labels[:, 5:].argmax(1)

    def sides(box: Tensor) -> tuple[Tensor, Tensor]:
        half = 0.5 * box[:, 2:4].exp()
        return box[:, :2] - half, box[:, :2] + half

    (low, high), (least, most) = sides(outputs[:, 1:5]), sides(labels[:, 1:5])
    both = (torch.minimum(high, most) - torch.maximum(low, least)).clamp_min(0).prod(1)
    share = both / ((high - low).prod(1) + (most - least).prod(1) - both)
    found = (there & said & right & (share > 0.5)).sum().item()
    return 2 * found / max(1, said.sum().item() + there.sum().item())


# --- stereo: how far pixels of two cameras are apart (a volume of products, and a soft maximum) ----------------------

HEIGHT, ACROSS, SHIFTS = 14, 36, 8
GREY_MEAN, GREY_DEVIATION = 110.0, 52.0


def views(count: int, seed: int) -> Arrays:
    """Return pictures of a left and a right camera, normalized from 8 bits, and the left one's disparities."""
    chance = generator(seed)
    rows, columns = torch.arange(HEIGHT)[:, None], torch.arange(ACROSS)[None]
    lefts, rights, shifts = [], [], []
    for _ in range(count):
        u = torch.rand(16, generator=chance).tolist()
        texture = torch.randn(4, HEIGHT, ACROSS + SHIFTS, generator=chance)
        texture = texture + 0.8 * F.avg_pool2d(texture[None], 3, 1, 1)[0] * 3
        left = texture[0, :, SHIFTS:].clone()
        base = int(3 * u[0])
        shift = torch.full((HEIGHT, ACROSS), base)
        right = texture[0].roll(-base, 1)[:, SHIFTS:].clone()
        for k in range(2):
            far = base + int((SHIFTS - base) * u[1 + k])
            y, x = int(9 * u[4 + 2 * k]), SHIFTS + int(18 * u[5 + 2 * k])
            h, w = 4 + int(6 * u[9 + k]), 6 + int(8 * u[11 + k])
            level = 1.5 * (u[13 + k] - 0.5)
            inside = (rows >= y) & (rows < y + h) & (columns >= x) & (columns < x + w)
            seen = (rows >= y) & (rows < y + h) & (columns >= x - far) & (columns < x + w - far)
            piece = texture[1 + k, :, SHIFTS:] + level
            left = torch.where(inside, piece, left)
            right = torch.where(seen, piece.roll(-far, 1), right)
            shift = torch.where(inside, far, shift)
        lefts.append(left)
        rights.append(right)
        shifts.append(shift)
    both = torch.stack([torch.stack(lefts), torch.stack(rights)])
    both = both + 0.1 * torch.randn(both.shape, generator=chance)
    bytes_ = (GREY_MEAN + 40 * both).clamp(0, 255).round()
    left, right = (bytes_[:, :, None] - GREY_MEAN) / GREY_DEVIATION
    return [left, right, torch.stack(shifts).float()]


class Eye(nn.Module):
    """Features of one view."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 20, 3, padding=1, bias=False), nn.BatchNorm2d(20)
        self.conv3 = nn.Conv2d(20, 20, 1)
        self.act: nn.Module = nn.LeakyReLU(0.1)

    def forward(self, view: Tensor) -> Tensor:
        x = self.act(self.norm1(self.conv1(view)))
        return self.conv3(self.act(self.norm2(self.conv2(x))))


class Stereo(nn.Module):
    """Products of features at each shift, convolutions over them, and the mean shift by a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.eye = Eye()
        self.gather1, self.norm1 = nn.Conv2d(SHIFTS, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24)
        self.gather2, self.norm2 = nn.Conv2d(24, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24)
        self.cost = nn.Conv2d(24, SHIFTS, 3, padding=1)
        self.register_buffer("shifts", torch.arange(float(SHIFTS)).view(1, SHIFTS, 1, 1))
        self.axis = 1

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        one, other = self.eye(left), self.eye(right)
        volume = [(one * F.pad(other, (k, 0))[..., :ACROSS]).mean(1) for k in range(SHIFTS)]
        alike = torch.stack(volume, 1)
        x = F.relu(self.norm1(self.gather1(alike)))
        x = self.cost(F.relu(self.norm2(self.gather2(x)))) + alike
        return (torch.softmax(x, self.axis) * self.shifts).sum(1)


def stereo() -> Subject:
    """Return a network that tells disparities."""
    subject = trained(Stereo, views(1000, 171), 300, 9, 8e-3, F.smooth_l1_loss, near_enough, 1)
    subject.options["metric"] = near_enough
    return subject


# --- dates: dates as people write them to digits (an encoder and a decoder, the digits' table used twice) -------------

SOURCE, WRITTEN, DIGITS = 40, 12, 8
NOTHING, SPACE, COMMA, SLASH, DASH, FIRST_DIGIT, FIRST_MONTH, FIRST_SHORT = 0, 1, 2, 3, 4, 5, 15, 27
BEGIN = 10


def dates(count: int, seed: int) -> Arrays:
    """Return written dates, the digits before each digit, and the digits YYYYMMDD.

    A date is written as 7 March 1984, Mar 7, 1984, 7/3/1984 (day first), 3-7-1984 (month first) or 1984-3-7.
    """
    chance = generator(seed)
    source, digits = torch.full((count, WRITTEN), NOTHING), torch.zeros(count, DIGITS, dtype=torch.long)
    for row in range(count):
        u = torch.rand(5, generator=chance).tolist()
        year, month, day, form = 1950 + int(100 * u[0]), 1 + int(12 * u[1]), 1 + int(28 * u[2]), int(5 * u[3])

        def figures(number: int) -> list[int]:
            return [FIRST_DIGIT + int(figure) for figure in str(number)]

        name = (FIRST_MONTH if u[4] < 0.5 else FIRST_SHORT) + month - 1
        y, m, d = figures(year), figures(month), figures(day)
        words = (
            [*d, SPACE, name, SPACE, *y],
            [name, SPACE, *d, COMMA, *y],
            [*d, SLASH, *m, SLASH, *y],
            [*m, DASH, *d, DASH, *y],
            [*y, DASH, *m, DASH, *d],
        )[form]
        source[row, : len(words)] = torch.tensor(words)
        digits[row] = torch.tensor([int(figure) for figure in f"{year}{month:02}{day:02}"])
    before = torch.cat([torch.full((count, 1), BEGIN), digits[:, :-1]], 1)
    return [source, before, digits]


class Heads(nn.Module):
    """Attention of one sequence to another with four heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.scale = (width // 4) ** -0.5

    def forward(self, x: Tensor, source: Tensor, shade: Tensor) -> Tensor:
        q, k, v = (
            layer(part).unflatten(-1, (4, -1)).transpose(1, 2)
            for layer, part in ((self.query, x), (self.key, source), (self.value, source))
        )
        share = torch.softmax(q @ k.transpose(-2, -1) * self.scale + shade, -1)
        return self.out((share @ v).transpose(1, 2).flatten(2))


class Coder(nn.Module):
    """Attention to itself, attention to the source in a decoder, and two maps, norms in front."""

    def __init__(self, width: int, decodes: bool) -> None:
        super().__init__()
        self.norm1, self.own = nn.LayerNorm(width), Heads(width)
        self.norm2, self.cross = (nn.LayerNorm(width), Heads(width)) if decodes else (None, None)
        self.norm3, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 96), nn.Linear(96, width)

    def forward(self, x: Tensor, shade: Tensor, source: Tensor | None = None, hidden: Tensor | None = None) -> Tensor:
        y = self.norm1(x)
        x = x + self.own(y, y, shade)
        if self.cross is not None:
            x = x + self.cross(self.norm2(x), source, hidden)
        return x + self.down(F.relu(self.up(self.norm3(x))))


class Dates(nn.Module):
    """Characters with places, an encoder's layer, a decoder's two, and digits by the table they came from."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.digits = nn.Embedding(SOURCE, 40), nn.Embedding(11, 40)
        self.places = nn.Parameter(0.3 * torch.randn(WRITTEN, 40))
        self.steps = nn.Parameter(0.3 * torch.randn(DIGITS, 40))
        self.encode1, self.encode2 = Coder(40, False), Coder(40, False)
        self.decode1, self.decode2 = Coder(40, True), Coder(40, True)
        self.norm_source, self.norm = nn.LayerNorm(40), nn.LayerNorm(40)
        self.say = nn.Linear(40, 11, bias=False)
        nn.init.normal_(self.letters.weight, std=0.3)
        nn.init.normal_(self.digits.weight, std=0.3)
        self.say.weight = self.digits.weight
        self.register_buffer("later", torch.full((DIGITS, DIGITS), -1e4).triu(1))

    def forward(self, written: Tensor, before: Tensor) -> Tensor:
        hidden = (written == NOTHING).float()[:, None, None, :] * -1e4
        source = self.letters(written) + self.places
        source = self.norm_source(self.encode2(self.encode1(source, hidden), hidden))
        x = self.digits(before) + self.steps
        x = self.decode1(x, self.later, source, hidden)
        x = self.decode2(x, self.later, source, hidden)
        return self.say(self.norm(x))


def dates_read() -> Subject:
    """Return a reader of dates."""

    def loss(out: Tensor, digits: Tensor) -> Tensor:
        return F.cross_entropy(out.flatten(0, 1), digits.flatten())

    subject = trained(Dates, dates(4600, 172), 500, 9, 5e-3, loss, words_right, 2)
    subject.options["metric"] = words_right
    return subject


# --- wind: how much a wind farm gives in three hours (two LSTM layers, and quantiles) --------------------------------

HOURS, QUANTILES = 30, (0.1, 0.5, 0.9)
WIND_MEANS = torch.tensor([8.0, 0.0, 0.0, 11.0, 1012.0, 0.45])
WIND_DEVIATIONS = torch.tensor([3.2, 0.7, 0.7, 6.0, 7.0, 0.33])


def weather(count: int, seed: int) -> Arrays:
    """Return hours of speed, direction as sine and cosine, temperature, pressure and power, and the power to come."""
    chance = generator(seed)
    time = torch.arange(HOURS + 3.0)
    u = torch.rand(count, 8, 1, generator=chance)
    pressure = 8 * torch.sin(2 * math.pi * (time / (28 + 30 * u[:, 0]) + u[:, 1])) + 3 * (u[:, 2] - 0.5)
    day = torch.sin(2 * math.pi * (time / 24 + u[:, 3]))
    gust = torch.zeros(count, HOURS + 3)
    for k in range(1, HOURS + 3):
        gust[:, k] = 0.8 * gust[:, k - 1] + 0.5 * torch.randn(count, generator=chance)
    fall = torch.cat([torch.zeros(count, 1), pressure.diff(dim=1)], 1)
    speed = (8 - 2.3 * fall + 1.5 * day + gust).clamp_min(0)
    angle = 2 * math.pi * u[:, 4] + 0.12 * pressure + 0.1 * torch.randn(count, HOURS + 3, generator=chance)
    power = 1 / (1 + torch.exp(-(speed - 8.0) / 1.3)) * (0.88 + 0.12 * angle.cos())
    warm = 11 + 12 * (u[:, 5] - 0.5) + 4 * day + 0.4 * torch.randn(count, HOURS + 3, generator=chance)
    seen = torch.stack([speed, angle.sin(), angle.cos(), warm, 1012 + pressure, power], 2)[:, :HOURS]
    return [(seen - WIND_MEANS) / WIND_DEVIATIONS, power[:, -1].contiguous()]


class Wind(nn.Module):
    """A map, two LSTM layers, the last state, and three quantiles."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(6, 20)
        self.first, self.second = nn.LSTM(20, 32, batch_first=True), nn.LSTM(32, 32, batch_first=True)
        self.hidden, self.quantiles = nn.Linear(32, 24), nn.Linear(24, 3)
        self.act: nn.Module = nn.GELU()

    def forward(self, hours: Tensor) -> Tensor:
        x, _ = self.first(self.act(self.inlet(hours)))
        x, _ = self.second(x)
        return self.quantiles(self.act(self.hidden(x[:, -1])))


def wind() -> Subject:
    """Return a forecaster of a wind farm's power."""
    subject = trained(Wind, weather(3600, 173), 500, 10, 8e-3, pinball, skill, 3)
    subject.options["metric"] = skill
    return subject


# --- crop: what grows in a field, from six bands of a satellite (a ConvNeXt) ------------------------------------------

BAND_MEANS = torch.tensor([480.0, 720.0, 690.0, 2600.0, 1900.0, 1200.0])[:, None, None]
BAND_DEVIATIONS = torch.tensor([160.0, 190.0, 260.0, 700.0, 480.0, 420.0])[:, None, None]
SPECTRA = torch.tensor(
    [[0.3, 0.5, -0.4, 0.7, -0.2, -0.5], [-0.2, 0.1, 0.2, 0.2, 0.4, 0.1], [0.1, -0.5, 0.6, -0.8, 0.5, 0.6]]
)


def fields(count: int, seed: int) -> Arrays:
    """Return tiles of reflectances, normalized, and one of six crops: three spectra, in rows or not."""
    chance = generator(seed)
    crops = torch.randint(6, (count,), generator=chance)
    grid = torch.arange(16.0)
    u = torch.rand(count, 8, 1, 1, generator=chance)
    angle = math.pi * u[:, 0]
    along = grid[:, None] * angle.sin() + grid[None] * angle.cos()
    rows = torch.sin(2 * math.pi * (along / (3.0 + 1.4 * u[:, 1]) + u[:, 2]))
    noise = torch.randn(count, 1, 16, 16, generator=chance)
    blur = 3 * F.avg_pool2d(noise, 3, 1, 1)[:, 0]
    form = torch.where((crops % 2 == 0)[:, None, None], 0.8 * rows, 0.75 * blur)
    green = torch.tensor([-0.3, 0.2, -0.7, 1.0, 0.2, -0.4])[:, None, None]
    tiles = SPECTRA[crops // 2][:, :, None, None] * (0.7 + 0.6 * u[:, 3:4]) + green * form[:, None]
    tiles = tiles + 0.5 * (u[:, 4:5] - 0.5) + 0.5 * (u[:, 5:6] - 0.5) * grid[:, None] / 16
    tiles = tiles + 0.95 * torch.randn(tiles.shape, generator=chance)
    raw = (tiles * BAND_DEVIATIONS + BAND_MEANS).clamp_min(0).round()
    return [(raw - BAND_MEANS) / BAND_DEVIATIONS, crops]


class Next(nn.Module):
    """A wide depthwise convolution, a norm of channels, two maps, factors, and what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.act, self.down = nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)
        self.factors = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.factors * self.down(self.act(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class Crop(nn.Module):
    """Patches of 2 × 2, two blocks, half the size, two blocks, the mean, and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(6, 24, 2, 2), nn.GroupNorm(1, 24)
        self.block1, self.block2 = Next(24), Next(24)
        self.middle, self.smaller = nn.GroupNorm(1, 24), nn.Conv2d(24, 32, 2, 2)
        self.block3, self.block4 = Next(32), Next(32)
        self.last, self.crop = nn.LayerNorm(32), nn.Linear(32, 6)

    def forward(self, bands: Tensor) -> Tensor:
        x = self.norm(self.patches(bands))
        x = self.block2(self.block1(x))
        x = self.block4(self.block3(self.smaller(self.middle(x))))
        return self.crop(self.last(x.mean((2, 3))))


def crop() -> Subject:
    """Return a network that tells crops."""
    return trained(Crop, fields(2600, 174), 600, 8, 5e-3, F.cross_entropy, classes_right, 4)


# --- news: which of eight articles is read next (attention of each candidate to what was read before) ----------------

ARTICLES, SECTIONS, READ, OFFERED = 160, 10, 10, 8


def reading(count: int, seed: int) -> Arrays:
    """Return articles read, hours since then (their logarithm), articles offered, and the one taken.

    Readers follow two sections, of which the later one counts more; each article has a pull of its own.
    """
    chance = generator(seed)
    fixed = generator(seed + 1000)
    section = torch.randperm(ARTICLES, generator=fixed) % SECTIONS
    pull = torch.randn(ARTICLES, generator=fixed)
    members = torch.stack([torch.nonzero(section == k)[:, 0] for k in range(SECTIONS)])
    each = members.shape[1]
    follows = torch.stack([torch.randperm(SECTIONS, generator=chance)[:2] for _ in range(count)])
    hours = (0.1 + 90 * torch.rand(count, READ, generator=chance).pow(2)).sort(1, descending=True).values.contiguous()
    turn = torch.randint(3, 8, (count, 1), generator=chance)
    which = torch.where(torch.arange(READ) < turn, follows[:, :1], follows[:, 1:])
    loose = torch.rand(count, READ, generator=chance) < 0.2
    which = torch.where(loose, torch.randint(SECTIONS, (count, READ), generator=chance), which)
    read = members[which, torch.randint(each, (count, READ), generator=chance)]
    offered = torch.randint(ARTICLES, (count, OFFERED), generator=chance)
    for place in (0, 1):
        offered[:, place] = members[follows[:, place], torch.randint(each, (count,), generator=chance)]
    mixed = torch.rand(count, OFFERED, generator=chance).argsort(1)
    offered = offered.gather(1, mixed)
    near = (section[read][:, None] == section[offered][:, :, None]).float()
    weight = torch.exp(-hours / 25)[:, None]
    worth = 6 * (near * weight).sum(2) / weight.sum(2) + 0.8 * pull[offered]
    gumbel = -torch.log(-torch.log(torch.rand(count, OFFERED, generator=chance).clamp(1e-6, 1 - 1e-6)))
    taken = (worth + 0.35 * gumbel).argmax(1)
    return [read, hours.log(), offered, taken]


class News(nn.Module):
    """One table for read and offered; how much each article read counts for each offered; a score for each."""

    def __init__(self) -> None:
        super().__init__()
        self.articles = nn.Embedding(ARTICLES, 20)
        nn.init.normal_(self.articles.weight, std=0.4)
        self.care1, self.care2 = nn.Linear(61, 32), nn.Linear(32, 1)
        self.score1, self.score2, self.score3 = nn.Linear(60, 48), nn.Linear(48, 24), nn.Linear(24, 1)
        self.act1, self.act2 = nn.PReLU(), nn.PReLU()
        self.shares: nn.Module = nn.Sigmoid()

    def forward(self, read: Tensor, ago: Tensor, offered: Tensor) -> Tensor:
        past = self.articles(read)[:, None].expand(-1, OFFERED, -1, -1)
        new = self.articles(offered)
        beside = new[:, :, None].expand(-1, -1, READ, -1)
        since = ago[:, None, :, None].expand(-1, OFFERED, -1, -1)
        care = self.care2(F.relu(self.care1(torch.cat([past, beside, past * beside, since], 3))))
        user = (self.shares(care) * past).sum(2)
        x = self.act1(self.score1(torch.cat([user, new, user * new], 2)))
        return self.score3(self.act2(self.score2(x))).squeeze(2)


def news() -> Subject:
    """Return a network that ranks articles."""
    return trained(News, reading(6600, 175), 600, 9, 8e-3, F.cross_entropy, classes_right, 5)


# --- boxes: objects in pictures (a stack of partial blocks, pooling of several sizes, and a box for each cell) -------

SIDE, CELLS = 32, 4


def shelves(count: int, seed: int) -> Arrays:
    """Return pictures in three colours between 0 and 1, with up to three objects, and what each cell should say."""
    chance = generator(seed)
    grid = torch.arange(float(SIDE))
    y, x = grid[:, None], grid[None]
    pictures, answers = [], torch.zeros(count, 8, CELLS, CELLS)
    for row in range(count):
        u = torch.rand(40, generator=chance).tolist()
        picture = torch.tensor([0.35 + 0.3 * u[0], 0.35 + 0.3 * u[1], 0.35 + 0.3 * u[2]]).view(3, 1, 1)
        picture = picture + 0.15 * (u[3] - 0.5) * (y + x)[None] / SIDE
        for k in range(1 + int(3 * u[4])):
            v = u[5 + 11 * k :]
            kind, w, h = int(3 * v[0]), 6 + 7 * v[1], 6 + 7 * v[2]
            cx, cy = w / 2 + (SIDE - w) * v[3], h / 2 + (SIDE - h) * v[4]
            i, j = int(cy / 8), int(cx / 8)
            if answers[row, 0, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2].any():
                continue
            a, b = (x - cx) / (w / 2), (y - cy) / (h / 2)
            inside = (a.abs() < 1) & (b.abs() < 1)
            if kind == 1:
                inside = a.square() + b.square() < 1
            elif kind == 2:
                inside = inside & (a.abs() < (b + 1) / 2)
            bright = 0.3 if v[5] < 0.5 else -0.3
            colour = torch.tensor([bright + 0.3 * (v[6 + c] - 0.5) for c in range(3)]).view(3, 1, 1)
            picture = picture + inside * colour
            box = [cx / 8 - j - 0.5, cy / 8 - i - 0.5, math.log(w / 8), math.log(h / 8)]
            answers[row, :5, i, j] = torch.tensor([1.0, *box])
            answers[row, 5 + kind, i, j] = 1.0
        pictures.append(picture)
    images = torch.stack(pictures) + 0.03 * torch.randn(count, 3, SIDE, SIDE, generator=chance)
    return [(images.clamp(0, 1) * 255).round() / 255, answers]


class ConvNorm(nn.Module):
    """A convolution, a norm and an activation."""

    def __init__(self, before: int, after: int, size: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
        self.norm, self.act = nn.BatchNorm2d(after, eps=1e-3), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


class Partial(nn.Module):
    """Half of the channels go through a residual pair of convolutions; both halves are joined and mixed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.one, self.other = ConvNorm(width, half, 1), ConvNorm(width, half, 1)
        self.inner1, self.inner2 = ConvNorm(half, half), ConvNorm(half, half)
        self.mix = ConvNorm(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x)
        return self.mix(torch.cat([one + self.inner2(self.inner1(one)), self.other(x)], 1))


class Boxes(nn.Module):
    """Three times half the size, partial blocks, maxima of three sizes, two scales joined, and eight numbers a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 16, 3, 2)
        self.down1, self.part1 = ConvNorm(16, 32, 3, 2), Partial(32)
        self.down2, self.part2 = ConvNorm(32, 48, 3, 2), Partial(48)
        self.narrow, self.pool, self.widen = ConvNorm(48, 24, 1), nn.MaxPool2d(3, 1, 1), ConvNorm(72, 48, 1)
        self.finer, self.head = ConvNorm(32, 32, 3, 2), ConvNorm(80, 48)
        self.say = nn.Conv2d(48, 8, 1)

    def forward(self, picture: Tensor) -> Tensor:
        fine = self.part1(self.down1(self.stem(picture)))
        x = self.narrow(self.part2(self.down2(fine)))
        more = self.pool(x)
        x = self.widen(torch.cat([x, more, self.pool(more)], 1))
        return self.say(self.head(torch.cat([x, self.finer(fine)], 1)))


def box_loss(outputs: Tensor, answers: Tensor) -> Tensor:
    """Return the loss of objects, their boxes and their kinds."""
    there = answers[:, 0]
    count = there.sum().clamp_min(1)
    loss = F.binary_cross_entropy_with_logits(outputs[:, 0], there)
    off = F.smooth_l1_loss(outputs[:, 1:5], answers[:, 1:5], reduction="none").sum(1)
    loss = loss + 2 * (off * there).sum() / count
    kinds = F.cross_entropy(outputs[:, 5:], answers[:, 5:].argmax(1), reduction="none")
    return loss + 0.5 * (kinds * there).sum() / count


def boxes() -> Subject:
    """Return a detector of three kinds of objects."""
    subject = trained(Boxes, shelves(1800, 176), 400, 11, 8e-3, box_loss, objects_found, 6)
    subject.options["metric"] = objects_found
    return subject


# --- engine: how long an engine still runs (maps over time and over sensors in turns) --------------------------------

CYCLES, GAUGES = 24, 12
GAUGE_MEANS = torch.tensor([642.0, 1590.0, 1408.0, 553.0, 2388.0, 9065.0, 47.5, 521.0, 8143.0, 8.44, 393.0, 38.8])
GAUGE_DEVIATIONS = torch.tensor([0.5, 6.1, 9.0, 0.9, 0.07, 22.0, 0.27, 0.74, 19.0, 0.037, 1.55, 0.18])
LONGEST = 125.0


def engines(count: int, seed: int) -> Arrays:
    """Return cycles of gauges, normalized, and the cycles that are left, up to 125, in units of 125."""
    chance = generator(seed)
    fixed = generator(seed + 1000)
    lean = torch.randn(2, GAUGES, generator=fixed)
    u = torch.rand(count, 6, generator=chance)
    left = 160 * u[:, 0]
    rate = 18 + 22 * u[:, 1]
    time = left[:, None] + torch.arange(CYCLES - 1, -1, -1.0)
    wear = torch.exp(-time / rate[:, None]) * 3.0
    kind = (u[:, 2] < 0.5).float()[:, None, None]
    slope = kind * lean[0] + (1 - kind) * lean[1]
    regime = torch.randn(count, CYCLES, 1, generator=chance)
    gauges = wear[:, :, None] * slope + 0.5 * regime * torch.randn(GAUGES, generator=fixed)
    gauges = gauges + 0.35 * torch.randn(count, 1, GAUGES, generator=chance)
    gauges = gauges + 0.35 * torch.randn(gauges.shape, generator=chance)
    raw = gauges * GAUGE_DEVIATIONS + GAUGE_MEANS
    return [(raw - GAUGE_MEANS) / GAUGE_DEVIATIONS, (left.clamp_max(LONGEST) / LONGEST)]


class Mixer(nn.Module):
    """A map over time, then one over sensors, each behind a norm, and added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm1d(width), nn.LayerNorm(width)
        self.time = nn.Linear(CYCLES, CYCLES)
        self.up, self.down = nn.Linear(width, 48), nn.Linear(48, width)
        self.act: nn.Module = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.act(self.time(self.norm1(x.transpose(1, 2)))).transpose(1, 2)
        return x + self.down(self.act(self.up(self.norm2(x))))


class Engine(nn.Module):
    """A map, three mixers, a weighted mean over time, and a number between 0 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(GAUGES, 24)
        self.mixer1, self.mixer2, self.mixer3 = Mixer(24), Mixer(24), Mixer(24)
        self.norm, self.pool = nn.LayerNorm(24), nn.Linear(CYCLES, 1)
        self.left = nn.Linear(24, 1)
        self.squash: nn.Module = nn.Sigmoid()

    def forward(self, gauges: Tensor) -> Tensor:
        x = self.mixer3(self.mixer2(self.mixer1(self.inlet(gauges))))
        x = self.pool(self.norm(x).transpose(1, 2)).squeeze(2)
        return self.squash(self.left(x)).squeeze(1)


def engine() -> Subject:
    """Return a network that tells how long engines still run."""
    subject = trained(Engine, engines(3600, 177), 600, 10, 5e-3, F.mse_loss, variance_explained, 7)
    subject.options["metric"] = variance_explained
    return subject


# --- separate: a voice and drums from their mixture (an encoder, masks by dilated convolutions, a decoder) ------------

LENGTH = 320


def mixtures(count: int, seed: int) -> Arrays:
    """Return mixtures of a voice and drums, and both of them."""
    chance = generator(seed)
    time = torch.arange(float(LENGTH))
    u = torch.rand(count, 24, 1, generator=chance)
    pitch = 0.018 + 0.03 * u[:, 0] + 0.006 * torch.sin(2 * math.pi * (time / (150 + 150 * u[:, 1]) + u[:, 2]))
    phase = 2 * math.pi * pitch.cumsum(1)
    loud = torch.sigmoid(6 * torch.sin(2 * math.pi * (time / (120 + 160 * u[:, 3]) + u[:, 4])) + 2)
    voice = sum((0.3 + 0.7 * u[:, 5 + k]) / (k + 1) * torch.sin((k + 1) * phase + 6 * u[:, 9 + k]) for k in range(4))
    voice = 0.5 * voice * loud
    drums = torch.zeros(count, LENGTH)
    noise = torch.randn(count, LENGTH, generator=chance)
    noise = torch.cat([noise[:, :1], noise.diff(dim=1)], 1)
    for k in range(4):
        since = time - LENGTH * (k + u[:, 13 + k]) / 4
        fade = torch.exp(-since.clamp_min(0) / (8 + 14 * u[:, 17 + k])) * (since >= 0)
        drums = drums + fade * noise * (0.4 + 0.6 * u[:, 20 + k % 4])
    both = torch.stack([voice, drums], 1)
    return [both.sum(1, keepdim=True).contiguous(), both.contiguous()]


class Dilated(nn.Module):
    """Widen, a depthwise convolution with gaps, narrow; added to what came in."""

    def __init__(self, width: int, inner: int, gap: int) -> None:
        super().__init__()
        self.widen, self.act1, self.norm1 = nn.Conv1d(width, inner, 1), nn.PReLU(), nn.GroupNorm(1, inner)
        self.depth = nn.Conv1d(inner, inner, 3, padding=gap, dilation=gap, groups=inner)
        self.act2, self.norm2 = nn.PReLU(), nn.GroupNorm(1, inner)
        self.narrow = nn.Conv1d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(self.act1(self.widen(x)))
        return x + self.narrow(self.norm2(self.act2(self.depth(y))))


class Separate(nn.Module):
    """Frames of 16 samples, masks of them for two sources, and samples again."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(1, 40, 16, 8, 4, bias=False)
        self.norm, self.narrow = nn.GroupNorm(1, 40), nn.Conv1d(40, 24, 1)
        self.block1, self.block2, self.block3 = Dilated(24, 48, 1), Dilated(24, 48, 2), Dilated(24, 48, 4)
        self.masks = nn.Conv1d(24, 80, 1)
        self.decoder = nn.ConvTranspose1d(40, 1, 16, 8, 4, bias=False)
        self.gate: nn.Module = nn.Sigmoid()

    def forward(self, mixture: Tensor) -> Tensor:
        frames = self.encoder(mixture)
        x = self.block3(self.block2(self.block1(self.narrow(self.norm(frames)))))
        one, other = self.gate(self.masks(x)).chunk(2, 1)
        return torch.cat([self.decoder(frames * one), self.decoder(frames * other)], 1)


def separate() -> Subject:
    """Return a network that takes voices and drums apart."""
    subject = trained(Separate, mixtures(2200, 178), 400, 8, 8e-3, F.mse_loss, variance_explained, 8, decay=0.0)
    subject.options["metric"] = variance_explained
    return subject


# --- all ------------------------------------------------------------------------------------------------------------

BUILDERS: dict[str, Callable[[], Subject]] = {
    "stereo": stereo,
    "dates": dates_read,
    "wind": wind,
    "crop": crop,
    "news": news,
    "boxes": boxes,
    "engine": engine,
    "separate": separate,
}


@cache
def build(name: str) -> Subject:
    """Return a network by name, trained once."""
    return BUILDERS[name]()
