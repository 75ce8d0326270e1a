"""Requests that arrive together run as one batch. int8 results do not depend on the batch, bit for bit."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Run = Callable[..., Any]

log = logging.getLogger("serving")


class Busy(Exception):
    """The queue is full; the request was not taken."""


class Dead(Exception):
    """No batch will run any more."""


@dataclass
class Job:
    """One request: its inputs, (samples, …) each, and where its answer goes."""

    inputs: Arrays
    answer: asyncio.Future[list[np.ndarray]]

    @property
    def samples(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def kind(self) -> dict[str, Any]:
        """What requests of one batch have in common."""
        return {name: (array.dtype, array.shape[1:]) for name, array in self.inputs.items()}

    def settle(self, result: list[np.ndarray] | Exception) -> None:
        if self.answer.done():  # its client has gone
            return
        if isinstance(result, Exception):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)


class Batcher:
    """A queue in front of a runner. The runner works in one thread; its own threads share out the arithmetic.

    Args:
        run: takes inputs by name, returns flattened outputs.
        most: samples per batch; 1 where requests must run one at a time.
        wait: seconds the first request of a batch waits for company. 0 takes what is there, which is nearly always
            best: while one batch runs, the next one gathers.
        queue: requests waiting, beyond which :class:`Busy` is raised.
        observe: called with the size of every batch.
    """

    def __init__(self, run: Run, *, most: int, wait: float, queue: int, observe: Callable[[int], None]) -> None:
        self.run, self.most, self.wait, self.observe = run, most, wait, observe
        self._queue: asyncio.Queue[Job] = asyncio.Queue(queue)
        self._thread = ThreadPoolExecutor(1, "batch")
        self._task: asyncio.Task[None] | None = None
        self._current: list[Job] = []
        self._began: float | None = None

    def __len__(self) -> int:
        return self._queue.qsize()

    def start(self) -> None:
        """Begin to work, in the running loop."""
        self._task = asyncio.create_task(self.work())
        self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        """End; what still waits is answered with :class:`Dead`."""
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False)

    def healthy(self, limit: float) -> bool:
        """Whether batches run, and none has taken longer than ``limit`` seconds."""
        working = self._task is not None and not self._task.done()
        return working and (self._began is None or time.monotonic() - self._began < limit)

    async def submit(self, inputs: Arrays) -> list[np.ndarray]:
        """The outputs for these inputs.

        Raises:
            Busy: too many requests wait already.
            Dead: the worker has ended.
        """
        if self._task is not None and self._task.done():
            raise Dead
        job = Job(inputs, asyncio.get_running_loop().create_future())
        try:
            self._queue.put_nowait(job)
        except asyncio.QueueFull:
            raise Busy from None
        return await job.answer

    async def work(self) -> None:
        """Run batches until cancelled. ``run`` is looked up for every batch, so that it can be exchanged."""
        kept: Job | None = None
        while True:
            first = kept or await self._queue.get()
            self._current = [first]
            self._current, kept = await self._gather(first)
            await self._answer(self._current)
            self._current = [kept] if kept else []

    async def _answer(self, jobs: list[Job]) -> None:
        """Run some requests together; where that fails, each by itself, so that one of them fails alone."""
        self.observe(sum(job.samples for job in jobs))
        try:
            results = await self._run(jobs)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to these requests
            if len(jobs) == 1:
                jobs[0].settle(error)
                return
            log.warning("a batch of %d requests failed, now one by one: %s", len(jobs), error)
            for job in jobs:
                await self._answer([job])
            return
        for job, result in zip(jobs, results, strict=True):
            job.settle(result)

    async def _run(self, jobs: list[Job]) -> list[list[np.ndarray]]:
        """The outputs of every request."""
        joined = {name: np.concatenate([job.inputs[name] for job in jobs]) for name in jobs[0].inputs}
        self._began = time.monotonic()
        try:
            outputs = await asyncio.get_running_loop().run_in_executor(self._thread, lambda: self.run(joined))
        finally:
            self._began = None
        if len(jobs) == 1:
            return [outputs]
        ends = np.cumsum([job.samples for job in jobs])
        if any(not y.ndim or len(y) != ends[-1] for y in outputs):
            raise ValueError("an output has not one row per sample")
        return [[y[end - job.samples : end] for y in outputs] for job, end in zip(jobs, ends, strict=True)]

    async def _gather(self, first: Job) -> tuple[list[Job], Job | None]:
        """A batch, and the job that did not fit any more."""
        jobs, samples = [first], first.samples
        if self.wait and samples < self.most and self._queue.empty():
            await asyncio.sleep(self.wait)
        while samples < self.most and not self._queue.empty():
            job = self._queue.get_nowait()
            if samples + job.samples > self.most or job.kind != first.kind:
                return jobs, job
            jobs.append(job)
            samples += job.samples
        return jobs, None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical("the worker has ended", exc_info=task.exception())
        waiting = list(self._current)
        while not self._queue.empty():
            waiting.append(self._queue.get_nowait())
        for job in waiting:
            job.settle(Dead())
