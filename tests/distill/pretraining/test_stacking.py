"""Progressive stacking: a deeper encoder starts as copies of a shallower one, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.models.families import encoder_layers
from bertender.text.tokenizer import load_tokenizer
from distill.pretraining.config import OBJECTIVES, PretrainConfig
from distill.pretraining.pretrain import (
    TRAINING_MODULES,
    encoder_config,
    positions_of_shallow,
    pretrain,
    stack,
)
from tests.distill.pretraining.settings import BRIEF, OPENS_AS, with_phrases
from tests.quick import quick
from tests.toys import passages

SHALLOW = {**BRIEF, "layers": 2}


@pytest.fixture(scope="module", params=quick(OBJECTIVES, "mlm", "mlm+sop", "rtd"))
def shallow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """An encoder of two layers, by each objective."""
    folder = tmp_path_factory.mktemp("stacking")
    config = PretrainConfig(**SHALLOW, **with_phrases(request.param, folder))
    return pretrain(passages(100), config, folder / "shallow")


def deeper(shallow: Artifact, **changes: Any) -> PretrainConfig:
    saved = shallow.card.config
    own = {name: saved[name] for name in ("objective", "phrases") if saved.get(name)}
    settings = {**SHALLOW, **own, "layers": 5}
    return PretrainConfig(**{**settings, "stack_from": shallow.path, **changes})


def grown(shallow: Artifact, config: PretrainConfig) -> PreTrainedModel:
    """The deeper model before its own training."""
    shape = encoder_config(config, load_tokenizer(shallow.path), positions_of_shallow(shallow))
    torch.manual_seed(9)
    model = TRAINING_MODULES[config.objective].untrained(shape)
    stack(model, shallow)
    return model


@pytest.mark.parametrize("layers", [3, 4, 5])
def test_layers_repeat_and_all_else_is_taken_over(shallow: Artifact, layers: int) -> None:
    model = grown(shallow, deeper(shallow, layers=layers))
    opened = OPENS_AS[shallow.card.config["objective"]].from_pretrained(shallow.path)
    sources, targets = encoder_layers(opened), encoder_layers(model)
    assert len(targets) == layers
    for index, layer in enumerate(targets):
        for key, weight in layer.state_dict().items():
            assert torch.equal(weight, sources[index % 2].state_dict()[key]), (index, key)
    own = model.state_dict()
    others = {k: w for k, w in opened.state_dict().items() if ".layer" not in k}
    assert others and all(torch.equal(own[key], weight) for key, weight in others.items())


def test_copies_are_not_the_same_weights(shallow: Artifact) -> None:
    """Each layer learns on its own, but for ALBERT, which has one."""
    layers = encoder_layers(grown(shallow, deeper(shallow)))
    shared = shallow.card.family == "albert"
    assert len({id(layer) for layer in layers}) == (1 if shared else 5)


def test_a_deeper_encoder_is_trained_with_the_shallow_ones_vocabulary(
    shallow: Artifact, tmp_path: Path
) -> None:
    other_words = [f"{text} {number}" for number, text in enumerate(passages(100))]
    artifact = pretrain(other_words, deeper(shallow), tmp_path / "deep")
    assert artifact.card.parent is not None and artifact.card.parent.digest == shallow.digest
    assert load_tokenizer(artifact.path).get_vocab() == load_tokenizer(shallow.path).get_vocab()
    model = OPENS_AS[shallow.card.config["objective"]].from_pretrained(artifact.path)
    assert model.config.num_hidden_layers == 5


MISFITS = [
    ({"hidden_size": 64}, r"hidden_size=64: stack_from=.* has hidden_size=32"),
    ({"heads": 4}, r"heads=4: stack_from=.* has heads=2"),
    ({"vocabulary_size": 300}, r"vocabulary_size=300: stack_from=.* has vocabulary_size=200"),
    (
        {"tokenizer": "bpe", "vocabulary_size": 500},
        r"tokenizer=bpe: stack_from=.* has tokenizer=wordpiece",
    ),
    ({"layers": 2}, r"layers=2: stack_from=.* has 2 already"),
    ({"max_length": 256}, r"max_length=256: stack_from=.* has positions for 128 tokens only"),
    ({"objective": "rtd"}, r"of family 'bert', and objective 'rtd' trains one of 'electra'"),
    ({"objective": "mlm+sop"}, r"of family 'bert', and objective 'mlm\+sop' trains .* 'albert'"),
]


@pytest.mark.parametrize("shallow", ["mlm"], indirect=True)
@pytest.mark.parametrize(("changes", "said"), MISFITS, ids=lambda value: str(value)[:20])
def test_what_does_not_fit_is_refused(
    shallow: Artifact, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        pretrain(passages(100), deeper(shallow, **changes), tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_a_classifier_is_nothing_to_grow_from(teacher: Artifact, tmp_path: Path) -> None:
    config = PretrainConfig(**{**SHALLOW, "layers": 8, "stack_from": teacher.path})
    with pytest.raises(ConfigError, match=r"of stage 'finetune'. Give one of `pretrain`"):
        pretrain(passages(100), config, tmp_path / "out")
