"""Bundles for other programs: what is written, checked and refused, and that the programs open it.

What needs npm's packages looks for them in $BERTENDER_NODE_MODULES, or where `.ci/run` puts them.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler
from importlib import resources
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from bertender.core.artifact import Artifact, copy_companions
from bertender.core.card import Calibration
from bertender.core.errors import ConfigError, ModelError, ParityError
from bertender.models.classifier import Classifier, open_classifier
from bertender.models.runtimes import import_openvino
from bertender.problems.question_answering import QUESTION_ANSWERING, THRESHOLD
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.tasks.task import Task
from bertender.text.batch import Batch
from bertender.text.tokenizer import load_tokenizer
from export.bundle import PROGRAM_CLASSES, bundle, check_target, single_file
from export.bundle import browser as browser_bundle
from export.bundle.program import calibration_notes
from export.config import BundleConfig
from quantize.quantizer import quantize
from tests.fake_predictor import FakePredictor
from tests.packages import NODE_MODULES, needs_extensions, needs_node
from tests.problems.kinds import graph_of, named
from tests.quantize.contexts import HERE, config_of
from tests.quick import quick
from tests.quiet_server import QuietServer
from tests.serve.browser import CHROMIUM
from tests.serve.browser import browser as chromium
from tests.toy_heads import JOINT, RATED
from tests.toy_kinds import TASKS
from tests.toys import tiny_tokenizer

__all__ = ["graph_of"]

OTHER_PARTS: dict[str, dict[str, Any]] = {
    "normalizer": {"type": "NFKC"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
    "model": {"type": "Unigram", "unk_id": 0, "vocab": [["[UNK]", 0.0], ["[PAD]", 0.0]]},
}
FEW = {"parity_texts": 8, "golden_texts": 8}
Exported = Callable[[str], tuple[Artifact, Artifact]]


def bundled(source: Artifact, task: Task, out: Path, **settings: Any) -> Artifact:
    few = FEW if settings["to"] == "browser" else {"parity_texts": 8}
    return bundle(source, task, BundleConfig.parse({**few, **settings}), out)


def test_openvino_opens_the_folder_with_equal_outputs(
    exported: Artifact, task: Task, tmp_path: Path
) -> None:
    written = bundled(exported, task, tmp_path / "out", to="openvino")
    settings = {"INFERENCE_PRECISION_HINT": "f32"}  # else CPUs that have bfloat16 compute in it
    path = str(written.path / "openvino_model.xml")
    model = import_openvino().Core().compile_model(path, "CPU", settings)
    tokens = load_tokenizer(written.path)(["apple pear number 7"], return_tensors="np")
    logits = model({each.get_any_name(): tokens[each.get_any_name()] for each in model.inputs})[0]
    expected = open_classifier(exported).logits([("apple pear number 7",)])
    assert np.abs(logits - expected).max() < 1e-4
    assert {"config.json", "tokenizer.json", "openvino_model.bin"} <= written.card.files.keys()
    assert "model.onnx" not in written.card.files
    files = [written.path / f"openvino_model.{suffix}" for suffix in ("xml", "bin")]
    assert written.card.model_size_bytes == sum(file.stat().st_size for file in files)


def test_openvino_on_a_full_disk(
    exported: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=RuntimeError("basic_ios::clear: iostream error"))
    monkeypatch.setattr(import_openvino(), "save_model", full)
    with pytest.raises(OSError, match=r"cannot write openvino_model.xml .* Is the disk full\?"):
        bundled(exported, task, tmp_path / "out", to="openvino")
    assert not (tmp_path / "out").exists()


def test_the_folder_of_a_browser_is_that_of_transformers_js(
    exported: Artifact, task: Task, tmp_path: Path
) -> None:
    written = bundled(exported, task, tmp_path / "out", to="browser")
    assert {"onnx/model.onnx", "tokenizer.json", "tokenizer_config.json"} <= {*written.card.files}
    config = json.loads((written.path / "config.json").read_text())
    assert config["transformers.js_config"] == {"dtype": "fp32"}
    texts = json.loads((written.path / "texts.json").read_text())
    assert len(texts["rows"]) == 8 and texts["heads"][0]["allowed"]["max"] > 0
    found = written.card.findings.bundle
    assert found is not None and found.opens_as.startswith("pipeline('text-classification')")
    assert "not checked by transformers.js: npm install && node check.mjs" in found.notes
    with pytest.raises(ModelError, match="Give the artifact that it was made from"):
        open_classifier(written)


def test_no_text_is_stored_where_none_may_leave(
    exported: Artifact, task: Task, tmp_path: Path
) -> None:
    written = bundled(exported, task, tmp_path / "out", to="browser", golden_texts=0)
    texts = json.loads((written.path / "texts.json").read_text())
    assert texts["rows"] == texts["odd"] == []


@pytest.mark.parametrize("to", ["browser", "openvino"])
def test_what_answers_otherwise_is_not_written(
    to: str, exported: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder has a tokenizer that cuts texts elsewhere."""

    def other_files(source: Artifact, folder: Path) -> None:
        original(source, folder)
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text())
        path.write_text(json.dumps({**settings, "model_max_length": 6}))

    original = copy_companions
    for module in ("export.bundle.browser", "export.bundle.openvino"):
        monkeypatch.setattr(f"{module}.copy_companions", other_files)
    with pytest.raises(ParityError, match="inputs: input_ids"):
        bundled(exported, task, tmp_path / "out", to=to)
    assert not (tmp_path / "out").exists()


