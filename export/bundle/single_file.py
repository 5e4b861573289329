"""One ONNX file that takes strings: the tokenizer is an operator of onnxruntime-extensions.

Its BertTokenizer reads one text per run: it treats a second string as the second text of a pair,
and does not truncate pairs.
https://github.com/microsoft/onnxruntime-extensions/blob/main/docs/custom_ops.md
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from bertender.core.artifact import Artifact
from bertender.core.card import TaskRecord
from bertender.core.errors import ModelError, RuntimeMissingError
from bertender.core.findings import BundleFindings
from bertender.core.machine import installed_version
from bertender.models.classifier import Classifier, onnx_file, problem_of
from bertender.models.graphs import LOGITS, save_graph
from bertender.models.onnx_session import MOST_MB, ONNX_NAME, create_session, session_options
from bertender.models.runtimes import RUNTIMES
from bertender.text.batch import Batch, Example
from bertender.text.tokenizer import TOKENIZER_NAME, load_tokenizer, longest_input
from bertender.text.windows import windows_of
from export.bundle.program import ODD_TEXTS, Program, calibration_notes, has_weights_beside

PACKAGE, MODULE = "onnxruntime-extensions", "onnxruntime_extensions"
DOMAIN = "ai.onnx.contrib"
TEXT, LABEL, SCORES = "text", "label", "scores"
TOKENS = ("input_ids", "token_type_ids", "attention_mask")
"""Token inputs, in the order of the operator's outputs."""
ANSWERS = {
    "single_label_classification": "Softmax",
    "multi_label_classification": "Sigmoid",
    "regression": None,
    "sentence_embedding": None,
}
"""Kind of problem -> operator for scores from its logits; other kinds are refused."""
READS = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer", "model": "WordPiece"}
"""Parts of a tokenizer.json -> their required type, for equal tokens by the operator."""


class SingleFile(Program):
    """`--to single-file`."""

    next_step = (
        f"{PACKAGE} reads other tokens where a word has a letter that the vocabulary lacks. Use "
        "--to browser, whose tokenizer is that of the artifact."
    )

    def check(self, source: Artifact) -> None:
        if importlib.util.find_spec(MODULE) is None:
            raise RuntimeMissingError(
                f"{PACKAGE} has the tokenizer's operator, and is not installed. Install it with "
                "`pip install 'bertender[extensions]'`."
            )
        task = source.card.task
        if task.problem_type not in ANSWERS:
            raise ModelError(
                f"{source.place} is made for {task.problem_type}, and a single file answers for a "
                f"text as a whole: {', '.join(ANSWERS)}. The tokenizer's operator reads one in a "
                "run, and does not say where its tokens stand. Use --to browser."
            )
        if len(task.text_columns) > 1 and not problem_of(source).gives_vectors:
            raise ModelError(
                f"{source.place} reads pairs of texts ({', '.join(task.text_columns)}), which the "
                "tokenizer's operator does not cut where the model's input ends. Use --to browser."
            )
        parts = json.loads((source.path / TOKENIZER_NAME).read_text(encoding="utf-8"))
        types = {name: (parts.get(name) or {}).get("type") for name in READS}
        if types != READS:
            found = ", ".join(f"{name} {own}" for name, own in types.items())
            raise ModelError(
                f"the tokenizer of {source.place} has {found}; {PACKAGE} reads the same tokens "
                f"only for {', '.join(' '.join(each) for each in READS.items())}. Use --to browser."
            )
        if windows_of(load_tokenizer(source.path)) is not None:
            raise ModelError(
                f"{source.place} reads long texts in windows, and the operator cuts them. Use --to "
                "browser, or train without --windows."
            )
        if has_weights_beside(source):
            raise ModelError(
                f"the weights of {source.place} lie in a file beside its graph, and one file holds "
                f"at most {MOST_MB} MB. Export with a larger --external-above-mb, or quantize it."
            )

    def write(self, source: Artifact, folder: Path) -> None:
        graph = onnx.load(onnx_file(source))
        outputs = [entry for entry in graph.graph.output if entry.name == LOGITS]
        del graph.graph.output[:]
        graph.graph.output.extend(outputs)  # others are for programs that know their tokens
        reads = {entry.name for entry in graph.graph.input}
        _read_texts(graph, _tokenizer_node(source), reads)
        _answer(graph, source)
        save_graph(graph, folder / ONNX_NAME, MOST_MB)

    def open(self, source: Artifact, folder: Path, parameters: int, name: str) -> Classifier:
        problem = problem_of(source).reading(load_tokenizer(source.path))
        predictor = TextPredictor(_session(folder / ONNX_NAME))
        labels = source.card.task.labels
        return Classifier(name, labels, problem.keep_text, predictor, parameters, problem)

    def complete(
        self,
        source: Artifact,
        opened: Classifier,
        examples: Sequence[Example],
        folder: Path,
    ) -> BundleFindings:
        tokenizer = load_tokenizer(source.path)
        alone = helper.make_model(helper.make_graph([], "tokenizer", [], []))
        _read_texts(alone, _tokenizer_node(source), set(TOKENS))
        alone.graph.output.append(helper.make_tensor_value_info(TOKENS[0], TensorProto.INT64, None))
        alone.opset_import[0].version, alone.ir_version = 18, 8
        session = _session(alone.SerializeToString())
        other = [
            text
            for text in ODD_TEXTS
            if session.run([TOKENS[0]], {TEXT: [text]})[0][0].tolist()
            != tokenizer(text, truncation=True)["input_ids"]
        ]
        notes = ["reads one text in a run"]
        if (own := source.card.task.calibration) and own.points:
            notes += [f"{SCORES} are not calibrated", *calibration_notes(source)]
        if other:
            notes.append(
                f"reads {len(other)} of {len(ODD_TEXTS)} odd texts in other tokens than the "
                f"artifact, such as {other[0]!r}: check it on texts of your scripts"
            )
        outputs = ", ".join(entry.name for entry in onnx.load(folder / ONNX_NAME).graph.output)
        row = RUNTIMES["onnxruntime"]
        version = installed_version(PACKAGE)
        return BundleFindings(
            opens_as=f"{ONNX_NAME} in ONNX Runtime with {PACKAGE}: {TEXT} in; {outputs} out",
            checked_by=f"{row.title} {row.version} and {PACKAGE} {version}",
            notes=tuple(notes),
        )


