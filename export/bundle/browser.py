"""The folder of transformers.js: config, tokenizer, and the graph in `onnx/` under the name of its
data type; with a page, and a check that Node and browsers can run.

https://huggingface.co/docs/transformers.js/custom_usage
transformers.js has its own tokenizers, in JavaScript, and runs graphs with onnxruntime-web, whose
WebAssembly has fewer kernels than other CPUs. So `check.mjs` checks both: the tokens of each stored
text, and its logits.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bertender.core.artifact import Artifact, copy_companions
from bertender.core.errors import ConfigError, ModelError, ParityError, RuntimeMissingError
from bertender.core.findings import BundleFindings
from bertender.gate.judge import TOLERANCES
from bertender.models.classifier import Classifier, onnx_file, problem_of
from bertender.models.embedders import SETTING
from bertender.models.graphs import STATES, nodes_of
from bertender.models.onnx_session import OnnxPredictor, create_session, session_options
from bertender.models.own_models import OWN_MODELS
from bertender.models.runtimes import RUNTIMES
from bertender.models.sentence_files import PoolingName, VectorSettings
from bertender.problems.problem import Problem
from bertender.problems.several_heads import SeveralHeads
from bertender.text.batch import Example, Tokenize
from export.bundle.program import (
    ODD_TEXTS,
    Program,
    classifier_of,
    has_weights_beside,
    notes_of,
)

TRANSFORMERS_JS = "@huggingface/transformers"
CHECKED_VERSION = "4.3.2"
"""Version of transformers.js for which all statements here were checked."""
PAGE_FILES = ("check.mjs", "index.html", "page.css", "page.mjs")
TEXTS_NAME = "texts.json"
NODE_SECONDS = 600

DTYPES: Mapping[str, tuple[str, str]] = {
    "float32": ("fp32", "model.onnx"),
    "float16": ("fp16", "model_fp16.onnx"),
    "int8": ("q8", "model_quantized.onnx"),
    "int4": ("q4", "model_q4.onnx"),
}
"""Precision -> its name in transformers.js, and the file that is then loaded."""
WITHOUT_KERNELS: Mapping[str, str] = {
    "GatherBlockQuantized": "tables of 4 bits have no kernel in WebAssembly",
}
"""Operator -> reason why a page cannot open a graph with it."""
POOLINGS: Mapping[PoolingName, str] = {"mean": "mean", "cls": "cls", "lasttoken": "last_token"}
"""Pooling -> its name in transformers.js, which takes a row's last place for its last token."""


@dataclass(frozen=True)
class Use:
    """How transformers.js supports a kind of problem."""

    pipeline: str | None = None
    """None if there is no pipeline, or its answers would be wrong."""
    note: str = ""


USES: Mapping[str, Use] = {
    "single_label_classification": Use("text-classification"),
    "multi_label_classification": Use(
        "text-classification",
        "a label is in the set where its probability is above 0.5: ask for all with top_k: null",
    ),
    "regression": Use(
        note="the logit is the number; pipeline('text-classification') would answer 1 for all texts"
    ),
    "token_classification": Use(
        "token-classification",
        "the pipeline labels tokens; the label of a word is that of its first token",
    ),
    "sentence_embedding": Use("feature-extraction"),
    "question_answering": Use(
        "question-answering",
        "the pipeline always gives an answer: where the context has none, its score is low",
    ),
    "multiple_choice": Use(
        note="a logit for each pair of the question and a choice; the largest is the answer"
    ),
    "ranking": Use(note="a logit for each pair of the query and a passage; sort by it"),
}
"""Kind of problem -> its use; several heads have none."""
PAIRS = "its pipeline takes one text: use tokenizer(text, {text_pair}) and the model"
SEVERAL_HEADS = Use(note="the logits of all heads lie side by side, in the order of the labels")


def use_of(source: Artifact) -> Use:
    """Return the support by transformers.js for an artifact's kind of problem."""
    task = source.card.task
    if problem_of(source).heads:
        return SEVERAL_HEADS
    use = USES[task.problem_type]
    takes_pair = use.pipeline != "text-classification" or len(task.text_columns) == 1
    return use if takes_pair else Use(note=PAIRS)


def _pooling(source: Artifact) -> str:
    """Return how the pipeline is asked for the vectors of an artifact."""
    graph = onnx.load(onnx_file(source), load_external_data=False).graph
    if STATES not in {output.name for output in graph.output}:
        return "without pooling"
    config = json.loads((source.path / "config.json").read_text(encoding="utf-8"))
    settings = VectorSettings(**config.get(SETTING, {}))
    normalize = json.dumps(settings.normalize)
    alone = ", of one text at a time" if settings.pooling == "lasttoken" else ""
    return f"with {{pooling: '{POOLINGS[settings.pooling]}', normalize: {normalize}}}{alone}"


