"""A process that has one rival open: `python -m benchmarks.rival_worker`, in its own environment.

The first line of standard input is {"opens", "folder", "threads", "max_length", "setting"},
answered by the versions of PACKAGES. Each further line is {"predict": examples}, answered by their
probabilities, or {"singles": examples, "batch": examples}, answered by the milliseconds of each
single one and of the batch. It imports nothing that the rival does not.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = {"torch", "transformers", "tokenizers", "optimum", "onnxruntime", "openvino"}
PACKAGES |= {"ctranslate2"}
Example = Sequence[str]
"""A text, or the two of a pair."""
Predict = Callable[[Sequence[Example]], Any]
"""examples -> probabilities (examples, labels), in the order of the labels"""


@dataclass(frozen=True)
class Opening:
    """A model, and how it runs."""

    folder: Path
    threads: int
    max_length: int
    """Tokens at which an example is cut."""
    setting: str
    """Precision or runtime, from the row of RIVALS."""


def _inputs(examples: Sequence[Example]) -> list[Any]:
    """Return examples as tokenizers take them: strings, or tuples of two."""
    return [example[0] if len(example) == 1 else tuple(example) for example in examples]


def _softmax(logits: Any) -> Any:
    import numpy as np

    exponents = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


def _in_pipeline(model: Any, opening: Opening) -> Predict:
    from transformers import AutoTokenizer, pipeline

    tokenizer = AutoTokenizer.from_pretrained(opening.folder)
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")
    settings = {"top_k": None, "truncation": True, "max_length": opening.max_length}
    labels = [label for _, label in sorted(model.config.id2label.items())]

    def predict(examples: Sequence[Example]) -> Any:
        fields = [dict(zip(("text", "text_pair"), each, strict=False)) for each in examples]
        rows: Any = classify(fields, batch_size=len(examples), **settings)
        scores = [{each["label"]: each["score"] for each in row} for row in rows]
        return [[row[label] for label in labels] for row in scores]

    return predict


def open_transformers(opening: Opening) -> Predict:
    """Open a torch model in `pipeline("text-classification")`."""
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.set_num_threads(opening.threads)
    return _in_pipeline(AutoModelForSequenceClassification.from_pretrained(opening.folder), opening)


def open_compiled(opening: Opening) -> Predict:
    """Compile a torch model by inductor for batches of any shape."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(opening.threads)
    dtype = getattr(torch, opening.setting)
    tokenizer = AutoTokenizer.from_pretrained(opening.folder)
    loaded = AutoModelForSequenceClassification.from_pretrained(opening.folder, dtype=dtype)
    model: Any = torch.compile(loaded.eval(), dynamic=True)
    settings = {"padding": True, "truncation": True, "max_length": opening.max_length}

    def predict(examples: Sequence[Example]) -> Any:
        with torch.inference_mode():
            inputs = tokenizer(_inputs(examples), return_tensors="pt", **settings)
            return model(**inputs).logits.float().softmax(-1).numpy()

    return predict


