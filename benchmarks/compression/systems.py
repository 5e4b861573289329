"""SYSTEMS: ways of the literature to compress a BERT, and figures that the papers state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bertender.core.config import Table

__all__ = ["CONTROLS", "ENCODER", "SYSTEMS", "TEACHER", "Published", "System"]

ENCODER = "ENCODER"
"""Placeholder in settings: the encoder that `--students` has for the system."""
TEACHER = "TEACHER"
"""Placeholder in settings: the teacher, which a pruned model recovers from."""


@dataclass(frozen=True)
class Published:
    """Figures of a paper, over BERT-base on its own texts and machine; None: not listed here."""

    smaller: float | None = None
    """Parameters or bytes of BERT-base over its own."""
    faster: float | None = None
    """Time of BERT-base over its own."""
    retained: float | None = None
    """Of BERT-base's score, in percent."""
    of: str = ""
    """Model and test of the retained score."""


@dataclass(frozen=True)
class System:
    """A row of SYSTEMS."""

    title: str
    paper: str
    """Authors, year and arXiv number."""
    settings: Mapping[str, Any]
    """Of the stage."""
    stage: Literal["distill", "prune", "quantize"] = "distill"
    in_epochs: bool = False
    """Whether a longer training sees the labelled texts more often, instead of others without
    labels."""
    share: float = 1.0
    """Of the time."""
    published: Published = Published()
    is_control: bool = False
    """Whether it learns from labels alone: the best such row is what others are compared with."""
    encoder_width: int | None = None
    """Hidden size of the encoder that it starts from; None: any."""

    @property
    def is_timed(self) -> bool:
        """Whether its graphs are made and timed: a shorter training gives one as another's."""
        return self.share == 1

    @property
    def of_encoder(self) -> bool:
        """Whether its student starts from an encoder of its own."""
        return ENCODER in self.settings.values()


FROM_NOISE = 5e-4
"""Learning rate of students that start from random weights, as that of `mobilebert`."""
BRIEF_GATE: Mapping[str, Any] = {"parity_texts": 32}
"""Of stages with a gate, whose time would take a large part of the training's; all held-out texts
score the result afterwards."""
GLUE = "BERT-base, GLUE development sets"
GLUE_TEST = "BERT-base, GLUE test sets"
SST2_TEST = "BERT-base, SST-2 test set"
PKD = "Sun et al. 2019, arXiv 1908.09355"
MOBILEBERT = "Sun et al. 2020, arXiv 2004.02984"
TINYBERT = "Jiao et al. 2019, arXiv 1909.10351"

