// What is served comes from `about`, scores from the server's own route of inference. Texts and
// labels are set as text, never as HTML. The API key is in memory alone.
"use strict";

const WORD_MARK = "\u001f"; // before each word of a sentence whose words hold white space
const PASSAGES = "PASSAGES"; // an input of several texts
const RETRIES = 2; // of a request that is rejected for now
let models = [];
let key = "";

const byId = (id) => document.getElementById(id);
const areas = () => [...document.querySelectorAll("textarea")];
const chosen = () => models[byId("model").selectedIndex];

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function box([input, column]) {
  const label = element("label", column);
  const area = element("textarea");
  area.name = input;
  if (input === PASSAGES) label.append(" (one a line)");
  area.required = true;
  label.append(area);
  return label;
}

function cells(entry) {
  const parameters = entry.parameters === null ? "" : `${(entry.parameters / 1e6).toFixed(1)}M`;
  const size = entry.model_mb === null ? "" : `${entry.model_mb.toFixed(2)} MB`;
  return [entry.name, entry.stage, entry.precision, parameters, size, entry.digest];
}

function row(values) {
  const made = element("tr");
  made.append(...values.map((value) => element("td", value)));
  return made;
}

function softmax(logits) {
  const largest = Math.max(...logits);
  const exponents = logits.map((each) => Math.exp(each - largest));
  const sum = exponents.reduce((total, each) => total + each, 0);
  return exponents.map((each) => each / sum);
}

// As the server's SCORE has them; LOGITS stay the model's own.
function probabilities(about, logits, isSet) {
  const { temperature = 1, lines = {}, points = {} } = about.calibration ?? {};
  if (!isSet) return softmax(logits.map((each) => each / temperature));
  return logits.map((logit, place) => {
    const label = about.labels[place];
    if (Object.hasOwn(points, label)) return onCurve(points[label], logit);
    const [slope, shift] = Object.hasOwn(lines, label) ? lines[label] : [1, 0];
    return 1 / (1 + Math.exp(-(slope * logit + shift)));
  });
}

function onCurve(points, logit) {
  const next = points.findIndex(([place]) => place >= logit);
  if (next <= 0) return points.at(next)[1]; // before the first, or behind the last
  const [[left, low], [right, high]] = points.slice(next - 1, next + 1);
  return low + ((high - low) * (logit - left)) / (right - left);
}

function wordsOf(text) {
  const isMarked = text.startsWith(WORD_MARK);
  return isMarked ? text.slice(1).split(WORD_MARK) : text.trim().split(/\s+/);
}

// One a text, or one a word: the scores, the most probable first. A number has none, and a vector.
function predictions(about, texts, outputs) {
  const [text, ...choices] = texts;
  const of = (name) => outputs.find((output) => output.name === name).data;
  const kind = about.problem_type;
  if (kind === "regression") return [{ word: of("NUMBER")[0].toPrecision(4), scores: [] }];
  if (kind === "question_answering") {
    const answer = of("LABEL")[0];
    return [{ word: answer || "no answer", scores: [{ label: "probability", probability: of("SCORE")[0], predicted: true }] }];
  }
  if (kind === "sentence_embedding") {
    const vector = of("EMBEDDING");
    const first = vector.slice(0, 8).map((each) => each.toFixed(3)).join(", ");
    return [{ word: `${vector.length} numbers: ${first}, ...`, scores: [] }];
  }
  if (kind === "ranking") {
    const scores = of("SCORES");
    return of("ORDER").map((number) => (
      { word: `${scores[number].toFixed(3)}  ${choices[number]}`, scores: [] }
    ));
  }
  const isSet = kind === "multi_label_classification";
  const nameOf = (label, number) => (kind === "multiple_choice" ? choices[number] : label);
  const [labels, logits] = [of("LABEL"), of("LOGITS")];
  return (kind === "token_classification" ? wordsOf(text) : [null]).map((word, place) => {
    const start = place * about.labels.length;
    const own = probabilities(about, logits.slice(start, start + about.labels.length), isSet);
    const scores = about.labels.map((label, number) => (
      {
        label: nameOf(label, number),
        probability: own[number],
        predicted: isSet ? logits[number] > 0 : label === labels[place],
      }
    ));
    return { word, scores: scores.sort((one, other) => other.probability - one.probability) };
  });
}

// The text, with what was found marked in it. Offsets count characters, and JavaScript's own
// indices would count some of them, such as most emoji, twice.
function marked(text, outputs) {
  const of = (name) => outputs.find((output) => output.name === name)?.data ?? [];
  const [labels, scores, starts, ends] = ["LABEL", "SCORE", "START", "END"].map((name) => of(`SPAN_${name}`));
  const shown = text.startsWith(WORD_MARK) ? text.slice(1).replaceAll(WORD_MARK, " ") : text;
  const characters = [...shown];
  const between = (start, end) => characters.slice(start, end).join("");
  const made = element("p", undefined, "marked");
  let last = 0;
  labels.forEach((label, number) => {
    if (!ends[number]) return; // the text has fewer than others of the response
    const mark = element("mark", between(starts[number], ends[number]));
    mark.append(element("span", `${label} ${(100 * scores[number]).toFixed(1)} %`, "kind"));
    made.append(between(last, starts[number]), mark);
    last = ends[number];
  });
  made.append(between(last));
  return made;
}