def open_optimum(opening: Opening) -> Predict:
    """Open an ONNX file in ONNX Runtime behind transformers' pipeline."""
    import onnxruntime
    import torch
    from optimum.onnxruntime import ORTModelForSequenceClassification

    torch.set_num_threads(opening.threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = opening.threads
    load = ORTModelForSequenceClassification.from_pretrained
    return _in_pipeline(load(opening.folder, session_options=options), opening)


def open_ctranslate2(opening: Opening) -> Predict:
    """Convert a BERT, whose encoder CTranslate2 runs; the head, which it drops, is numpy's."""
    import ctranslate2
    import numpy as np
    from ctranslate2.converters import TransformersConverter
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    config = json.loads((opening.folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "bert":
        raise ValueError(f"no head for {config['model_type']} in numpy, only for bert")
    weights = load_file(opening.folder / "model.safetensors")
    with tempfile.TemporaryDirectory() as folder:
        converter = TransformersConverter(str(opening.folder))
        converter.convert(folder, quantization=opening.setting, force=True)
        threads = {"inter_threads": 1, "intra_threads": opening.threads}
        encoder = ctranslate2.Encoder(folder, "cpu", compute_type=opening.setting, **threads)
    tokenizer = Tokenizer.from_file(str(opening.folder / "tokenizer.json"))
    tokenizer.enable_truncation(opening.max_length)
    tokenizer.no_padding()

    def predict(examples: Sequence[Example]) -> Any:
        encodings = tokenizer.encode_batch(_inputs(examples))
        ids, segments = [each.ids for each in encodings], [each.type_ids for each in encodings]
        pooled = np.array(encoder.forward_batch(ids, token_type_ids=segments).pooler_output)
        return _softmax(pooled @ weights["classifier.weight"].T + weights["classifier.bias"])

    return predict


def open_onnxruntime(opening: Opening) -> Predict:
    """Open an ONNX file with the tokenizer and ONNX Runtime, and nothing between."""
    from benchmarks.plain_servers import PlainModel

    model = PlainModel(opening.folder, opening.max_length, threads=opening.threads)
    return lambda examples: _softmax(model.logits(_inputs(examples)))


def open_openvino(opening: Opening) -> Predict:
    """Compile an ONNX file for this CPU, in the precision that OpenVINO takes by itself."""
    import openvino

    from benchmarks.plain_servers import PlainTokenizer

    tokenizer = PlainTokenizer(opening.folder, opening.max_length)
    settings = {
        "INFERENCE_NUM_THREADS": opening.threads,
        "ENABLE_HYPER_THREADING": True,  # or it takes one thread of each core's two
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = openvino.Core()
    model = core.compile_model(str(opening.folder / "model.onnx"), "CPU", settings)
    inputs = [each.get_any_name() for each in model.inputs]
    request = model.create_infer_request()

    def predict(examples: Sequence[Example]) -> Any:
        arrays = tokenizer.arrays(_inputs(examples))
        taken = {name: arrays[name] for name in inputs}
        return _softmax(request.infer(taken, share_inputs=True)["logits"])

    return predict


def open_bertender(opening: Opening) -> Predict:
    """Open an artifact as `bertender compare` does."""
    import torch

    from bertender.core.artifact import Artifact
    from bertender.models.classifier import open_classifier

    torch.set_num_threads(opening.threads)
    runtime: Any = {"runtime": opening.setting} if opening.setting else {}
    artifact, length = Artifact.load(opening.folder, verify=False), opening.max_length
    threads = opening.threads
    classifier = open_classifier(artifact, threads=threads, max_length=length, **runtime)
    return lambda examples: _softmax(classifier.logits([*map(tuple, examples)]))


OPENERS: Mapping[str, Callable[[Opening], Predict]] = {
    "transformers": open_transformers,
    "compiled": open_compiled,
    "optimum": open_optimum,
    "ctranslate2": open_ctranslate2,
    "onnxruntime": open_onnxruntime,
    "openvino": open_openvino,
    "bertender": open_bertender,
}


def _timed(predict: Predict, known: set[Any], asked: Mapping[str, Any]) -> Any:
    """Return the milliseconds of each single example, and of the batch.

    Everything runs once before it is timed, since some libraries compile for a shape.
    """
    calls = [*([single] for single in asked["singles"]), asked["batch"]]
    for examples in calls:
        key = tuple(map(tuple, examples))
        if key not in known:
            known.add(key)
            predict(examples)
    for examples in calls[:5]:  # so that the row before leaves the caches
        predict(examples)
    times_ms = []
    for examples in calls:
        started = time.perf_counter_ns()
        predict(examples)
        times_ms.append(round((time.perf_counter_ns() - started) / 1e6, 4))
    return times_ms[:-1], times_ms[-1]


def _versions() -> dict[str, str]:
    installed = {each.name.lower(): each.version for each in metadata.distributions()}
    return {name: installed[name] for name in sorted(PACKAGES & installed.keys())}


def main() -> None:
    """Open a rival, and do what is asked for until the input ends."""
    with os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8") as results:
        os.dup2(2, 1)  # what libraries print is not a result
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # it sends events
        request = json.loads(sys.stdin.readline())
        opens, folder = request.pop("opens"), Path(request.pop("folder"))
        predict, known = OPENERS[opens](Opening(folder, **request)), set[Any]()
        gc.collect()
        gc.disable()
        print(json.dumps(_versions()), file=results)
        for line in sys.stdin:
            asked = json.loads(line)
            if "predict" in asked:
                answer: Any = [[*map(float, row)] for row in predict(asked["predict"])]
            else:
                answer = _timed(predict, known, asked)
            print(json.dumps(answer), file=results)


if __name__ == "__main__":
    main()
