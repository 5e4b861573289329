// Does transformers.js read and answer the texts of texts.json as the model that they are from?
// Tokens must be equal; the logits of each head as near as its `allowed` lets them be. Run
// `node check.mjs`, or press the page's button.

/**
 * Open the folder's tokenizer and model, by the pipeline of its kind where there is one. `folder` is
 * a path, or an address that ends in a slash.
 */
export async function open(transformers, folder, texts) {
  if (texts.pipeline) return transformers.pipeline(texts.pipeline, folder);
  const tokenizer = await transformers.AutoTokenizer.from_pretrained(folder);
  return { tokenizer, model: await transformers.AutoModel.from_pretrained(folder) };
}

/** Return the tokens of a text, or of a pair, cut where the model's input ends. */
export function encode({ tokenizer }, texts, text, pair = null) {
  return tokenizer(text, { text_pair: pair, truncation: true, max_length: texts.max_length });
}

const numbers = (tensor) => Array.from(tensor.data, Number);

/** Return the logits of one text, row by row; of answers, the start and the end of each token. */
export async function rows({ model }, inputs) {
  const { logits, start_logits: start, end_logits: end } = await model(inputs);
  if (logits) return logits.dims.length === 3 ? logits.tolist()[0] : logits.tolist();
  const [starts, ends] = [numbers(start), numbers(end)];
  return starts.map((value, place) => [value, ends[place]]);
}

/**
 * Return the likeliest label of a token: of each head that labels words, and at the first token of
 * the others.
 */
export function labels(texts, row, place) {
  const alone = [["", "token_classification"]];
  const heads = texts.kind.includes(":") ? texts.kind.split(",").map((each) => each.split(":")) : alone;
  const shown = heads.filter(([, kind]) => kind === "token_classification" || place === 0);
  return shown.map(([head]) => {
    const all = texts.labels.map((name, number) => [name, row[number]]);
    const own = all.filter(([name]) => !head || name.startsWith(`${head}:`));
    return own.reduce((first, second) => (second[1] > first[1] ? second : first))[0];
  }).join(", ");
}

function quantile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

/** Return how far a head's logits of a text are from those expected, and how many predictions differ. */
function compared(head, expected, actual, vectors) {
  let most = actual.length === expected.length ? 0 : Infinity, others = 0;
  for (const [line, all] of expected.slice(0, head.first_token ? 1 : undefined).entries()) {
    const [wanted, own] = [all, actual[line] ?? []].map((each) => each.slice(...head.columns));
    const moved = wanted.map((value, column) => Math.abs(value - own[column]));
    most = Math.max(most, ...moved);
    const best = wanted.indexOf(Math.max(...wanted));
    const gap = wanted[best] - Math.max(...wanted.filter((_, column) => column !== best));
    // two logits that each move by `limit` turn a prediction whose gap is within twice that
    const limit = head.allowed.max ?? head.allowed.p95;
    if (!vectors && own.indexOf(Math.max(...own)) !== best && gap > 2 * limit) others += 1;
  }
  return { most: Number.isNaN(most) ? Infinity : most, others }; // sorting finds no place for NaN
}

/** Return the largest, median and 95th percentile of the differences of texts. */
function spread(differences) {
  const sorted = [...differences].sort((first, second) => first - second);
  return { max: sorted.at(-1), median: quantile(sorted, 0.5), p95: quantile(sorted, 0.95) };
}

/** Return what is wrong, and what there is to know. */
export async function check(transformers, opened, texts, progress = () => {}) {
  const failures = [], notes = [], differences = texts.heads.map(() => []);
  let otherTokens = 0, otherLabels = 0, firstTokens = null, firstLabel = null;
  for (const [place, row] of texts.rows.entries()) {
    const inputs = encode(opened, texts, row.text, row.pair);
    const ids = numbers(inputs.input_ids);
    if (ids.join() !== row.ids.join()) {
      otherTokens += 1;
      firstTokens ??= `${JSON.stringify(row.text)} is ${ids}, must be ${row.ids}`;
      continue;
    }
    const own = await rows(opened, inputs);
    for (const [number, head] of texts.heads.entries()) {
      const { most, others } = compared(head, row.logits, own, texts.vectors);
      differences[number].push(most);
      otherLabels += others;
      if (others) firstLabel ??= JSON.stringify(row.text);
    }
    progress(place + 1, texts.rows.length);
  }
  const odd = texts.odd.filter(
    ({ text, ids }) => numbers(opened.tokenizer(text).input_ids).join() !== ids.join(),
  );
  if (otherTokens) failures.push(`tokens of ${otherTokens} of ${texts.rows.length} texts: ${firstTokens}`);
  if (otherLabels) failures.push(`${otherLabels} other predictions, the first of ${firstLabel}`);
  const found = differences.map(spread);
  for (const [number, head] of texts.heads.entries()) {
    const logits = head.name ? `logits of ${head.name}` : "logits";
    for (const [name, allowed] of Object.entries(head.allowed)) {
      if (allowed !== null && !(found[number][name] <= allowed)) {
        failures.push(`${name} difference of ${logits} is ${found[number][name]}, allowed ${allowed}`);
      }
    }
  }
  if (!texts.rows.length) failures.push("no texts were stored, so that nothing can be checked");
  if (odd.length) {
    notes.push(
      `transformers.js reads ${odd.length} of ${texts.odd.length} odd texts in other tokens, such as ` +
        JSON.stringify(odd[0].text),
    );
  }
  const max = Math.max(...found.map((each) => each.max));
  return { version: transformers.env.version, texts: texts.rows.length, max, failures, notes };
}

if (typeof process !== "undefined" && process.argv?.[1]?.endsWith("check.mjs")) {
  const { readFile } = await import("node:fs/promises");
  const { fileURLToPath } = await import("node:url");
  const transformers = await import("@huggingface/transformers");
  const folder = fileURLToPath(new URL(".", import.meta.url));
  const texts = JSON.parse(await readFile(`${folder}texts.json`, "utf-8"));
  transformers.env.allowRemoteModels = false;
  const result = await check(transformers, await open(transformers, folder, texts), texts);
  if (process.argv.includes("--json")) {
    console.log(JSON.stringify(result));
  } else {
    for (const line of [...result.failures, ...result.notes]) console.log(line);
    console.log(
      `transformers.js ${result.version}: ${result.failures.length ? "other" : "equal"} answers ` +
        `to ${result.texts} texts; largest difference of a logit ${result.max}`,
    );
  }
  process.exitCode = result.failures.length ? 1 : 0;
}
