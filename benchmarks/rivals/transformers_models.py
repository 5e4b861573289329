"""transformers: its pipeline, and its model compiled by PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from benchmarks.rivals.opening import Example, Opening, Predict, inputs_of

__all__ = ["in_pipeline", "open_compiled", "open_pipeline"]


def open_pipeline(opening: Opening) -> Predict:
    """Open a torch model in `pipeline("text-classification")`."""
    torch.set_num_threads(opening.threads)
    return in_pipeline(AutoModelForSequenceClassification.from_pretrained(opening.folder), opening)


def in_pipeline(model: Any, opening: Opening) -> Predict:
    """Return a pipeline's probabilities, of a model of transformers or one that acts as such."""
    tokenizer = AutoTokenizer.from_pretrained(opening.folder)
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    settings = {"top_k": None, "truncation": True, "max_length": opening.max_length}
    labels = [label for _, label in sorted(model.config.id2label.items())]

    def predict(examples: Sequence[Example]) -> Any:
        rows: Any = classify([*map(_fields, examples)], batch_size=len(examples), **settings)
        scores = [{each["label"]: each["score"] for each in row} for row in rows]
        return [[row[label] for label in labels] for row in scores]

    return predict


def _fields(example: Example) -> dict[str, str]:
    """Return a text or a pair as the pipeline takes it."""
    return dict(zip(("text", "text_pair"), example, strict=False))


def open_compiled(opening: Opening) -> Predict:
    """Compile a torch model by inductor for batches of any shape, in the dtype of the settings."""
    torch.set_num_threads(opening.threads)
    dtype = getattr(torch, opening.settings["dtype"])
    tokenizer = AutoTokenizer.from_pretrained(opening.folder)
    loaded = AutoModelForSequenceClassification.from_pretrained(opening.folder, dtype=dtype)
    model: Any = torch.compile(loaded.eval(), dynamic=True)
    settings = {"padding": True, "truncation": True, "max_length": opening.max_length}

    def predict(examples: Sequence[Example]) -> Any:
        with torch.inference_mode():
            inputs = tokenizer(inputs_of(examples), return_tensors="pt", **settings)
            logits = model(**inputs).logits
            return np.asarray(logits.float().softmax(-1))

    return predict