def strings_of(problem: Problem[Any], example: Example) -> list[tuple[str, ...]]:
    """Return the text, or the pair of texts, of each row that a model reads for an example."""
    if problem.labels_words:
        return [(" ".join(example),)]
    if problem.name in ("multiple_choice", "ranking"):
        return [(example[0], each) for each in example[1:]]
    return [(each,) for each in example] if problem.gives_vectors else [example]


class Browser(Program):
    """`--to browser`."""

    def check(self, source: Artifact) -> None:
        precision = source.card.precision
        if precision not in DTYPES:
            raise ModelError(
                f"{source.place} is of precision {precision}, which WebAssembly has no kernels "
                f"for; {', '.join(DTYPES)} it has. Export it in float32, or quantize it with "
                "--scheme dynamic."
            )
        nodes = []
        if source.card.kind == "onnx":
            nodes = [*nodes_of(onnx.load(onnx_file(source), load_external_data=False).graph)]
        operators = {node.op_type for node in nodes}
        if lacking := next((name for name in WITHOUT_KERNELS if name in operators), None):
            raise ModelError(
                f"{source.place} has {lacking}: {WITHOUT_KERNELS[lacking]}. Quantize it with "
                "--scheme dynamic or static."
            )
        if _turns_weights(nodes):
            raise ModelError(
                f"{source.place} transposes weights with scales, and the ONNX Runtime of "
                f"transformers.js {CHECKED_VERSION}, of about version 1.30, ends while it opens "
                "such a graph. Quantize it again with this version of bertender."
            )
        if has_weights_beside(source):
            raise ModelError(
                f"the weights of {source.place} lie in a file beside its graph, and a browser's "
                "memory ends at 4 GB. Export it with a larger --external-above-mb, or distil a "
                "smaller model."
            )
        if self.config.node_modules is not None:
            self._check_node(self.config.node_modules)

    @staticmethod
    def _check_node(folder: Path) -> None:
        if not (folder / TRANSFORMERS_JS / "package.json").is_file():
            raise ConfigError(
                f"node_modules={str(folder)!r}: there is no {TRANSFORMERS_JS} in it. Make one with "
                f"`npm install --ignore-scripts {TRANSFORMERS_JS}@{CHECKED_VERSION}`, and give its "
                "folder node_modules."
            )
        if shutil.which("node") is None:
            raise RuntimeMissingError(
                "node_modules is for Node, and no program `node` is found. Install Node 20 or "
                "newer, or leave node_modules out: then ONNX Runtime alone checks the bundle."
            )

    def write(self, source: Artifact, folder: Path) -> None:
        dtype, name = DTYPES[source.card.precision]
        copy_companions(source, folder)
        (folder / "onnx").mkdir()
        shutil.copy2(onnx_file(source), folder / "onnx" / name)
        path = folder / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        # else Node would load model.onnx, and a page model_quantized.onnx
        config["transformers.js_config"] = {"dtype": dtype}
        if config["model_type"] in OWN_MODELS:
            # the type is unknown there; BERT's class runs any graph
            config["model_type"] = "bert"
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def open(self, source: Artifact, folder: Path, parameters: int, name: str) -> Classifier:
        """Open the graph with all of ONNX Runtime's optimizers, as other programs do."""
        graph = folder / "onnx" / DTYPES[source.card.precision][1]
        session = create_session(graph, session_options(0, False), ("CPUExecutionProvider",))
        return classifier_of(source, folder, OnnxPredictor(session), parameters, name)

    def complete(
        self,
        source: Artifact,
        opened: Classifier,
        examples: Sequence[Example],
        folder: Path,
    ) -> BundleFindings:
        for name in PAGE_FILES:
            page = resources.files("export.bundle").joinpath("page_files", name)
            (folder / name).write_bytes(page.read_bytes())
        package = {
            "private": True,
            "type": "module",
            "scripts": {"check": "node check.mjs"},
            "dependencies": {TRANSFORMERS_JS: CHECKED_VERSION},
        }
        (folder / "package.json").write_text(json.dumps(package, indent=2) + "\n")
        # the install script of onnxruntime-node would fetch GPU libraries
        (folder / ".npmrc").write_text("ignore-scripts=true\n")
        texts = _texts(source, opened, examples, self.config.golden_texts)
        (folder / TEXTS_NAME).write_text(json.dumps(texts) + "\n", encoding="utf-8")
        row, use = RUNTIMES["onnxruntime"], use_of(source)
        checked, notes = f"{row.title} {row.version}", notes_of(source, opened)
        if opened.problem.gives_vectors:
            vector = (
                f"the vector is the model's output `logits`, or the pipeline's {_pooling(source)}"
            )
            notes = (vector, *notes)
        if use.note:
            notes = (use.note, *notes)
        if self.config.node_modules is None:
            notes = (*notes, "not checked by transformers.js: npm install && node check.mjs")
        else:
            result = _node_check(folder, self.config.node_modules)
            checked += f" and transformers.js {result['version']} in Node"
            notes = (*notes, *result["notes"])
        opens_as = f"pipeline({use.pipeline!r})" if use.pipeline else "AutoModel and AutoTokenizer"
        return BundleFindings(
            opens_as=f"{opens_as} of transformers.js", checked_by=checked, notes=notes
        )


