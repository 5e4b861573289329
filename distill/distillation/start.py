"""The start of a student: the teacher or another encoder, and the tokens that it learns with."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DataError, ModelError
from bertender.core.findings import VocabularyFindings
from bertender.models.families import FAMILIES, family_name
from bertender.models.family import UNKNOWN_LAYERS
from bertender.models.own_models import ExpectedModel, without_weights
from bertender.tasks.task import Split, Task
from bertender.text.tokenizer import load_tokenizer
from bertender.training.checkpoint import tensors_digest
from bertender.training.heads import head_of
from distill.distillation.config import ALL_TOKENS, NO_START, DistillConfig, StudentConfig
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
from distill.teachers.encoders import Teacher, find_encoder, load_classifier
from distill.teachers.files import FileTeacher
from distill.tokenizers import TokenUse, fitting_tokenizer, token_use
from distill.trained import Tensors, load_projections

logger = logging.getLogger(__name__)

ENOUGH = 0.99
"""Least share of the words of unseen texts that stay whole. One word of a hundred is one of every
eighth sentence, and it is still read, in smaller tokens."""
WORTHWHILE = 0.9
"""Most of the entries that remain of a vocabulary that is cut by default."""


@dataclass(frozen=True)
class Start:
    """Source that the student starts from: the teacher, or another encoder."""

    source: str
    model: PreTrainedModel
    digest: str
    reads_teacher_tokens: bool = True
    is_teacher: bool = False
    projections: Tensors = field(default_factory=dict)
    """What brought the states of this encoder to its own teacher's width."""


def new_student(
    teacher: Teacher | FileTeacher, method: Method, task: Task, config: DistillConfig
) -> tuple[Start, PreTrainedModel]:
    """Return where a student starts, and the student, untrained, which its teacher can serve.

    Args:
        teacher: what it learns from, and starts from where the config names no encoder.
        method: its student and terms.
        task: how many texts an example has, and those whose tokens some kinds count.
        config: the shape.

    Raises:
        ConfigError, ModelError: what `find_start` raises; or no such student can be made of it, or
            the method cannot compare it with this teacher.
    """
    torch.manual_seed(config.seed)  # what the student does not take from elsewhere is random
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
    """Load what the student starts from: the encoder named `student`, or else the teacher; one of
    one head alone gives its encoder, and no head.

    An encoder is read as the problem's teachers are: its tokenizer has the settings of theirs.

    Raises:
        ModelError: it is not there, or its projections are damaged; or it reads other tokens than
            the teacher and the method compares single tokens; or the teacher is of an architecture
            that gives no more than logits, and more is asked of it.
    """
    if isinstance(teacher, Teacher):
        check_teacher(teacher.model.config, method, student)
    if student is None:
        artifact = _model_of(teacher)
        check_even_start(teacher.model.config, method)
        model = teacher.model
        if teacher.head is not None:
            model, _ = load_classifier(str(artifact.path), task.labels, task.problem)
        return Start(str(artifact.path), model, "", is_teacher=True)
    source = find_encoder(student, setting="student")
    model, tokenizer = load_classifier(source, task.labels, task.problem)
    check_even_start(model.config, method)
    same = False
    if isinstance(teacher, Teacher):
        others = load_tokenizer(teacher.path)
        around = [each("a", "b")["input_ids"] for each in (tokenizer, others)]
        same = tokenizer.get_vocab() == others.get_vocab() and around[0] == around[1]
    if method.wants_teacher_tokens and not same:
        free = [name for name, row in METHODS.items() if not row.wants_teacher_tokens]
        raise ModelError(
            f"student={student!r}: method {method.name!r} compares single tokens, so that "
            "teacher and student must read the same tokens, and these do not. Methods that compare "
            f"whole texts: {', '.join(free)}; or distilbert with weights cosine=0."
        )
    projections = load_projections(source, method.name)
    digest = tensors_digest({**model.base_model.state_dict(), **projections})
    return Start(source, model, digest, reads_teacher_tokens=same, projections=projections)


def _model_of(teacher: Teacher | FileTeacher) -> Artifact:
    """Return the teacher's artifact, or raise ConfigError where it is a file."""
    if isinstance(teacher, FileTeacher):
        raise ConfigError(NO_START.format(teacher.path))
    return teacher.artifact


def build_student(
    start: PreTrainedModel,
    method: Method,
    config: StudentConfig,
    *,
    texts: int = 1,
    own_start: bool = False,
    tokens: TokenUse | None = None,
) -> PreTrainedModel:
    """Build the student of a config, untrained, under a head that labels texts.

    Args:
        start: what it starts from.
        method: its student.
        config: the shape.
        texts: of an example.
        own_start: whether `start` is an encoder of the student's own, not the teacher.
        tokens: of the texts, for a kind that counts them.

    Raises:
        ModelError: no such student can be made of this start.
    """
    depth: int = start.config.num_hidden_layers
    shape = config.shape(method, depth, texts, own_start=own_start)
    return method.build(start, replace(shape, tokens=tokens))


def expected_student(
    config: DistillConfig, teacher: ExpectedModel | None, start: ExpectedModel | None
) -> ExpectedModel | None:
    """Return the student of a distillation that has not begun, as far as it is known.

    What `distill` refuses of a teacher's architecture and shape is refused here by the same
    functions, before a recipe trains the teacher. The student is built without weights.

    Args:
        config: the settings of `distill`.
        teacher: as far as it is known.
        start: what `config.student` names, likewise; None where it names nothing.

    Raises:
        ConfigError, ModelError: what `distill` raises of these models.
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
    """Return a student of which no more is known than its kind."""
    return None if kind.model_type is None else ExpectedModel.of_type(kind.model_type)


def check_start(method: Method, student: str | None) -> None:
    """Raise where a method's student cannot start from what `student` names, or from the teacher.

    Raises:
        ConfigError: the method wants an encoder, and none is named.
        ModelError: the student starts from the teacher, and another encoder is named.
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
    """Raise ModelError where a method reads more of a teacher than its architecture gives."""
    reads_logits_alone = method.needs <= {"logits"} and not method.uses_teacher_layers
    if family_name(config) in FAMILIES or (student and reads_logits_alone):
        check_even_teacher(config, method)
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


def check_even_teacher(config: PretrainedConfig, method: Method) -> None:
    """Raise ModelError where attention is read of a teacher whose heads or neurons were pruned."""
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
    """Raise ModelError where the student would not be smaller and no setting asks for that.

    An encoder that the student starts from may be so large; then only a warning is logged.
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
    """A student's tokenizer, and the tokens that remain of it."""

    whole: PreTrainedTokenizerBase
    """Tokenizer of the model that the student starts from."""
    remaining: RemainingTokens | None = None
    """None where all do."""
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
        """Cut the student's tables in place; return how held-out texts are read then."""
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
    """Return the tokens of a student that has not learned yet.

    By default every token stays that the texts have, so that they are read as before, where these
    are enough: of the words of the validation texts, ENOUGH must stay whole. A method that
    compares whole texts trains the smaller table from its first step, which is quicker. One that
    compares tokens needs the teacher's: what no text has is cut after the training, where it has
    learned nothing.

    Args:
        whole: the tokenizer of what it starts from.
        student: the model.
        learned: the texts that it learns from, those without labels and rewritten ones too.
        task: its validation texts say whether these are enough.
        config: the size.
        cut_first: whether it may learn without the other tokens.

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
    except (DataError, ModelError) as error:  # no text has a token, or its kind cannot be cut
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
