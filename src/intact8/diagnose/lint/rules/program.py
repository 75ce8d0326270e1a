"""IQ6xx: programs: what is proved, and what a loading machine can check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from intact8.diagnose.lint.rule import PROGRAM, Hit, rule

GAIN = 0.01


@rule("IQ601", "error", PROGRAM)
def missing_certificate(subject: Any) -> Iterator[Hit]:
    """An integer operation is not proved exact, so engines may disagree about its result.

    A certificate says that no float rounding of any claimed engine can change a result and that no sum overflows. The
    reason is in the message where the proof was tried and failed (a bias so large that sums do not fit int32, say).

    Remedy: convert again with this version; where a reason is given, widen the output's range or split sums
    """
    from intact8.program.certify import uncertified

    for op, reason in uncertified(subject.program):
        yield Hit(reason, module=op.module, node=op.name)


@rule("IQ602", "warning", PROGRAM)
def needs_vnni(subject: Any) -> Iterator[Hit]:
    """The program gives right results only on CPUs with VNNI instructions.

    Engines refuse to load it elsewhere. Which layers are the cause is rule IQ453.

    Remedy: check that every machine it goes to has VNNI (intact8 check FILE), or convert with Recipe(portable=True)
    """
    if "vnni" in subject.program.needs:
        yield Hit("the program needs VNNI")


@rule("IQ603", "note", PROGRAM)
def no_golden_vectors(subject: Any) -> Iterator[Hit]:
    """The program stores no input with its results, so a loading machine cannot check itself.

    With golden vectors, an upgrade of a library that changes one integer is found when the program is loaded instead
    of some weeks later.

    Remedy: convert and save with this version of intact8, which stores them
    """
    if subject.program.golden is None:
        yield Hit("there are no golden vectors")


@rule("IQ604", "warning", PROGRAM)
def large_gain_error(subject: Any) -> Iterator[Hit]:
    """A multiplier is off the ratio of its scales by more than 1 %.

    Sums need one denominator for all terms. Where scales could not move (fixed, or used by several sums) the nearest
    rational is taken and its error stated in the certificate.

    Remedy: let the scales of the sum's inputs be free: no fixed scale on them, and no tensor shared by several sums
    """
    for op in subject.program.ops:
        gain = float((op.certificate or {}).get("gain_error", 0.0) or 0.0)
        if gain > GAIN:
            yield Hit(f"the multiplier is off by {gain:.1%}", module=op.module, node=op.name, data={"gain_error": gain})


@rule("IQ605", "warning", PROGRAM)
def output_far_from_float(subject: Any) -> Iterator[Hit]:
    """An output was far from the float network's when the program was made.

    Conversion runs a few of the calibration samples through the simulation and through its float operations, with the
    weights of that moment. An output below 20 dB is compared with what 8-bit weights and 8-bit inputs of layers alone
    leave on the same samples (plain W8A8). It is reported where it lies more than 6 dB below that, or below 3 dB in any
    case; after a training of scales, which may clip what the loss does not need, in the second case alone. The
    operation named is the first one that costs more than 6 dB, or, where the loss is gradual, the one that costs most.
    `intact8.compare(model, sim, data)` shows all of them.

    Remedy: keep the operation that is named float, calibrate on more or other data, or try recipes.accurate(); where
    weights have changed since calibration, calibrate again (`intact8.calibrate(sim, data, reset=True)`)
    """
    lost = subject.program.provenance.get("lost")
    for row in subject.program.provenance.get("outputs", []) if isinstance(lost, dict) else []:
        if row.get("plain", ...) is not ...:
            plain = "" if row["plain"] is None else f", weights and layer inputs in 8 bits alone {row['plain']:.1f} dB"
            loss = f"{lost['node']} ({lost['op']}): {lost['before']:.1f} dB before, {lost['after']:.1f} dB behind"
            changed = f"; {lost['outgrown']}" if isinstance(lost.get("outgrown"), str) else ""
            message = f"{row['name']} has {row['sqnr']:.1f} dB{plain}; most is lost at {loss}{changed}"
            yield Hit(message, str(lost["module"]), str(lost["node"]), data={**row, "lost": lost})


@rule("IQ606", "warning", PROGRAM)
def mostly_float(subject: Any) -> Iterator[Hit]:
    """More than half of the multiplications are computed in float, and the recipe did not ask for it.

    A product with a weight that is neither a linear layer nor a convolution (`torch.addmm` with a transposed weight as
    in GPT-2's Conv1D, `x @ self.weight.T`) is a product of two tensors to the quantizer, and stays float where its
    other operand is float. Nothing is wrong with the results, but int8 gains next to nothing.

    Remedy: write products with weights as nn.Linear or F.linear, or choose recipes.dynamic() or weight_only()
    """
    found = subject.program.provenance
    if found.get("float_reason") and "float_share" in found:
        yield Hit(f"{found['float_share']:.0%} of the multiplications stay float: {found['float_reason']}")
