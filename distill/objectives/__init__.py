"""OBJECTIVES: what a pre-training run minimises, by name; one objective a file.

Its module loads PyTorch and is imported when it is built: settings name an objective without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertender.core.table import Table, on_demand

if TYPE_CHECKING:
    from transformers import BertConfig, PreTrainedModel, PreTrainedTokenizerBase

    from bertender.training.objective import Objective
    from distill.corpora.rows import RowBuilder
    from distill.objectives.pretraining_module import PretrainingModule

__all__ = ["OBJECTIVES", "PretrainingObjective"]

CONSECUTIVE_PASSAGES = 8
MASKED_LANGUAGE_MODEL = "masked_language_model"

BERT = on_demand("distill.objectives.models:bert")
OWN_HEAD = on_demand("distill.objectives.pretraining_module:OwnHead")
FULL_SENTENCES = on_demand("distill.corpora.rows:full_sentence_rows")


@dataclass(frozen=True)
class PretrainingObjective:
    """A row of OBJECTIVES."""

    summary: str
    paper: str
    objective: Callable[[PreTrainedTokenizerBase, float, int], Objective]
    """(tokenizer, share of tokens to predict, seed) -> objective"""
    model: Callable[[BertConfig], PreTrainedModel] = BERT
    """(shape of a BERT) -> the model that is written in the end, untrained"""
    pretraining_module: Callable[[PreTrainedModel], PretrainingModule] = OWN_HEAD
    """(model) -> what is trained, whose forward the objective calls"""
    rows: RowBuilder = FULL_SENTENCES
    """How examples are made from passages."""
    held_out_run: int = CONSECUTIVE_PASSAGES
    """So many consecutive passages are held out together: held-out rows are then like the others,
    which run over passages or are cut from several."""
    family: str = "bert"
    """The model's row of FAMILIES."""
    perplexity_of: str | None = "mlm"
    """The part of the loss that is a language model's, whose exponential is reported."""
    problem_type: str = MASKED_LANGUAGE_MODEL

    @property
    def predicts_words(self) -> bool:
        """Return whether the model has a masked-language head."""
        return self.problem_type == MASKED_LANGUAGE_MODEL


OBJECTIVES = Table(
    "pre-training objective",
    {
        "mlm": PretrainingObjective(
            summary="predict masked tokens, masked anew in every epoch",
            paper="Devlin et al. 2018, arXiv 1810.04805; "
            "masks of Liu et al. 2019, arXiv 1907.11692",
            objective=on_demand("distill.objectives.masked_language_model:MaskedLanguageModel"),
        ),
        "mlm+nsp": PretrainingObjective(
            summary="predict masked tokens, and whether the second segment follows the first",
            paper="Devlin et al. 2018, arXiv 1810.04805",
            objective=on_demand("distill.objectives.next_sentence:next_sentence_prediction"),
            model=on_demand("distill.objectives.models:bert_with_pooler"),
            pretraining_module=on_demand("distill.objectives.next_sentence:next_sentence_module"),
            rows=on_demand("distill.corpora.segment_pairs:next_sentence_rows"),
        ),
        "mlm+sop": PretrainingObjective(
            summary="predict masked n-grams, and whether two segments are swapped; ALBERT",
            paper="Lan et al. 2019, arXiv 1909.11942",
            objective=on_demand("distill.objectives.sentence_order:sentence_order_prediction"),
            model=on_demand("distill.objectives.models:albert_with_pooler"),
            pretraining_module=on_demand("distill.objectives.sentence_order:sentence_order_module"),
            rows=on_demand("distill.corpora.segment_pairs:sentence_order_rows"),
            family="albert",
        ),
        "mlm+word-order": PretrainingObjective(
            summary="predict masked tokens, and the order of shuffled trigrams",
            paper="Wang et al. 2019, arXiv 1908.04577",
            objective=on_demand("distill.objectives.word_order:WordOrder"),
        ),
        "rtd": PretrainingObjective(
            summary="detect the tokens that a small generator has replaced; ELECTRA",
            paper="Clark et al. 2020, arXiv 2003.10555",
            objective=on_demand("distill.objectives.replaced_tokens:ReplacedTokens"),
            model=on_demand("distill.objectives.models:electra"),
            pretraining_module=on_demand("distill.objectives.replaced_tokens:ReplacedTokensModule"),
            perplexity_of=None,
            problem_type="replaced_token_detection",
            family="electra",
        ),
        "span": PretrainingObjective(
            summary="predict masked spans, from their boundaries too",
            paper="Joshi et al. 2019, arXiv 1907.10529",
            objective=on_demand("distill.objectives.spans:span_prediction"),
            pretraining_module=on_demand("distill.objectives.spans:SpanModule"),
        ),
        "wwm": PretrainingObjective(
            summary="predict masked words, all tokens of a word together",
            paper="Devlin et al. 2018, arXiv 1810.04805, as published in 2019",
            objective=on_demand("distill.objectives.whole_words:whole_word_masking"),
        ),
    },
)