def _turns_weights(nodes: Sequence[onnx.NodeProto]) -> bool:
    """Return whether a graph transposes the output of a DequantizeLinear, as older graphs do."""
    given = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    return any(node.op_type == "Transpose" and node.input[0] in given for node in nodes)


def _texts(
    source: Artifact, opened: Classifier, examples: Sequence[Example], most: int
) -> dict[str, Any]:
    """Return at most so many texts with their expected tokens and logits, and the tolerance of each
    head."""
    encode, problem = opened.encode, opened.problem
    assert isinstance(encode, Tokenize)
    rows: list[dict[str, Any]] = []
    for example in examples[:most]:
        batch = encode([example])
        strings = strings_of(problem, example)
        if sum(batch.counts) != len(strings):
            continue  # it is read in windows
        logits = opened.predictor.logits(batch)
        for row, (text, *pair) in enumerate(strings):
            attended = batch.arrays["attention_mask"][row] > 0
            own = logits[row][attended] if problem.per_token else logits[row]
            rows.append(
                {
                    "text": text,
                    "pair": pair[0] if pair else None,
                    "ids": batch.arrays["input_ids"][row][attended].tolist(),
                    "logits": np.atleast_2d(own).round(6).tolist(),
                }
            )
    odd = [
        {"text": text, "ids": encode.tokenizer(text)["input_ids"]}
        for text in (ODD_TEXTS if rows else ())
    ]
    own = source.card.task.calibration
    return {
        "kind": source.card.task.problem_type,
        "labels": list(source.card.task.labels),
        "calibration": own and own.model_dump(mode="json"),
        "pipeline": use_of(source).pipeline,
        "pair": any(len(strings_of(problem, each)[0]) > 1 for each in examples[:1]),
        "vectors": problem.gives_vectors,
        "tokens": problem.per_token,
        "max_length": encode.max_length,
        "heads": [*_heads(problem, [row["logits"] for row in rows], source.card.precision)],
        "rows": rows,
        "odd": odd,
    }


def _heads(
    problem: Problem[Any], logits: Sequence[list[list[float]]], precision: str
) -> Iterator[dict[str, Any]]:
    """Yield the columns and the tolerance of each head, or of a model without heads: the numbers of
    one may be a thousand times as large as the logits of another.

    Args:
        problem: kind of problem.
        logits: of each stored text, (rows, labels).
        precision: row of TOLERANCES.
    """
    if not logits:
        return
    heads: dict[str, tuple[Problem[Any], slice]] = {"": (problem, slice(None))}
    if isinstance(problem, SeveralHeads):
        heads = {name: (kind, problem.slices[name]) for name, kind in problem.heads.items()}
    bounds = TOLERANCES[precision]
    for name, (kind, columns) in heads.items():
        of_text = problem.labels_words and not kind.labels_words
        lines = chain(*(rows[:1] if of_text else rows for rows in logits))
        values = np.array([*lines], dtype=np.float64)[:, columns]
        start = columns.start or 0
        scale, (_, spread) = kind.scale(values), kind.size_and_spread(values)
        yield {
            "name": name,
            "columns": [start, start + values.shape[1]],
            "first_token": of_text,
            # bounds on single logits, or on the median and 95th percentile over texts
            "allowed": {
                "max": bounds.max_abs and bounds.max_abs * scale,
                "median": bounds.max_median and bounds.max_median * spread,
                "p95": bounds.max_p95 and bounds.max_p95 * spread,
            },
        }


def _node_check(folder: Path, modules: Path) -> dict[str, Any]:
    """Run check.mjs in a folder, with the packages of another folder.

    Raises:
        ParityError: tokens or logits differ.
        ModelError: the check ends without a result.
    """
    link = folder / "node_modules"
    link.symlink_to(modules.resolve(), target_is_directory=True)
    try:
        ended = subprocess.run(
            [str(shutil.which("node")), "check.mjs", "--json"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=NODE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"transformers.js has not answered within {NODE_SECONDS} s. Give fewer golden_texts, "
            "or leave node_modules out."
        ) from None
    finally:
        link.unlink()
    try:
        result: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        said = ended.stderr.strip().splitlines()
        raise ModelError(
            f"transformers.js cannot run the bundle: node ended with {ended.returncode}: "
            f"{' '.join(said[-3:])}"
        ) from None
    if result["failures"]:
        raise ParityError(
            "transformers.js does not answer as the artifact does:\n"
            + "\n".join(f"  - {failure}" for failure in result["failures"])
            + "\nDo not serve it from there."
        )
    return result
