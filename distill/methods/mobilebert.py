"""MobileBERT (Sun et al. 2020, arXiv 2004.02984), with progressive knowledge transfer.

Student: the MobileBERT class: a bottleneck around each layer, stacked feed-forward parts, scales in
place of layer norms, relu, embeddings of 128 over three neighbouring tokens. `mobilebert` has four
feed-forward parts per layer, `mobilebert-tiny` two and a light attention (table 1). By default the
student is as deep as the teacher; shallower ones learn from evenly spread layers.
Phase 1 (progressive knowledge transfer): layers take turns from the lowest up, all equally long,
by default one epoch. The current layer has feature map transfer (eq. 1, split into normalised maps,
means and variances with weights 100, 5000 and 5 over the number of layers, as in the published
code) and attention transfer (eq. 2). Lower layers learn at a tenth of the rate, as there; higher
layers do not learn yet, and dropout is off.
Phase 2: soft and hard labels at T = 1, of equal weight (eq. 3, with the task's labels instead of
masked words).
On a corpus (general distillation, the paper's own order): phase 1 on texts with masked words, then
phase 2 as in eq. 3 on these words, without next-sentence prediction. The result is fine-tuned, or
distilled again on a task.
Departures: any teacher, where the paper pre-trains one with inverted bottlenecks. The student has
the teacher's width (512 in the paper) and heads; another width is projected by one linear layer for
all layers, since all write into one stream of hidden states. The learning rates are ours. The
layers' turns are stages of one phase with one optimizer: one epoch per layer, so that each has the
paper's equal share at any depth; `--earlier-epochs` sets the epochs of all turns together.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bertender.core.errors import ModelError
from distill.losses.terms import (
    HardLabels,
    MaskedWords,
    Match,
    SoftLabels,
    SoftWords,
    attention_divergence,
    hidden_mean_mse,
    hidden_variance_difference,
    normalised_hidden_mse,
    uniform,
)
from distill.methods.method import General, LayerTurns, Method, Phase, one_phase
from distill.students import StudentKind, StudentShape

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

EMBEDDING_SIZE = 128
NARROWING = 4
"""Width of the hidden states over the bottleneck's: 512 and 128 in the paper."""
FEED_FORWARD_FACTOR = 4
"""Width of a feed-forward part over the bottleneck's: 512 and 128 in the paper."""


