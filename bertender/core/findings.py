"""Findings: the figures that a stage measured while it wrote an artifact, as its card has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from bertender.core.config import Record
from bertender.core.machine import MachineLoad, Speedup


class Part(Record):
    """A part of the findings. Fields that are None are not saved."""

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        return {name: value for name, value in values.items() if value is not None}


ChosenOn = Literal["selection", "dev"]
"""The validation texts, or the held-out ones."""


class ChoiceScores(Part):
    """Scores on the validation texts."""

    before: float = Field(description="of the model that the artifact was made from")
    after: float
    n: int = Field(description="how many texts these are")


class ConstantFindings(Part):
    """The one label that a model predicts everywhere, though the true labels are several."""

    label: str
    share: float = Field(description="of the true labels that it is")
    n: int = Field(description="true labels: one a text, or one a word where words have labels")
    metric: str = Field(description="that of the task, or of its head that predicts so")
    score: float | None = Field(None, description="by that metric; None where it reads logits")
    truth: str = Field("", description="the true answers in words, where they are not labels")

    @property
    def words(self) -> str:
        """The fault in words, after the model's name."""
        truth = self.truth or f"{self.share:.1%} of {self.n} labels are that"
        return f"predicts {self.label!r} everywhere; {truth}"


class ScoreFindings(Part):
    """Scores on held-out texts, which are evaluated once if validation texts choose."""

    chosen_on: ChosenOn = Field(description="the validation texts")
    score: float = Field(description="held-out, by the metric of the task")
    metric: str | None = Field(
        None, description="of `score`; of older cards None, and that of the artifact's task"
    )
    task: str | None = Field(None, description="name of the task of these texts; likewise")
    n: int | None = Field(None, description="what `score` counts; None of older cards")
    undefined: str | None = Field(
        None, description="why that metric says nothing about these texts, where its value is 0"
    )
    scores: dict[str, float] = Field(
        description="held-out, by every metric of the problem type that says something"
    )
    score_before: float | None = Field(
        None, description="held-out, of the model that the artifact was made from"
    )
    choice: ChoiceScores | None = Field(None, description="by which a loss was judged")
    constant: ConstantFindings | None = Field(
        None, description="where the model predicts one label for all held-out texts"
    )
    thresholds: dict[str, float] | None = Field(
        None,
        description="of sets of labels, by label, in logits: fitted on texts that score nothing, "
        "and part of the model, so that a label is in the set above 0",
    )
    fitted: dict[str, float] | None = Field(
        None, description="what the card keeps besides the weights, fitted on such texts, by name"
    )


class Gain(Part):
    """Student minus control on the same held-out texts, in points, with its 95 % interval."""

    value: float
    low: float
    high: float


class ControlRun(Part):
    """A control that was trained."""

    epochs: int
    score: float = Field(description="after its last epoch, on the validation texts")


class ControlFindings(Part):
    """The better control by the validation texts, and the gain of distilling over it."""

    epochs: int = Field(description="of the better one")
    score: float = Field(description="of the better one, held-out")
    gain: Gain = Field(description="of the student over it")
    n: int = Field(description="held-out texts")
    choice: float = Field(description="score of the student on the validation texts")
    teacher_layers: str | None = Field(
        None,
        description="that it starts from, as the setting has them; of students that start from all "
        "layers or none not recorded",
    )
    equal_epochs: int = Field(
        description="epochs on labels alone that cost as much as the distillation; where they are "
        "more than the most that are trained, no control has them"
    )
    runs: tuple[ControlRun, ...] = Field(min_length=1, description="all controls, shortest first")
    constant: ConstantFindings | None = Field(
        None, description="where the better one predicts one label for all held-out texts"
    )

    @property
    def control_choice(self) -> float:
        """Score of the better control on the validation texts."""
        return next(run.score for run in self.runs if run.epochs == self.epochs)


class GraphFindings(Part):
    """A graph, as written."""

    opset: int = Field(description="of ONNX's own operators; at least what was asked for")
    optimize: str = Field(description="a row of OPTIMIZATIONS")
    nodes: int
    fused: dict[str, int] = Field(description="nodes of ONNX Runtime's own operators, by operator")
    layers: int = Field(description="of the model; every one has an attention")


class LargestNumber(Part):
    """The largest absolute number that a graph computes on some texts."""

    place: str = Field(description="operator and node that give it, or the name of a weight")
    largest: float
    texts: int


