"""The stages of `distill`. What does the work loads PyTorch and is imported where it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bertender.core.artifact import Artifact
from bertender.core.config import on_demand
from bertender.core.errors import ModelError
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.recipes.stage import (
    PRETRAINED,
    TORCH_CLASSIFIER,
    TORCH_MODEL,
    ArtifactFolder,
    Earlier,
    Inputs,
    NamedFile,
    Product,
    Stage,
    TaskData,
    TextFile,
    Want,
    folder_digest,
)
from bertender.tasks.task import Task
from distill.distillation.distill_config import DistillConfig
from distill.distillation.general_config import GeneralConfig
from distill.finetuning.config import (
    BagOfWordsConfig,
    MultiTaskConfig,
    check_distinct,
    check_word_labels,
    sibling_paths,
)
from distill.methods import GENERAL_METHODS, METHODS
from distill.pretraining.config import OBJECTIVES, PretrainConfig
from distill.pretraining.corpus import Corpus, open_corpus, survey
from distill.pruning.config import OF_THE_TASK, PruneConfig

if TYPE_CHECKING:
    from bertender.models.own_models import ExpectedModel

# --- from distill.stages.corpus_text
# The corpus that a setting names.


@dataclass(frozen=True)
class CorpusText:
    """A corpus."""

    corpus: Corpus
    path: None = None

    def check(self) -> None:
        open_corpus(self.corpus.source, self.corpus.text_column)

    def digest(self) -> str:
        return survey(self.corpus).sha256


# --- from distill.stages.encoder_folder
# The encoder that a setting names.
#
# What does the work loads PyTorch and is imported where it runs: settings are read without it.


@dataclass(frozen=True)
class Encoder:
    """An encoder's folder, packaged name or hub name."""

    setting: str
    name: str

    @property
    def path(self) -> Path:
        return Path(self.name)

    def check(self) -> None:
        from distill.teachers.encoders import find_encoder

        find_encoder(self.name, setting=self.setting.replace("_", "-"))

    def digest(self) -> str:
        return folder_digest(self.path)


def expected_encoder(name: str, earlier: Earlier) -> ExpectedModel | None:
    """Return the model that a setting names, where it will be on this machine."""
    from distill.teachers.encoders import located

    return earlier.model_at(located(name))


# --- from distill.stages.baseline
# BASELINE: the bag of words.
#
# What does the work loads scikit-learn and is imported where it runs: settings are read without
# it.


def _baseline(inputs: Inputs, config: BagOfWordsConfig, out: Path) -> Artifact:
    from distill.finetuning.baseline import train_bag_of_words

    return train_bag_of_words(inputs.task, config, out)


BASELINE = Stage(
    name="baseline",
    config=BagOfWordsConfig,
    problem_types=(SINGLE_LABEL.name,),
    function=_baseline,
    sources=(0,),
    makes=lambda config: Product("baseline", "bag-of-words"),
)

# --- from distill.stages.distill
# DISTILL: a student of a teacher, on a task.
#
# What does the work loads PyTorch and is imported where it runs: settings are read without it.


def _distill(inputs: Inputs, config: DistillConfig, out: Path) -> Artifact:
    from distill.distillation.distiller import distill

    return distill(inputs.sources[0], inputs.task, config, out)


def _teacher_and_start(config: DistillConfig, position: int) -> Want:
    return (TORCH_CLASSIFIER, TORCH_MODEL)[position]


def _files(config: DistillConfig) -> Iterator[NamedFile]:
    for setting in ("student", "augmentation_model"):
        if (name := getattr(config, setting)) is not None:
            yield Encoder(setting, name)
    yield from map(ArtifactFolder, config.more_teachers)
    if config.unlabelled is not None:
        yield TextFile("unlabelled", config.unlabelled)


def _check(config: DistillConfig, task: Task) -> None:
    from distill.distillation.on_task import check_can_tag, check_texts_read
    from distill.distillation.start import check_start

    check_start(config.changed_method(), config.student)
    check_texts_read(task, config)
    check_can_tag(config.changed_method(), task)


def _without_layers() -> list[str]:
    """Return the methods whose students have no layers to choose."""
    return [name for name, row in METHODS.items() if "layers" in row.student.lacks]