@dataclass(frozen=True)
class MobileBertStudent(StudentKind):
    """A MobileBERT with the teacher's vocabulary and random layers.

    By default the hidden states have the teacher's width, the heads the teacher's number, and the
    bottleneck a quarter of the width, rounded up to a multiple of the heads. The word table starts
    as the best narrow factor of the teacher's. Where the widths agree, all embeddings start as near
    to the teacher's as possible without layer norms. A start that is such a MobileBERT is used
    unchanged, with its layers.
    """

    tiny: bool = False
    """Two feed-forward parts per layer instead of four, and a light attention: queries, keys and
    values read the bottleneck. In `mobilebert`, values read the hidden states, and queries and keys
    a bottleneck of their own."""
    usual_layers = "all"
    layer_by_layer = False
    lacks = frozenset({"teacher_layers"})
    model_type = "mobilebert"
    heads_divide_width = False

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build the student.

        Args:
            start: a sequence classifier of an architecture in FAMILIES.
            shape: `feed_forward_size` is the width of each feed-forward part, four times the
                bottleneck by default.

        Raises:
            ModelError: the shape names layers to start from.
        """
        import torch
        from transformers import MobileBertConfig, MobileBertForSequenceClassification

        from bertender.models.families import FAMILIES, family_name
        from distill.students.weights import (
            factors,
            inherited_settings,
            token_types_of,
            weight_of,
            word_table,
        )

        if shape.teacher_layers:
            raise ModelError(
                f"teacher_layers={shape.teacher_layers}: a MobileBERT student starts from its "
                "teacher's embeddings and from none of its layers. Leave it out."
            )
        layers: dict[str, Any] = {
            "num_hidden_layers": shape.layers,
            "num_feedforward_networks": 2 if self.tiny else 4,
            "use_bottleneck_attention": self.tiny,
            "key_query_shared_bottleneck": not self.tiny,
        }
        source, words = start.config, word_table(start)
        alike = family_name(source) == self.model_type and all(
            getattr(source, name) == value for name, value in layers.items()
        )
        if alike and not shape.other_widths(start):
            return copy.deepcopy(start)
        width = shape.hidden_size or source.hidden_size
        heads = shape.heads or source.num_attention_heads
        bottleneck = -(-width // (NARROWING * heads)) * heads
        config = MobileBertConfig(
            embedding_size=min(EMBEDDING_SIZE, words.shape[1], width),
            hidden_size=width,
            num_attention_heads=heads,
            intra_bottleneck_size=bottleneck,
            intermediate_size=shape.feed_forward_size or FEED_FORWARD_FACTOR * bottleneck,
            type_vocab_size=token_types_of(start),
            classifier_activation=False,  # the classifier reads [CLS] itself, as in the paper
            **inherited_settings(start),
            **layers,
        )
        student = MobileBertForSequenceClassification(config)
        narrow, widening = factors(_centred(words), config.embedding_size)
        with torch.no_grad():
            table = weight_of(student.base_model, FAMILIES["mobilebert"].word_embeddings)
            table.copy_(narrow)
            table[config.pad_token_id] = 0  # a text's last token has padding as right neighbour
            if widening.shape[1] == width:
                _start_hidden_states(start, student, widening)
        return student


def _start_hidden_states(
    start: PreTrainedModel, student: PreTrainedModel, widening: torch.Tensor
) -> None:
    """Start from the teacher's embeddings, with one standard deviation for all tokens.

    A layer norm subtracts the mean, divides by the standard deviation, and scales. The mean is
    subtracted in the tables; MobileBERT's scale does the rest.
    """
    import torch

    from bertender.models.families import family_of
    from distill.students.weights import position_table, weight_of, word_table

    family = family_of(start)
    embeddings: Any = student.base_model.get_submodule("embeddings")
    words = _centred(word_table(start))
    positions = torch.zeros_like(embeddings.position_embeddings.weight)
    if family.position_embeddings is not None:
        positions = _centred(position_table(start, family))
    types = torch.zeros(1, words.shape[1])
    if family.token_type_embeddings is not None:  # differences to the first type
        types = _centred(weight_of(start.base_model, family.token_type_embeddings))
        types = types - types[0]
    # the mean square of the sums of every word with every position
    product = words.mean(0) * positions.mean(0)
    mean_square = words.square().mean() + positions.square().mean() + 2 * product.mean()
    # MobileBERT joins the next, own and previous token; only the own one has weight
    nothing = torch.zeros_like(widening.T)
    joined = torch.cat([nothing, widening.T, nothing], dim=1)
    scale, bias = torch.ones(words.shape[1]), torch.zeros(words.shape[1])
    if family.embedding_norm is not None:
        norm: Any = start.base_model.get_submodule(family.embedding_norm)
        scale = norm.weight / mean_square.sqrt()
        bias = bias if norm.bias is None else norm.bias
    embeddings.embedding_transformation.weight.copy_(joined)
    embeddings.embedding_transformation.bias.zero_()
    embeddings.position_embeddings.weight.copy_(positions)
    embeddings.token_type_embeddings.weight.copy_(types)
    embeddings.LayerNorm.weight.copy_(scale)
    embeddings.LayerNorm.bias.copy_(bias)


def _centred(table: torch.Tensor) -> torch.Tensor:
    """Return vectors (rows, width), each with its mean subtracted."""
    return table - table.mean(-1, keepdim=True)


MAPS = Match(
    "features",
    100.0,
    "hidden_states",
    normalised_hidden_mse,
    layers=uniform,
    projected=True,
    divided_by_depth=True,
)
TRANSFER = LayerTurns(
    "transfer",
    (
        MAPS,
        replace(MAPS, name="means", weight=5000.0, loss=hidden_mean_mse),
        replace(MAPS, name="variances", weight=5.0, loss=hidden_variance_difference),
        Match("attention", 1.0, "attention_scores", attention_divergence, layers=uniform),
    ),
    epochs=1,
    settings={"schedule": "constant", "learning_rate": 1e-3, "no_dropout": True},
    training_module="layer after layer",
)
LABELS = (SoftLabels(0.5, temperature=1.0), HardLabels(0.5))
WORDS = (SoftWords(0.5, temperature=1.0, masked_alone=True), MaskedWords(0.5))

ON_CORPUS = General(
    summary="hidden states and attention of one layer after another, then masked words",
    phases=(replace(TRANSFER, masked=True), Phase("words", WORDS, masked=True)),
    settings={"learning_rate": 5e-4},
)

MOBILEBERT = Method(
    name="mobilebert",
    summary="hidden states and attention of one layer after another, then soft and hard labels",
    paper="Sun et al. 2020, arXiv 2004.02984",
    student=MobileBertStudent(),
    phases=(TRANSFER, *one_phase(*LABELS)),
    settings={"epochs": 5, "learning_rate": 5e-4},
    general=ON_CORPUS,
)

SMALLER = "as `mobilebert`, with two feed-forward parts a layer and a light attention"
MOBILEBERT_TINY = replace(
    MOBILEBERT,
    name="mobilebert-tiny",
    summary=SMALLER,
    student=MobileBertStudent(tiny=True),
    general=replace(ON_CORPUS, summary=SMALLER),
)
