"""Two processes in one gloo group, started once: ``ranks(function, …)`` runs a function on both."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Run = Callable[..., list[Any]]
SIZE = 2


def _serve(rank: int, meeting: str, tasks: Any, results: Any) -> None:
    torch.set_num_threads(1)
    limit = timedelta(seconds=300)  # a rank that waits for one that failed is a failure, too
    dist.init_process_group("gloo", f"file://{meeting}", limit, SIZE, rank)
    while (task := tasks.get()) is not None:
        function, arguments = task
        try:
            results.put((function(*arguments), ""))
        except Exception:  # noqa: BLE001 - it is told to the test
            results.put((None, traceback.format_exc()))
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Results of a module-level function on every rank; what it raises anywhere is raised here as text."""
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("torch was built without gloo")
    context = mp.get_context("spawn")
    meeting: Path = tmp_path_factory.mktemp("ranks") / "meeting"
    queues = [(context.SimpleQueue(), context.SimpleQueue()) for _ in range(SIZE)]
    processes = [context.Process(target=_serve, args=(r, str(meeting), *queues[r]), daemon=True) for r in range(SIZE)]
    for process in processes:
        process.start()

    def run(function: Callable[..., Any], *arguments: Any) -> list[Any]:
        for tasks, _ in queues:
            tasks.put((function, arguments))
        answers = [results.get() for _, results in queues]
        told = "\n".join(f"rank {rank}: {error}" for rank, (_, error) in enumerate(answers) if error)
        if told:
            raise AssertionError(told)
        return [answer for answer, _ in answers]

    yield run
    for tasks, _ in queues:
        tasks.put(None)
    for process in processes:
        process.join(20)
