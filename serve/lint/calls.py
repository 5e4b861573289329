"""Rules on models that call others: ensembles, and the Python backend of bertender."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from serve.backend.running import ENCODER_OUTPUT
from serve.lint.findings import Fault
from serve.lint.ours import backend_parameters
from serve.lint.reading import ReadModel, ReadRepository


@dataclass(frozen=True)
class _Call:
    """What a model asks of another."""

    field: str
    model: str
    inputs: frozenset[str]
    outputs: frozenset[str]


def called_models(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield calls of models that are not in the repository."""
    for call in _calls(model):
        if call.model not in repository.models:
            allowed = f"a model of the repository: {', '.join(repository.models)}"
            yield Fault(model.config_file, call.field, repr(call.model), allowed)


def called_tensors(model: ReadModel, repository: ReadRepository) -> Iterator[Fault]:
    """Yield calls whose tensors are not those of the model that is called."""
    for call in _calls(model):
        target = repository.models.get(call.model)
        if target is None or target.config is None:
            continue
        inputs = frozenset(each.name for each in target.config.input if not each.optional)
        takes = frozenset(each.name for each in target.config.input)
        gives = frozenset(each.name for each in target.config.output)
        if not inputs <= call.inputs <= takes:
            yield Fault(
                model.config_file,
                call.field,
                f"gives {call.model} the inputs {_listed(call.inputs)}",
                f"its inputs: {_listed(takes)}",
            )
        if not call.outputs <= gives:
            yield Fault(
                model.config_file,
                call.field,
                f"asks {call.model} for {_listed(call.outputs)}",
                f"its outputs: {_listed(gives)}",
            )


def _calls(model: ReadModel) -> Iterator[_Call]:
    assert model.config is not None
    for place, step in enumerate(model.config.ensemble_scheduling.step):
        field = f"ensemble_scheduling.step[{place}]"
        yield _Call(field, step.model_name, frozenset(step.input_map), frozenset(step.output_map))
    parameters = backend_parameters(model)
    if parameters is not None and parameters.encoder is not None:
        yield _Call(
            'parameters["encoder"]',
            parameters.encoder,
            frozenset(parameters.encoder_inputs),
            frozenset({ENCODER_OUTPUT}),
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
