// Runs the folder's model in this page; nothing is fetched from elsewhere.
import * as transformers from "./node_modules/@huggingface/transformers/dist/transformers.js";
import { check, encode, labels, open, rows } from "./check.mjs";

const element = (id) => document.getElementById(id);
const say = (words) => { element("status").textContent = words; };
const here = new URL(".", location.href);
const SHOWN = 50;

transformers.env.allowLocalModels = true;
transformers.env.allowRemoteModels = false;
transformers.env.useBrowserCache = false; // which would keep the files of an earlier bundle
transformers.env.useWasmCache = false;
transformers.env.backends.onnx.wasm.wasmPaths = new URL("node_modules/onnxruntime-web/dist/", here).href;

function show(rows) {
  element("answers").replaceChildren(
    ...rows.slice(0, SHOWN).map((cells) => {
      const line = document.createElement("tr");
      for (const cell of cells) line.appendChild(document.createElement("td")).textContent = cell;
      return line;
    }),
  );
}

/** Return the probability on an isotonic curve of [logit, probability]. */
function onCurve(points, logit) {
  const next = points.findIndex(([place]) => place >= logit);
  if (next <= 0) return points.at(next)[1]; // before the first, or behind the last
  const [[left, low], [right, high]] = points.slice(next - 1, next + 1);
  return low + ((high - low) * (logit - left)) / (right - left);
}

/** Return the lines that show the logits of a text. */
function answers(opened, texts, inputs, logits) {
  const values = logits[0];
  if (texts.vectors) return [["vector of", `${values.length} numbers`], ...values.map((each) => ["", each.toFixed(4)])];
  if (texts.tokens) { // a row for each
    const tokens = Array.from(inputs.input_ids.data, (id) => opened.tokenizer.decode([Number(id)]));
    return logits.map((row, place) => [tokens[place], labels(texts, row, place)]);
  }
  const names = values.length === texts.labels.length ? texts.labels : values.map((_, place) => `${place}`);
  const { temperature = 1, lines = {}, points = {} } = texts.calibration ?? {};
  let shown = values;
  if (texts.kind === "single_label_classification") {
    const largest = Math.max(...values);
    const exponents = values.map((each) => Math.exp((each - largest) / temperature));
    const sum = exponents.reduce((first, second) => first + second);
    shown = exponents.map((each) => each / sum);
  } else if (texts.kind === "multi_label_classification") {
    shown = values.map((each, place) => {
      const name = names[place];
      if (Object.hasOwn(points, name)) return onCurve(points[name], each);
      const [slope, shift] = Object.hasOwn(lines, name) ? lines[name] : [1, 0];
      return 1 / (1 + Math.exp(-(slope * each + shift)));
    });
  }
  return shown
    .map((value, place) => [names[place], value])
    .sort((first, second) => second[1] - first[1])
    .map(([name, value]) => [name, value.toFixed(4)]);
}

try {
  const texts = await (await fetch("texts.json")).json();
  const opened = await open(transformers, "./", texts);
  element("second").hidden = !texts.pair;
  for (const button of document.querySelectorAll("button")) button.disabled = false;
  say("Ready");
  element("ask").addEventListener("submit", async (event) => {
    event.preventDefault();
    const [text, pair] = [element("text").value, texts.pair ? element("pair").value : null];
    if (texts.kind === "question_answering") {
      const { answer, score } = await opened(text, pair);
      show([[answer, score.toFixed(4)]]);
    } else {
      const inputs = encode(opened, texts, text, pair);
      show(answers(opened, texts, inputs, await rows(opened, inputs)));
    }
    say("Answered");
  });
  element("check").addEventListener("click", async () => {
    say("Checking");
    const result = await check(transformers, opened, texts, (done, all) => say(`Checking: ${done} of ${all} texts`));
    show([...result.failures, ...result.notes].map((line) => [line]));
    say(
      `${result.failures.length ? "Other" : "Equal"} answers to ${result.texts} texts; ` +
        `largest difference of a logit ${result.max}`,
    );
    document.body.dataset.checked = JSON.stringify(result);
  });
} catch (error) {
  say(`The model cannot be opened: ${error.message ?? error}`);
}
