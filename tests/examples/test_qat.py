"""Training examples in a small setting: they run, and what they trained is what they ship."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.examples.conftest import Load

torch = pytest.importorskip("torch", reason="training needs torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of trainers, and of calibration with a few images


@pytest.mark.usefixtures("few_digits")
def test_qat(load_example: Load) -> None:
    result = load_example("qat").run(epochs=3, float_epochs=8)
    assert result.differ == 0 and result.integers > 1_000_000
    assert result.served == result.qat > 0.5


@pytest.mark.long
def test_resnet18_of_two_classes(load_example: Load) -> None:
    pytest.importorskip("torchvision")
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    result = load_example("resnet18_two_classes").run(
        None, (3, 8), size=32, images=64, float_epochs=1, qat_epochs=2, seconds=0.1
    )
    assert result.differ == 0 and result.served_equal
    assert result.accuracy["served"] == result.accuracy["qat"]
    assert "simulation already" in result.refused
    assert result.nbytes["int8"] < 0.26 * result.nbytes["float32"]
    assert set(result.latency) == {"float32", "int8"}


@pytest.mark.usefixtures("few_digits")
def test_lightning(load_example: Load) -> None:
    pytest.importorskip("lightning", reason="the extra lightning is not installed")
    result = load_example("qat_lightning").run(epochs=2, float_epochs=1)
    assert result.differ == 0 and result.integers > 1_000_000


@pytest.mark.long
@pytest.mark.usefixtures("few_digits")
def test_lightning_resumes_to_the_bit(load_example: Load, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="the extra lightning is not installed")
    example = load_example("qat_lightning")
    data = example.digits.load(0)
    model = example.train_float32(data, seed=0, epochs=1)

    class Seed(lightning.Callback):  # Lightning restores neither the random state (dropout) nor the order of a loader
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            torch.manual_seed(trainer.global_step)

    def fit(part: str, stop: int, checkpoint: Path | None = None) -> Any:
        module = example.Classifier(example.prepare(model, data).train())
        trainer = example.trainer(tmp_path / part, 3, stop)
        trainer.callbacks.append(Seed())
        in_order = torch.utils.data.DataLoader(example.loader(data).dataset, batch_size=64)
        trainer.fit(module, in_order, ckpt_path=checkpoint)
        trainer.save_checkpoint(tmp_path / f"{part}.ckpt")
        return module.sim

    whole = fit("whole", 3)
    fit("part", 2)
    resumed = fit("rest", 3, tmp_path / "part.ckpt")
    assert whole.phase == resumed.phase == "frozen"
    _same(whole, resumed)


@pytest.mark.usefixtures("few_digits")
def test_hf_trainer(load_example: Load) -> None:
    pytest.importorskip("transformers", reason="the extra transformers is not installed")
    result = load_example("qat_hf_trainer").run(epochs=2, float_epochs=1)
    assert result.differ == 0 and result.integers > 1_000_000


@pytest.mark.long
@pytest.mark.usefixtures("few_digits")
def test_hf_trainer_resumes_to_the_bit(load_example: Load, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra transformers is not installed")
    example = load_example("qat_hf_trainer")
    data = example.digits.load(0)
    model = example.train_float32(data, seed=0, epochs=1)
    whole = example.trainer(example.prepare(model, data), data, tmp_path, 3)
    whole.train()
    resumed = example.trainer(example.prepare(model, data), data, tmp_path, 3)
    checkpoints = sorted(tmp_path.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    assert len(checkpoints) == 3
    resumed.train(resume_from_checkpoint=str(checkpoints[1]))
    assert whole.model.sim.phase == resumed.model.sim.phase == "frozen"
    _same(whole.model.sim, resumed.model.sim)


def _same(a: Any, b: Any) -> None:
    of_b = b.state_dict()
    for name, value in a.state_dict().items():
        assert torch.equal(value, of_b[name]), name
