"""Requests that arrive together run as one batch. int8 results do not depend on the batch, bit for bit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
Run = Callable[..., Any]


class Busy(Exception):
    """The queue is full; the request was not taken."""


@dataclass
class Job:
    """One request: its inputs, (samples, …) each, and where its answer goes."""

    inputs: Arrays
    answer: asyncio.Future[list[np.ndarray]]

    @property
    def samples(self) -> int:
        return len(next(iter(self.inputs.values())))


class Batcher:
    """A queue in front of a runner. The runner works in one thread; its own threads share out the arithmetic.

    Args:
        run: takes inputs by name, returns flattened outputs.
        most: samples per batch.
        wait: seconds the first request of a batch waits for company. 0 takes what is there, which is nearly always
            best: while one batch runs, the next one gathers.
        queue: requests waiting, beyond which :class:`Busy` is raised.
        observe: called with the size of every batch.
    """

    def __init__(self, run: Run, *, most: int, wait: float, queue: int, observe: Callable[[int], None]) -> None:
        self.run, self.most, self.wait, self.observe = run, most, wait, observe
        self._queue: asyncio.Queue[Job] = asyncio.Queue(queue)

    def __len__(self) -> int:
        return self._queue.qsize()

    async def submit(self, inputs: Arrays) -> list[np.ndarray]:
        """The outputs for these inputs.

        Raises:
            Busy: too many requests wait already.
        """
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
            jobs, kept = await self._gather(first)
            self.observe(sum(job.samples for job in jobs))
            joined = {name: np.concatenate([job.inputs[name] for job in jobs]) for name in first.inputs}
            try:
                outputs = await asyncio.get_running_loop().run_in_executor(None, partial(self.run, joined))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to these requests
                for job in jobs:
                    if not job.answer.done():
                        job.answer.set_exception(error)
                continue
            start = 0
            for job in jobs:
                end = start + job.samples
                if not job.answer.done():  # its client may have gone
                    job.answer.set_result([y[start:end] for y in outputs])
                start = end

    async def _gather(self, first: Job) -> tuple[list[Job], Job | None]:
        """A batch, and the job that did not fit any more."""
        jobs, samples = [first], first.samples
        if self.wait and samples < self.most and self._queue.empty():
            await asyncio.sleep(self.wait)
        while samples < self.most and not self._queue.empty():
            job = self._queue.get_nowait()
            if samples + job.samples > self.most:
                return jobs, job
            jobs.append(job)
            samples += job.samples
        return jobs, None
