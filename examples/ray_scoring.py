"""Score a data set of Ray with a program: ``map_batches`` with one loaded runner per worker.

    python examples/ray_scoring.py

Every worker loads the file once. Results do not depend on how samples are cut into batches, nor on which worker runs
them: the example asserts that two workers give the bits of one run. Needs ray (`pip install 'ray[data]'`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

import intact8


class Scorer:
    """What Ray makes once per worker: it holds the loaded program."""

    def __init__(self, path: str) -> None:
        import intact8.runtime

        self.runner = intact8.runtime.load(path, engine="native")

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the batch with its scores."""
        return {**batch, "score": np.asarray(self.runner(batch["data"]))}


def score(path: Path, samples: np.ndarray, workers: int = 2) -> np.ndarray:
    """Return the scores of the samples, in their order."""
    import ray

    data = ray.data.from_items([{"index": i, "data": row} for i, row in enumerate(samples)])
    scored = data.map_batches(
        Scorer,
        fn_constructor_kwargs={"path": str(path)},
        batch_size=32,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=0.5,
    )
    rows = sorted(scored.take_all(), key=lambda row: row["index"])
    return np.stack([row["score"] for row in rows])


def main() -> None:
    """Quantize a small network, and score 200 samples on two workers."""
    import ray

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
    samples = torch.randn(200, 16).numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        program = intact8.quantize(model, samples)
        program.save(path)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        scores = score(path, samples)
        ray.shutdown()
    assert (scores == np.asarray(program.run(samples, engine="reference"))).all()
    print(f"{len(scores)} samples on 2 workers: the same bits as one run of the reference engine")


if __name__ == "__main__":
    main()
