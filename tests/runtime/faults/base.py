"""What a case of the fault matrix is, and how a load is put to the test."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.runtime.faults import packages
from tests.runtime.faults.caller import Caller, Died
from tests.runtime.faults.machines import portable

from intact8.program.file import save


@dataclass
class Result:
    """What came of a case.

    Attributes:
        outcome: in words: the error, or what was loaded.
        cases: how many it stands for.
        deaths: of calling processes.
        lost: files that are neither what they were nor what they should become.
        left: temporary files that stayed.
        wrong: what is not as it must be, "" where all is.
        skipped: why it cannot be tried here, "" where it was.
    """

    outcome: str
    cases: int = 1
    deaths: int = 0
    lost: int = 0
    left: int = 0
    wrong: str = ""
    skipped: str = ""

    @property
    def fine(self) -> bool:
        """Nobody died, nothing is lost, nothing stayed, and the words are the right ones."""
        return not (self.deaths or self.lost or self.left or self.wrong)


@dataclass(frozen=True)
class Case:
    """One fault, or many of a kind.

    Attributes:
        group, name: what it is.
        run: does it in an empty folder.
        quick: whether the tests run it, too.
    """

    group: str
    name: str
    run: Callable[[Path], Result]
    quick: bool = True


def run(case: Case) -> Result:
    """One case, in a folder that is gone afterwards; a cache of its own."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return case.run(Path(folder))
        except OSError as error:
            return Result("", 0, skipped=str(error))


@dataclass
class Loading:
    """A load that must be refused with certain words, or give a certain engine.

    Attributes:
        words: each in the error; empty where either outcome is right, as long as it is one.
        engine: that must have loaded; "" where it must be refused; "*" where any may, or none.
        job: of :class:`Caller`.
        program: makes the file.
        damage: what is done to the file, or put in its place.
    """

    words: Sequence[str] = ()
    engine: str = ""
    job: Mapping[str, Any] = field(default_factory=dict)
    program: Callable[[], Any] = portable
    damage: Callable[[Path], Any] | None = None

    def check(self, caller: Caller, folder: Path) -> Result:
        """Load, and see whether the file is as it was, nothing else lies there, and the answer is right."""
        path = save(self.program(), folder / "net.safetensors")
        if self.damage is not None:
            self.damage(path)
        before, cache = _listing(folder), folder / "cache"
        environment = {"INTACT8_CACHE_DIR": str(cache), **self.job.get("environment", {})}
        try:
            answer = caller(path=str(path), **{**self.job, "environment": environment})
        except Died as death:
            return Result(str(death), deaths=1)
        after = {name: content for name, content in _listing(folder).items() if not name.startswith("cache")}
        lost = sum(after.get(name) != content for name, content in before.items())
        left = len(set(after) - set(before)) + len(temporary(cache))
        if "error" in answer:
            absent = [word for word in self.words if word not in answer["text"]]
            wrong = f"{absent} not in the error" if absent else "" if answer["remedy"] else "no remedy"
            if self.engine not in ("", "*"):
                wrong = f"{self.engine} had to load"
            return Result(f"{answer['error']}: {answer['text']}", lost=lost, left=left, wrong=wrong)
        wrong = "" if self.engine in ("*", answer["engine"]) else "it had to be refused"
        return Result(f"loads on {answer['engine']}: {answer['golden']}", lost=lost, left=left, wrong=wrong)


def _listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file: its size and its beginning."""
    found = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink()
        with path.open("rb") if plain else contextlib.nullcontext() as stream:
            found[str(path.relative_to(folder))] = (path.lstat().st_size, stream.read(1 << 20) if stream else b"")
    return found


def temporary(folder: Path) -> list[Path]:
    """Files that are neither finished nor locks."""
    return [p for p in folder.glob("*") if p.suffix not in (".json", ".lock")] if folder.is_dir() else []


_shared: list[Caller] = []


@contextmanager
def caller(*site: Path, shared: bool = False, **environment: str | None) -> Iterator[Caller]:
    """A process that loads; one for all cases that need no surroundings of their own."""
    if not shared:
        made = Caller(environment, site)
        try:
            yield made
        finally:
            made.close()
        return
    if not _shared:
        _shared.append(Caller(environment, [packages.install(Path(tempfile.mkdtemp()))]))
    try:
        yield _shared[0]
    except Died:
        close()
        raise


def close() -> None:
    """End the shared process."""
    while _shared:
        _shared.pop().close()


def shared_load(loading: Loading) -> Callable[[Path], Result]:
    def run(folder: Path) -> Result:
        with caller(shared=True) as process:
            result = loading.check(process, folder)
        if result.deaths:
            close()
        return result

    return run


def in_environment(loading: Loading, environment: dict[str, str | None], *site: Path) -> Callable[[Path], Result]:
    def run(folder: Path) -> Result:
        with caller(*site, **environment) as process:
            return loading.check(process, folder)

    return run


def problem(result: Result) -> str:
    """What is not as it must be, in words."""
    parts = [result.wrong, result.deaths and f"{result.deaths} died", result.lost and f"{result.lost} files lost"]
    parts.append(result.left and f"{result.left} temporary files left")
    return "; ".join(str(p) for p in parts if p) + f" ({result.outcome})"
