"""A smaller vocabulary (Zhao et al. 2019, arXiv 1909.11687v1): BERT-48 and BERT-192.

On a corpus (general distillation): the student is a BERT of the teacher's depth, 192 wide or
`--hidden-size 48`, over a WordPiece vocabulary of its own, 4,928 entries trained on the corpus.
Dual training (section 3.2): a copy of the teacher learns with the student to predict masked words
in rows that mix both vocabularies, word by word with p = 0.5, a softmax for each. So it finds
embeddings of the student's tokens among its own. The student reads its own tokens alone.
Shared projections (section 3.3): the student's weights, embeddings and layers, are brought to the
size of the copy's by matrices that all layers share, and pulled towards them. `up`, which the paper
finds the better one, is on; `--weights up=0,down=1` brings the copy's to the student's size.
On a task: labels alone, from that student; soft labels too with `--weights soft=1`.
Departures: a teacher without a head that predicts words is given a new one, which the copy learns;
no next-sentence prediction; the three losses of the corpus weigh the same; a dimension
that is alike in both models is not projected; of the embeddings only those of words are, and the
head that predicts words is not; a projected weight pulls the student and the projection, not the
copy; the mix of a row stays through all epochs; a
student of fewer layers learns from evenly spread ones.
"""

from __future__ import annotations

from distill.losses.terms import (
    HardLabels,
    MaskedWords,
    MixedWords,
    ProjectedWeights,
    SoftLabels,
    uniform,
)
from distill.methods.method import General, Method, Phase, one_phase
from distill.methods.tinybert import AnyWidthStudent
from distill.students import PretrainedStudent


class OwnVocabularyStudent(AnyWidthStudent):
    """As deep as its teacher, over a vocabulary that is trained on the corpus."""

    usual_layers = "all"
    own_vocabulary = True
    lacks = frozenset({"teacher_layers"})


SMALL_VOCAB = Method(
    name="small-vocab",
    summary="labels, for a narrow student with a small vocabulary that a general stage made",
    paper="Zhao et al. 2019, arXiv 1909.11687v1",
    student=PretrainedStudent(),
    phases=one_phase(HardLabels(weight=1.0), SoftLabels(weight=0.0, temperature=1.0)),
    settings={"epochs": 4, "learning_rate": 1e-4},
    general=General(
        summary="masked words in a small vocabulary, next to a teacher's copy that learns it too",
        student=OwnVocabularyStudent(),
        phases=(
            Phase(
                "dual",
                (
                    MaskedWords(weight=1.0),
                    MixedWords(weight=1.0),
                    ProjectedWeights("up", 1.0, layers=uniform, projects_student=True),
                    ProjectedWeights("down", 0.0, layers=uniform, projects_student=False),
                ),
                masked=True,
                training_module="dual",
            ),
        ),
        settings={"learning_rate": 5e-4, "hidden_size": 192},
    ),
)
