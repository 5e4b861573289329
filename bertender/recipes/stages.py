"""STAGES: the possible steps of a recipe, which are also commands and Python functions.

A stage imports its implementation inside its methods, so that `bertender export --help` does not
load distillation, and no command loads PyTorch before its settings, paths and data are checked.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bertender.core.artifact import Artifact, check_writable, digest_of, lineage
from bertender.core.card import library_versions
from bertender.core.config import Table
from bertender.core.errors import ConfigError
from bertender.core.files import cache_directory, save_result
from bertender.recipes.stage import (
    GRAPH_TO_QUANTIZE,
    ONNX_CLASSIFIER,
    TORCH_CLASSIFIER,
    TORCH_MODEL,
    AnyConfig,
    ArtifactFolder,
    DataFile,
    Earlier,
    NamedFile,
    Product,
    Report,
    Source,
    Stage,
    TaskData,
    Want,
    folder_digest,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bertender.comparison.calibration import CalibrateConfig
    from bertender.comparison.records import CompareConfig, Comparison
    from bertender.gate.artifacts import Verification, VerifyConfig
    from bertender.models.own_models import ExpectedModel
    from bertender.tasks.task import Task
    from bertender.text.batch import Example
    from distill.distillation.config import DistillConfig, GeneralConfig, UnlabelledConfig
    from distill.finetuning.config import BagOfWordsConfig, MultiTaskConfig
    from distill.pretraining.config import PretrainConfig
    from distill.pretraining.corpus import Corpus
    from distill.pruning.config import PruneConfig
    from export.config import BundleConfig, ExportConfig
    from quantize.config import QuantizeConfig
    from serve.check import EndpointCheck
    from serve.config import EndpointConfig


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CorpusText:
    """A corpus."""

    corpus: Corpus
    path: None = None

    def check(self) -> None:
        self.corpus.opened()

    def digest(self) -> str:
        from distill.pretraining.corpus import survey

        return survey(self.corpus).sha256


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
        from distill.teachers.encoders import commit_of

        return folder_digest(self.path) or commit_of(self.name)


def expected_encoder(name: str, earlier: Earlier) -> ExpectedModel | None:
    """Return the model that a setting names, as it will be on this machine."""
    from distill.teachers.encoders import located

    return earlier.model_at(located(name))


class Pretrain(Stage):
    """An encoder from plain text."""

    name = "pretrain"
    summary = "Pre-train a small encoder on plain text."
    sources = (0, 1)
    fills = "stack_from"
    needs_task = False

    @property
    def config(self) -> type[PretrainConfig]:
        from distill.pretraining.config import PretrainConfig

        return PretrainConfig

    def work(
        self, sources: Sequence[Artifact], task: None, config: PretrainConfig, out: Path
    ) -> Artifact:
        from distill.pretraining.pretrain import pretrain_by_name

        return pretrain_by_name(config, out)

    def files(self, config: PretrainConfig) -> Iterator[NamedFile]:
        from distill.pretraining.corpus import Corpus

        if config.encoder is not None:
            yield Encoder("encoder", config.encoder)
        if config.stack_from is not None:
            yield ArtifactFolder(config.stack_from)
        if config.phrases is not None:
            yield DataFile("phrases", config.phrases)
        yield CorpusText(Corpus(config.corpus, config.text_column))

    def wants(self, config: PretrainConfig, position: int) -> Want:
        return Want(
            "an encoder of stage 'pretrain'", "Give a step of stage pretrain.", {"stage": self.name}
        )

    def check_source(
        self, config: PretrainConfig, position: int, source: str, product: Product
    ) -> None:
        """Check also that the shallower encoder has the same shape except for its depth."""
        from distill.pretraining.config import OBJECTIVES, PretrainConfig
        from distill.pretraining.pretrain import check_same_shape

        super().check_source(config, position, source, product)
        shallow = product.settings
        assert isinstance(shallow, PretrainConfig)
        theirs, own = (OBJECTIVES[each.objective].family for each in (shallow, config))
        check_same_shape(f"step {source!r}", theirs, dict(shallow), config, own)

    def makes(self, config: PretrainConfig) -> Product:
        from distill.pretraining.config import OBJECTIVES

        words = OBJECTIVES[config.objective].predicts_words
        return Product(self.name, "torch", classifies=False, predicts_words=words, settings=config)

    def model(self, config: PretrainConfig, earlier: Earlier) -> ExpectedModel | None:
        from distill.pretraining.pretrain import expected_pretrained

        if config.encoder:
            return expected_encoder(config.encoder, earlier)
        return expected_pretrained(config)


class DistillGeneral(Stage):
    """A smaller encoder from an encoder, on plain text."""

    name = "distill-general"
    summary = "Distil an encoder into a smaller one on plain text."
    sources = (0, 1)
    fills = "teacher"
    needs_task = False

    @property
    def config(self) -> type[GeneralConfig]:
        from distill.distillation.config import GeneralConfig

        return GeneralConfig

    def work(
        self, sources: Sequence[Artifact], task: None, config: GeneralConfig, out: Path
    ) -> Artifact:
        from distill.distillation.general import distill_general_by_name

        return distill_general_by_name(config, out)

    def files(self, config: GeneralConfig) -> Iterator[NamedFile]:
        from distill.pretraining.corpus import Corpus

        yield Encoder("teacher", config.teacher)
        yield CorpusText(Corpus(config.corpus, config.text_column))

    def wants(self, config: GeneralConfig, position: int) -> Want:
        from distill.methods import GENERAL_METHODS

        if not config.row.reads_predicted_words:
            return TORCH_MODEL
        others = (name for name, row in GENERAL_METHODS.items() if not row.reads_predicted_words)
        return Want(
            "a torch model that predicts words",
            "Give a step of stage pretrain whose objective masks words, or choose a method that "
            f"does not read the teacher's predictions of words: {', '.join(others)}.",
            {"kind": "torch", "predicts_words": True},
        )

    def makes(self, config: GeneralConfig) -> Product:
        words = config.row.predicts_words
        return Product(self.name, "torch", classifies=False, predicts_words=words)

    def model(self, config: GeneralConfig, earlier: Earlier) -> ExpectedModel | None:
        from distill.distillation.general import expected_general_student

        return expected_general_student(config, expected_encoder(config.teacher, earlier))


class Baseline(Stage):
    """The bag of words."""

    name = "baseline"
    summary = "Train the bag-of-words control that a teacher must beat."
    sources = (0,)
    problem_types = (
        "single_label_classification",
        "multi_label_classification",
        "regression",
        "sentence_embedding",
    )

    @property
    def config(self) -> type[BagOfWordsConfig]:
        from distill.finetuning.config import BagOfWordsConfig

        return BagOfWordsConfig

    def work(
        self, sources: Sequence[Artifact], task: Task, config: BagOfWordsConfig, out: Path
    ) -> Artifact:
        from distill.finetuning.baseline import train_bag_of_words

        return train_bag_of_words(task, config, out)

    def makes(self, config: BagOfWordsConfig) -> Product:
        return Product(self.name, "bag-of-words")


class Finetune(Stage):
    """A teacher, for one task or several at once."""

    name = "finetune"
    summary = "Fine-tune an encoder on a task: the teacher."
    sources = (0, 1)
    fills = "teacher"
    wanted = TORCH_MODEL

    @property
    def config(self) -> type[MultiTaskConfig]:
        from distill.finetuning.config import MultiTaskConfig

        return MultiTaskConfig

    def work(
        self, sources: Sequence[Artifact], task: Task, config: MultiTaskConfig, out: Path
    ) -> Artifact:
        from distill.finetuning.finetune import finetune_tasks_by_name

        return finetune_tasks_by_name(task, config, out)

    def files(self, config: MultiTaskConfig) -> Iterator[NamedFile]:
        yield Encoder("teacher", config.teacher)
        yield from map(TaskData, config.more_tasks)

    def model(self, config: MultiTaskConfig, earlier: Earlier) -> ExpectedModel | None:
        return expected_encoder(config.teacher, earlier)

    def check(self, config: MultiTaskConfig, task: Task) -> None:
        from distill.finetuning.config import check_distinct, check_task, check_word_labels

        check_distinct((task.name, *config.more_tasks))
        check_word_labels(task, config)
        check_task(task, config)
        for each in config.more_tasks:
            TaskData(each).digest()  # loads them

    def also_writes(self, config: MultiTaskConfig, out: Path) -> Sequence[Path]:
        from distill.finetuning.config import sibling_paths

        return sibling_paths(config, out)


class UnlabelledStage(Stage):
    """A stage that can also learn from unlabelled texts."""

    def texts(self, config: UnlabelledConfig, task: Task) -> Sequence[Example]:
        from distill.distillation.texts import texts_of_task

        return texts_of_task(config, task)


class Distill(UnlabelledStage):
    """A student of a teacher, on a task."""

    name = "distill"
    summary = "Train a smaller student on a teacher's outputs."
    source = "teacher"
    file_setting = "teacher_file"
    sources = (0, 1, 2)
    fills = "student"

    @property
    def config(self) -> type[DistillConfig]:
        from distill.distillation.config import DistillConfig

        return DistillConfig

    def work(
        self, sources: Sequence[Artifact], task: Task, config: DistillConfig, out: Path
    ) -> Artifact:
        from distill.distillation.distiller import distill, distill_from_file

        if config.teacher_file is not None:
            return distill_from_file(task, config, out)
        return distill(sources[0], task, config, out)

    def counts(self, config: DistillConfig) -> Sequence[int]:
        return (0, 1) if config.teacher_file is not None else (1, 2)

    def brings_labels(self, config: DistillConfig) -> bool:
        return config.teacher_file is not None

    def filled(self, config: AnyConfig, sources: Sequence[Source]) -> AnyConfig:
        """Return the config of `Stage.filled`, after checking that there is exactly one teacher.

        Raises:
            ConfigError: there is none, or both a file and an earlier step.
        """
        counts = self.counts(cast("DistillConfig", config))
        if len(sources) not in counts:
            named = ", ".join(each.name for each in sources) or "no step"
            raise ConfigError(
                f"a distillation starts from a teacher and, where that is no file, from an earlier "
                f"step: `from` names {named}. Give the step of the teacher by `from`, or a file "
                "by teacher_file."
            )
        return super().filled(config, sources)

    def files(self, config: DistillConfig) -> Iterator[NamedFile]:
        for setting in ("student", "augmentation_model"):
            if (name := getattr(config, setting)) is not None:
                yield Encoder(setting, name)
        from bertender.tasks.teacher_files import is_teacher_file

        if config.teacher_file is not None:
            yield DataFile("teacher_file", config.teacher_file, may_be_folder=True)
        for teacher in config.more_teachers:
            if is_teacher_file(teacher):
                yield DataFile("more_teachers", teacher, may_be_folder=True)
            else:
                yield ArtifactFolder(teacher)
        if config.unlabelled is not None:
            yield DataFile("unlabelled", config.unlabelled)

    def wants(self, config: DistillConfig, position: int) -> Want:
        # the teacher, and the start
        return TORCH_CLASSIFIER if position < self.counts(config)[0] else TORCH_MODEL

    def model(self, config: DistillConfig, earlier: Earlier) -> ExpectedModel | None:
        from distill.distillation.start import expected_student

        start = None if config.student is None else expected_encoder(config.student, earlier)
        teacher = earlier.sources[0] if self.counts(config)[0] else None
        return expected_student(config, teacher, start)

    def check(self, config: DistillConfig, task: Task) -> None:
        from distill.distillation.on_task import check_task
        from distill.distillation.start import check_start

        if config.teacher_file is not None:
            from bertender.tasks.teacher_files import kind_of
            from distill.distillation.config import check_own_start

            kind_of(task.problem)
            check_own_start(config)
        method = config.changed_method()
        check_start(method, config.student)
        check_task(config, method, task)


class Prune(UnlabelledStage):
    """A classifier with fewer heads, neurons, layers or tokens."""

    name = "prune"
    summary = "Cut a model's least important heads and neurons."
    source = "artifact"
    sources = (1, 2)
    fills = "teacher"
    wanted = TORCH_CLASSIFIER

    @property
    def config(self) -> type[PruneConfig]:
        from distill.pruning.config import PruneConfig

        return PruneConfig

    def work(
        self, sources: Sequence[Artifact], task: Task, config: PruneConfig, out: Path
    ) -> Artifact:
        from distill.pruning.pruner import prune

        return prune(sources[0], task, config, out)

    def files(self, config: PruneConfig) -> Iterator[NamedFile]:
        """Yield the corpus for pruning the vocabulary, the teacher and the texts."""
        from distill.pretraining.corpus import Corpus
        from distill.pruning.config import OF_THE_TASK

        if config.vocab is not None and config.vocab != OF_THE_TASK:
            yield CorpusText(Corpus(config.vocab))
        if config.teacher is not None:
            yield ArtifactFolder(config.teacher)
        if config.unlabelled is not None:
            yield DataFile("unlabelled", config.unlabelled)

    def check_model(self, config: PruneConfig, position: int, model: PreTrainedModel) -> None:
        from distill.pruning.pruner import check_architecture

        if position == 0:  # the other source, the teacher of the recovery, is not cut
            check_architecture(model, config=config)

    def check_shape(self, config: PruneConfig, position: int, model: PreTrainedModel) -> None:
        from distill.pruning.pruner import check_possible

        if position == 0:
            check_possible(model, config=config)

    def model(self, config: PruneConfig, earlier: Earlier) -> ExpectedModel | None:
        from distill.pruning.pruner import expected_pruned

        return expected_pruned(config, earlier.sources[0])

    def check(self, config: PruneConfig, task: Task) -> None:
        from distill.pruning.pruner import check_vocabulary_stays

        check_vocabulary_stays(config, task)


class Export(Stage):
    """An ONNX graph of a classifier."""

    name = "export"
    summary = "Write a model as ONNX, and prove that it predicts the same."
    source = "artifact"
    wanted = TORCH_CLASSIFIER

    @property
    def config(self) -> type[ExportConfig]:
        from export.config import ExportConfig

        return ExportConfig

    def work(
        self, sources: Sequence[Artifact], task: Task, config: ExportConfig, out: Path
    ) -> Artifact:
        from export.exporter import export

        return export(sources[0], task, config, out)

    def check_model(self, config: ExportConfig, position: int, model: PreTrainedModel) -> None:
        from export.exporter import check_architecture

        check_architecture(model, config=config)

    def makes(self, config: ExportConfig) -> Product:
        return Product(self.name, "onnx", precision=config.precision)

    def model(self, config: ExportConfig, earlier: Earlier) -> ExpectedModel | None:
        return earlier.sources[0]


class Quantize(Stage):
    """A graph with products of 8 or 4 bits."""

    name = "quantize"
    summary = "Quantize a model to 8 bits or fewer, and check it against the float model."
    source = "artifact"

    @property
    def config(self) -> type[QuantizeConfig]:
        from quantize.config import QuantizeConfig

        return QuantizeConfig

    def work(
        self, sources: Sequence[Artifact], task: Task, config: QuantizeConfig, out: Path
    ) -> Artifact:
        """Quantize the source; schemes that train get a function that writes a graph.

        A scheme that starts from a graph also takes a torch artifact, which is exported first.
        """
        from export.config import ExportConfig
        from export.exporter import write_onnx
        from quantize.quantizer import quantize

        source = sources[0]
        if not config.trains and (model_and_form := export_to_quantize(source, config)):
            self.check(config, task)  # before the export, which takes minutes
            check_writable(out, source)
            model, optimize = model_and_form
            source = exported(model, task, optimize)

        def write(trained: Artifact, directory: Path) -> None:
            write_onnx(trained, task, ExportConfig(), directory)

        return quantize(source, task, config, out, write_onnx=write)

    def wants(self, config: QuantizeConfig, position: int) -> Want:
        return TORCH_CLASSIFIER if config.trains else GRAPH_TO_QUANTIZE

    def check_model(self, config: QuantizeConfig, position: int, model: PreTrainedModel) -> None:
        from quantize.attention import check_attention
        from quantize.config import AUTO_SCHEME
        from quantize.quantizer import WRITERS

        if config.scheme != AUTO_SCHEME:
            WRITERS[config.scheme].check(model)
        if config.fused_attention:
            check_attention(model)
        if config.trains:  # the trained model is exported with default settings
            STAGES["export"].check_model(STAGES["export"].config(), position, model)

    def machine(self, config: QuantizeConfig) -> str:
        from quantize.integers import target_of

        return target_of(config.target)[0]

    def makes(self, config: QuantizeConfig) -> Product:
        return Product(self.name, "onnx", precision=config.graph_precision)

    def check(self, config: QuantizeConfig, task: Task) -> None:
        from bertender.models.runtimes import check_installed
        from quantize.integers import target_of

        target_of(config.target)
        check_installed(config.runtime)


class Bundle(Stage):
    """A graph in the layout of another program."""

    name = "bundle"
    summary = "Write a model in the layout that another program opens, checked there."
    source = "artifact"
    wanted = ONNX_CLASSIFIER

    @property
    def config(self) -> type[BundleConfig]:
        from export.config import BundleConfig

        return BundleConfig

    def work(
        self, sources: Sequence[Artifact], task: Task, config: BundleConfig, out: Path
    ) -> Artifact:
        """Bundle the source; a torch artifact is exported first."""
        from export.bundle import bundle, check_target

        source = sources[0]
        if source.card.kind == "torch":
            check_target(config, source)  # before the export, which takes minutes
            check_writable(out, source)
            source = exported(source, task)
        return bundle(source, task, config, out)

    def makes(self, config: BundleConfig) -> Product:
        return Product(self.name, "bundle")


class Calibrate(Stage):
    """A copy of a classifier whose probabilities are calibrated."""

    name = "calibrate"
    summary = "Let a model's probabilities be right as often as they say."
    source = "artifact"
    problem_types = (
        "single_label_classification",
        "multi_label_classification",
        "token_classification",
        "multiple_choice",
    )

    @property
    def config(self) -> type[CalibrateConfig]:
        from bertender.comparison.calibration import CalibrateConfig

        return CalibrateConfig

    def work(
        self, sources: Sequence[Artifact], task: Task, config: CalibrateConfig, out: Path
    ) -> Artifact:
        from bertender.comparison.calibration import calibrate

        return calibrate(sources[0], task, config, out)

    def makes_of(self, config: CalibrateConfig, sources: Sequence[Product]) -> Product:
        return sources[0]

    def model(self, config: CalibrateConfig, earlier: Earlier) -> ExpectedModel | None:
        return earlier.sources[0]


def export_to_quantize(source: Artifact, config: QuantizeConfig) -> tuple[Artifact, str] | None:
    """Return the torch artifact to export before a quantization, and `optimize` for the export.

    None if `source` is a graph whose products can be quantized one by one, with attention as
    `fused_attention` requires; or if the exported model is missing.
    """
    from bertender.models.graphs import FUSED, WRITTEN_ATTENTION
    from bertender.models.steps import FUSIONS, NEVER_SEEN

    written = config.fused_attention and FUSIONS.get(source.card.family, NEVER_SEEN).written
    optimize = "fused" if written else "none"
    if source.card.kind == "torch":
        return source, optimize
    graph = source.card.findings.graph
    if graph is None or source.card.stage != "export" or source.card.precision != "float32":
        return None
    holding = FUSED & graph.fused.keys()
    if not (holding or (written and WRITTEN_ATTENTION not in graph.fused)):
        return None
    _, *made_of = lineage(source)
    if not made_of or not isinstance(parent := made_of[0], Artifact):
        return None
    logger.info(
        "%s is exported again with optimize=%s, and that graph is quantized: that of %s has %s",
        parent.name,
        optimize,
        source.name,
        f"weights in {', '.join(sorted(holding))}" if holding else "no attention of one operator",
    )
    return parent, optimize


def exported(source: Artifact, task: Task, optimize: str = "none") -> Artifact:
    """Export a torch artifact into the cache folder, unless it was exported before.

    The quantized artifact records the export, which stays in that folder, as its parent.
    """
    from filelock import FileLock

    from bertender.core.build_once import build_once
    from export.config import ExportConfig
    from export.exporter import export

    record = task.record().model_dump(mode="json")
    settings = {} if optimize == "none" else {"optimize": optimize}
    identity = [source.digest, record, library_versions(), *settings.values()]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    out = cache_directory() / "exported" / key / f"{source.name}-onnx"
    out.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(out.with_name(f".{out.name}.lock")):
        config = ExportConfig.parse(settings)
        known = source.of_task(task.record())  # an imported model, where a graph's parent is one
        build_once([out], identity, lambda: export(known, task, config, out), digest_of)
    return Artifact.load(out)


class Verify(Report):
    """The parity gate."""

    name = "verify"
    summary = "Check that a model predicts as its reference does."
    sources = (2,)

    @property
    def config(self) -> type[VerifyConfig]:
        from bertender.gate.artifacts import VerifyConfig

        return VerifyConfig

    def work(
        self, sources: Sequence[Artifact], task: Task, config: VerifyConfig, out: Path
    ) -> Verification:
        from bertender.gate.artifacts import verify
        from bertender.gate.judge import require_parity
        from quantize.graph_check import failures_if_quantized

        reference, candidate = sources
        parity = verify(reference, candidate, task, config, failures_if_quantized)
        if not parity.passed:
            save_result(parity, out)  # also after a failure, for reading
        require_parity(parity)
        return parity

    def check(self, config: VerifyConfig, task: Task) -> None:
        from bertender.models.runtimes import check_installed

        check_installed(config.runtime)


class Compare(Report):
    """The table of variants."""

    name = "compare"
    summary = "Measure models against each other in one table."
    sources = range(1, 101)  # more than a reader can use

    @property
    def config(self) -> type[CompareConfig]:
        from bertender.comparison.records import CompareConfig

        return CompareConfig

    def work(
        self, sources: Sequence[Artifact], task: Task, config: CompareConfig, out: Path
    ) -> Comparison:
        from bertender.comparison.compare import compare

        return compare(sources, task, config)

    def check(self, config: CompareConfig, task: Task) -> None:
        from bertender.models.runtimes import check_installed

        check_installed(*config.runtime)


class Endpoint(Report):
    """A check that the real server's predictions equal those of the local model."""

    name = "endpoint"
    summary = "Serve a model, compare it with the local one, stop it."
    cacheable = False
    wanted = ONNX_CLASSIFIER

    @property
    def config(self) -> type[EndpointConfig]:
        from serve.config import EndpointConfig

        return EndpointConfig

    def work(
        self, sources: Sequence[Artifact], task: Task, config: EndpointConfig, out: Path
    ) -> EndpointCheck:
        from serve.check import check_endpoint

        texts, truth = task.problem.asked(task.dev.examples), task.dev.label_ids
        names = [task.problem.by_names(target, task.labels) for target in truth]
        true_labels = names if len(names) == len(texts) else None
        return check_endpoint(sources[0], texts, config, true_labels)

    def requires(self) -> None:
        from serve.server.installation import find_installation, is_installed

        if is_installed():  # an unsuitable Triton; without Triton, the server works too
            find_installation()


STAGES: Table[Stage] = Table(
    "stage",
    {
        stage.name: stage
        for stage in (
            *(Pretrain(), DistillGeneral(), Baseline(), Finetune(), Distill(), Prune()),
            *(Export(), Quantize(), Bundle(), Calibrate(), Verify(), Compare(), Endpoint()),
        )
    },
)
