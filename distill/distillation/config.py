"""Settings of `distill` and `distill-general`, and their conflicts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    NonNegativeFloat,
    model_validator,
)

from bertender.core.config import Rule, parts_of
from bertender.core.errors import BertenderError, ConfigError, UnknownNameError, nearest_hint
from bertender.tasks.named import TASKS
from bertender.tasks.teacher_files import (
    CONFIDENCE,
    GOLD,
    PREDICTED,
    PROBABILITIES,
    VOTES,
    TeacherColumns,
    is_teacher_file,
)
from bertender.training.config import JudgedConfig, TaskTrainingConfig, TrainingConfig
from distill.augmentation.config import AugmentedConfig
from distill.losses.terms import LAYER_MAPS
from distill.methods import AUTO, GENERAL_METHODS, METHODS, automatic_settings
from distill.methods.method import Method
from distill.pretraining.config import CORPUS_HELP, TEXT_COLUMN_HELP
from distill.students import START_LAYERS, StudentShape

ALL_TOKENS = "all"
AUTO_VOCABULARY = "auto"
"""Keep the tokens of the training texts, where these suffice (`distillation.start`)."""
MASK_PROBABILITY = 0.15
VOCABULARY_SIZE = 4928
WITH_LINEAR_HEAD = [name for name, row in METHODS.items() if row.student.linear_head]
_WITH_TEXTS = [name for name, row in TASKS.items() if row.has_unlabelled]


def _parse_weights(value: Any) -> Any:
    """Read "soft=0.7,hard=0.3" as a mapping."""
    if not isinstance(value, str):
        return value
    pairs = [pair.partition("=") for pair in value.split(",")]
    return {name.strip(): number for name, _, number in pairs}


def _parse_teacher_layers(value: Any) -> Any:
    """Read "1,3,5" as numbers, "" as None, and keep a name of START_LAYERS."""
    parts = parts_of("" if value is None else value)
    if not isinstance(parts, list | tuple):
        parts = (parts,)
    if len(parts) == 1 and parts[0] in START_LAYERS:
        return parts[0]
    if not all(str(part).isdigit() for part in parts):
        raise ConfigError(
            f"teacher_layers={value!r}: give numbers from 0, as 1,3,5, or one of "
            f"{', '.join(START_LAYERS)}.{nearest_hint(str(value), START_LAYERS)}"
        )
    return tuple(int(part) for part in parts) or None


_TeacherLayers = Annotated[tuple[int, ...] | str | None, BeforeValidator(_parse_teacher_layers)]


def methods_own(rows: Mapping[str, Method]) -> dict[str, str]:
    """Return the help text in place of the defaults that some of these methods change."""
    names = {name for row in rows.values() for name in row.settings}
    return dict.fromkeys(sorted(names), "the method's own")


def _lacking(config: StudentConfig) -> list[str]:
    """Return the explicit shape settings that the method's student does not have."""
    explicit = [
        name for name in sorted(config.row.student.lacks) if getattr(config, name) is not None
    ]
    return [name for name in explicit if name != "layers" or config.layers != 1]


def _relation_heads(config: StudentConfig) -> int:
    """Return the explicit number of relation heads, or the method's; 1 where it has none."""
    own = (getattr(term, "relation_heads", None) for term in config.row.terms if term.weight)
    return config.relation_heads or max(filter(None, own), default=1)


def _needs_earlier_phases(setting: str) -> Rule[StudentConfig]:
    """Return the rule that a setting of earlier phases needs a method with such phases."""
    last = setting.removeprefix("earlier_")
    return Rule(
        lambda config: not config.changed_method().has_phases,
        f"method {{method!r}} has one phase only, for {last}. Leave it out.",
        frozenset({setting}),
        beyond_default=True,
    )


def _change_error(config: StudentConfig) -> str:
    """Return why the method's terms cannot be changed as set; empty if they can."""
    try:
        config.changed_method()
    except BertenderError as error:
        return str(error)
    return ""


def _parse_vocab_size(value: Any) -> Any:
    """Read "8000" as a number, None as all tokens, and keep `all` and `auto`."""
    if value is None:
        return ALL_TOKENS
    if value in (ALL_TOKENS, AUTO_VOCABULARY):
        return value
    if isinstance(value, bool) or not str(value).isdigit() or int(value) < 1:
        raise ConfigError(
            f"vocab_size={value!r}: give a number of entries from 1, {AUTO_VOCABULARY} or "
            f"{ALL_TOKENS}."
        )
    return int(value)