@needs_extensions
def test_a_single_file_takes_strings(exported: Artifact, task: Task, tmp_path: Path) -> None:
    written = bundled(exported, task, tmp_path / "out", to="single-file")
    assert [*written.card.files] == ["model.onnx"]
    session = single_file._session(written.path / "model.onnx")
    text = "Apple PEAR pl\u00fam saw"
    label, scores, logits = session.run(["label", "scores", "logits"], {"text": [text]})
    (expected,) = open_classifier(exported).logits([(text,)])
    assert np.abs(logits[0] - expected).max() < 1e-5
    assert label.tolist() == [task.labels[expected.argmax()]]
    assert scores[0] == pytest.approx(np.exp(expected) / np.exp(expected).sum(), abs=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map["labels"]) == [*task.labels]


@needs_extensions
def test_a_bundle_is_calibrated(exported: Artifact, task: Task, tmp_path: Path) -> None:
    """A single file gives calibrated scores; for other programs a note says how to."""
    own = Calibration(method="temperature", fitted_for="", texts=9, temperature=0.1)
    record = exported.card.task.model_copy(update={"calibration": own})
    source = replace(exported, card=exported.card.model_copy(update={"task": record}))
    written = bundled(source, task, tmp_path / "out", to="single-file")
    session = single_file._session(written.path / "model.onnx")
    text = np.array([task.dev.examples[0][0]])
    logits, scores = session.run(["logits", "scores"], {"text": text})
    exponents = np.exp((logits - logits.max()) / 0.1)
    np.testing.assert_allclose(scores, exponents / exponents.sum(), rtol=1e-4)
    assert calibration_notes(source) == ("calibrated: divide the logits by 0.1 before the softmax",)


@pytest.mark.parametrize("to", ["browser", "openvino"])
def test_a_bundle_says_what_is_left_to_its_program(
    to: str, teacher_of: Callable[[str], Artifact], tmp_path: Path
) -> None:
    model = teacher_of(QUESTION_ANSWERING.name)
    record = model.card.task.model_copy(update={"fitted": {THRESHOLD: 1.25}})
    source = replace(model, card=model.card.model_copy(update={"task": record}))
    program = PROGRAM_CLASSES[to](BundleConfig.parse({"to": to}))
    notes = program.complete(source, open_classifier(source), (), tmp_path).notes
    assert any(f"for your program to apply: {THRESHOLD} 1.25" in each for each in notes)
    assert any("elsewhere bertender reads them in windows" in each for each in notes)


