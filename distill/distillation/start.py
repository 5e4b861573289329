"""The start of a student: the teacher or another encoder, and the student's tokens."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.errors import ConfigError, DataError, ModelError
from bertender.core.findings import VocabularyFindings
from bertender.models.families import FAMILIES, family_name
from bertender.models.family import UNKNOWN_LAYERS
from bertender.models.own_models import ExpectedModel, without_weights
from bertender.tasks.task import Split, Task
from bertender.text.tokenizer import load_tokenizer
from bertender.training.checkpoint import start_digest, tensors_digest
from bertender.training.heads import head_of
from distill.distillation.config import ALL_TOKENS, DistillConfig, StudentConfig
from distill.distillation.distillation import check_compatible
from distill.losses.signals import ATTENTION_SIGNALS
from distill.methods import METHODS
from distill.methods.method import Method
from distill.pretraining.vocabulary_cutting import (
    RemainingTokens,
    check_padding_stays,
    cut_and_read,
    needed_tokens,
    whole_words,
)
from distill.students import StudentKind
from distill.students.weights import with_head
from distill.teachers.encoders import Teacher, find_encoder, load_classifier, load_to_learn
from distill.teachers.files import FileTeacher
from distill.tokenizers import TokenUse, fitting_tokenizer, read_alike, token_use
from distill.trained import Tensors, load_projections

logger = logging.getLogger(__name__)

ENOUGH = 0.99
"""Least share of words of unseen texts that keep all their tokens. One word in a hundred is one in
every eighth sentence, and it is still read, in smaller tokens."""
WORTHWHILE = 0.9
"""Largest share of remaining entries at which a vocabulary is cut by default."""


@dataclass(frozen=True)
class Start:
    """The model that the student starts from: the teacher, or another encoder."""

    source: str
    model: PreTrainedModel
    digest: str
    reads_teacher_tokens: bool = True
    is_teacher: bool = False
    projections: Tensors = field(default_factory=dict)
    """Projections of this encoder's states to the width of its own earlier teacher."""


def new_student(
    teacher: Teacher | FileTeacher, method: Method, task: Task, config: DistillConfig
) -> tuple[Start, PreTrainedModel]:
    """Return the start and an untrained student that fits the teacher.

    Args:
        teacher: teacher, and start where the config names no encoder.
        method: kind of student, and its terms.
        task: gives the texts per example, and the texts whose tokens some students count.
        config: shape of the student.

    Raises:
        ConfigError, ModelError: errors of `find_start`; or the start allows no such student, or
            the method cannot compare the student with this teacher.
    """
    torch.manual_seed(config.seed)  # weights that do not come from the start are random
    start = find_start(teacher, method, config.student, task)
    tokens = None
    if method.student.counts_tokens:
        tokenizer = fitting_tokenizer(start.source, start.model, finished=start.is_teacher)
        tokens = token_use(tokenizer, task.train.examples)
    student = build_student(
        start.model,
        method,
        config,
        texts=min(len(task.text_columns), 2),  # of a row: a choice is read beside its question
        own_start=not start.is_teacher,
        tokens=tokens,
    )
    head = head_of(task.problem)
    student = with_head(student, head)
    check_compatible(method, student, teacher.model)
    check_not_copy(student, teacher.model, config)
    if head.per_token and method.needs and not start.reads_teacher_tokens:
        raise ModelError(
            f"student={start.source!r}: a tagger learns token by token, so that "
            "teacher and student must read the same ones, and these do not. Leave it out, or give "
            "an encoder with the teacher's vocabulary."
        )
    return start, student


def find_start(
    teacher: Teacher | FileTeacher, method: Method, student: str | None, task: Task
) -> Start:
    """Load the start: the encoder named `student`, or else the teacher. A teacher of one of several
    heads gives only its encoder.

    An encoder's tokenizer gets the same settings as the tokenizers of the problem's teachers.

    Raises:
        ModelError: the encoder does not exist, or its projections are damaged; or its tokens
            differ from the teacher's and the method compares single tokens; or the teacher's
            architecture gives logits alone and the method needs more.
    """
    if isinstance(teacher, Teacher):
        check_teacher(teacher.model.config, method, student)
    if student is None:
        assert isinstance(teacher, Teacher)  # `check_own_start`
        artifact = teacher.artifact
        check_even_start(teacher.model.config, method)
        model = teacher.model
        if teacher.head is not None:
            model, _ = load_classifier(str(artifact.path), task.labels, task.problem)
        return Start(str(artifact.path), model, "", is_teacher=True)
    source = find_encoder(student, setting="student")
    model, tokenizer = load_to_learn(source, task)
    check_even_start(model.config, method)
    same = False
    if isinstance(teacher, Teacher):
        same = read_alike(tokenizer, load_tokenizer(teacher.path), task.train.examples)
    if method.wants_teacher_tokens and not same:
        free = [name for name, row in METHODS.items() if not row.wants_teacher_tokens]
        raise ModelError(
            f"student={student!r}: method {method.name!r} compares single tokens, so that "
            "teacher and student must read the same tokens, and these do not. Methods that compare "
            f"whole texts: {', '.join(free)}; or distilbert with weights cosine=0."
        )
    projections = load_projections(source, method.name)
    digest = start_digest(model, tokenizer) + tensors_digest(projections)
    return Start(source, model, digest, reads_teacher_tokens=same, projections=projections)


