// Scores: one table a metric, the runs side by side, each with its difference to the first of them.
const METRICS = {
  dice: "Dice", hd95: "HD95", assd: "Mean surface distance", surface_dice: "Surface Dice", hd95_max_directed: "HD95, larger direction",
  case_sensitivity: "Cases with foreground in which something is found (sensitivity)", case_specificity: "Empty cases without a false alarm (specificity)",
  dense_dice: "Dice on label-dense slices", sparse_found: "Label-sparse slices with something found", sparse_area: "Area found on label-sparse slices",
};
const SHARES = ["dice", "surface_dice", "dense_dice", "sparse_found", "case_sensitivity", "case_specificity"]; // shown as percentages
const FIRST = ["dice", "hd95", "case_sensitivity", "case_specificity"]; // the others can be opened

function startScores() {
  const body = byId("scores-body");
  if (!data.scores.length) {
    body.append(el("p", { class: "small muted" }, "No run has scores yet: ", el("code", {}, "adawac evaluate RUN"), " writes them."));
    return;
  }
  body.append(el("p", {}, "Means over patients, with the 95 % interval of a bootstrap over patients. ",
    data.runs.length > 1 ? "Below them the difference to the first run of the table, patient by patient; a word says which way where its interval leaves out zero and p < 0.05 (sign-flip test)." : ""));
  const several = datasets();
  if (several.length > 1) {
    body.append(el("p", { class: "note" }, "These runs were tested on several data sets (", ...several.flatMap((one, place) => [place ? ", " : "", datasetName(one)]),
      "). Each has its own tables, and differences are between runs of one data set: the patients of two data sets are different people, whatever their names are."));
  }
  const missing = data.runs.filter((_, place) => !data.scores.some((one) => one.runs.includes(place)));
  if (missing.length) body.append(el("p", { class: "small muted" }, "Without scores: ", ...missing.flatMap((run, place) => [place ? ", " : "", name(run.name)]), "."));
  for (const run of data.runs.filter((one) => one.outdated.length)) {
    body.append(el("p", { class: "note" }, name(run.name), " was trained further after it was evaluated: ", run.outdated.join("; "), ". Make them again: ",
      el("code", {}, "adawac evaluate ", name(run.name)), "."));
  }
  const first = data.scores.filter((one) => FIRST.includes(one.metric));
  body.append(...first.map(scoreTable));
  const rest = data.scores.filter((one) => !FIRST.includes(one.metric));
  if (rest.length) body.append(el("details", { open: !first.length }, el("summary", {}, `${plural(rest.length, "more table")}: what happens on single slices, and other metrics`), rest.map(scoreTable)));
}

const datasets = () => [...new Set(data.scores.map((one) => one.dataset))];
const datasetName = (dataset) => (dataset ? name(dataset) : "unknown data set");

// "convention strict", or "conventions adawac and strict, which agree here".
function listed(key, same) {
  const values = [...new Set(same.map((one) => one[key]))];
  return values.length === 1 ? `${key} ${values[0]}` : `${key}s ${values.slice(0, -1).join(", ")} and ${values.at(-1)}, which agree here`;
}

function scoreTable(one) {
  const same = [one, ...one.also]; // evaluations that gave these very numbers
  const unit = SHARES.includes(one.metric) ? "%" : one.unit === "voxel" ? "voxels" : one.unit;
  const title = `${METRICS[one.metric] ?? one.metric}${unit ? `, ${unit}` : ""}`;
  const scale = SHARES.includes(one.metric) ? 100 : 1;
  const patients = one.rows[0].cells.find(Boolean)?.patients ?? 0;
  const fixed = (value) => (value === null ? "–" : (scale * value).toFixed(2).replace("-", "−"));
  const range = (cell) => el("span", { class: "range" }, cell.low === null ? "no interval" : `${fixed(cell.low)} to ${fixed(cell.high)}`);
  const difference = (cell) => {
    if (!cell) return [];
    const sure = cell.low !== null && (cell.low > 0 || cell.high < 0) && cell.p_value !== null && cell.p_value < 0.05;
    const word = !sure ? "" : cell.mean > 0 === one.higher_is_better ? "better" : "worse";
    const details = [cell.low === null ? "no interval" : `${fixed(cell.low)} to ${fixed(cell.high)}`,
      cell.p_value === null ? "" : cell.p_value < 0.001 ? "p < 0.001" : `p = ${number(cell.p_value)}`, cell.patients === patients ? "" : plural(cell.patients, "patient")];
    return [el("span", { class: `difference ${word}` }, el("span", { class: "unseen" }, "difference "), `${cell.mean > 0 ? "+" : ""}${fixed(cell.mean)}${word && `, ${word}`}`),
      el("span", { class: "range" }, ...details.filter(Boolean).flatMap((text, place) => [place ? ", " : "", el("span", {}, text)]))];
  };
  const head = ["Class", ...one.runs.map((place) => ({ text: [keyOf(place), " ", name(data.runs[place].name)], number: true }))];
  const rows = one.rows.map((row) => ({ class: row.label === null ? "total" : null, cells: [{ text: [name(row.class_name)] },
    ...row.cells.map((cell, place) => ({ number: true, text: cell ? [fixed(cell.mean), range(cell), ...(place ? difference(row.differences[place - 1]) : [])] : "–" }))] }));
  const better = one.higher_is_better ? "higher is better" : "lower is better";
  const dataset = datasets().length > 1 ? [el("span", { class: "chip" }, datasetName(one.dataset)), " "] : [];
  return el("div", { class: "score" }, el("h3", {}, `${title} `, ...dataset, ...same.flatMap(({ evaluation }) => [el("span", { class: "chip" }, name(evaluation)), " "]), el("span", { class: "muted small" }, better)),
    el("div", { class: one.runs.length > 4 ? "score-pair many" : "score-pair" },
      table(`${title} on ${one.dataset ? `${one.dataset}, ` : ""}${one.split || "the test cases"}, ${plural(patients, "patient")}; ${listed("convention", same)}, ${listed("checkpoint", same)}${
        one.runs.length > 1 ? `; differences to ${data.runs[one.runs[0]].name}` : ""}`, head, rows),
      el("figure", { class: "panel" }, intervalChart(title, one.rows.map((row) => ({ name: row.class_name, cells: row.cells })), one.runs, scale))));
}
