// What the page shows comes from two routes of the same origin: `about` and `classify`. Texts and
// labels are set as text, never as HTML.
"use strict";

const byId = (id) => document.getElementById(id);

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function box(column, index) {
  const label = element("label", column);
  const area = element("textarea");
  area.name = String(index);
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

function showProblem(words) {
  byId("problem").textContent = words;
  byId("problem").hidden = !words;
}

async function ask(route, body) {
  const options = body && {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  const response = await fetch(route, options);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function classify() {
  const button = document.querySelector("button");
  const texts = [...document.querySelectorAll("textarea")].map((area) => area.value);
  button.disabled = true;
  showProblem("");
  try {
    const answer = await ask("classify", { texts });
    byId("predictions").replaceChildren(...answer.predictions.map(prediction));
    byId("latency").textContent =
      `${answer.latency_ms.toFixed(1)} ms from the request to the endpoint to its response`;
    byId("answer").hidden = false;
  } catch (error) {
    byId("answer").hidden = true;
    showProblem(error.message);
  } finally {
    button.disabled = false;
  }
}

function fillFromAddress() {
  const asked = new URLSearchParams(location.search).getAll("text");
  const areas = [...document.querySelectorAll("textarea")];
  areas.forEach((area, index) => { area.value = asked[index] ?? ""; });
  return areas.every((area) => area.value);
}

async function start() {
  try {
    const about = await ask("about");
    document.title = `${about.task}: bertender`;
    byId("task").textContent = about.task;
    byId("boxes").replaceChildren(...about.text_columns.map(box));
    byId("lineage").replaceChildren(...about.lineage.map((entry) => row(cells(entry))));
    if (fillFromAddress()) await classify();
  } catch (error) {
    showProblem(error.message);
  }
}

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  classify();
});
byId("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
});
start();
