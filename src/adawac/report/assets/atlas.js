// The atlas: the heat map with its choices, what the cursor stands on, and its colours explained.
const firstMoving = data.runs.findIndex((run) => run.atlas?.fields.beta?.moves); // the one that has something to show
const state = { run: Math.max(0, firstMoving), field: "beta", sort: "case", zoom: 0, row: null, epoch: null, ...history.state?.atlas };
if (!data.runs[state.run]) state.run = 0;
const heatmap = new HeatMap({
  moved: (row, epoch) => reading(row, epoch),
  opened: (row, epoch) => openSlice(state.run, heatmap.order[row], epoch),
  announced: (row, epoch, tell) => announce(row, epoch, tell),
});
const SORTS = [["case", "case"], ["foreground", "foreground"], ["beta", "β"], ["disagreement", "disagreement"]];

const remember = () => { try { history.replaceState({ atlas: state }, ""); } catch { /* not kept, then */ } };

function reading(row, epoch) {
  const model = heatmap.model;
  const value = (field) => `${FIELDS[field].text} ${number(model.value(field, row, epoch))}`;
  return [el("strong", {}, name(model.caseOf(row))), ` · slice ${model.samples.slice[row]} · foreground ${model.shareText(row)}`, el("br"),
    `epoch ${model.epochs[epoch]} · ${value("beta")} · ${value("ell_ce")} · ${value("reg_ac")}`];
}

let speaking = null;
function announce(row, epoch, tell) {
  [state.row, state.epoch] = [heatmap.model.samples.id[row], epoch];
  remember();
  const parts = reading(row, epoch);
  byId("readout").replaceChildren(...parts);
  if (!tell) return;
  clearTimeout(speaking); // a reader of the screen hears where the cursor came to rest, not every cell on the way
  speaking = setTimeout(() => { byId("live").textContent = byId("readout").textContent; }, 120);
}

