"""Engines that die, libraries that are broken, of the wrong version or not there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.runtime.faults import packages
from tests.runtime.faults.base import Case, Loading, Result, caller, shared_load

from intact8.engines import get_engine
from intact8.program.integrity import seal

STAGES = {
    "import": "importing the libraries",
    "prepare": "preparing the program",
    "run": "golden sample 1 of 4 (noise)",
}


def dying() -> Iterator[Case]:
    """Engines that crash, hang, eat memory and lie, when they are imported, prepared and run."""
    for stage, words in STAGES.items():
        for engine, fault in packages.SIGNALS.items():
            yield _engine(engine, stage, [fault, words, "engine='reference'", "only a child process"])
        hanging = ["does not come to an end", words, "time_limit"]
        yield _engine("hang", stage, hanging, quick=stage == "run", time_limit=8.0)
        yield _engine("eat", stage, ["MemoryError", words], facts={"memory": 400 << 20})
        yield _engine("raise", stage, ["ZeroDivisionError: as an engine should not", words])
        yield _engine("exit", stage, ["exit status 7", words])
    yield _engine("wrong", "run", ["sum", "does not give the program's integers"])
    yield _engine("chatty", "run", [], "chatty")
    names = ["segv", "hang", "eat", "wrong", "fine"]
    facts = {"memory": 400 << 20}
    yield _engine(names, "run", [], "fine", quick=False, time_limit=20.0, facts=facts)


def _engine(engine: Any, stage: str, words: Sequence[str], loads: str = "", quick: bool = True, **job: Any) -> Case:
    name = f"{engine if isinstance(engine, str) else ' then '.join(engine)}, at {stage}"
    given = {"engine": engine, "environment": {packages.STAGE: stage}, **job}
    return Case("an engine that dies", name, shared_load(Loading(words, loads, given)), quick)


LIBRARY = {"onednn": "torch", "onnxruntime": "onnxruntime", "openvino": "openvino"}


def broken() -> Iterator[Case]:
    """Libraries of real engines that crash, hang or fail when they are imported."""
    for engine, package in LIBRARY.items():
        for name, code in packages.BROKEN.items():
            quick = engine == "openvino" and name in ("another C++ library", "aborts")
            yield Case("an engine's library is broken", f"{package}: {name}", _broken(engine, package, code), quick)
    for package in LIBRARY.values():
        code = packages.BROKEN["aborts"]
        yield Case(
            "an engine's library is broken", f"engine='auto', {package} aborts", _broken("auto", package, code), False
        )


def _broken(engine: str, package: str, code: str) -> Callable[[Path], Result]:
    def run(folder: Path) -> Result:
        with tempfile.TemporaryDirectory() as site:
            job = {"engine": engine, "time_limit": 60.0 if engine == "auto" else 10.0, "facts": {"memory": 2 << 30}}
            loading = Loading([engine] if engine != "auto" else [], "*" if engine == "auto" else "", job)
            with caller(packages.shadow(Path(site), package, code)) as process:
                result = loading.check(process, folder)
            if engine == "auto" and not result.outcome.startswith("loads"):
                result.wrong = "another engine had to take over"
            return result

    return run


SKEW = {
    "old torch": ("onednn", "torch", "2.1.0", (), "2.1.0"),
    "old onnxruntime": ("onnxruntime", "onnxruntime", "1.9.0", (), "1.9.0"),
    "old openvino": ("openvino", "openvino", "2023.1.0", (), "2023.1.0"),
    "torch for Arm": ("onednn", "torch", "2.13.0", ("manylinux_2_28_aarch64",), "manylinux_2_28_aarch64"),
    "torch for a newer C library": ("onednn", "torch", "2.13.0", ("manylinux_2_99_x86_64",), "glibc 2.99"),
}


def skewed() -> Iterator[Case]:
    """Versions that do not go together."""
    for name, (engine, package, version, tags, words) in SKEW.items():
        yield Case("version skew", name, _stale(engine, package, version, tags, words), False)
    edits: dict[str, tuple[str, str, str]] = {
        "format of the future": ('"version":"3"', '"version":"9"', "written by a newer intact8"),
        "format of no version": ('"version":"3"', '"version":"x"', "the format version is"),
        "a key of the future": ('\\"recipe\\":', '\\"Recipe\\":', "unknown key"),
        "a kind of the future": ('\\"kind\\":\\"softmax9\\"', "", ""),
        "an attribute of the future": ('\\"groups\\":', '\\"Groups\\":', "attribute"),
        "an engine of the future": ('\\"onednn\\"', '\\"warpnn\\"', "unknown engines"),
    }
    edits["a kind of the future"] = ('\\"kind\\":\\"cat\\"', '\\"kind\\":\\"dog\\"', "unknown kind")
    for name, (old, new, words) in edits.items():
        loading = Loading([words], job={"engine": "reference"}, damage=_edit(old, new))
        yield Case("version skew", name, shared_load(loading))


def _stale(engine: str, package: str, version: str, tags: tuple[str, ...], words: str) -> Callable[[Path], Result]:
    def run(folder: Path) -> Result:
        with tempfile.TemporaryDirectory() as site:
            packages.stale(Path(site), package, version, *tags)
            with caller(Path(site)) as process:
                return Loading([words], job={"engine": engine}).check(process, folder)

    return run


def _edit(old: str, new: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        whole = path.read_bytes()
        assert len(old) == len(new) and old.encode() in whole
        path.write_bytes(seal(whole.replace(old.encode(), new.encode())))  # as whoever writes such files would

    return edit


def missing() -> Iterator[Case]:
    """Engines that are not there."""
    yield Case(
        "missing engine", "of no package", shared_load(Loading(["there is no engine 'warp'"], job={"engine": "warp"}))
    )
    for engine, package in LIBRARY.items():
        job = {"engine": engine, "facts": {"packages": {"numpy": "2.0"}}}
        yield Case(
            "missing engine", f"{engine}, {package} not installed", shared_load(Loading(["not installed"], job=job))
        )
    auto = {"engine": "auto", "facts": {"packages": {"numpy": "2.0"}}}
    left = "reference" if get_engine("native").available() else "native"
    yield Case("missing engine", "all but numpy, engine='auto'", shared_load(Loading([], left, auto)))