@needs_extensions
def test_a_single_file_that_cuts_elsewhere_is_not_written(
    exported: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_file, "longest_input", lambda tokenizer: 6)
    with pytest.raises(ParityError, match=r"Do not deploy it: .* Use --to browser"):
        bundled(exported, task, tmp_path / "out", to="single-file")
    assert not (tmp_path / "out").exists()


@needs_extensions
@pytest.mark.parametrize("part", single_file.READS)
def test_tokenizers_that_the_operator_reads_otherwise_are_refused(
    part: str, exported: Artifact, tmp_path: Path
) -> None:
    shutil.copytree(exported.path, tmp_path / "other")
    path = tmp_path / "other" / "tokenizer.json"
    parts = json.loads(path.read_text())
    path.write_text(json.dumps({**parts, part: OTHER_PARTS[part]}))
    config = BundleConfig.parse({"to": "single-file"})
    with pytest.raises(ModelError, match=f"has .*{part} {OTHER_PARTS[part]['type']}.* Use --to"):
        check_target(config, Artifact.load(tmp_path / "other", verify=False))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "Give --to browser, openvino, single-file"),
        ({"to": "browsr"}, "Did you mean 'browser'"),
        ({"to": "openvino", "node_modules": "."}, "what --to browser is checked with"),
        ({"to": "openvino", "golden_texts": 3}, "stores no texts"),
        ({"to": "browser", "node_modules": ".", "golden_texts": 0}, "golden_texts is 0"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BundleConfig.parse(settings)


def test_a_folder_without_the_package_is_refused(exported: Artifact, tmp_path: Path) -> None:
    config = BundleConfig.parse({"to": "browser", "node_modules": tmp_path})
    with pytest.raises(ConfigError, match="npm install --ignore-scripts"):
        check_target(config, exported)


@pytest.mark.parametrize(
    ("scheme", "to", "message"),
    [
        ("four-bit-embeddings", "browser", "no kernel in WebAssembly"),
        ("four-bit-embeddings", "openvino", "operators that ONNX Runtime alone has"),
    ],
)
def test_schemes_that_do_not_run_there_are_refused(
    scheme: str, to: str, message: str, exported: Artifact, task: Task, tmp_path: Path
) -> None:
    config = config_of(scheme=scheme, target=HERE, parity_texts=8)
    small = quantize(exported, task, config, tmp_path / "small")
    with pytest.raises(ModelError, match=message):
        bundled(small, task, tmp_path / "out", to=to)


@needs_node
@pytest.mark.parametrize("scheme", quick(["dynamic", "static"], "dynamic"))
def test_eight_bits_have_the_name_that_a_page_reads(
    scheme: str, exported: Artifact, task: Task, tmp_path: Path
) -> None:
    config = config_of(scheme=scheme, target=HERE, parity_texts=8)
    small = quantize(exported, task, config, tmp_path / "small")
    written = bundled(small, task, tmp_path / "out", to="browser", node_modules=NODE_MODULES)
    assert "onnx/model_quantized.onnx" in written.card.files
    texts = json.loads((written.path / "texts.json").read_text())
    (allowed,) = (head["allowed"] for head in texts["heads"])
    assert allowed["max"] is None and allowed["median"] > 0


@needs_node
@pytest.mark.one_path
@pytest.mark.parametrize(
    "family",
    (
        *("bert", "distilbert", "electra", "albert", "roberta", "xlm-roberta", "mpnet"),
        *("camembert", "deberta-v2", "mobilebert", "modernbert"),
        *("bertender-static", "bertender-bilstm", "bertender-pruned-bert"),
    ),
)
def test_transformers_js_reads_every_family(
    family: str, plain_export: Exported, task: Task, tmp_path: Path
) -> None:
    _, graph = plain_export(family)
    written = bundled(graph, task, tmp_path / "out", to="browser", node_modules=NODE_MODULES)
    found = written.card.findings.bundle
    assert found is not None and "transformers.js" in found.checked_by
    assert not (written.path / "node_modules").exists()


@needs_node
def test_other_tokens_in_node_are_found(
    exported: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(*arguments: Any) -> dict[str, Any]:
        texts = original(*arguments)
        texts["rows"][3]["ids"][1] += 1
        return texts

    original = browser_bundle._texts
    monkeypatch.setattr(browser_bundle, "_texts", other)
    with pytest.raises(ParityError, match="tokens of 1 of 8 texts"):
        bundled(exported, task, tmp_path / "out", to="browser", node_modules=NODE_MODULES)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address at which it is served."""
    folder = tmp_path / "site"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}  # noqa: RUF012

        def log_request(self, *args: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with QuietServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def of_check(expression: str) -> Any:
    """The value of an expression with the functions of `check.mjs`."""
    module = resources.files("export.bundle").joinpath("page_files", "check.mjs")
    program = (
        f"import {{ check, labels }} from {json.dumps(str(module))};"
        f"console.log(JSON.stringify(await {expression}));"
    )
    node = ["node", "--input-type=module"]
    ended = subprocess.run(node, input=program, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize(
    ("kind", "names", "shown"),
    [
        (TOKEN_CLASSIFICATION.name, ["O", "B-x", "B-y"], ["B-x", "O"]),
        (
            "a:single_label_classification,b:token_classification",
            ["a:no", "a:yes", "b:O"],
            ["a:yes, b:O", "b:O"],
        ),
    ],
)
def test_the_page_shows_the_labels_of_each_head_at_a_token(
    kind: str, names: list[str], shown: list[str]
) -> None:
    """A head of whole texts has its label at the first token."""
    texts, rows = json.dumps({"kind": kind, "labels": names}), [[0.5, 2.0, -1.0], [9.0, 3.0, 1.0]]
    assert of_check(f"{rows}.map((row, place) => labels({texts}, row, place))") == shown


def of_two_heads(batch: Batch) -> np.ndarray:
    """Logits of 1 of the first head, and numbers of thousands of the other."""
    ids = batch.arrays["input_ids"]
    own = ids if batch.words is not None else ids.sum(axis=1)
    first = np.where(own % 2, 1.0, -1.0)
    others = [3000 + 100 * np.cos(own * (1 + each)) for each in range(WIDTHS[own.ndim] - 2)]
    return np.stack([first, -first, *others], axis=-1).astype(np.float32)


WIDTHS = {1: len(RATED.labels), 2: len(JOINT.labels)}


def turned(logits: np.ndarray, lines: slice = slice(None)) -> np.ndarray:
    """The logits (lines, labels), those of the first head with the other sign."""
    found = logits.copy()
    found[lines, :2] *= -1
    return found


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize(
    ("two", "answer", "said"),
    [
        (RATED, lambda logits: logits, []),
        (RATED, turned, ["8 other predictions", "max difference of logits of length is 2"]),
        (RATED, lambda logits: logits + np.eye(3)[2], ["max difference of logits of stars is "]),
        (JOINT, turned, ["8 other predictions", "max difference of logits of intent is 2"]),
        (JOINT, lambda logits: turned(logits, slice(1, None)), []),
    ],
)
def test_the_check_of_a_page_judges_each_head_by_itself(
    two: Task, answer: Callable[[np.ndarray], np.ndarray], said: list[str], exported: Artifact
) -> None:
    """The head of a whole text reads the first token alone."""
    tokenizer, card = tiny_tokenizer(), exported.card
    source = replace(exported, card=card.model_copy(update={"task": two.record()}))
    encode, predictor = two.problem.encoder(tokenizer), FakePredictor(of_two_heads)
    opened = Classifier("toy", two.labels, encode, predictor, 0, two.problem)
    texts = {**browser_bundle._texts(source, opened, two.dev.examples, 8), "odd": []}
    own = {row["text"]: answer(np.array(row["logits"])).tolist() for row in texts["rows"]}
    ids = {row["text"]: row["ids"] for row in texts["rows"]}
    found = of_check(
        f"""check({{ env: {{}} }}, {{
            tokenizer: (text) => ({{ text, input_ids: {{ data: {json.dumps(ids)}[text] }} }}),
            model: ({{ text }}) => ({{
                logits: {{ dims: [1, 1], tolist: () => ({json.dumps(own)})[text] }},
            }}),
        }}, {json.dumps(texts)})"""
    )
    assert len(found["failures"]) == len(said), found
    assert all(part in line for part, line in zip(said, found["failures"], strict=True)), found


@pytest.mark.parametrize("kind", [QUESTION_ANSWERING.name, TOKEN_CLASSIFICATION.name])
def test_the_page_asks_for_two_texts_even_if_none_are_stored(
    kind: str, graph_of: Callable[[str], Artifact], tmp_path: Path
) -> None:
    page = bundled(graph_of(kind), TASKS[kind], tmp_path / "out", to="browser", golden_texts=0)
    texts = json.loads((page.path / "texts.json").read_text())
    assert texts["pair"] is (kind == QUESTION_ANSWERING.name) and not texts["rows"]


@needs_node
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_answers_a_question_as_the_model_does(
    graph_of: Callable[[str], Artifact], site: tuple[Path, str], tmp_path: Path
) -> None:
    folder, address = site
    graph, task = graph_of(QUESTION_ANSWERING.name), TASKS[QUESTION_ANSWERING.name]
    model = open_classifier(graph)
    asked, answer = next(
        (example, found)
        for example in task.dev.examples
        if (found := named(model.outputs([example])[0], example, model))
    )
    shutil.copytree(bundled(graph, task, tmp_path / "out", to="browser").path, folder / "page")
    (folder / "page" / "node_modules").symlink_to(NODE_MODULES.resolve())
    with chromium(tmp_path / "profile") as tab:
        tab.open(address + "page/index.html")
        tab.wait_for("/Ready|cannot/.test(document.getElementById('status').textContent)")
        for name, text in zip(("text", "pair"), asked, strict=True):
            tab.value(f"document.getElementById('{name}').value = {json.dumps(text)}")
        tab.click("button[type=submit]")
        tab.wait_for("document.querySelectorAll('#answers tr').length == 1")
        assert tab.value("document.querySelector('#answers tr').cells[0].textContent") == answer


@needs_node
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("scheme", [None, *quick(["dynamic", "static", "four-bit"], "dynamic")])
def test_the_page_answers_and_checks_itself(
    scheme: str | None, exported: Artifact, task: Task, site: tuple[Path, str], tmp_path: Path
) -> None:
    """By the kernels of WebAssembly, whose 8 bits are not those of another CPU."""
    folder, address = site
    if scheme is not None:
        config = config_of(scheme=scheme, target=HERE, parity_texts=8)
        exported = quantize(exported, task, config, tmp_path / "small")
    written = bundled(exported, task, tmp_path / "out", to="browser")
    shutil.copytree(written.path, folder, dirs_exist_ok=True)
    (folder / "node_modules").symlink_to(NODE_MODULES.resolve())
    with chromium(tmp_path / "profile") as tab:
        tab.open(address + "index.html")
        tab.wait_for("/Ready|cannot/.test(document.getElementById('status').textContent)")
        assert tab.value("document.getElementById('status').textContent") == "Ready"
        tab.value("document.getElementById('text').value = 'apple pear plum'")
        tab.click("button[type=submit]")
        tab.wait_for("document.querySelectorAll('#answers tr').length == 2")
        tab.click("#check")
        tab.wait_for("document.body.dataset.checked")
        result = json.loads(str(tab.value("document.body.dataset.checked")))
    assert result["failures"] == [] and result["texts"] == 8