class TextLengths(Part):
    """The number of texts longer than a model's limit, and the longest length."""

    texts: int
    longer: int = Field(description="how many have more tokens than the model reads")
    longest: int = Field(description="tokens of the longest text")

    @classmethod
    def of(cls, counts: Sequence[int], max_length: int) -> Self:
        """Count the texts of more than `max_length` tokens.

        Args:
            counts: tokens of each text before truncation.
            max_length: the model's limit.
        """
        longer = sum(count > max_length for count in counts)
        return cls(texts=len(counts), longer=longer, longest=max(counts, default=0))

    def in_words(self, kind: str, max_length: int, windows: bool = False) -> str:
        """Return a line about texts of a kind, such as "held-out", that were truncated or split
        into windows."""
        read = "are read in several windows" if windows else "were cut"
        return (
            f"{self.longer} of {self.texts} {kind} texts are longer than {max_length} tokens and "
            f"{read}; the longest has {self.longest}"
        )


class LengthFindings(Part):
    """Lengths of the texts that a model was trained and scored on."""

    max_length: int = Field(description="tokens that the model reads of a text")
    training: TextLengths
    held_out: TextLengths
    windows: bool = Field(False, description="longer ones are read in windows, and not cut")

    def lines(self) -> list[str]:
        """Return a line for the training texts and one for the others, where some were
        truncated."""
        kinds = {"training": self.training, "held-out": self.held_out}
        return [
            lengths.in_words(kind, self.max_length, self.windows)
            for kind, lengths in kinds.items()
            if lengths.longer
        ]


class ParitySummary(Record):
    """Distance of a model's logits from those of its source model."""

    passed: bool
    reference: str
    texts: int
    rows: int
    max_abs_difference: float | None
    mean_abs_difference: float | None
    min_cosine: float | None
    agreement: float | None
    median_difference: float | None = None
    p95_difference: float | None = None
    common_shift: float | None = None
    correlation: float | None = None
    near_ties: int | None = None
    near_ties_turned: int | None = None
    score_change: float | None = None


class RescaledPart(Part):
    """Effect of rescaling one part of a layer on its output."""

    layer: int
    part: str
    error_before: float = Field(
        description="squared distance to the unpruned model's output, over its own square"
    )
    error_after: float


class PruningRound(Part):
    """Heads and neurons that remained after a round. Scores are on the validation texts."""

    heads: tuple[int, ...] = Field(description="how many remain, by layer")
    neurons: tuple[int, ...] = Field(description="how many remain, by layer")
    score_after_cut: float = Field(description="before recovery or rescaling")
    score: float
    head_importance: tuple[tuple[float, ...], ...] | None = Field(
        None, description="layers x heads before the cut; None where heads were not compared"
    )
    remaining_heads: tuple[tuple[int, ...], ...] | None = Field(
        None, description="numbers of the heads in the unpruned model, by layer"
    )
    rescaled: tuple[RescaledPart, ...] | None = None


class VocabularyReading(Part):
    """Figures of a tokenizer on some texts."""

    entries: int = Field(description="of the vocabulary")
    pieces_per_text: float
    unknown: float = Field(description="share of the tokens that are unknown")


class VocabularyFindings(Part):
    """Figures of held-out texts before and after the vocabulary was cut."""

    before: VocabularyReading
    after: VocabularyReading
    whole_words: float = Field(description="share of the words whose tokens all stay")


class LatencyLoad(Part):
    """Batches that are timed."""

    texts: int = Field(ge=1, description="of a batch")
    tokens: int = Field(ge=1, description="of each text")
    threads: int = Field(ge=1, description="of PyTorch")


class PartTimes(Part):
    """A part of a layer with a number of heads or neurons: a time each round."""

    count: int
    rounds_ms: tuple[float, ...]


class LatencyTimes(Part):
    """Times of a layer's parts by their size, and of everything else together."""

    load: LatencyLoad
    cpu_model: str
    attention: tuple[PartTimes, ...] = Field(description="by heads, up to the norm behind it")
    feed_forward: tuple[PartTimes, ...] = Field(description="by neurons, up to the norm behind it")
    rest_ms: tuple[float, ...] = Field(description="of a run outside the layers, a turn each")
    machine_load: MachineLoad = Field(description="while it was timed")


class LatencyFindings(Part):
    """Speed that a pruned model should reach, and its measured speed."""

    target: float = Field(description="how many times as fast")
    predicted: float = Field(description="by the table")
    measured: Speedup
    table: LatencyTimes


class PruningFindings(Part):
    """Findings of a pruning."""

    unpruned: float = Field(description="score of the unpruned model on the validation texts")
    rounds: tuple[PruningRound, ...] = Field(min_length=1)
    layers: tuple[int, ...] | None = Field(None, description="that remain, where some were dropped")
    vocabulary: VocabularyFindings | None = None
    latency: LatencyFindings | None = None