class PhasedConfig(TrainingConfig):
    """Settings of training in phases; the fields of TrainingConfig apply to the last phase."""

    panel: ClassVar[str] = "Training"

    earlier_epochs: int | None = Field(
        None, ge=1, description="epochs of each phase before the last, in methods that have some"
    )
    earlier_learning_rate: float | None = Field(
        None, gt=0, description="learning rate of the phases before the last"
    )


STUDENT_RULES: Mapping[str, Rule[StudentConfig]] = {
    "unknown loss terms": Rule(lambda config: bool(_change_error(config)), _change_error),
    "epochs without earlier phases": _needs_earlier_phases("earlier_epochs"),
    "learning rate without earlier phases": _needs_earlier_phases("earlier_learning_rate"),
    "wrong number of layers to start from": Rule(
        lambda config: bool(
            config.row.student.layer_by_layer
            and config.layers
            and config.numbered_layers not in (0, config.layers)
        ),
        "teacher_layers={teacher_layers}: give {layers}, one for each of the student's layers, or "
        "leave it out for the method's choice.",
    ),
    "named layers to average": Rule(
        lambda config: (
            isinstance(config.teacher_layers, str)
            and not config.row.student.layer_by_layer
            and "teacher_layers" not in config.row.student.lacks
        ),
        "teacher_layers={teacher_layers}: the student of method {method!r} starts from the mean of "
        "layers. Give their numbers, as 1,3,5, or leave it out for all of them.",
    ),
    "shape settings that the student lacks": Rule(
        lambda config: bool(_lacking(config)),
        lambda config: (
            f"{config.as_set(_lacking(config))}: the student of method {config.method!r} has no "
            "such part to choose. Leave it out, or choose another method."
        ),
    ),
    "no feed-forward part": Rule(
        lambda config: config.feed_forward_size == 0 and not config.row.student.linear_head,
        lambda config: (
            f"feed_forward_size=0: the student of method {config.method!r} needs its feed-forward "
            f"part; students of {', '.join(WITH_LINEAR_HEAD)} do without. Give 1 or more, "
            "or leave it out."
        ),
    ),
    "heads that do not divide": Rule(
        lambda config: bool(
            config.row.student.heads_divide_width
            and config.hidden_size
            and config.heads
            and config.hidden_size % config.heads
        ),
        "hidden_size={hidden_size} is not a multiple of heads={heads}. Choose heads to divide it.",
    ),
    "relation heads that do not divide": Rule(
        lambda config: bool(config.hidden_size and config.hidden_size % _relation_heads(config)),
        lambda config: (
            f"relation_heads={_relation_heads(config)} must divide the widths of both models, and "
            f"hidden_size={config.hidden_size} is not a multiple of it. Choose other "
            "relation_heads, or another hidden_size."
        ),
    ),
}


