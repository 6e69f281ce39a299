// Overview, curves, pictures, and how it was made.
function startOverview() {
  const body = byId("overview-body");
  document.title = `${data.runs.map((one) => one.name).join(", ").slice(0, 80)} – adawac report`;
  const known = data.runs.map((one) => one.headline).filter((one) => one.samples);
  if (data.outcome) body.append(el("p", { class: "outcome" }, data.outcome));
  if (known.length) body.append(el("p", { class: "lead" }, `${trainedOn(known)} This report shows which ones the network finds easy, which it fights, and what became of their weights.`));
  body.append(el("div", { class: "cards" }, data.runs.map(runCard)));
}

// "24 slices of 3 cases; 12 of them (50 %) carry no label." Runs may differ in that: on subsets, and on other data sets.
function trainedOn(headlines) {
  const range = (key) => {
    const values = headlines.map((one) => one[key]);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return low === high ? low.toLocaleString("en") : `${low.toLocaleString("en")} to ${high.toLocaleString("en")}`;
  };
  const same = new Set(headlines.map((one) => JSON.stringify([one.samples, one.cases, one.sparse]))).size === 1;
  const [{ samples, sparse, cases }] = headlines;
  const states = [["unlabelled", "unlabelled: they learn from consistency alone"], ["partly_ignored", "partly ignored"]];
  const others = states.filter(([key]) => headlines.some((one) => one[key])).map(([key, text]) => ` ${range(key)} are ${text}.`).join("");
  if (others) return `${range("samples")} slices of ${range("cases")} cases; ${range("sparse")} of them are empty.${others}`;
  return same ? `${plural(samples, "slice")} of ${plural(cases, "case")}; ${sparse.toLocaleString("en")} of them (${percent(sparse / samples)}) carry no label.`
    : `These runs were not trained on the same slices: ${range("samples")} slices of ${range("cases")} cases; ${range("sparse")} of them carry no label.`;
}

const WEIGHS = {
  nothing: "Its method does not move β: all samples count alike.",
  ce: "β weighs cross-entropy alone here: there is no consistency to send samples to.",
};

function runCard(run, place) {
  const { headline, summary } = run;
  const going = run.status === "finished" ? null : el("span", { class: "chip warn" }, run.status);
  const facts = [
    ...Object.entries(summary).map(([key, value]) => [key, [name(typeof value === "number" ? number(value) : value)]]),
    ...(run.dataset ? [["data set", [name(run.dataset)]]] : []),
    ["epochs", [run.epochs && run.epoch < run.epochs ? `${run.epoch} of ${run.epochs}` : String(run.epoch)]],
  ];
  return el("article", { class: "card" }, el("h3", {}, keyOf(place), name(run.name), going),
    el("dl", {}, facts.flatMap(([key, value]) => [el("dt", {}, name(key)), el("dd", {}, value)])),
    headline.weighs === "both" ? el("div", { class: "sides" },
      side("label-sparse", headline.sparse, headline.sparse - headline.sparse_low), side("label-dense", headline.dense, headline.dense_high))
      : el("p", { class: "small muted sides" }, WEIGHS[headline.weighs] ?? "No weights were recorded yet."),
    run.verdict ? el("p", { class: "small verdict" }, run.verdict) : null,
    ...run.missing.filter((one) => one.damaged).map((one) => el("p", { class: "note" }, el("code", {}, one.part), `: ${one.why}.`)));
}

function side(group, count, kept) {
  if (!count) return null;
  const part = (share, kind) => { const span = el("span", { class: kind }); span.style.width = `${100 * share}%`; return span; };
  return el("div", {}, `${group}: β keeps ${kept.toLocaleString("en")} of ${count.toLocaleString("en")} under CE, sends ${(count - kept).toLocaleString("en")} to consistency`,
    el("div", { class: "side-bar", "aria-hidden": "true" }, part(kept / count, "ce"), part(1 - kept / count, "consistency")));
}

