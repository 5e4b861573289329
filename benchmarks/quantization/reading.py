"""The reading of the tables of quantization: speed, bytes, loss, and what was refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common.long_texts import LONG_TOKENS
from benchmarks.common.points import points
from benchmarks.common.words import above, below, holding, listed, ratio, span, ticked
from benchmarks.quantization.measuring import QuantizationBenchmark
from bertender.measure.comparison import ComparisonRow

__all__ = ["quantization_reading"]

MEGABYTE = 10**6
FLOAT, FOUR_BIT, DYNAMIC, STATIC = "float32", "four-bit", "dynamic", "static-"
EARLIER_BOUND = "min_cosine"
"""The gate once bounded the least cosine of any text, and files of then hold its refusals."""

Results = Sequence[QuantizationBenchmark]


def quantization_reading(files: Mapping[str, Path]) -> str:
    """Return the tables' ranges, and what intervals show."""
    results = [
        QuantizationBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
        for path in files.values()
    ]
    return "\n".join(
        [
            *_earlier_gate(results),
            "What the tables show, of this encoder on this machine:",
            "",
            f"- **Speed.** {_speed(results)}",
            f"- **Where the time goes.** {_kernels(results)}",
            f"- **Static and dynamic.** {_static(results)}",
            f"- **`{FOUR_BIT}`.** {_four_bit(results)}",
            *map(_loss, results),
            *(line for result in results for line in _returned(result)),
            "",
        ]
    )


def _earlier_gate(results: Results) -> list[str]:
    """Return a note on files whose refusals hold a bound that was removed since."""
    earlier = [
        result.comparison.circumstances.task
        for result in results
        if any(EARLIER_BOUND in reason for reason in result.refused.values())
    ]
    if not earlier:
        return []
    return [
        f"The rows of {listed(earlier)} were measured with an earlier parity gate, which bounded "
        "the cosine and the difference of the single worst text. That bound on one text has gone "
        "since; the refusals there are the earlier gate's.",
        "",
    ]


def _in_8_bits(result: QuantizationBenchmark) -> list[ComparisonRow]:
    return [row for row in result.comparison.rows if row.precision == "int8"]


def _speed(results: Results) -> str:
    """Return the range of speedups of the rows in 8 bits, at each length."""
    natural = (
        f"{_range([row.latency.speedup.value for row in _in_8_bits(each)])} on "
        f"{_task(each)} ({each.comparison.circumstances.lengths.mean_tokens:.1f} tokens)"
        for each in results
    )
    long = [
        row.speedup.value
        for each in results
        for row in each.long.rows
        if row.name in {quantized.name for quantized in _in_8_bits(each)}
    ]
    megabytes = [row.size.artifact_size_bytes / MEGABYTE for r in results for row in _in_8_bits(r)]
    first = results[0].comparison.rows[0]
    return (
        f"Rows in 8 bits are {listed(natural)} as fast as `{FLOAT}`, and {_range(long)} at "
        f"{LONG_TOKENS} tokens. They have {span(megabytes, 1)} MB; `{FLOAT}` has "
        f"{first.size.artifact_size_bytes / MEGABYTE:.1f}."
    )


def _task(result: QuantizationBenchmark) -> str:
    return result.comparison.circumstances.task


def _range(values: Sequence[float]) -> str:
    return span(values, 2, "x")


def _kernels(results: Results) -> str:
    """Return the range of times in products and elsewhere, of float32 and of 8 bits."""
    plain = [result.kernels[FLOAT] for result in results]
    ours = [result.kernels[row.name] for result in results for row in _in_8_bits(result)]
    products = [span([each.products_ms for each in own], 1) for own in (plain, ours)]
    elsewhere = [span([each.elsewhere_ms for each in own], 1) for own in (plain, ours)]
    return (
        f"Products take {products[0]} ms in `{FLOAT}` and {products[1]} in 8 bits; everything else "
        f"(normalisation, GELU, softmax, transposing) {elsewhere[0]} and {elsewhere[1]}."
    )


def _static(results: Results) -> str:
    """Compare static scales with dynamic ones at the long length, where both passed."""
    both = [each for each in results if DYNAMIC in {row.name for row in each.long.rows}]
    sentence = []
    for result in both:
        rows = {row.name: row.speedup for row in result.long.rows}
        static = {name: each for name, each in rows.items() if name.startswith(STATIC)}
        apart = [*above(static, rows[DYNAMIC].high), *below(static, rows[DYNAMIC].low)]
        shown = (
            f"the intervals of {ticked(apart)} do not meet its interval"
            if apart
            else "all intervals meet, so that neither is shown to be faster"
        )
        sentence.append(
            f"On {_task(result)}, at {LONG_TOKENS} tokens, `{DYNAMIC}` is {ratio(rows[DYNAMIC])} "
            f"as fast as `{FLOAT}`, static rows "
            f"{_range([each.value for each in static.values()])}; {shown}."
        )
    sentence.append(
        "ONNX Runtime adds the bias of a dynamic product inside its kernel, and that of a QDQ "
        "product after it, which counts as elsewhere."
    )
    return " ".join(sentence)


def _four_bit(results: Results) -> str:
    """Return bytes and speed of weights of 4 bits, where they passed."""
    rows = {
        _task(each): (row, next(long for long in each.long.rows if long.name == FOUR_BIT))
        for each in results
        for row in each.comparison.rows
        if row.name == FOUR_BIT
    }
    if not rows:
        return "Refused on every task."
    speeds = (
        f"{row.latency.speedup.value:.2f}x on {task} and {long.speedup.value:.2f}x at "
        f"{LONG_TOKENS} tokens"
        for task, (row, long) in rows.items()
    )
    megabytes = [row.size.artifact_size_bytes / MEGABYTE for row, _ in rows.values()]
    return (
        f"{span(megabytes, 1)} MB, at {', '.join(speeds)} of the speed of `{FLOAT}`: its weights "
        "are turned back while it multiplies."
    )


def _loss(result: QuantizationBenchmark) -> str:
    """Return whose loss can be distinguished from none on a task, and what was refused there."""
    changes = {row.name: row.change for row in result.comparison.rows if row.change}
    clear = {name: changes[name] for name in [*below(changes), *above(changes)]}
    shown = "".join(
        f" `{name}` changes the score by {points(each)} points." for name, each in clear.items()
    )
    refused = f" Refused: {ticked(result.refused)}." if result.refused else ""
    return (
        f"- **Loss on {_task(result)}.**{shown} No change of the score can be distinguished from "
        f"0 for {ticked(holding(changes))}.{refused}"
    )


def _returned(result: QuantizationBenchmark) -> list[str]:
    """Return, of each scheme that gave parts back, how many and the course of its loss."""
    return [
        f"- **`{name}` on {_task(result)}** gave {len(card['returned'])} of "
        f"{len(card['sensitivity'])} parts back to float; on the way its loss was "
        f"{listed(f'{drop:.1f}' for drop in card['drops'])} points."
        for name, card in result.found.items()
        if card.get("returned")
    ]