class StudentConfig(PhasedConfig):
    """Settings of a student. By default each has the method's own value."""

    panel: ClassVar[str] = "Student"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Losses": ("temperature", "weights", "layer_map", "relation_heads"),
    }
    rules: ClassVar[Mapping[str, Rule[Any]]] = STUDENT_RULES

    rows: ClassVar[Mapping[str, Method]] = METHODS
    """Methods of this kind of distillation."""
    shown_defaults: ClassVar[Mapping[str, str]] = methods_own(METHODS)

    method: str = Field(
        AUTO, description="a name from `bertender methods`; auto chooses by what there is"
    )
    layers: int | None = Field(
        None,
        ge=1,
        description="the student's layers; by default all of another start's, of the teacher's "
        "half or as many as the method sets",
    )
    hidden_size: int | None = Field(
        None,
        ge=8,
        description="the student's width; by default that of the model that it starts from",
    )
    heads: int | None = Field(
        None, ge=1, description="the student's heads; the teacher's by default"
    )
    feed_forward_size: int | None = Field(
        None,
        ge=0,
        description="width of the student's feed-forward part; by default 4 x its input; 0 where "
        "the head may be linear",
    )
    teacher_layers: _TeacherLayers = Field(
        None,
        description="teacher layers that the student starts from, as 1,3,5, or "
        f"{', '.join(START_LAYERS)}; the method's choice by default",
    )
    temperature: float | None = Field(
        None,
        gt=0,
        description="softness of the teacher's distribution; the method's own by default",
    )
    weights: Annotated[dict[str, NonNegativeFloat], BeforeValidator(_parse_weights)] = Field(
        default_factory=dict, description="change loss weights, as soft=0.7,hard=0.3,cosine=0"
    )
    layer_map: Annotated[str | None, LAYER_MAPS.validator()] = Field(
        None, description=f"which layers are matched: {', '.join(LAYER_MAPS)}"
    )
    relation_heads: int | None = Field(
        None, ge=1, description="heads that relations are cut into; the method's own by default"
    )

    @model_validator(mode="wrap")
    @classmethod
    def _with_method_defaults(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Fill in the choices of `auto` and the method's defaults, which do not become explicit."""
        usual = cls.model_fields["method"].default
        explicit = dict(values)
        if usual == AUTO == explicit.get("method", usual):
            explicit.pop("method", None)  # its meaning may change with other settings
            chosen = automatic_settings(explicit)
        else:
            chosen = {"method": explicit.get("method", usual)}
        name = chosen["method"]
        own: Mapping[str, Any] = {}
        if isinstance(name, str):  # else the field's own check refuses it
            if name not in cls.rows:
                raise UnknownNameError("distillation method", name, cls.rows, setting="method")
            own = cls.rows[name].settings
        config = handler({**own, **chosen, **explicit})
        config.model_fields_set.intersection_update(explicit)
        return config

    @property
    def row(self) -> Method:
        """The method, before weights and terms are changed."""
        return self.rows[self.method]

    @property
    def numbered_layers(self) -> int:
        """How many layers `teacher_layers` names by number."""
        return len(self.teacher_layers) if isinstance(self.teacher_layers, tuple) else 0

    def changed_method(self) -> Method:
        """Return the method with the config's loss weights and term settings.

        Raises:
            UnknownNameError, ConfigError: the method has no term or setting of that name.
        """
        return self.rows[self.method].changed(
            self.weights,
            temperature=self.temperature,
            layers=LAYER_MAPS[self.layer_map] if self.layer_map else None,
            relation_heads=self.relation_heads,
        )

    def shape(
        self, method: Method, depth: int, texts: int = 1, *, own_start: bool = False
    ) -> StudentShape:
        """Return the student's shape.

        Args:
            method: source of the defaults.
            depth: number of layers of the start.
            texts: number of texts in an example.
            own_start: whether the student starts from an encoder of its own, not the teacher.
        """
        chosen = self.numbered_layers if method.student.layer_by_layer else 0
        return StudentShape(
            layers=self.layers or chosen or method.student.depth(depth, own_start=own_start),
            hidden_size=self.hidden_size,
            heads=self.heads,
            feed_forward_size=self.feed_forward_size,
            teacher_layers=self.teacher_layers,
            texts=texts,
            own_start=own_start,
        )


FILE_RULES: Mapping[str, Rule[UnlabelledConfig]] = {
    "unused file limit": Rule(
        lambda config: config.unlabelled is None,
        "it limits the texts of a file, and unlabelled names none. Give that, or leave this out.",
        frozenset({"max_unlabelled"}),
        beyond_default=True,
    ),
}


class UnlabelledConfig(TrainingConfig):
    """Settings of training on unlabelled texts as well."""

    panel: ClassVar[str] = "Texts without labels"
    rules: ClassVar[Mapping[str, Rule[Any]]] = FILE_RULES

    unlabelled: Path | None = Field(
        None, description="more texts to learn from: .txt, .txt.xz, CSV, TSV, JSONL or Parquet"
    )
    max_unlabelled: int | None = Field(
        None, ge=1, description="use only so many texts of that file, the first that filters leave"
    )
    unlabelled_texts: int = Field(
        0,
        ge=0,
        description="learn from so many unlabelled texts too, at most, of those that come with the "
        f"task ({', '.join(_WITH_TEXTS)} have some)",
    )

    @property
    def learns_unlabelled(self) -> bool:
        """Whether unlabelled texts are learned from."""
        return self.unlabelled is not None or self.unlabelled_texts > 0


FILTER_RULES: Mapping[str, Rule[FilteredConfig]] = {
    "filters without unlabelled texts": Rule(
        lambda config: not config.learns_unlabelled,
        "there are no unlabelled texts to leave some out of. Give unlabelled or unlabelled_texts, "
        "or leave it out.",
        frozenset(
            {
                "unlabelled_distinct",
                "unlabelled_max_entropy",
                "unlabelled_max_words",
                "unlabelled_min_words",
            }
        ),
        beyond_default=True,
    ),
    "minimum of words above maximum": Rule(
        lambda config: (
            config.unlabelled_max_words is not None
            and config.unlabelled_max_words < (config.unlabelled_min_words or 1)
        ),
        "every text would be shorter or longer. Give unlabelled_max_words at least as many.",
        frozenset({"unlabelled_max_words"}),
        against="unlabelled_min_words",
    ),
}


class FilteredConfig(UnlabelledConfig):
    """Settings of training on unlabelled texts that pass filters."""

    panel: ClassVar[str] = "Texts without labels"
    rules: ClassVar[Mapping[str, Rule[Any]]] = FILTER_RULES

    unlabelled_min_words: int | None = Field(
        None, ge=1, description="leave out unlabelled texts of fewer words, by white space"
    )
    unlabelled_max_words: int | None = Field(
        None, ge=1, description="leave out unlabelled texts of more words"
    )
    unlabelled_distinct: bool = Field(
        False,
        description="leave out unlabelled texts that are there twice or have a label elsewhere; "
        "upper case and white space make no difference",
    )
    unlabelled_max_entropy: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="leave out unlabelled texts on which the teacher's distribution has a higher "
        "entropy, as a share of the highest: 0 is sure of a label, 1 has all alike",
    )


