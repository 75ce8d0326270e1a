"""For every rule: something that has the fault, and something near it that has not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import intact8
from intact8 import Recipe, Scheme, recipes
from intact8.train import Schedule, parameter_groups

from .networks import Chain, Net, calibrated, chain, clean_program, images, network, prepared, program

Case = Callable[[], tuple[Any, dict[str, Any]]]
FAULTY: dict[str, list[Case]] = {}
CLEAN: dict[str, list[Case]] = {}


def faulty(id: str) -> Callable[[Case], Case]:
    return lambda case: FAULTY.setdefault(id, []).append(case) or case  # type: ignore[func-returns-value]


def clean(*ids: str) -> Callable[[Case], Case]:
    def add(case: Case) -> Case:
        for id in ids:
            CLEAN.setdefault(id, []).append(case)
        return case

    return add


# -- the float model ------------------------------------------------------------------------------------------------


@clean(
    "IQ101", "IQ102", "IQ103", "IQ104", "IQ105", "IQ106", "IQ107", "IQ108", "IQ109", "IQ110", "IQ201", "IQ202", "IQ203",
    "IQ204", "IQ205", "IQ306", "IQ307",
)  # fmt: skip
def a_model() -> tuple[Any, dict[str, Any]]:
    return network(), {"data": images()}


@faulty("IQ101")
def a_relu_called_twice() -> tuple[Any, dict[str, Any]]:
    relu = nn.ReLU()
    return chain(a=nn.Conv2d(3, 4, 1), r=relu, b=nn.Conv2d(4, 4, 1), s=relu), {"data": images(2)}


@faulty("IQ102")
def a_feature_kept() -> tuple[Any, dict[str, Any]]:
    net = network()
    net.feature = net.conv1(images(1))
    return net, {"data": images(2)}


@faulty("IQ103")
def two_devices() -> tuple[Any, dict[str, Any]]:
    net = network()
    net.fc.to("meta")
    return net, {}


@faulty("IQ104")
def a_nan_weight() -> tuple[Any, dict[str, Any]]:
    net = network()
    net.conv2.weight.data[0, 0, 0, 0] = torch.nan
    return net, {"data": images(2)}


class Branching(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


@faulty("IQ105")
def control_flow_by_value() -> tuple[Any, dict[str, Any]]:
    return Branching(), {"data": images(2)}


@faulty("IQ106")
def an_lstm() -> tuple[Any, dict[str, Any]]:
    return nn.LSTM(4, 4), {}


@faulty("IQ107")
def a_simulation_inside() -> tuple[Any, dict[str, Any]]:
    return chain(net=prepared(), softmax=nn.Softmax(1)), {}


@faulty("IQ108")
def a_bias_of_a_thousand() -> tuple[Any, dict[str, Any]]:
    net = network()
    net.conv2.bias.data[3] = 10_000.0
    return net, {}


@faulty("IQ109")
def a_dropout_left_in_training() -> tuple[Any, dict[str, Any]]:
    return chain(a=nn.Linear(4, 4), drop=nn.Dropout()).train(), {}


class Padded(nn.Module):
    """Takes a mask, and hands it on or forgets it."""

    def __init__(self, hands_on: bool) -> None:
        super().__init__()
        self.hands_on, self.attention = hands_on, nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        y: Tensor = self.attention(x, x, x, key_padding_mask=padding if self.hands_on else None, need_weights=False)[0]
        return y


def sentences() -> dict[str, Tensor]:
    return {"x": torch.randn(4, 6, 8), "padding": torch.arange(6).expand(4, 6) >= torch.tensor([[3], [4], [5], [6]])}


@clean("IQ110")
def a_padding_mask() -> tuple[Any, dict[str, Any]]:
    return Padded(True).eval(), {"data": [sentences()]}


@faulty("IQ110")
def a_padding_mask_that_is_forgotten() -> tuple[Any, dict[str, Any]]:
    return Padded(False).eval(), {"data": [sentences()]}


@faulty("IQ110")
def a_program_without_its_mask() -> tuple[Any, dict[str, Any]]:
    return intact8.quantize(Padded(False).eval(), [sentences()]), {}


# -- placement ------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        out: Tensor = self.out(y @ y.transpose(1, 2) @ y)
        return out


@clean("IQ201", "IQ202")
def a_product_of_activations() -> tuple[Any, dict[str, Any]]:
    return calibrated(model=Attention().eval(), x=torch.randn(2, 5, 4), data=torch.randn(64, 5, 4)), {}


@faulty("IQ202")
def a_layer_norm_between_layers() -> tuple[Any, dict[str, Any]]:
    net = chain(a=nn.Linear(4, 4), norm=nn.LayerNorm(4), b=nn.Linear(4, 4))
    return intact8.quantize(net, torch.randn(64, 4)), {}


@faulty("IQ202")
def a_product_of_activations_that_a_preset_leaves_float() -> tuple[Any, dict[str, Any]]:
    parts = {"model": Attention().eval(), "x": torch.randn(2, 5, 4), "data": torch.randn(64, 5, 4)}
    return calibrated(intact8.recipes.fast(), **parts), {}


@faulty("IQ201")
def a_convolution_under_a_recipe_for_linear_layers() -> tuple[Any, dict[str, Any]]:
    return calibrated(intact8.recipes.dynamic()), {}


@clean("IQ201", "IQ202")
def a_softmax_at_the_end_and_a_layer_kept_float() -> tuple[Any, dict[str, Any]]:
    net = chain(first=nn.Linear(4, 4), b=nn.Linear(4, 4), softmax=nn.Softmax(1))
    sim = calibrated(Recipe(overrides={"first": None}), model=net, x=torch.randn(2, 4), data=torch.randn(64, 4))
    return sim, {}


class Masked(nn.Module):
    """A mean over the words that a mask leaves, behind a layer norm and a linear map."""

    def __init__(self, loud: float = 1.0) -> None:
        super().__init__()
        self.words, self.norm, self.out = nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        with torch.no_grad():
            self.norm.weight[2] *= loud

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        kept = attention_mask.unsqueeze(-1).float()
        y: Tensor = self.out(self.norm(self.words(ids))) * kept
        return y.sum(1)


def masked(loud: float, empty: int, **changes: Any) -> tuple[Any, dict[str, Any]]:
    data = {"ids": torch.randint(0, 9, (64, 5)), "attention_mask": torch.ones(64, 5, dtype=torch.int64)}
    data["attention_mask"][:empty] = 0
    return calibrated(Recipe(**changes), model=Masked(loud).eval(), x={k: v[:2] for k, v in data.items()}, data=data), {
        "data": data
    }


@faulty("IQ311")
@faulty("IQ408")
def empty_sentences_and_a_loud_channel() -> tuple[Any, dict[str, Any]]:
    return masked(30.0, empty=3)


@clean("IQ311", "IQ408")
def a_loud_channel_shared_with_the_weights() -> tuple[Any, dict[str, Any]]:
    return masked(30.0, empty=0, smooth=0.5)


@clean("IQ408")
def an_even_layer_norm() -> tuple[Any, dict[str, Any]]:
    return masked(1.0, empty=0)


@faulty("IQ203")
def a_pool_kept_float() -> tuple[Any, dict[str, Any]]:
    return program(Recipe(overrides={"pool": None})), {}


@faulty("IQ203")
def the_same_in_the_simulation() -> tuple[Any, dict[str, Any]]:
    return prepared(Recipe(overrides={"pool": None})), {}


class PoolAndSoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.pool, self.b = nn.Conv2d(3, 4, 1), nn.MaxPool2d(2), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.a(x)
        return self.b(self.pool(y)), y.softmax(1)


@clean("IQ203")
def floats_that_are_needed_anyway() -> tuple[Any, dict[str, Any]]:
    return prepared(Recipe(overrides={"pool": None}), model=PoolAndSoftmax().eval()), {}


class TwoReaders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.relu, self.b, self.c = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        out: Tensor = self.b(self.relu(y)) + self.c(y)
        return out


@faulty("IQ204")
def a_value_read_before_its_relu() -> tuple[Any, dict[str, Any]]:
    return prepared(model=TwoReaders().eval(), x=torch.randn(2, 4)), {}


@faulty("IQ204")
def the_same_in_a_program() -> tuple[Any, dict[str, Any]]:
    return intact8.quantize(TwoReaders().eval(), torch.randn(64, 4)), {}


@faulty("IQ205")
def a_batch_norm_behind_a_relu() -> tuple[Any, dict[str, Any]]:
    net = chain(a=nn.Conv2d(3, 4, 1), r=nn.ReLU(), bn=nn.BatchNorm2d(4), b=nn.Conv2d(4, 4, 3, padding=1))
    return prepared(model=net), {}


@faulty("IQ206")
def everything_kept_float() -> tuple[Any, dict[str, Any]]:
    return prepared(Recipe(overrides={"*": None})), {}


@clean(
    "IQ203", "IQ204", "IQ205", "IQ206", "IQ301", "IQ303", "IQ305", "IQ306", "IQ307", "IQ308", "IQ310",
    "IQ401", "IQ402", "IQ403", "IQ404", "IQ405", "IQ406", "IQ407", "IQ451", "IQ454", "IQ501", "IQ502", "IQ503", "IQ508",
)  # fmt: skip
def a_calibrated_simulation() -> tuple[Any, dict[str, Any]]:
    return calibrated(data=images(256).split(32)), {"data": images(64, seed=2)}


@clean(
    "IQ201", "IQ202", "IQ203", "IQ204", "IQ206", "IQ303", "IQ401", "IQ402", "IQ404", "IQ452", "IQ453", "IQ454",
    "IQ601", "IQ602", "IQ604", "IQ605", "IQ606",
)  # fmt: skip
def a_program() -> tuple[Any, dict[str, Any]]:
    return clean_program(), {}


# -- calibration ----------------------------------------------------------------------------------------------------


@faulty("IQ301")
def a_simulation_not_calibrated() -> tuple[Any, dict[str, Any]]:
    return prepared(), {}


@faulty("IQ303")
def eight_samples() -> tuple[Any, dict[str, Any]]:
    return program(data=images(8)), {}


@faulty("IQ304")
def samples_that_grow() -> tuple[Any, dict[str, Any]]:
    return program(recipes.minmax(), data=[images(32, seed=i) * (1 + i) for i in range(8)]), {}


@faulty("IQ304")
def samples_that_grow_under_a_histogram() -> tuple[Any, dict[str, Any]]:
    return calibrated(data=[images(32, seed=i) * (1 + i / 10) for i in range(8)]), {}


@clean("IQ304")
def extremes_that_a_histogram_cuts() -> tuple[Any, dict[str, Any]]:
    return calibrated(data=images(512).split(64)), {}


@clean("IQ304")
def samples_that_do_not_grow() -> tuple[Any, dict[str, Any]]:
    return calibrated(recipes.minmax(), data=[images(32)] * 8), {}


@faulty("IQ305")
def other_data_than_calibration_saw() -> tuple[Any, dict[str, Any]]:
    return calibrated(), {"data": images() * 5}


@faulty("IQ306")
def only_pictures_of_cats() -> tuple[Any, dict[str, Any]]:
    net, x = network(16), images(4096)
    with torch.no_grad():
        cats = x[net(x).argmax(1) == 3]
    assert len(cats) >= 32
    return net, {"data": cats}


@faulty("IQ307")
def every_sample_twice() -> tuple[Any, dict[str, Any]]:
    return network(), {"data": images(32).repeat(2, 1, 1, 1)}


MOVING = Scheme(observer="moving_average")


@faulty("IQ308")
def a_moving_average() -> tuple[Any, dict[str, Any]]:
    return calibrated(Recipe(activation=MOVING)), {}


@clean("IQ308")
def a_moving_average_in_training() -> tuple[Any, dict[str, Any]]:
    return calibrated(recipes.qat("observed")), {}


@faulty("IQ310")
def dead_channels() -> tuple[Any, dict[str, Any]]:
    net = network()
    net.conv2.bias.data[:4] = -1000.0
    return calibrated(model=net), {}


# -- ranges ---------------------------------------------------------------------------------------------------------


def with_point(**changes: Any) -> intact8.simulation.simulation.Simulation:
    sim = calibrated()
    point = sim.points["conv2"]
    for name, value in changes.items():
        getattr(point, name).fill_(value)
    return sim


@faulty("IQ401")
def a_scale_of_infinity() -> tuple[Any, dict[str, Any]]:
    return with_point(scale=float("inf")), {}


@faulty("IQ401")
def a_scale_of_nan_behind_data() -> tuple[Any, dict[str, Any]]:
    return with_point(scale=float("nan")), {}


@faulty("IQ401")
def a_scale_of_zero() -> tuple[Any, dict[str, Any]]:
    return with_point(scale=0.0), {}


@faulty("IQ402")
def inputs_of_a_billion() -> tuple[Any, dict[str, Any]]:
    return calibrated(data=images() * 1e9), {}


@faulty("IQ403")
def one_pixel_of_a_thousand() -> tuple[Any, dict[str, Any]]:
    x = images()
    x[5, 0, 3, 3] = 1000.0
    return calibrated(recipes.minmax(), data=x), {}


@clean("IQ403")
def the_same_pixel_clipped() -> tuple[Any, dict[str, Any]]:
    x = images()
    x[5, 0, 3, 3] = 1000.0
    return calibrated(Recipe(activation=Scheme(observer="percentile", observer_args={"percentile": 99.9})), data=x), {}


@faulty("IQ404")
def symmetric_behind_a_relu() -> tuple[Any, dict[str, Any]]:
    return calibrated(recipes.symmetric()), {}


@faulty("IQ404")
def a_fixed_scale_ten_times_too_large() -> tuple[Any, dict[str, Any]]:
    return calibrated(Recipe(inputs={"*": Scheme(fixed=(0.5, 128))})), {}


@faulty("IQ405")
def a_fixed_scale_too_small() -> tuple[Any, dict[str, Any]]:
    return calibrated(Recipe(inputs={"*": Scheme(observer="minmax", fixed=(1e-3, 128))})), {}


@faulty("IQ406")
def a_symmetric_scheme_off_its_middle() -> tuple[Any, dict[str, Any]]:
    sim = calibrated(recipes.symmetric())
    sim.points["conv2"].zero_point.fill_(100)
    return sim, {}


@clean("IQ406")
def a_symmetric_scheme() -> tuple[Any, dict[str, Any]]:
    return calibrated(recipes.symmetric()), {}


def loud_channel(factor: float) -> Net:
    net = network()
    with torch.no_grad():
        net.conv2.weight[2] *= factor
        net.conv2.bias[2] *= factor
    return net


@faulty("IQ407")
def a_channel_a_thousand_times_louder() -> tuple[Any, dict[str, Any]]:
    return calibrated(model=loud_channel(1000)), {"data": images(16)}


PER_TENSOR = Recipe(weight=Scheme(dtype="int8", symmetric=True, granularity="per_tensor", observer="minmax"))


@faulty("IQ451")
def one_scale_for_unequal_channels() -> tuple[Any, dict[str, Any]]:
    return calibrated(PER_TENSOR, model=loud_channel(100)), {}


@faulty("IQ451")
def the_same_in_its_program() -> tuple[Any, dict[str, Any]]:
    return program(PER_TENSOR, model=loud_channel(100)), {}


@clean("IQ451")
def one_scale_for_equal_channels() -> tuple[Any, dict[str, Any]]:
    return calibrated(PER_TENSOR), {}


@clean("IQ451")
def one_scale_for_nearly_equal_channels() -> tuple[Any, dict[str, Any]]:
    return calibrated(PER_TENSOR, model=loud_channel(4)), {}


@clean("IQ451")
def a_scale_for_every_channel() -> tuple[Any, dict[str, Any]]:
    return calibrated(model=loud_channel(100)), {}


@faulty("IQ452")
def three_bit_weights() -> tuple[Any, dict[str, Any]]:
    return program(recipes.w4a8()), {}


@faulty("IQ453")
@faulty("IQ602")
def full_range_weights() -> tuple[Any, dict[str, Any]]:
    return program(recipes.full_range()), {}


@faulty("IQ454")
def a_pruned_layer() -> tuple[Any, dict[str, Any]]:
    net = network()
    net.conv2.weight.data[:4] = 0
    return calibrated(model=net), {}


# -- training -------------------------------------------------------------------------------------------------------


def learning() -> intact8.simulation.simulation.Simulation:
    return calibrated(recipes.qat("learned")).train()


def step(sim: intact8.simulation.simulation.Simulation, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    sim.train()(images(8)).square().mean().backward()
    optimizer.step()


@clean("IQ504", "IQ505", "IQ506", "IQ507", "IQ508", "IQ509", "IQ510", "IQ503", "IQ502")
def a_model_in_training() -> tuple[Any, dict[str, Any]]:
    sim = learning()
    optimizer = torch.optim.AdamW(parameter_groups(sim, lr=1e-3), weight_decay=0.01)
    step(sim, optimizer)
    return sim, {"optimizer": optimizer, "schedule": Schedule(freeze_batchnorm=2, freeze_scales=3)}


@faulty("IQ309")
def switched_off_before_the_first_batch() -> tuple[Any, dict[str, Any]]:
    from .torch_ao_cases import qat

    model = qat(run=False)
    model.apply(torch.ao.quantization.disable_observer)
    return model, {}


@faulty("IQ501")
def observing_in_evaluation() -> tuple[Any, dict[str, Any]]:
    sim = calibrated()
    sim.observe()
    return sim, {}


@faulty("IQ502")
def one_layer_left_off() -> tuple[Any, dict[str, Any]]:
    sim = calibrated()
    sim.fake_quantize(False, "conv2")
    return sim, {}


@faulty("IQ503")
def frozen_scales_and_live_batch_norm() -> tuple[Any, dict[str, Any]]:
    sim = learning()
    sim.freeze_scales()
    return sim, {}


@faulty("IQ503")
@faulty("IQ510")
def a_schedule_that_freezes_nothing() -> tuple[Any, dict[str, Any]]:
    return learning(), {"schedule": Schedule()}


@faulty("IQ504")
@faulty("IQ505")
def an_optimizer_built_before_prepare() -> tuple[Any, dict[str, Any]]:
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return calibrated(recipes.qat("learned"), model=net).train(), {"optimizer": optimizer}


@clean("IQ505")
def an_optimizer_that_trains_a_loss_as_well() -> tuple[Any, dict[str, Any]]:
    sim, loss = learning(), nn.Linear(4, 1)
    return sim, {"optimizer": torch.optim.SGD([*sim.parameters(), *loss.parameters()], lr=0.1)}


@faulty("IQ506")
def all_frozen_but_the_head() -> tuple[Any, dict[str, Any]]:
    sim = learning()
    for name, p in sim.named_parameters():
        p.requires_grad_(name.startswith("fc."))
    return sim, {}


@faulty("IQ507")
def weight_decay_on_everything() -> tuple[Any, dict[str, Any]]:
    sim = learning()
    return sim, {"optimizer": torch.optim.AdamW(sim.parameters(), weight_decay=0.1)}


@faulty("IQ508")
def a_training_recipe_without_training() -> tuple[Any, dict[str, Any]]:
    return calibrated(recipes.qat("learned")), {}


@faulty("IQ509")
def frozen_at_once() -> tuple[Any, dict[str, Any]]:
    return learning(), {"schedule": Schedule(freeze_scales=10, unit="step")}


# -- programs -------------------------------------------------------------------------------------------------------


def altered(**certificate: Any) -> intact8.Program:
    p = clean_program()
    ops = [
        dataclasses.replace(op, certificate={**op.certificate, **certificate} if certificate else None)
        if op.certificate
        else op
        for op in p.ops
    ]
    return dataclasses.replace(p, ops=tuple(ops))


@faulty("IQ601")
def certificates_taken_out() -> tuple[Any, dict[str, Any]]:
    return altered(), {}


@faulty("IQ601")
def a_proof_that_failed() -> tuple[Any, dict[str, Any]]:
    return altered(exact=False, reason="sums up to 3000000000 do not fit int32"), {}


@faulty("IQ603")
def no_golden_vectors() -> tuple[Any, dict[str, Any]]:
    return dataclasses.replace(clean_program(), golden=None), {}


@clean("IQ603")
def golden_vectors() -> tuple[Any, dict[str, Any]]:
    from intact8.golden import with_golden

    return with_golden(clean_program()), {}


@faulty("IQ604")
def a_ratio_off_by_three_percent() -> tuple[Any, dict[str, Any]]:
    return altered(gain_error=0.03), {}


@faulty("IQ605")
def an_input_clipped_to_a_tenth() -> tuple[Any, dict[str, Any]]:
    return program(Recipe(inputs={"*": Scheme(fixed=(1e-3, 128))})), {}


class OwnLinear(nn.Module):
    """A linear layer written as a product with one matrix for every sample, behind a norm, which is float."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.weight = nn.LayerNorm(8), nn.Parameter(torch.randn(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(self.norm(x)[:, None], self.weight.T.expand(x.shape[0], 8, 16))[:, 0]


@faulty("IQ606")
def a_weight_that_is_no_linear_layer() -> tuple[Any, dict[str, Any]]:
    return intact8.quantize(OwnLinear(), torch.randn(64, 8)), {}


__all__ = ["CLEAN", "FAULTY", "Chain", "np"]