def _model(config: DistillConfig, earlier: Earlier) -> ExpectedModel | None:
    from distill.distillation.expected import expected_student
    from distill.distillation.start import check_start

    check_start(config.changed_method(), config.student)
    start = None if config.student is None else expected_encoder(config.student, earlier)
    return expected_student(config, earlier.sources[0], start)


DISTILL = Stage(
    name="distill",
    config=DistillConfig,
    function=_distill,
    source="teacher",
    sources=(1, 2),
    wants=_teacher_and_start,
    makes=lambda config: Product("distill", "torch"),
    model=_model,
    fills={1: "student"},
    files=_files,
    texts=on_demand("distill.distillation.texts:texts_of_task"),
    check=_check,
    provides={
        "depth": on_demand("distill.teachers.encoders:depth_of"),
        "without_layers": _without_layers,
    },
)

# --- from distill.stages.finetune
# FINETUNE: a teacher, of one task or of several at once.
#
# What does the work loads PyTorch and is imported where it runs: settings are read without it.


def _finetune(inputs: Inputs, config: MultiTaskConfig, out: Path) -> Artifact:
    from distill.finetuning.finetune import finetune_tasks_by_name

    return finetune_tasks_by_name(inputs.task, config, out)


def _files_finetune(config: MultiTaskConfig) -> Iterator[NamedFile]:
    yield Encoder("teacher", config.teacher)
    yield from map(TaskData, config.more_tasks)


def _check_finetune(config: MultiTaskConfig, task: Task) -> None:
    check_distinct((task.name, *config.more_tasks))
    check_word_labels(task, config)
    for each in config.more_tasks:
        TaskData(each).digest()  # which loads them


FINETUNE = Stage(
    name="finetune",
    config=MultiTaskConfig,
    function=_finetune,
    sources=(0, 1),
    wants=lambda config, position: TORCH_MODEL,
    makes=lambda config: Product("finetune", "torch"),
    model=lambda config, earlier: expected_encoder(config.teacher, earlier),
    fills={0: "teacher"},
    files=_files_finetune,
    check=_check_finetune,
    also_writes=sibling_paths,
)

# --- from distill.stages.general
# DISTILL_GENERAL: a smaller encoder from an encoder, on plain text.
#
# What does the work loads PyTorch and is imported where it runs: settings are read without it.


def _distill_general(inputs: Inputs, config: GeneralConfig, out: Path) -> Artifact:
    from distill.distillation.general import distill_general_by_name

    return distill_general_by_name(config, out)


def _files_general(config: GeneralConfig) -> Iterator[NamedFile]:
    yield Encoder("teacher", config.teacher)
    yield CorpusText(Corpus(config.corpus, config.text_column))


WITHOUT_PREDICTIONS = [
    name for name, row in GENERAL_METHODS.items() if not row.reads_predicted_words
]
PREDICTS_WORDS = Want(
    "a torch model that predicts words",
    lambda made: made.kind == "torch" and made.predicts_words,
    "Give a step of stage pretrain whose objective masks words, or choose a method that does "
    f"not read the teacher's predictions of words: {', '.join(WITHOUT_PREDICTIONS)}.",
)


def _wants(config: GeneralConfig, position: int) -> Want:
    return PREDICTS_WORDS if config.row.reads_predicted_words else TORCH_MODEL


def _makes(config: GeneralConfig) -> Product:
    predicts_words = config.row.predicts_words
    return Product("distill-general", "torch", classifies=False, predicts_words=predicts_words)


def _model_general(config: GeneralConfig, earlier: Earlier) -> ExpectedModel | None:
    from distill.distillation.expected import expected_general_student

    return expected_general_student(config, expected_encoder(config.teacher, earlier))


DISTILL_GENERAL = Stage(
    name="distill-general",
    config=GeneralConfig,
    function=_distill_general,
    sources=(0, 1),
    wants=_wants,
    makes=_makes,
    model=_model_general,
    fills={0: "teacher"},
    files=_files_general,
    needs_task=False,
)

# --- from distill.stages.pretrain
# PRETRAIN: an encoder from plain text.
#
# What does the work loads PyTorch and is imported where it runs: settings are read without it.


def _pretrain(inputs: Inputs, config: PretrainConfig, out: Path) -> Artifact:
    from distill.pretraining.pretrain import pretrain_by_name

    return pretrain_by_name(config, out)