def build_student(
    start: PreTrainedModel,
    method: Method,
    config: StudentConfig,
    *,
    texts: int = 1,
    own_start: bool = False,
    tokens: TokenUse | None = None,
) -> PreTrainedModel:
    """Build the untrained student of a config, with a head that labels texts.

    Args:
        start: model to start from.
        method: kind of student.
        config: shape of the student.
        texts: number of texts in an example.
        own_start: whether `start` is an encoder of the student's own, not the teacher.
        tokens: token counts of the texts, for students that need them.

    Raises:
        ModelError: this start allows no such student.
    """
    depth: int = start.config.num_hidden_layers
    shape = config.shape(method, depth, texts, own_start=own_start)
    return method.build(start, replace(shape, tokens=tokens))


def expected_student(
    config: DistillConfig, teacher: ExpectedModel | None, start: ExpectedModel | None
) -> ExpectedModel | None:
    """Return the expected student of a distillation that has not run, as far as it is known.

    The checks of `distill` on the teacher's architecture and shape run here too, before a recipe
    trains the teacher. The student is built without weights.

    Args:
        config: settings of `distill`.
        teacher: expected teacher, as far as it is known.
        start: expected model of `config.student`; None where it is unset or unknown.

    Raises:
        ConfigError, ModelError: errors that `distill` would raise for these models.
    """
    method = config.changed_method()
    check_start(method, config.student)
    if teacher is not None:
        check_teacher(teacher.model.config, method, config.student)
    source = teacher if config.student is None else start
    if source is not None:
        check_even_start(source.model.config, method)
    if source is None or not source.shape_known:
        return expected_of_kind(method.student)
    own_start, model = config.student is not None, source.model
    student = without_weights(lambda: build_student(model, method, config, own_start=own_start))
    if student is None:
        return expected_of_kind(method.student)
    if teacher is not None and teacher.shape_known:
        check_compatible(method, student, teacher.model)
        if not own_start:
            check_not_copy(student, teacher.model, config)
    return ExpectedModel.of(student.config)


def expected_of_kind(kind: StudentKind) -> ExpectedModel | None:
    """Return the expected model of a student of which only the kind is known."""
    return None if kind.model_type is None else ExpectedModel.of_type(kind.model_type)


def check_start(method: Method, student: str | None) -> None:
    """Raise where the setting `student` does not fit the start that a method needs.

    Raises:
        ConfigError: the method needs an encoder, and `student` names none.
        ModelError: the method starts from the teacher, and `student` names an encoder.
    """
    if student is None and method.student.wants_own_start:
        raise ConfigError(
            f"method {method.name!r} needs a small pre-trained student of its own: give student, "
            "a folder, an artifact of `bertender pretrain` or `bertender distill-general`, or a "
            "hub name."
        )
    if student is not None and method.uses_teacher_layers:
        raise ModelError(
            f"student={student!r}: method {method.name!r} replaces the teacher's own layers, so "
            "that its student starts from the teacher. Leave it out."
        )


def check_teacher(config: PretrainedConfig, method: Method, student: str | None) -> None:
    """Raise ModelError where a method needs more than the teacher's architecture gives."""
    reads_logits_alone = method.needs <= {"logits"} and not method.uses_teacher_layers
    if family_name(config) in FAMILIES or (student and reads_logits_alone):
        check_even_teacher(config, method)
        check_replaceable_layers(config, method)
        return
    others = method.weights_for_logits_alone
    weights = ",".join(f"{name}=0" for name in others or ())
    own = f"{method.name} with weights {weights}" if weights else method.name
    works = own if others is not None else "distilbert with weights cosine=0"
    signals = (name.replace("_", " ") for name in sorted(method.needs - {"logits"}))
    wants = "its layers" if method.uses_teacher_layers else " and ".join(signals)
    raise ModelError(
        f"of a {config.model_type!r} teacher only the logits can be learned from, since "
        f"{UNKNOWN_LAYERS}; method {method.name!r} needs "
        f"{wants or 'a student that starts from them'}. The nearest that works: {works}, with a "
        "student of its own: give student, an encoder's folder, packaged or hub name."
    )


def check_replaceable_layers(config: PretrainedConfig, method: Method) -> None:
    """Raise ModelError where a method replaces layers of a teacher that cannot be replaced."""
    family = FAMILIES.get(family_name(config))
    if method.uses_teacher_layers and family and family.fixed_layers:
        raise ModelError(
            f"method {method.name!r} replaces the teacher's layers while it trains, and in a "
            f"{config.model_type!r} model {family.fixed_layers}. Choose another method, such as "
            "distilbert."
        )


