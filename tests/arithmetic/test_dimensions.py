"""Sizes computed of named ones: one text for each, and the numbers that Python computes."""

import random

import pytest

from intact8.arithmetic.dimensions import (
    DEEPEST,
    LONGEST_TEXT,
    NoSizeError,
    SizeError,
    added,
    divided,
    grows,
    is_name,
    less,
    limits_of,
    measure,
    multiplied,
    names_of,
    read,
    resolve,
    size_of,
    told_by,
    written,
)


def expression(rng: random.Random, depth: int) -> str:
    """Return an expression of a, b and c as Python writes it."""
    kind = rng.random()
    if depth == 0 or kind < 0.25:
        return rng.choice(["a", "b", "c", str(rng.randint(0, 9))])
    one = expression(rng, depth - 1)
    if kind < 0.5:
        return f"({one}+{expression(rng, depth - 1)})"
    if kind < 0.62:
        return f"({one}-{rng.choice([str(rng.randint(0, 5)), expression(rng, 1)])})"
    if kind < 0.72:
        return f"({one}*{rng.choice(['2', '3', expression(rng, 1)])})"
    return f"(({one})//{rng.randint(1, 6)})"


@pytest.mark.parametrize("seed", range(4))
def test_sizes_are_what_python_computes_and_are_written_in_one_way(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(1500):
        given = expression(rng, 5)
        text = written(read(given))
        assert written(read(text)) == text
        for _ in range(4):
            sizes = {name: rng.randint(1, 50) for name in "abc"}
            assert size_of(text, sizes) == eval(given, {}, sizes) == eval(str(text), {}, sizes), (given, text, sizes)


@pytest.mark.parametrize("seed", range(4))
def test_sizes_that_grow_have_their_limits_at_those_of_the_names(seed: int) -> None:
    rng, some = random.Random(seed), 0
    for _ in range(600):
        text = written(read(expression(rng, 4)))
        bounds = {name: (low := rng.randint(1, 5), low + rng.randint(0, 7)) for name in "abc"}
        if not grows(text):
            continue
        some += 1
        least, most = limits_of(text, bounds)
        for _ in range(20):
            size = size_of(text, {name: rng.randint(*bounds[name]) for name in "abc"})
            assert most is not None and least <= size <= most, (text, bounds)
    assert some > 200


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (divided(added([divided("n", 2), 1]), 2), "(n+2)//4"),
        (added([divided("n", 2), divided("n+1", 2)]), "n"),
        (added([divided("n", 3), divided("n+1", 3), divided("n+2", 3), divided("n+2", 3)]), "(n+2)//3+n"),
        (less("n", divided("n", 2)), "(n+1)//2"),
        (divided(less("past", divided("n", 2)), 3), "(5*n+2*past+1)//6-n"),
        (divided(multiplied([4, "n"]), 2), "2*n"),
        (divided(added([multiplied([32, "n"]), 1]), 2), "16*n"),
        (divided(added([multiplied([2, "n"]), 1]), 4), "n//2"),
        (added(["width", "height", "width"]), "height+2*width"),
        (multiplied(["n+1", "n-1"]), "n*n-1"),
    ],
)
def test_equal_sizes_have_one_text(one: int | str, other: str) -> None:
    assert one == other or size_of(less(one, other), {"n": 12}) == 0
    assert written(read(other)) == other


@pytest.mark.parametrize(
    "text",
    ["", "n+", "n*", "(n", "n)", "n//0", "n//m", "1n", "n n", "n/2", "*n", "n//-2", "٣", "(" * 99 + "n" + ")" * 99],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(NoSizeError):
        read(text)
    assert not is_name(text)


def test_texts_end_somewhere() -> None:
    with pytest.raises(NoSizeError, match=f"more than {LONGEST_TEXT}"):
        read("n+" * 400 + "1")
    with pytest.raises(NoSizeError, match="more than 64"):
        multiplied(["a+b+c+d+e+f+g+h+i"] * 6)
    assert read("(" * DEEPEST + "n" + ")" * DEEPEST) == read("n")


def test_names_are_told_by_sizes_of_one_name() -> None:
    assert (
        told_by("4*n+2") == ("n", 4, 2) and told_by("n*n") is told_by("n//2") is told_by("n+m") is told_by(None) is None
    )
    assert names_of("(n+m)//2+k") == ["k", "m", "n"]


def test_a_size_is_measured_where_an_input_has_so_many_times_it() -> None:
    shapes = [("x", (None, "2*n+1"), (3, 9)), ("y", (None, "n//3+m"), (3, 3)), ("z", ("m",), (2,))]
    assert measure(shapes, {"n": (1, 9), "m": (1, 9)}) == {"n": 4, "m": 2}
    with pytest.raises(SizeError, match=r"a dimension of size 8 is not 1 more than a multiple of 2"):
        measure([("x", ("2*n+1",), (8,))], {"n": (1, 9)})
    with pytest.raises(SizeError, match=r"2\*n\+1 is 21, outside 3 to 19"):
        measure([("x", ("2*n+1",), (21,))], {"n": (1, 9)})
    with pytest.raises(SizeError, match=r"n//3\+m is 4, but m is 2, n is 4"):
        measure([shapes[0], ("y", (None, "n//3+m"), (3, 4)), shapes[2]], {"n": (1, 9), "m": (1, 9)})


def test_images_are_resized_to_named_sizes() -> None:
    assert resolve({"size": ["2*height", 7]}, {"height": 5}) == {"size": [10, 7]}