def _files_pretrain(config: PretrainConfig) -> Iterator[NamedFile]:
    if config.stack_from is not None:
        yield ArtifactFolder(config.stack_from)
    yield CorpusText(Corpus(config.corpus, config.text_column))


@dataclass(frozen=True, kw_only=True)
class _Shallower(Want):
    """An encoder of the same shape except for its depth."""

    config: PretrainConfig

    def check(self, source: str, product: Product) -> None:
        from distill.pretraining.pretrain import check_same_shape

        super().check(source, product)
        shallow = product.settings
        assert isinstance(shallow, PretrainConfig)
        families = (OBJECTIVES[each.objective].family for each in (shallow, self.config))
        theirs, own = families
        check_same_shape(f"step {source!r}", theirs, dict(shallow), self.config, own)


def _wants_pretrain(config: PretrainConfig, position: int) -> Want:
    return _Shallower(PRETRAINED.name, PRETRAINED.suits, PRETRAINED.next_step, config=config)


def _makes_pretrain(config: PretrainConfig) -> Product:
    predicts_words = OBJECTIVES[config.objective].predicts_words
    return Product(
        "pretrain", "torch", classifies=False, predicts_words=predicts_words, settings=config
    )


def _model_pretrain(config: PretrainConfig, earlier: Earlier) -> ExpectedModel | None:
    from distill.pretraining.pretrain import expected_pretrained

    return expected_pretrained(config)


PRETRAIN = Stage(
    name="pretrain",
    config=PretrainConfig,
    function=_pretrain,
    sources=(0, 1),
    wants=_wants_pretrain,
    makes=_makes_pretrain,
    model=_model_pretrain,
    fills={0: "stack_from"},
    files=_files_pretrain,
    needs_task=False,
)

# --- from distill.stages.prune
# PRUNE: a classifier with fewer heads, neurons, layers or tokens.
#
# What does the work loads PyTorch and is imported where it runs: settings are read without it.


def _prune(inputs: Inputs, config: PruneConfig, out: Path) -> Artifact:
    from distill.pruning.pruner import prune

    return prune(inputs.sources[0], inputs.task, config, out)


def _files_prune(config: PruneConfig) -> Iterator[NamedFile]:
    """Yield the corpus that the vocabulary is pruned for, the teacher and the unlabelled texts."""
    if config.vocab is not None and config.vocab != OF_THE_TASK:
        yield CorpusText(Corpus(config.vocab))
    if config.teacher is not None:
        yield ArtifactFolder(config.teacher)
    if config.unlabelled is not None:
        yield TextFile("unlabelled", config.unlabelled)


def _check_prune(config: PruneConfig, task: Task) -> None:
    from distill.pruning.pruner import check_vocabulary_stays
    from distill.pruning.rounds import check_unlabelled_read

    check_vocabulary_stays(config, task)
    check_unlabelled_read(task, config)


def _wants_prune(config: PruneConfig, position: int) -> Want:
    if position:  # the teacher of the recovery, which is not cut
        return TORCH_CLASSIFIER
    from distill.pruning.pruner import check_architecture, check_possible

    return replace(
        TORCH_CLASSIFIER,
        class_checks=(partial(check_architecture, config=config),),
        shape_checks=(partial(check_possible, config=config),),
    )


def _least_entries(name: str) -> int:
    """Return how many entries of an encoder's vocabulary stay whatever is cut.

    0 where it cannot be cut: a step that shall cut it says why.
    """
    from bertender.text.tokenizer import load_tokenizer
    from distill.pretraining.vocabulary_cutting import least_entries
    from distill.teachers.encoders import located

    try:
        return least_entries(load_tokenizer(located(name)))
    except ModelError:
        return 0


def _model_prune(config: PruneConfig, earlier: Earlier) -> ExpectedModel | None:
    from distill.pruning.pruner import expected_pruned

    return expected_pruned(config, earlier.sources[0])


PRUNE = Stage(
    name="prune",
    config=PruneConfig,
    function=_prune,
    source="artifact",
    sources=(1, 2),
    wants=_wants_prune,
    makes=lambda config: Product("prune", "torch"),
    model=_model_prune,
    fills={1: "teacher"},
    texts=on_demand("distill.distillation.texts:texts_of_task"),
    files=_files_prune,
    check=_check_prune,
    provides={"least_entries": _least_entries},
)