class TextPredictor:
    """A session that takes strings, one per run."""

    def __init__(self, session: Any) -> None:
        self.session = session

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits of a batch: (batch, labels)."""
        texts = chain(*batch.examples)  # an example with vectors has several texts
        found = [self.session.run([LOGITS], {TEXT: [text]})[0] for text in texts]
        return np.asarray(np.concatenate(found), dtype=np.float32)


def _session(graph: Path | bytes) -> Any:
    from onnxruntime_extensions import get_library_path

    options = session_options(0, False)
    options.register_custom_ops_library(get_library_path())
    return create_session(graph, options, ("CPUExecutionProvider",))


def _tokenizer_node(source: Artifact) -> onnx.NodeProto:
    """Return the operator with the vocabulary and the settings of an artifact's tokenizer."""
    tokenizer: Any = load_tokenizer(source.path)
    parts = json.loads((source.path / TOKENIZER_NAME).read_text(encoding="utf-8"))
    normalizer, model = parts["normalizer"], parts["model"]
    lowercase, strip = normalizer["lowercase"], normalizer["strip_accents"]
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return helper.make_node(
        "BertTokenizer",
        [TEXT],
        [f"{TEXT}/{name}" for name in TOKENS],
        TEXT,
        domain=DOMAIN,
        vocab_file="\n".join(word for word, _ in words),
        do_lower_case=int(lowercase),
        strip_accents=int(lowercase if strip is None else strip),
        tokenize_chinese_chars=int(normalizer["handle_chinese_chars"]),
        suffix_indicator=model["continuing_subword_prefix"],
        unk_token=model["unk_token"],
        cls_token=tokenizer.cls_token,
        sep_token=tokenizer.sep_token,
        pad_token=tokenizer.pad_token,
        max_length=longest_input(tokenizer),
        truncation_strategy_name="longest_first",
    )


def _read_texts(model: onnx.ModelProto, tokenizer: onnx.NodeProto, reads: set[str]) -> None:
    """Insert a tokenizer before a graph, in place, so that it takes a string."""
    graph, axis = model.graph, f"{TEXT}/axis"
    before = [tokenizer]
    before += [
        helper.make_node("Unsqueeze", [f"{TEXT}/{name}", axis], [name], f"{TEXT}/{name}/row")
        for name in TOKENS
        if name in reads
    ]
    nodes = [*before, *graph.node]
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), axis))
    graph.input.append(helper.make_tensor_value_info(TEXT, TensorProto.STRING, [1]))
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def _answer(model: onnx.ModelProto, source: Artifact) -> None:
    """Add the outputs for the kind of problem to a graph, in place."""
    graph, task = model.graph, source.card.task
    helper.set_model_props(model, {"labels": json.dumps(task.labels)})
    if (scorer := ANSWERS[task.problem_type]) is None:
        return
    calibrated = _calibrated(graph, task)
    graph.node.append(helper.make_node(scorer, [calibrated], [SCORES], SCORES))  # over labels
    wanted = [(SCORES, TensorProto.FLOAT, [1, len(task.labels)])]
    if scorer == "Softmax":
        names, place = f"{LABEL}/names", f"{LABEL}/place"
        graph.initializer.append(
            numpy_helper.from_array(np.array(task.labels, dtype=object), names)
        )
        graph.node.append(helper.make_node("ArgMax", [SCORES], [place], place, axis=1, keepdims=0))
        graph.node.append(helper.make_node("Gather", [names, place], [LABEL], LABEL))
        wanted.append((LABEL, TensorProto.STRING, [1]))
    graph.output.extend(helper.make_tensor_value_info(*each) for each in wanted)


def _calibrated(graph: onnx.GraphProto, task: TaskRecord) -> str:
    """Return the name of the input for the scores: the logits, or, if a line calibrates the model,
    that line of the logits, which is added to the graph."""
    own = task.calibration
    if own is None or own.points:
        return LOGITS
    lines = [own.lines.get(label, (1 / own.temperature, 0.0)) for label in task.labels]
    last = LOGITS
    for operator, values in zip(("Mul", "Add"), np.array(lines, np.float32).T, strict=True):
        name = f"{SCORES}/{operator}"
        graph.initializer.append(numpy_helper.from_array(values, f"{name}/values"))
        graph.node.append(helper.make_node(operator, [last, f"{name}/values"], [name], name))
        last = name
    return last