FILE_SETTINGS = tuple(sorted((*TeacherColumns._fields, "min_confidence")))
"""Settings of a teacher's file."""


def check_own_start(config: DistillConfig) -> None:
    """Raise ConfigError where a student of a teacher's file has nothing to start from."""
    if config.teacher_file is not None and config.student is None:
        raise ConfigError(
            f"the teacher {config.teacher_file} is a file, with no model for the student to start "
            "from. Give --student: an encoder's folder, a packaged encoder or a hub name."
        )


def beyond_logits(config: DistillConfig) -> bool:
    """Return whether the method needs more than logits from the teacher, or no teacher at all."""
    method = config.changed_method()
    return not method.needs or method.needs != {"logits"} or method.uses_teacher_layers


def _file_error(config: DistillConfig) -> str:
    """Return the error of a method that cannot learn from a file, with the methods that can."""
    rows = METHODS.items()
    whole = [name for name, row in rows if row.needs == {"logits"} and not row.uses_teacher_layers]
    reads = " and ".join(sorted(config.changed_method().needs)).replace("_", " ")
    weights = config.row.weights_for_logits_alone or {}
    changes = ",".join(f"{name}=0" for name in weights)
    own = f"; or {config.method} with --weights {changes}" if changes else ""
    return (
        f"teacher={config.teacher_file}: a file has outputs alone, and method {config.method!r} "
        f"reads {reads or 'no outputs'} of a teacher. Methods that learn from a file: "
        f"{', '.join(whole)}{own}."
    )