SYSTEMS = Table(
    "system",
    {
        **{
            name: System(
                f"6 layers, labels alone{of_the_time}",
                "",
                {"method": "hard", "layers": 6},
                in_epochs=True,
                share=share,
                is_control=True,
            )
            for name, share, of_the_time in (
                ("hard-6", 1.0, ""),
                ("hard-6-half", 0.5, ", half of the time"),
                ("hard-6-quarter", 0.25, ", a quarter of the time"),
            )
        },
        # what PKD starts from, with the teacher's first layers: `hard` takes alternating ones
        "pkd-6-labels": System(
            "6 layers as in PKD, labels alone",
            "",
            {"method": "pkd", "layers": 6, "weights": {"soft": 0, "hard": 1, "patience": 0}},
            in_epochs=True,
            is_control=True,
        ),
        "distilbert-6": System(
            "DistilBERT, 6 layers",
            "Sanh et al. 2019, arXiv 1910.01108",
            {"method": "distilbert", "layers": 6},
            published=Published(1.67, 1.6, 96.9, GLUE),
        ),
        "pkd-6": System(
            "PKD, 6 layers",
            PKD,
            {"method": "pkd", "layers": 6},
            published=Published(1.64, 1.94, 98.4, SST2_TEST),
        ),
        "pkd-3": System(
            "PKD, 3 layers",
            PKD,
            {"method": "pkd", "layers": 3},
            published=Published(2.4, 3.73, 93.6, SST2_TEST),
        ),
        "internal-6": System(
            "Internal representations, 6 layers",
            "Aguilar et al. 2019, arXiv 1910.03723",
            {"method": "internal", "layers": 6},
        ),
        "tinybert-6": System(
            "TinyBERT, 6 layers",
            TINYBERT,
            {"method": "tinybert", "layers": 6},
            published=Published(1.63, 2.0, 99.9, GLUE_TEST),
        ),
        "tinybert-4": System(
            "TinyBERT, 4 layers x 312",
            TINYBERT,
            {
                "method": "tinybert",
                "layers": 4,
                "hidden_size": 312,
                "feed_forward_size": 1200,
                "learning_rate": FROM_NOISE,
                "earlier_learning_rate": FROM_NOISE,
            },
            published=Published(7.5, 9.4, 96.8, GLUE_TEST),
        ),
        "minilm-6": System(
            "MiniLM, 6 layers x 384",
            "Wang et al. 2020, arXiv 2002.10957",
            {
                "method": "minilm",
                "layers": 6,
                "hidden_size": 384,
                "learning_rate": FROM_NOISE,
                "earlier_learning_rate": FROM_NOISE,
            },
            published=Published(5.0, 5.3, 98.6, "BERT-base, MNLI, of another teacher"),
        ),
        "theseus-6": System(
            "BERT-of-Theseus, 6 layers",
            "Xu et al. 2020, arXiv 2002.02925",
            {"method": "theseus", "layers": 6},
            in_epochs=True,
            published=Published(1.66, 1.94, 98.4, GLUE),
        ),
        "mobilebert": System(
            "MobileBERT",
            MOBILEBERT,
            {"method": "mobilebert"},
            published=Published(4.3, 5.5, 99.2, GLUE_TEST),
        ),
        "mobilebert-tiny": System(
            "MobileBERT, tiny",
            MOBILEBERT,
            {"method": "mobilebert-tiny"},
            published=Published(smaller=7.2, retained=96.8, of=GLUE_TEST),
        ),
        "albert": System(
            "ALBERT student",
            "Lan et al. 2019, arXiv 1909.11942",
            {"method": "albert"},
            published=Published(
                9.0, None, 97.3, "BERT-base, five tasks; pre-trained, not distilled"
            ),
        ),
        "bilstm": System(
            "BiLSTM, soft labels",
            "Tang et al. 2019, arXiv 1903.12136",
            {"method": "bilstm"},
            published=Published(retained=95.6, of="BERT-large, SST-2 test set"),
        ),
        "pd": System(
            "Pre-trained distillation",
            "Turc et al. 2019, arXiv 1908.08962",
            {"method": "pd", "student": ENCODER},
            published=Published(1.64, 2.0, 98.2, f"{SST2_TEST}; 6 layers x 768"),
        ),
        **{
            f"small-vocab-{width}": System(
                f"Small vocabulary, {width} wide",
                "Zhao et al. 2019, arXiv 1909.11687v1",
                {"method": "small-vocab", "student": ENCODER},
                in_epochs=True,
                published=published,
                encoder_width=width,
            )
            for width, published in {192: Published(), 48: Published(smaller=60)}.items()
        },
        "static": System("Weighted vectors of tokens", "", {"method": "static"}),
        "heads": System(
            "Pruned heads, two of five",
            "Michel et al. 2019, arXiv 1905.10650",
            {"heads": 0.4, "teacher": TEACHER},
            stage="prune",
        ),
        "q8bert": System(
            "Q8BERT",
            "Zafrir et al. 2019, arXiv 1910.06188",
            {"scheme": "qat", **BRIEF_GATE},
            stage="quantize",
            in_epochs=True,
            published=Published(4.0, None, 99.9, "BERT-base, SST-2"),
        ),
        "q-bert": System(
            "Q-BERT, 2 bits",
            "Shen et al. 2020, arXiv 1909.05840",
            {
                "scheme": "q-bert",
                **BRIEF_GATE,
                "weight_bits": 2,
            },
            stage="quantize",
            in_epochs=True,
            published=Published(13.0, None, 97.3, "BERT-base, MNLI; 2 and 3 bits; without tables"),
        ),
    },
)
"""Name -> system."""

CONTROLS = tuple(name for name, row in SYSTEMS.items() if row.is_control)
"""Rows that learn from labels alone, for more and for fewer epochs, or from another start: the one
that is best on the texts to choose by is the control."""
