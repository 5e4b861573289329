"""A smaller vocabulary (Zhao et al. 2019, arXiv 1909.11687v1): BERT-48 and BERT-192.

On a corpus (general distillation): the student is a BERT of the teacher's depth, 192 wide or
`--hidden-size 48`, with its own WordPiece vocabulary of 4,928 entries, trained on the corpus.
Dual training (section 3.2): together with the student, a copy of the teacher learns to predict
masked words in rows that mix both vocabularies, word by word with p = 0.5 and a softmax for each
vocabulary. The copy thus learns embeddings of the student's tokens. The student reads only its own.
Shared projections (section 3.3): matrices shared by all layers project the student's weights,
embeddings and layers, to the size of the copy's, and a loss pulls them together. `up`, the paper's
better variant, is the default; `--weights up=0,down=1` projects the copy's to the student's size.
On a task: labels alone, from that student; soft labels too with `--weights soft=1`.
Departures: a teacher without a masked-language-model head gets a new one, which the copy learns; no
next-sentence prediction; the three losses on the corpus have equal weight; a dimension of equal
size in both models is not projected; only word embeddings are projected, not the other embeddings
or the head; a projected weight pulls the student and the projection, not the copy; the mix of a row
is the same in all epochs; a student of fewer layers learns from evenly spread ones.
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
    """A student of the teacher's depth, with a vocabulary trained on the corpus."""

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