DISTILL_RULES: Mapping[str, Rule[DistillConfig]] = {
    "method that needs more than logits": Rule(
        lambda config: config.teacher_file is not None and beyond_logits(config), _file_error
    ),
    "texts without outputs in the teacher file": Rule(
        lambda config: config.teacher_file is not None,
        "the teacher {teacher_file} is a file, and has no outputs on other texts than its own. "
        "Leave it out, or give a model as the teacher.",
        frozenset({"augmentation", "unlabelled", "unlabelled_texts"}),
        beyond_default=True,
    ),
    "columns without a teacher file": Rule(
        lambda config: (
            config.teacher_file is None and not any(map(is_teacher_file, config.more_teachers))
        ),
        "for a teacher that is a data file, and no teacher is one. Leave it out, or give "
        "--teacher a CSV, TSV, JSONL or Parquet file.",
        frozenset(FILE_SETTINGS),
        beyond_default=True,
    ),
    "rows of a file among more teachers": Rule(
        lambda config: config.teacher_file is None,
        "for the rows of a file given by --teacher; one in more_teachers gives outputs alone. "
        "Leave it out, or give --teacher the file.",
        frozenset({"gold_column", "min_confidence"}),
        beyond_default=True,
    ),
    "unlabelled texts without teacher outputs": Rule(
        lambda config: not config.changed_method().needs,
        "method {method!r} learns from labels alone, which these texts do not have. Leave out what "
        "is named, or choose a method that needs the teacher.",
        frozenset({"unlabelled", "unlabelled_texts"}),
        beyond_default=True,
    ),
    "augmentation without teacher outputs": Rule(
        lambda config: not config.changed_method().needs,
        "method {method!r} learns from labels alone, which rewritten texts do not have. Leave it "
        "out, or choose a method that needs the teacher.",
        frozenset({"augmentation"}),
        beyond_default=True,
    ),
    "more teachers without logits": Rule(
        lambda config: bool(config.more_teachers) and "logits" not in config.changed_method().needs,
        "method {method!r} reads no logits, and only these are averaged. Leave it out, or choose a "
        "method that reads them.",
        frozenset({"more_teachers"}),
    ),
    "agreement without more teachers": Rule(
        lambda config: not (config.more_teachers and config.learns_unlabelled),
        "several teachers agree on unlabelled texts. Give more_teachers, and unlabelled or "
        "unlabelled_texts; or leave it out.",
        frozenset({"unlabelled_agreement"}),
        beyond_default=True,
    ),
    "cut vocabulary for token-level losses": Rule(
        lambda config: (
            config.changed_method().wants_teacher_tokens
            and (config.most_entries is not None or config.vocab_floor > 1)
        ),
        "the student of method {method!r} must read the teacher's tokens. Leave it out and prune "
        "the student's vocabulary afterwards (`bertender prune --vocab task`), or choose a method "
        "that compares whole texts, as pkd or hard, or pd with a student of its own.",
        frozenset({"vocab_floor", "vocab_size"}),
        beyond_default=True,
    ),
    "named layers without a number of layers": Rule(
        lambda config: bool(
            config.student and isinstance(config.teacher_layers, str) and not config.layers
        ),
        "teacher_layers={teacher_layers}: a student of another encoder has all of its layers where "
        "none are said. Give layers, or leave it out.",
    ),
    "floor with the whole vocabulary": Rule(
        lambda config: config.vocab_size == ALL_TOKENS,
        "the vocabulary stays whole. Give another vocab_size, or leave it out.",
        frozenset({"vocab_floor"}),
        against="vocab_size",
        beyond_default=True,
    ),
    "control of a method without a teacher": Rule(
        lambda config: not config.changed_method().learns_from_teacher,
        "method {method!r} with these settings learns from labels alone, so that the student is "
        "its own control. Leave it out, or choose a method that learns from the teacher.",
        frozenset({"control"}),
        beyond_default=True,
    ),
}