const CURVES = [
  { title: "Loss", series: [["loss", "loss"]], options: { log: true } },
  { title: "Cross-entropy", series: [["ell_ce_dense", "label-dense"], ["ell_ce_sparse", "label-sparse"]], otherwise: [["ell_ce", "all"]], options: { log: true } },
  { title: "Consistency (ACR)", series: [["reg_ac_dense", "label-dense"], ["reg_ac_sparse", "label-sparse"]], otherwise: [["reg_ac", "all"]], options: { log: true } },
  { title: "β", series: [["beta_dense", "label-dense"], ["beta_sparse", "label-sparse"]], options: { low: 0, high: 1, half: true }, text: "mean of either group; ½ is where it starts" },
  { title: "How well β tells the groups apart", series: [["beta_auc", "AUC"]], options: { low: 0, high: 1, half: true }, text: "area under the curve; ½ is by chance" },
  { title: "Separation", series: [["separated_dense", "label-dense: CE > ACR"], ["separated_sparse", "label-sparse: CE < ACR"]], options: { low: 0, high: 1 }, text: "share on the side that the paper's assumption puts it" },
  { title: "Spread over samples", series: [["spread_ce", "CE"], ["spread_ac", "ACR"]], text: "standard deviation over mean" },
  { title: "Learning rate", series: [["lr", "learning rate"]] },
];

function startCurves() {
  const body = byId("curves-body");
  const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.curves.series)))];
  const validation = names.filter((key) => key.startsWith("val"))
    .map((key) => ({ title: `Validation: ${key.replace(/^val(idation)?_/, "")}`, series: [[key, key]] }));
  const panels = [CURVES[0], ...validation, ...CURVES.slice(1)].map(curvePanel).concat(reliabilityPanel()).filter(Boolean);
  if (!panels.length) {
    body.append(el("p", { class: "small muted" }, "No epoch has been logged yet."));
    return;
  }
  if (data.runs.length > 1) body.append(el("ul", { class: "legend" }, data.runs.map((run, place) => el("li", {}, keyOf(place), name(run.name)))));
  body.append(el("div", { class: "panels" }, panels), lastNumbers(names));
}

function curvePanel({ title, series, otherwise = [], options = {}, text = "" }) {
  const find = (wanted) => data.runs.flatMap((run, place) => wanted.flatMap(([key, label], dash) => (run.curves.series[key]
    ? [{ run: place, dash, label, text: `${run.name}, ${label}`, epochs: run.curves.epochs, values: run.curves.series[key] }] : [])));
  let [wanted, found] = [series, find(series)];
  if (!found.length) [wanted, found] = [otherwise, find(otherwise)];
  if (!found.length) return null;
  const dashes = wanted.length > 1 ? el("ul", { class: "legend" }, wanted.map(([, label], dash) => el("li", {},
    svg("svg", { class: "key", viewBox: "0 0 26 11", "aria-hidden": "true" },
      svg("path", { d: "M1 5.5H25", class: "series plain", "stroke-dasharray": DASHES[dash] })), label))) : null;
  const caption = [text, options.log ? logNote(found) : ""].filter(Boolean).join("; ");
  return el("figure", { class: "panel" }, el("h3", {}, title), lineChart(title, found, options), dashes, caption ? el("figcaption", {}, caption) : null);
}

const FEW_PIXELS = 50; // say nothing of how often a network is right

// How sure networks are and how often they are right; on the line both are the same.
function reliabilityPanel() {
  const runs = data.runs.map((run, place) => [run, place]).filter(([run]) => run.calibration);
  if (!runs.length) return null;
  const words = { before: "as it is", after: "with its temperature" };
  const percent = (value) => `${(100 * value).toFixed(1)} %`;
  const series = runs.flatMap(([run, place]) => Object.entries(words).map(([when, label], dash) => {
    const bins = run.calibration[when].bins.filter((bin) => bin.count >= FEW_PIXELS);
    return { run: place, dash, text: `${run.name}, ${label}`, epochs: bins.map((bin) => 100 * bin.confidence), values: bins.map((bin) => 100 * bin.accuracy) };
  }));
  const caption = runs.flatMap(([{ name: called, calibration: { temperature, before, after, part, cases } }]) => [name(called),
    `: temperature ${number(temperature)}, ECE ${percent(before.ece_foreground)} before and ${percent(after.ece_foreground)} after (${cases} ${part} cases). `]);
  return el("figure", { class: "panel" }, el("h3", {}, "Reliability of probabilities"), lineChart("Reliability of probabilities", series, { low: 0, high: 100, share: true }),
    el("ul", { class: "legend" }, Object.values(words).map((label, dash) => el("li", {}, svg("svg", { class: "key", viewBox: "0 0 26 11", "aria-hidden": "true" },
      svg("path", { d: "M1 5.5H25", class: "series plain", "stroke-dasharray": DASHES[dash] })), label))),
    el("figcaption", {}, "Share of pixels that are right, by confidence, both in %, where there may be foreground. ", ...caption));
}

