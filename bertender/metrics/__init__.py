"""METRICS: scores, and paired changes of scores, each with a 95 % interval.

The values match scikit-learn, SciPy and seqeval; the intervals are Wilson's or by bootstrap. SciPy
is imported where it computes, so that records and settings can name metrics at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from bertender.core.config import Table
from bertender.metrics.answers import (
    AnsweredF1,
    AnsweredMatch,
    AnswerF1,
    AnswerMatch,
    UnansweredAccuracy,
)
from bertender.metrics.labels import (
    F1,
    Accuracy,
    ExactMatch,
    Jaccard,
    MacroF1,
    MacroF1Sets,
    Matthews,
    MeanAveragePrecision,
    MicroF1,
)
from bertender.metrics.metric import (
    AND,
    OF_HEAD,
    POINTS,
    UNKNOWN,
    Change,
    LabelSet,
    MeanOfHeads,
    Metric,
    OfHead,
    OneOrSeveral,
    Rows,
    Score,
    percentiles,
)
from bertender.metrics.numbers import CosineSpearman, MeanAbsoluteError, Pearson, Recall, Spearman
from bertender.metrics.ranking import Ndcg, PassageRecall, ReciprocalRank
from bertender.metrics.tags import EntityF1, TagAccuracy


class Metrics(Table[Metric]):
    """Scores by name; `metrics.metric` describes the names for models with several heads."""

    def __missing__(self, name: str) -> Metric:
        if AND in name:
            return MeanOfHeads([self[part] for part in name.split(AND)])
        head, of_head, metric = name.partition(OF_HEAD)
        return OfHead(head, self[metric]) if of_head else super().__missing__(name)


METRICS = Metrics(
    "metric",
    {
        "accuracy": Accuracy(),
        "f1": F1(),
        "macro_f1": OneOrSeveral(MacroF1(), MacroF1Sets()),
        "matthews": Matthews(),
        "pearson": Pearson(),
        "spearman": Spearman(),
        "mean_absolute_error": MeanAbsoluteError(),
        "micro_f1": MicroF1(),
        "jaccard": Jaccard(),
        "exact_match": ExactMatch(),
        "mean_average_precision": MeanAveragePrecision(),
        "cosine_spearman": CosineSpearman(),
        "recall_at_1": OneOrSeveral(Recall(1), PassageRecall(1)),
        "recall_at_10": Recall(10),
        "ndcg_at_10": Ndcg(10),
        "mean_reciprocal_rank": ReciprocalRank(),
        "recall_at_5": PassageRecall(5),
        "entity_f1": EntityF1(),
        "tag_accuracy": TagAccuracy(),
        "answer_f1": AnswerF1(),
        "answer_match": AnswerMatch(),
        "answered_f1": AnsweredF1(),
        "answered_match": AnsweredMatch(),
        "unanswered_accuracy": UnansweredAccuracy(),
    },
)


def score(
    metric: str,
    label_ids: Rows,
    predictions: Rows,
    *,
    label_count: int | None = None,
    labels: Sequence[str] = (),
    seed: int = 0,
) -> Score:
    """Return a metric's value and 95 % interval.

    Args:
        metric: a name of METRICS.
        label_ids: the true label of each row.
        predictions: the predicted label of each row.
        label_count: number of the task's labels; None counts those that occur.
        labels: label names, for metrics that read names.
        seed: seed of the bootstrap.

    Raises:
        UnknownNameError: there is no such metric.
        DataError: there are no rows, the numbers of predictions and labels differ, or an id is
            invalid.
    """
    row, known = METRICS[metric], LabelSet(label_count, labels)
    value, low, high = row.score(label_ids, predictions, known, seed)
    undefined = row.undefined(label_ids, predictions, known)
    n = row.count(label_ids, known)
    return Score(metric=metric, value=value, low=low, high=high, n=n, undefined=undefined)


def paired_change(
    metric: str,
    label_ids: Rows,
    reference_predictions: Rows,
    candidate_predictions: Rows,
    labels: LabelSet = UNKNOWN,
    *,
    seed: int = 0,
) -> Change:
    """Return the candidate's gain over the reference, in points, by a paired bootstrap.

    Both models predict the same rows, so most of a score's uncertainty (which rows were drawn) is
    common to both and cancels: this interval is narrower than the two scores' intervals suggest.
    Other arguments and errors are those of `score`; `labels` are those of the task.
    """
    models = [reference_predictions, candidate_predictions]
    (before, after), (reference, candidate) = METRICS[metric].resampled(
        label_ids, models, labels, seed
    )
    low, high = percentiles(POINTS * (candidate - reference))
    return Change(value=POINTS * (after - before), low=low, high=high)