class DistillConfig(
    StudentConfig, AugmentedConfig, FilteredConfig, TaskTrainingConfig, JudgedConfig
):
    """Settings of `distill`."""

    panel: ClassVar[str] = "Student"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Training": ("teacher_cache_mb", "control"),
        "Teachers": ("more_teachers", "unlabelled_agreement"),
        "A file as the teacher": FILE_SETTINGS,
    }
    without_flag: ClassVar[frozenset[str]] = frozenset({"teacher_file"})
    main: ClassVar[tuple[str, ...]] = ("method", "layers", "student", "unlabelled", "epochs")
    rules: ClassVar[Mapping[str, Rule[Any]]] = DISTILL_RULES
    judging: ClassVar[frozenset[str]] = frozenset({"allow_constant", "control"})
    shown_defaults: ClassVar[Mapping[str, str]] = {
        **StudentConfig.shown_defaults,
        **TaskTrainingConfig.shown_defaults,
        "max_length": "the teacher's",
    }

    teacher_file: Path | None = Field(
        None,
        description="data file, or folder of parts, to learn from instead of a model; a command "
        "takes it as its teacher",
    )
    student: str | None = Field(
        None,
        description="folder, packaged encoder or hub name that the student starts from, with its "
        "own vocabulary; the teacher by default",
    )
    vocab_size: Annotated[str | int, BeforeValidator(_parse_vocab_size)] = Field(
        AUTO_VOCABULARY,
        description="the student's vocabulary: auto keeps the tokens of the texts that it learns "
        "from, where nearly all words of the validation texts stay whole then; a number keeps "
        "so many entries at most, the most frequent; all cuts none. Single characters stay",
    )
    vocab_floor: int = Field(
        1, ge=1, description="where the vocabulary is cut, keep tokens that occur so often"
    )
    more_teachers: Annotated[tuple[Path, ...], BeforeValidator(parts_of)] = Field(
        (),
        description="more artifacts by commas, whose logits are averaged with the teacher's; or, "
        "of a task of several heads, the teachers of its other heads; or files of the same texts",
    )
    unlabelled_agreement: bool = Field(
        False,
        description="with more teachers: leave out unlabelled texts on which the teachers predict "
        "different labels",
    )
    teacher_cache_mb: int = Field(
        4096,
        ge=0,
        description="most MB of teacher outputs to cache on disk; where they are larger, the "
        "teacher runs in each step",
    )
    control: bool = Field(
        False,
        description="then train the same student on labels alone, for as many epochs and at equal "
        "computation, and report what distilling gave over it; of a file, on its hard labels",
    )
    labels: Annotated[tuple[str, ...], BeforeValidator(parts_of)] = Field(
        (),
        description="all labels by commas, in the order of the file's lists of probabilities",
    )
    probability_columns: Annotated[tuple[str, ...], BeforeValidator(parts_of)] = Field(
        (),
        description="the column of mappings or lists, or by commas one for each label that is "
        f"named so; by default {PROBABILITIES}, or columns named as the labels",
    )
    vote_columns: Annotated[tuple[str, ...], BeforeValidator(parts_of)] = Field(
        (),
        description="the column of lists or counts of annotators' labels, or by commas one for "
        f"each annotator; by default {VOTES}",
    )
    confidence_column: str | None = Field(
        None,
        description="column of 0 to 1, by which a row counts in the loss; by default "
        f"{CONFIDENCE}, where rows have labels without probabilities",
    )
    gold_column: str | None = Field(
        None,
        description="column of true labels, where it is not empty, for methods that read them; by "
        f"default {GOLD}, or the label column beside {PREDICTED}",
    )
    min_confidence: float | None = Field(
        None,
        gt=0,
        le=1,
        description="leave out rows whose confidence, or largest probability, is lower; of sets, "
        "that of their least sure label",
    )

    @property
    def learns_unlabelled(self) -> bool:
        """Whether unlabelled texts are learned from; the texts of a teacher's file always are."""
        return self.teacher_file is not None or super().learns_unlabelled

    @property
    def columns(self) -> TeacherColumns:
        """Settings of a teacher's file."""
        names = TeacherColumns._fields
        return TeacherColumns(**{name: getattr(self, name) for name in names})

    @property
    def most_entries(self) -> int | None:
        """Limit on the student's vocabulary size, where a number is set."""
        return self.vocab_size if isinstance(self.vocab_size, int) else None


GENERAL_RULES: Mapping[str, Rule[GeneralConfig]] = {
    "mask probability without masked words": Rule(
        lambda config: not config.row.predicts_words,
        "method {method!r} masks no words. Leave it out, or choose another method.",
        frozenset({"mask_probability"}),
        beyond_default=True,
    ),
    "vocabulary size with the teacher's vocabulary": Rule(
        lambda config: not config.row.student.own_vocabulary,
        "method {method!r} leaves a student its teacher's vocabulary. Leave it out, or choose "
        "another method.",
        frozenset({"vocabulary_size"}),
        beyond_default=True,
    ),
}


class GeneralConfig(StudentConfig):
    """Settings of `distill-general`."""

    panel: ClassVar[str] = "Corpus"
    main: ClassVar[tuple[str, ...]] = ("teacher", "corpus", "method", "layers", "epochs")
    rules: ClassVar[Mapping[str, Rule[Any]]] = GENERAL_RULES
    rows: ClassVar[Mapping[str, Method]] = GENERAL_METHODS
    shown_defaults: ClassVar[Mapping[str, str]] = methods_own(GENERAL_METHODS)

    method: str = Field("tinybert", description=f"{', '.join(GENERAL_METHODS)}")
    teacher: str = Field(
        "all-MiniLM-L6-v2",
        description="folder, artifact of `pretrain`, packaged encoder, or hub name to learn from",
    )
    corpus: str = Field("docs", description=CORPUS_HELP)
    text_column: str = Field("text", description=TEXT_COLUMN_HELP)
    max_length: int = Field(128, ge=8, description="tokens of a row of the corpus, at most")
    mask_probability: float | None = Field(
        None,
        gt=0,
        lt=1,
        description=f"share of tokens to predict; {MASK_PROBABILITY} where a method masks some",
    )
    vocabulary_size: int | None = Field(
        None,
        ge=100,
        description="most entries of the student's vocabulary, where it has one of its own; "
        f"{VOCABULARY_SIZE} by default",
    )
