"""Compact students, pre-trained on their own or started from projections: two papers.

**Pre-trained distillation** (Turc et al. 2019, arXiv 1908.08962), `pd`: well-read students learn
better. Student: a compact pre-trained model (`bertender pretrain`, or any encoder), named by
`--student`; all of its layers by default, with its own vocabulary.
Loss: soft labels at T = 1 on an unlabelled transfer set (section 3): the texts of the task and of
`--unlabelled`. No hidden states are matched and no labels are read.
Departures: the paper fine-tunes some students on the labels afterwards; `bertender finetune
--teacher STUDENT` does that.

**MiniBERT** (Tsai et al. 2019, arXiv 1909.00100): a small tagger on its teacher's vocabulary.
Student: a BERT of 3 layers, 256 wide, with the teacher's tokens; a model named by `--student` keeps
its layers and width. Loss: the teacher's softened distribution at each word, or for the text where
texts have one label.
The paper was not available: depth, width, the shared vocabulary and the soft labels are as recalled
from it. Heads of 64, a feed-forward part of 1,024 and T = 2 are choices made here.
Departures: the paper pre-trains the student like BERT, on the teacher's languages; here, `bertender
pretrain` can make a `--student`, and without it the embeddings are projections of the teacher's and
the layers are random. The paper learns from soft labels; here hard labels have equal weight where
texts have them (`--weights hard=0` leaves them out).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from distill.losses.terms import HardLabels, SoftLabels
from distill.methods.method import Method, one_phase
from distill.methods.tinybert import AnyWidthStudent
from distill.students import PretrainedStudent, StudentShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PD = Method(
    name="pd",
    summary="soft labels alone, for a compact student that was pre-trained on its own",
    paper="Turc et al. 2019, arXiv 1908.08962",
    student=PretrainedStudent(),
    phases=one_phase(SoftLabels(weight=1.0, temperature=1.0)),
    settings={"epochs": 4, "learning_rate": 1e-4},
)

HIDDEN_SIZE = 256
HEAD_DIM = 64


class MiniBertStudent(AnyWidthStudent):
    """A BERT 256 wide with the teacher's vocabulary; or as wide as its own start, or as a narrower
    teacher.

    Its layers are random. Word and position embeddings are the teacher's, projected on the
    principal directions of the word table, which best keep angles and distances; they are random
    where the table has fewer rows than the student's width. A student as wide as its start (a
    pre-trained MiniBERT) keeps the start's layers.
    """

    usual_layers = 3

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build the student.

        Raises:
            ModelError: as `AnyWidthStudent`.
        """
        theirs: int = start.config.hidden_size
        width = shape.hidden_size or (theirs if shape.own_start else min(HIDDEN_SIZE, theirs))
        if width == theirs:
            return super().build(start, shape)
        most = max(width // HEAD_DIM, 1)
        heads = next(heads for heads in range(most, 0, -1) if width % heads == 0)
        shape = replace(shape, hidden_size=width, heads=shape.heads or heads)
        student = super().build(start, shape)
        _project_embeddings(start, student)
        return student


def _project_embeddings(start: PreTrainedModel, student: PreTrainedModel) -> None:
    import torch
    from torch.nn import functional

    from bertender.models.families import family_of
    from distill.students.weights import factors, position_table, weight_of, word_table

    family, own, encoder = family_of(start), family_of(student), student.base_model
    words, width = word_table(start), student.config.hidden_size
    if min(words.shape) < width:
        return
    with torch.no_grad():
        _, widening = factors(words, width)
        directions = functional.normalize(widening, dim=1).T  # (teacher's hidden, hidden)
        weight_of(encoder, own.word_embeddings).copy_(words @ directions)
        if family.plain_layers:
            assert own.position_embeddings and own.token_type_embeddings
            positions = position_table(start, family) @ directions
            weight_of(encoder, own.position_embeddings).copy_(positions)
            weight_of(encoder, own.token_type_embeddings).zero_()  # positions hold the first one


MINIBERT = Method(
    name="minibert",
    summary="soft and hard labels, of texts or of words, for a BERT of 3 layers x 256",
    paper="Tsai et al. 2019, arXiv 1909.00100",
    student=MiniBertStudent(),
    phases=one_phase(SoftLabels(weight=0.5, temperature=2.0), HardLabels(weight=0.5)),
    settings={"epochs": 10, "learning_rate": 5e-4},
)