function colourBar() {
  const canvas = el("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const image = new ImageData(256, 1);
  data.maps[state.field === "beta" ? "diverging" : "sequential"].forEach((colour, place) => image.data.set([...colour, 255], place * 4));
  canvas.getContext("2d").putImageData(image, 0, 0);
  const [low, high] = heatmap.limits.map(number);
  const ends = {
    beta: ["0: sent to consistency", "1: kept under cross-entropy (½ is pale)"],
    disagreement: ["0: β agrees with the label", "1: it contradicts it"],
  }[state.field] ?? [`${low} or less`, `${high} or more (${heatmap.model.fields[state.field].kind === "log" ? "logarithmic" : "linear"})`];
  return [el("span", {}, ends[0]), canvas, el("span", {}, ends[1])];
}

async function showAtlas() {
  const model = await loadModel(state.run);
  const place = byId("atlas-place");
  if (!model.epochs.length) {
    place.replaceChildren(el("p", { class: "small muted" }, "This run has no history of its samples yet, so there is nothing to draw."));
    return;
  }
  if (!model.fields[state.field]) state.field = Object.keys(model.fields)[0];
  if (!model.fields.disagreement && ["beta", "disagreement"].includes(state.sort)) state.sort = "case";
  place.replaceChildren(choices(model), el("figure", { class: "atlas" },
    el("p", { class: "colours", id: "colours" }), heatmap.viewport, heatmap.axis,
    el("figcaption", { class: "unseen" }, "Heat map of samples by epochs"),
    el("p", { class: "readout", id: "readout" }),
    el("p", { class: "keys", id: "heatmap-keys" }, "With the keyboard: ", el("kbd", {}, "←"), " ", el("kbd", {}, "→"), " epoch, ", el("kbd", {}, "↑"), " ",
      el("kbd", {}, "↓"), " sample (with ", el("kbd", {}, "Shift"), " ten at a time), ", el("kbd", {}, "Enter"), " opens the slice, ", el("kbd", {}, "Esc"), " closes it.")),
    ...remarks(model));
  heatmap.zoom = state.zoom;
  heatmap.show(model, state.field, state.sort);
  byId("colours").replaceChildren(...colourBar());
  const row = model.rowOf.get(state.row);
  heatmap.moveTo(row === undefined ? 0 : heatmap.position[row], state.epoch ?? model.epochs.length - 1, false);
}

function change(values) {
  Object.assign(state, values);
  remember();
  const focused = document.activeElement?.closest("#atlas-place") ? document.activeElement : null;
  const again = focused && { name: focused.name, value: focused.value, id: focused.id };
  return showAtlas().then(() => {
    if (!again) return; // the controls were made anew: give the focus back to the one that was used
    const same = [...document.querySelectorAll("#atlas-place input, #atlas-place select, #atlas-place button")]
      .find((one) => (again.id ? one.id === again.id : one.name === again.name && one.value === again.value));
    same?.focus({ preventScroll: true });
  });
}

function choices(model) {
  const why = (key) => (model.fields[key] ? null : key === "disagreement" ? "The method of this run does not move β." : "This run did not record it.");
  const fields = Object.keys(FIELDS).map((key) => ({ key, text: FIELDS[key].text, disabled: !model.fields[key], why: why(key) }));
  const sorts = SORTS.filter(([key]) => model.fields.disagreement || !["beta", "disagreement"].includes(key));
  const zoom = (by) => change({ zoom: ZOOMS[Math.max(0, Math.min(ZOOMS.length - 1, ZOOMS.indexOf(state.zoom) + by))] });
  const run = choice("Run", data.runs.map((one, place) => [String(place), one.name]), String(state.run), (value) => change({ run: Number(value) }));
  const sort = choice("Sort samples by", sorts, state.sort, (value) => change({ sort: value }));
  run.querySelector("select").id = "atlas-run";
  sort.querySelector("select").id = "atlas-sort";
  return el("div", { class: "bar" }, data.runs.length > 1 ? run : null,
    segments("Colour shows", "field", fields, state.field, (value) => change({ field: value })), sort,
    el("div", { class: "zoom", role: "group", "aria-label": "Zoom" },
      el("button", { type: "button", id: "zoom-out", "aria-label": "Show more samples", disabled: state.zoom === 0, onclick: () => zoom(-1) }, "−"),
      el("button", { type: "button", id: "zoom-in", "aria-label": "Show samples larger", disabled: state.zoom === ZOOMS[ZOOMS.length - 1], onclick: () => zoom(1) }, "+")));
}

function remarks(model) {
  const found = [];
  const { samples, epochs } = model.run.thinned;
  if (samples[0] < samples[1]) found.push(`${samples[0].toLocaleString("en")} of ${plural(samples[1], "sample")} are shown, chosen evenly and with all suspects.`);
  if (epochs[0] < epochs[1]) found.push(`${epochs[0]} of ${plural(epochs[1], "epoch")} are shown, chosen evenly.`);
  if (!model.fields.beta) found.push("This run recorded no β.");
  else if (!model.fields.beta.moves) found.push("β is the same for all samples: the method of this run does not move it.");
  if (model.codes[state.field]?.includes(MISSING)) found.push("Hatched cells were not seen in that epoch.");
  return found.map((text) => el("p", { class: "small muted" }, text));
}

// Moves the cursor to a sample, from wherever it is mentioned.
async function showInAtlas(run, row, epoch) {
  await change({ run, row: data.runs[run].samples.id[row], epoch });
  heatmap.viewport.scrollIntoView({ block: "center" });
  heatmap.viewport.focus({ preventScroll: true });
  heatmap.moveTo(heatmap.position[row], epoch);
}

function startAtlas() {
  byId("atlas-body").append(
    el("p", {}, "Every line is a sample, every column an epoch. β near 1 keeps a sample under cross-entropy; β near 0 sends it to consistency, which needs no label. "
      + "The strip on the left shows how much foreground a sample has: blank is none, grey is unlabelled. Point at a cell to read it, click to see the slice."),
    el("div", { id: "atlas-place" }));
  return showAtlas();
}