class SaturationFindings(Part):
    """Errors in this CPU's sums of integer products."""

    products: int = Field(description="that were compared with exact sums")
    rows: int = Field(description="activations of each, at most")
    largest_deviation: float | None = Field(
        None, description="over the largest output of the product; None of no product"
    )
    worst: str | None = Field(None, description="the product that deviates most")
    allowed: float


class PartLikeness(Part):
    """Figures of a quantized product or table against its float original."""

    kind: str = Field(description="a row of BOUNDS")
    figures: dict[str, float] = Field(description="by their names in BOUNDS")


class ProductCheck(Part):
    """Figures of quantized products and tables against their float originals."""

    checked: int
    worst: dict[str, PartLikeness] = Field(description="the worst few by noise, worst first")


class Curvature(Part):
    """The curvature of the loss by a weight, over some parts of the texts."""

    mean: float
    deviation: float
    steps: tuple[int, ...] = Field(description="of the estimate, for each part of the texts")
    settled: bool = Field(description="whether every estimate settled within its steps")


class SensitivityFindings(Part):
    """Sensitivity of parts to quantization, and the parts that were left in float."""

    by_node: dict[str, float] = Field(
        description="larger is worse, worst first; empty where nothing had to return"
    )
    curvature: dict[str, Curvature] | None = Field(None, description="where it was estimated")
    drops: tuple[float, ...] = Field(description="points lost with 0, 1, 2, ... parts returned")
    returned: dict[str, str] = Field(description="part -> why it returned")


class TriedScheme(Part):
    """A scheme that was refused or skipped before the one that passed."""

    scheme: str
    refused: str | None = Field(None, description="the gate's message")
    skipped: str | None = Field(None, description="why it was not tried")


class QuantizationFindings(Part):
    """A quantized graph, and the measurements of its gates."""

    target: str = Field(description="a row of TARGETS")
    products: int = Field(description="that were quantized")
    running_in_integers: int | None = Field(
        None, description="of them; None where this machine is not such a target"
    )
    float_nodes: dict[str, str] = Field(description="node that stays in float -> why")
    runtime: str = Field("onnxruntime", description="row of RUNTIMES that the gates ran it in")
    operators: dict[str, int] = Field(description="as the runtime runs the graph")
    products_of_4_bits: int | None = None
    weight_bits: dict[str, int] | None = Field(
        None, description="of weights stored with fewer than 8 and multiplied in 8, by node"
    )
    tables_of_4_bits: int | None = None
    fused_attentions: int | None = Field(
        None, description="attentions that are one operator, where that was asked for"
    )
    smoothing_db: dict[str, float] = Field(
        {},
        description="activation whose channels are scaled -> how much less noise its products have",
    )
    saturation: SaturationFindings | None = Field(
        None, description="None where this machine is not such a target"
    )
    product_check: ProductCheck
    largest_difference_between_products: float = Field(description="of a tensor between products")
    ranges: dict[str, tuple[float, float]] = Field(
        {}, description="of static activations, by the tensor's name"
    )
    sensitivity: SensitivityFindings | None = None
    tried: tuple[TriedScheme, ...] = Field((), description="schemes before the one that passed")


Losses = tuple[dict[str, float], ...]
"""Weighted terms of the loss during training."""
Epochs = tuple[dict[str, float], ...]
"""Scores by metric name after each epoch."""


class EarlierPhase(Part):
    """A phase of a run before its last one."""

    name: str
    steps: int
    losses: Losses
    epochs: Epochs = ()


class LanguageShare(Part):
    """A language of a corpus, as used in a training."""

    name: str = Field(description="the part of the corpus")
    tokens: int = Field(description="of its rows to train on, each once")
    share: float = Field(description="of the tokens of all languages")
    sampled: float = Field(description="the same as rows were repeated, those of rare ones more")


class OtherTask(Part):
    """Another task that was learned in the same run."""

    artifact: str = Field(description="name of its directory, next to this one")
    epochs: Epochs


class TrainingFindings(Part):
    """A run of training. Steps, losses and epochs are those of its last phase."""

    steps: int
    losses: Losses
    epochs: Epochs
    kept_epoch: int | None = Field(
        None,
        description="from 1: the one whose weights these are, the best on the validation texts; "
        "None where the last is kept, whatever its score",
    )
    earlier_phases: tuple[EarlierPhase, ...] = ()
    unlabelled_texts: int | None = Field(None, description="that were added to the task's own")
    unlabelled_left_out: dict[str, int] | None = Field(
        None, description="texts that were not added, by the filter that left them out"
    )
    augmented_texts: int | None = Field(None, description="that were made of them")
    together: dict[str, OtherTask] = Field({}, description="by the name of the other task")