def check_even_teacher(config: PretrainedConfig, method: Method) -> None:
    """Raise ModelError where a method reads attention of a teacher with pruned heads or neurons."""
    reads_layers = bool(method.needs & ATTENTION_SIGNALS) or method.uses_teacher_layers
    if family_name(config) != config.model_type and reads_layers:
        raise ModelError(
            f"the layers of a {config.model_type!r} teacher are not alike, and method "
            f"{method.name!r} reads them. Distil the unpruned model, or choose a method that reads "
            "logits and hidden states alone, such as distilbert."
        )


def check_even_start(config: PretrainedConfig, method: Method) -> None:
    """Raise ModelError where a student would start from layers that are not alike."""
    if family_name(config) != config.model_type and method.student.starts_from_layers:
        raise ModelError(
            f"the layers of a {config.model_type!r} model are not alike, so that no student of "
            f"method {method.name!r} can start from it. Distil first and prune the student; or "
            "give student, an encoder that was not pruned."
        )


def check_not_copy(
    student: PreTrainedModel, teacher: PreTrainedModel, config: DistillConfig
) -> None:
    """Raise ModelError where the student is as large as the teacher and `layers` is not set.

    For a student that starts from another encoder, only a warning is logged.
    """
    alike = type(student) is type(teacher) and student.num_parameters() == teacher.num_parameters()
    if not alike or config.layers is not None:
        return
    large = f"as large as the teacher, of {student.config.num_hidden_layers} layers"
    if config.student is None:
        raise ModelError(
            f"method {config.method!r}: its student would be {large}. Give layers, or another "
            "method."
        )
    logger.warning("student=%s: it is %s. Give layers for a smaller one", config.student, large)


@dataclass(frozen=True)
class StudentTokens:
    """A student's tokenizer and its remaining tokens."""

    whole: PreTrainedTokenizerBase
    """Tokenizer of the model that the student starts from."""
    remaining: RemainingTokens | None = None
    """None where all tokens remain."""
    cut_after_training: bool = False

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that the student learns with."""
        return self.remaining.tokenizer if self.cut_first and self.remaining else self.whole

    @property
    def cut_first(self) -> bool:
        """Whether the student learns with fewer tokens from its first step."""
        return self.remaining is not None and not self.cut_after_training

    def cut(self, student: PreTrainedModel, task: Task) -> VocabularyFindings | None:
        """Cut the student's embedding tables in place; return how held-out texts are then read."""
        if self.remaining is None:
            return None
        return cut_and_read(student, self.whole, self.remaining, task.dev.texts())


def student_tokens(
    whole: PreTrainedTokenizerBase,
    student: PreTrainedModel,
    learned: Split,
    task: Task,
    config: DistillConfig,
    *,
    cut_first: bool,
) -> StudentTokens:
    """Return the tokens of an untrained student.

    By default all tokens of the training texts stay, and the others go if these suffice: a share
    ENOUGH of the words of the validation texts must keep all their tokens. A method that compares
    whole texts trains the smaller table from the first step, which is faster. A method that
    compares tokens needs the teacher's, so the unused tokens, which learn nothing, are cut after
    training.

    Args:
        whole: tokenizer of the start.
        student: untrained model.
        learned: training texts, with unlabelled texts and augmented copies.
        task: its validation texts decide whether the tokens suffice.
        config: size of the vocabulary.
        cut_first: whether the student may train without the other tokens.

    Raises:
        ConfigError, ModelError: a number of entries is set, and the vocabulary cannot be cut, or
            not to so few.
    """
    floor, most = config.vocab_floor, config.most_entries
    if most is not None:
        return StudentTokens(whole, needed_tokens(whole, learned.texts(), floor, most))
    if config.vocab_size == ALL_TOKENS or task.problem.keeps_vocabulary:
        return StudentTokens(whole)
    try:
        tokens = needed_tokens(whole, learned.texts(), floor)
        check_padding_stays(student, tokens)
    except (DataError, ModelError) as error:  # no text has a token, or the kind cannot be cut
        logger.info("the vocabulary stays whole: %s", error)
        return StudentTokens(whole)
    entries, before = len(tokens.rows), len(whole)
    if entries > WORTHWHILE * before or not len(task.choices):
        return StudentTokens(whole)
    share = whole_words(whole, tokens, task.choices.texts())
    if share < ENOUGH:
        logger.warning(
            "the vocabulary stays whole: of the words of the validation texts, %.1f %% have all "
            "their tokens in the texts that the student learns from, and a cut to %d of %d tokens "
            "wants %g %%. Give more texts (--unlabelled), or --vocab-size %d to cut it all the "
            "same",
            *(100 * share, entries, before, 100 * ENOUGH, entries),
        )
        return StudentTokens(whole)
    logger.info("the vocabulary is cut to %d of %d tokens: %.1f %%", entries, before, 100 * share)
    return StudentTokens(whole, tokens, cut_after_training=not cut_first)
