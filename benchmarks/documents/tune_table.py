"""The table of what `bertender tune` tried on a machine, from the file that it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bertender.report.cells import DASH, markdown_rows
from serve.tuning.choice import Tried
from serve.tuning.config import TuneConfig
from serve.tuning.tune import TuneResult

__all__ = ["tune_block"]


def tune_block(file: str, path: Path) -> str:
    """Return every setting with its score, and the choice, as Markdown."""
    result = TuneResult.model_validate_json(path.read_text(encoding="utf-8"))
    headings = ("Setting", "Texts/s", "Over the default", "Once more")
    fresh = {each.name: each for each in result.fresh}
    lines = (headings, *(_row(each, fresh) for each in result.tried))
    first, *rows = ([(cell,) for cell in line] for line in lines)
    table = markdown_rows(first, rows, [False, True, True, True])
    return "\n".join([*table, "", _conditions(result), "", f"Raw: `{file}`", ""])


def _row(tried: Tried, fresh: Mapping[str, Tried]) -> Sequence[str]:
    speed = DASH if tried.texts_per_second is None else f"{tried.texts_per_second:.4g}"
    return tried.name, speed, _ratio(tried), _ratio(fresh.get(tried.name))


def _ratio(tried: Tried | None) -> str:
    return DASH if tried is None or tried.against_default is None else str(tried.against_default)


def _conditions(result: TuneResult) -> str:
    key, conditions = result.profile.key, TuneConfig.model_validate(result.profile.conditions)
    model = key.model
    return (
        f"Chosen: `{result.choice.setting}`: {result.choice.reason}. Requests of "
        f"{_listed(conditions.texts_per_request)} texts from {_listed(conditions.concurrency)} "
        f"clients, texts of {conditions.task}; {conditions.rounds} rounds; a {model.family} model "
        f"of {model.parameters / 1e6:.0f}M parameters, {model.precision} ({model.scheme}). "
        f"{key.machine.cpu_model}, {key.machine.cores} cores, {key.machine.runtime} "
        f"{key.machine.runtime_version}; in the busiest start, {result.load}."
    )


def _listed(values: Sequence[int]) -> str:
    return " and ".join(map(str, values))