function score(each) {
  const made = element("div", undefined, each.predicted ? "score predicted" : "score");
  const bar = element("progress");
  bar.max = 1;
  bar.value = each.probability;
  made.append(
    element("span", each.label, "name"),
    bar,
    element("span", `${(100 * each.probability).toFixed(1)} %`, "value"),
  );
  return made;
}

function prediction(each) {
  const made = element("div", undefined, "prediction");
  if (each.word !== null) made.append(element("h3", each.word));
  made.append(...each.scores.map(score));
  return made;
}

// One for each head of a model of several, with its own labels and tensors; else the model's own.
function heads(about, outputs) {
  if (!about.problem_type.includes(",")) return [{ title: [], about, outputs }];
  return about.problem_type.split(",").map((part) => {
    const [name, kind] = part.split(":");
    const [ofLabel, ofTensor] = [`${name}:`, `${name}_`];
    const labels = about.labels.filter((each) => each.startsWith(ofLabel));
    const own = outputs.filter((each) => each.name.startsWith(ofTensor));
    return {
      title: [element("h2", name)],
      about: { ...about, problem_type: kind, labels: labels.map((each) => each.slice(ofLabel.length)) },
      outputs: own.map((each) => ({ ...each, name: each.name.slice(ofTensor.length) })),
    };
  });
}

function answered({ title, about, outputs }, texts) {
  const hasSpans = outputs.some(({ name }) => name === "SPAN_END");
  // of a question and its context, the answer is in the second
  const spans = hasSpans ? [marked(texts.at(-1), outputs)] : [];
  return [...title, ...spans, ...predictions(about, texts, outputs).map(prediction)];
}

function showProblem(words) {
  byId("problem").textContent = words;
  byId("problem").hidden = !words;
}

async function ask(route, body) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const options = { headers, ...(body && { method: "POST", body: JSON.stringify(body) }) };
  for (let tries = 0; ; tries += 1) {
    const response = await fetch(route, options);
    if (response.ok) return response.json();
    if (response.status !== 503 || tries === RETRIES) {
      const problem = new Error((await response.json()).error);
      throw Object.assign(problem, { status: response.status });
    }
    const wait = Number(response.headers.get("Retry-After")) || 1;
    await new Promise((resolve) => { setTimeout(resolve, 1000 * wait); });
  }
}

async function classify() {
  const button = byId("submit");
  button.disabled = true;
  showProblem("");
  try {
    const { model } = chosen();
    const inputs = areas().map(({ name, value }) => {
      const data = name === PASSAGES ? value.split("\n").filter((line) => line.trim()) : [value];
      return { name, datatype: "BYTES", shape: [1, data.length], data };
    });
    const started = performance.now();
    const body = { inputs, parameters: { truncate: true } };
    const answer = await ask(`v2/models/${encodeURIComponent(model)}/infer`, body);
    const latency = performance.now() - started;
    if (answer.model_version !== chosen().version) await describe(); // it was just deployed
    const abstained = answer.outputs.some(({ name, data }) => name === "ABSTAINED" && data[0]);
    const cut = answer.outputs.some(({ name, data }) => name === "TRUNCATED" && data[0]);
    const texts = inputs.flatMap(({ data }) => data);
    byId("predictions").replaceChildren(
      ...heads(chosen(), answer.outputs).flatMap((head) => answered(head, texts)),
    );
    byId("latency").textContent = `${latency.toFixed(1)} ms from the request to its response`
      + (abstained ? "; the model is less sure than the server asks for" : "")
      + (cut ? "; the text is longer than the model's input, and was cut" : "");
    byId("answer").hidden = false;
  } catch (error) {
    byId("answer").hidden = true;
    showProblem(error.message);
  } finally {
    button.disabled = false;
  }
}

// Ask what is served now, and show it; texts and the chosen model stay.
async function describe() {
  const name = chosen()?.model;
  models = await ask("about");
  byId("model").replaceChildren(...models.map((each) => element("option", each.model)));
  byId("model").selectedIndex = Math.max(0, models.findIndex((each) => each.model === name));
  byId("models").hidden = models.length < 2;
  showModel();
}

function showModel() {
  const about = chosen();
  const texts = areas().map((area) => area.value);
  document.title = `${about.task}: bertender`;
  byId("task").textContent = about.task;
  byId("boxes").replaceChildren(...Object.entries(about.inputs).map(box));
  areas().forEach((area, index) => { area.value = texts[index] ?? ""; });
  byId("lineage").replaceChildren(...about.lineage.map((entry) => row(cells(entry))));
  byId("answer").hidden = true;
}

function fillFromAddress() {
  const asked = new URLSearchParams(location.search).getAll("text");
  areas().forEach((area, index) => { area.value = asked[index] ?? ""; });
  return areas().every((area) => area.value);
}

async function start() {
  showProblem("");
  try {
    await describe();
    byId("opening").hidden = true;
    byId("form").hidden = byId("about").hidden = false;
    if (fillFromAddress()) await classify();
  } catch (error) {
    byId("opening").hidden = error.status !== 401;
    if (error.status !== 401 || key) showProblem(error.message);
  }
}

byId("opening").addEventListener("submit", (event) => {
  event.preventDefault();
  key = byId("key").value.trim();
  byId("key").value = "";
  start();
});
byId("model").addEventListener("change", showModel);
byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  classify();
});
byId("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
});
start();