function lastNumbers(names) {
  const last = (run, key) => (run.curves.series[key] ?? []).filter((value) => value !== null).at(-1);
  return el("details", {}, el("summary", {}, "The last value of every curve, as a table"),
    table("Last value of every metric", ["Metric", ...data.runs.map((run) => ({ text: [name(run.name)], number: true }))],
      names.map((key) => ({ cells: [{ text: [name(key)] }, ...data.runs.map((run) => ({ text: number(last(run, key)), number: true }))] }))));
}

function startPictures() {
  const body = byId("pictures-body");
  if (!data.pictures.length) {
    body.append(el("p", { class: "small muted" }, "None yet: ", el("code", {}, "adawac evaluate RUN"), " keeps some."));
    return;
  }
  body.append(el("p", {}, "Slices that the evaluation selected: the label as outline, the prediction as area. Choose one to see it larger."));
  const few = 24;
  const place = el("div", {});
  const draw = (count) => place.replaceChildren(el("ul", { class: "grid-pictures" }, data.pictures.slice(0, count).map(pictureButton)),
    count < data.pictures.length ? el("button", { type: "button", class: "act", onclick: () => draw(data.pictures.length) }, `Show all ${data.pictures.length}`) : "");
  draw(few);
  body.append(place);
}

// The run to show a picture with: the one that the atlas shows, if it has something to say of that slice.
function runFor(picture) {
  const [first] = Object.keys(picture.predictions).map(Number);
  const trained = data.runs.findIndex((run) => run.samples.id.includes(picture.id));
  const known = picture.predictions[state.run] !== undefined || data.runs[state.run].samples.id.includes(picture.id);
  return known ? state.run : first ?? Math.max(trained, 0);
}

function pictureButton(picture) {
  const run = runFor(picture);
  const { samples } = data.runs[run];
  const row = samples.id.indexOf(picture.id);
  const title = row < 0 ? [...titleOf(picture.id), el("br"), el("span", { class: "muted" }, "not trained on")]
    : [name(samples.cases[samples.case[row]], { class: "name clip" }), ` slice ${samples.slice[row]}`];
  const open = () => {
    const shown = runFor(picture);
    const place = data.runs[shown].samples.id.indexOf(picture.id);
    openSlice(shown, place < 0 ? null : place, Math.max(0, (data.runs[shown].atlas?.epochs.length ?? 1) - 1), picture);
  };
  return el("li", {}, el("button", { type: "button", onclick: open }, stack(picture, run, { label: true, prediction: true }), el("span", {}, ...title)));
}

function startRepeat() {
  const body = byId("repeat-body");
  for (const run of data.runs) {
    body.append(el("h3", {}, name(run.name)));
    const [normal, lost] = [run.missing.filter((one) => one.normal), run.missing.filter((one) => !one.normal)];
    if (lost.length) {
      body.append(el("div", { class: "note missing" }, "Missing in this run folder:",
        el("ul", {}, lost.map((one) => el("li", {}, el("code", {}, one.part), ": ", name(one.why), one.why.endsWith(".") ? " " : ". ", one.remedy)))));
    }
    if (normal.length) {
      body.append(el("p", { class: "small muted" }, "Not in this folder: ",
        ...normal.flatMap((one, place) => [place ? ", " : "", el("code", { title: one.remedy }, one.part)]), "."));
    }
    body.append(...run.commands.flatMap((one) => [el("p", { class: "small muted" }, one.why), el("pre", { tabindex: "0" }, name(one.command))]),
      pairs("Configuration", run.settings), ...run.environment.map((one, place) => pairs(place ? `Environment, start ${place + 1}` : "Environment", one)));
  }
  body.append(el("h3", {}, "This report"), el("pre", { tabindex: "0" }, name(data.command)));
}

function pairs(title, rows) {
  if (!rows.length) return "";
  return el("details", {}, el("summary", {}, title),
    table(title, ["Name", "Value"], rows.map(([key, value]) => ({ cells: [{ text: [name(key, { class: "name mono" })] }, { text: [name(value)] }] }))));
}