class ReliabilityBin(Part):
    """Predictions whose probabilities are in one bin."""

    low: float
    high: float
    count: int
    confidence: float = Field(description="their mean probability")
    right: float = Field(description="the share of them that is right")


class Reliability(Part):
    """Distance of a model's probabilities from the shares of correct predictions."""

    n: int = Field(description="predictions: one a text or word, or one a label of a set")
    ece: float = Field(description="expected calibration error, of 15 bins of equal width")
    brier: float
    nll: float = Field(description="negative log-likelihood, in nats")
    bins: tuple[ReliabilityBin, ...] = Field(description="those that have predictions")


class ReliabilityChange(Part):
    """After minus before on the same texts, with its 95 % interval over texts."""

    value: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """The verdict: better, worse, or neither."""
        if self.high < 0:
            return "better"
        return "worse" if self.low > 0 else "no change beyond noise"


class CalibrationFindings(Part):
    """Reliability on held-out texts before and after a calibration."""

    method: str
    source: dict[str, Any] = Field(default_factory=dict, description="settings of its task")
    chosen_on: int = Field(description="validation texts that it was fitted on")
    texts: int = Field(description="held-out texts")
    before: Reliability
    after: Reliability
    changes: dict[str, ReliabilityChange] = Field(description="of ece, brier and nll")

    @property
    def worse(self) -> tuple[str, ...]:
        """The measures that became worse, beyond noise."""
        return tuple(name for name, change in self.changes.items() if change.low > 0)


class TeacherFileFindings(Part):
    """A teacher file, and how well its student agrees with it."""

    path: str = Field(description="as it was given")
    sha256: str = Field(description="of the file; of a folder, of the digests of its parts")
    form: str = Field(description="of its rows: probabilities, votes or labels")
    rows: int = Field(description="that could be used")
    gold: int = Field(description="texts with a true label")
    calibration_error: float | None = Field(
        None, description="expected, of the student's probabilities on all held-out texts"
    )
    held_out: int | None = Field(None, description="held-out texts that it has outputs on")
    score: float | None = Field(None, description="of the teacher on these")
    agreement: float | None = Field(
        None,
        description="of student and teacher on these: accuracy, exact_match of sets, or pearson of "
        "numbers",
    )
    teacher_calibration_error: float | None = Field(None, description="expected, on these")


class BundleFindings(Part):
    """A folder for another program, and its check."""

    opens_as: str = Field(description="what opens it there")
    checked_by: str = Field(description="what ran the files of the folder alone")
    notes: tuple[str, ...] = Field((), description="what is for who opens it to do, or to know")


class Findings(Part):
    """Measurements taken when an artifact was written."""

    parameters: int | None = Field(None, description="of the model, as counted when it was trained")
    training: TrainingFindings | None = Field(None, description="of stages that train")
    languages: tuple[LanguageShare, ...] | None = Field(
        None, description="of `pretrain --language-alpha`, in its last phase"
    )
    lengths: LengthFindings | None = Field(
        None, description="of stages that train, where texts were read in tokens"
    )
    scores: ScoreFindings | None = Field(None, description="where held-out texts were scored")
    control: ControlFindings | None = Field(None, description="of `distill --control`")
    teacher_file: TeacherFileFindings | None = Field(
        None, description="of `distill`, where the teacher is a file"
    )
    vocabulary: VocabularyFindings | None = Field(None, description="of `distill --vocab-size`")
    pruning: PruningFindings | None = Field(None, description="of `prune`")
    graph: GraphFindings | None = Field(None, description="of `export`")
    numbers: LargestNumber | None = Field(None, description="of `export` to float16")
    quantization: QuantizationFindings | None = Field(None, description="of `quantize`")
    left_out_optimizers: tuple[str, ...] | None = Field(
        None,
        description="of ONNX Runtime: bertender opens the graph without them, as others do with "
        "disabled_optimizers",
    )
    session_config: Mapping[str, str] | None = Field(
        None,
        description="of ONNX Runtime: entries that bertender opens the graph with on CPUs without "
        "8-bit dot products, as others do with add_session_config_entry",
    )
    bundle: BundleFindings | None = Field(None, description="of `bundle`")
    calibration: CalibrationFindings | None = Field(None, description="of `calibrate`")
    parity: ParitySummary | None = Field(None, description="with the artifact's parent")
