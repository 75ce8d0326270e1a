"""Statistics that are old in all batch norms are told from a repair of one place that makes up for them in part."""

from __future__ import annotations

import torch
from tests.diagnose.doctor.planting import collect, norms_of
from torch import Tensor, nn

import intact8
from intact8.diagnose.doctor.answers import Answers, answers_of
from intact8.diagnose.doctor.float_network import FloatNetwork, FloatOutputs
from intact8.diagnose.doctor.network_checks import stale_batch_norm
from intact8.diagnose.doctor.repair import Repair
from intact8.diagnose.doctor.samples import Samples, gather
from intact8.diagnose.doctor.statistics_checks import old_statistics
from intact8.simulation.simulation import Simulation


def network() -> nn.Module:
    torch.manual_seed(2)
    first = [nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU()]
    second = [nn.Conv2d(12, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


def examined(net: nn.Module, x: Tensor, y: Tensor) -> tuple[FloatNetwork, Simulation, Answers, Samples]:
    """Return what the doctor knows of a network before it tries repairs."""
    float_network = FloatNetwork(net, x[:2], torch.device("cpu"))
    samples = gather([(x, y)], float_network.captured, float_network.device, 1000)
    sim = float_network.prepare(intact8.Recipe(equalize=False))
    answers = answers_of(FloatOutputs(sim, samples, None), samples, 1)
    assert answers is not None
    return float_network, sim, answers, samples


def test_statistics_of_other_data_in_all_batch_norms_are_worse_than_a_repair_in_part() -> None:
    net, x = network(), torch.randn(256, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    collect(net, x, norms_of(net))
    with torch.no_grad():
        logits = net.eval()(x)
        net[8].bias.data -= logits.mean(0)  # five classes that are about as frequent
        y = net(x).argmax(1)
    collect(net, 0.2 * x + 1.5, norms_of(net))
    float_network, sim, answers, samples = examined(net, x, y)
    assert answers.score < 0.8
    stale = stale_batch_norm(float_network, sim.graph, samples)
    assert stale
    node = sim.graph.nodes[stale[0].place]
    bias = node.params["bias"] if "bias" in node.params else node.params["bn.bias"]
    weak = Repair("wrong_weights", "its biases are a little larger", node, {bias: sim.tensors[bias].detach() + 1e-3})
    told = old_statistics(float_network, sim, answers, samples, stale, weak)
    assert told is not None and told[0].severity == "error" and told[0].evidence["healed"]
    assert "with new statistics of all batch norms the network is right on" in told[0].message
    assert old_statistics(float_network, sim, answers, samples, [], weak) is None
