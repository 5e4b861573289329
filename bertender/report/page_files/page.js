const charts = JSON.parse(document.getElementById("charts").textContent);

// `ast`: expressions are interpreted, for the page's policy lets nothing be compiled
const options = {
  ast: true, actions: false, renderer: "svg", defaultStyle: false,
  tooltip: {disableDefaultStyle: true},
};
const drawn = Object.entries(charts).map(
  ([place, spec]) => vegaEmbed(document.getElementById(place), spec, options),
);
Promise.all(drawn).then(
  () => { document.body.dataset.charts = "drawn"; },
  error => { document.body.dataset.charts = "failed"; console.error(error); },
);

// numbers by value, others by the rules of the reader's language; what is missing comes last
function compared(first, second, sign) {
  const keys = [first, second];
  if (keys.includes("")) return first === second ? 0 : first === "" ? 1 : -1;
  const [a, b] = keys.map(Number);
  const bothNumbers = keys.every(key => Number.isFinite(Number(key)));
  return sign * (bothNumbers ? a - b : first.localeCompare(second));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => heading.addEventListener("click", () => {
    const ascending = heading.ariaSort !== "ascending";
    headings.forEach(each => each.removeAttribute("aria-sort"));
    heading.ariaSort = ascending ? "ascending" : "descending";
    const rows = [...table.tBodies[0].rows];
    const key = row => row.cells[column].dataset.key;
    rows.sort((a, b) => compared(key(a), key(b), ascending ? 1 : -1));
    table.tBodies[0].append(...rows);
  }));
}

addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details")) each.open = true;
});
