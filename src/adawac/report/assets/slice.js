// One slice in a dialog: its picture with label and prediction, and what it went through.
const dialog = byId("slice");
const layers = { label: true, prediction: true };

// Case and slice of a sample that is in no table, from its id: dataset/patient/case/axis/slice.
function titleOf(id) {
  const parts = id.split("/");
  return parts.length === 5 ? [name(parts[2], { class: "name clip" }), ` slice ${parts[4]}`] : [name(id, { class: "name clip" })];
}

function stack(picture, run, shown = layers) {
  const place = el("div", { class: "stack" });
  place.style.aspectRatio = String(picture.aspect);
  const layer = (kind, blob) => el("img", { class: kind, alt: "", src: imageOf(blob) });
  place.append(layer("scan", picture.image));
  const prediction = picture.predictions[run];
  if (shown.prediction && prediction !== undefined) place.append(layer("area", prediction));
  if (shown.label && picture.label !== null) place.append(layer("outline", picture.label));
  return place;
}

function toggles(picture, run, change) {
  const there = { label: picture.label !== null, prediction: picture.predictions[run] !== undefined };
  const texts = { label: "Label (outline)", prediction: "Prediction (area)" };
  return el("div", { class: "layers", role: "group", "aria-label": "Layers" }, Object.keys(texts).map((key) =>
    el("label", {}, el("input", { type: "checkbox", id: `layer-${key}`, checked: layers[key] && there[key], disabled: !there[key],
      onchange: (event) => { layers[key] = event.target.checked; change(); } }),
    there[key] ? texts[key] : `${texts[key]}: none here`)));
}

function pictureSide(picture, run) {
  const side = el("div", {});
  if (!picture) {
    side.append(el("p", { class: "small muted" }, "There is no picture of this slice: galleries hold a selection of them."));
    return side;
  }
  const others = Object.keys(picture.predictions).map(Number);
  let shown = picture.predictions[run] === undefined && others.length ? others[0] : run;
  const frame = el("div", { role: "img" });
  const boxes = el("div", { class: "layers" });
  const draw = () => {
    const parts = [picture.label !== null && layers.label ? "its label as outline" : "",
      picture.predictions[shown] !== undefined && layers.prediction ? `the prediction of ${data.runs[shown].name} as area` : ""];
    frame.setAttribute("aria-label", ["The slice", ...parts.filter(Boolean)].join(", "));
    frame.replaceChildren(stack(picture, shown));
  };
  boxes.append(toggles(picture, shown, draw));
  if (others.length > 1 || (others.length && shown !== run)) {
    boxes.append(choice("Prediction of", others.map((one) => [String(one), data.runs[one].name]), String(shown),
      (value) => { shown = Number(value); draw(); }));
  }
  draw();
  const classes = data.runs[run].classes;
  side.append(frame, boxes,
    picture.empty ? el("p", { class: "small muted" }, "The label map is empty.") : "",
    el("ul", { class: "legend", "aria-label": "Classes" }, classes.map((one) => {
      const swatch = el("span", { class: "swatch" });
      swatch.style.background = one.colour;
      return el("li", {}, swatch, name(one.name));
    })),
    picture.channels > 1 ? el("p", { class: "small muted" }, `The first of ${picture.channels} channels.`) : "");
  return side;
}

async function trajectories(id, run, epoch) {
  const found = [];
  for (let place = 0; place < Math.min(data.runs.length, 6); place++) {
    if (place !== run && !data.runs[place].samples.id.includes(id)) continue;
    const model = await loadModel(place);
    if (model.rowOf.has(id) && model.epochs.length) found.push(model);
  }
  found.sort((a, b) => (a.place === run) - (b.place === run)); // the chosen run is drawn last, on top
  if (!found.some((model) => model.place === run)) return null;
  const panels = ["beta", "ell_ce", "reg_ac"].map((field) => {
    const series = found.filter((model) => model.codes[field]).map((model) => ({
      run: model.place, text: data.runs[model.place].name, epochs: model.epochs, thin: model.place !== run,
      values: model.trajectory(field, model.rowOf.get(id)),
    }));
    if (!series.length) return null;
    const fixed = field === "beta" ? { low: 0, high: 1, half: true } : { log: true };
    const note = fixed.log ? logNote(series) : "";
    return el("figure", { class: "panel" }, el("h3", {}, FIELDS[field].long),
      lineChart(FIELDS[field].long, series, { ...fixed, now: epoch, width: 560, height: 150 }), note ? el("figcaption", {}, note) : null);
  });
  const legend = found.length > 1 ? el("ul", { class: "legend" },
    [...found].sort((a, b) => a.place - b.place).map((model) => el("li", {}, keyOf(model.place), name(data.runs[model.place].name)))) : null;
  return el("div", { class: "trajectories" }, legend, ...panels.filter(Boolean));
}

function facts(model, row, epoch, picture) {
  const entries = row === null ? [] : [
    ["foreground", model.shareText(row)],
    ["group", model.samples.group[row] || "–"],
    [`epoch ${model.epochs[epoch]}`, ["beta", "ell_ce", "reg_ac"].map((field) =>
      `${FIELDS[field].text} ${number(model.value(field, row, epoch))}`).join(", ")],
  ];
  if (picture) entries.push(["size", `${picture.size[0]} × ${picture.size[1]} pixels`]);
  const suspects = row === null ? [] : model.run.suspects.filter((one) => one.row === row);
  return [
    el("dl", { class: "facts" }, entries.flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, name(value))])),
    ...suspects.map((one) => el("p", { class: "note small" }, one.reason)),
  ];
}

// Opens the slice of a run by its row in the atlas, or a picture that no row belongs to.
async function openSlice(run, row, epoch, picture = null) {
  const model = await loadModel(run);
  const id = row === null ? picture.id : model.samples.id[row];
  const shown = picture ?? pictureOf.get(id);
  const title = row === null ? titleOf(id) : [name(model.caseOf(row)), ` · slice ${model.samples.slice[row]}`];
  const step = (by) => {
    const next = row === null ? -1 : row + by;
    const there = next >= 0 && next < model.size && model.samples.case[next] === model.samples.case[row];
    return el("button", { type: "button", disabled: !there, "aria-label": by < 0 ? "Previous slice" : "Next slice",
      onclick: () => openSlice(run, next, epoch) }, by < 0 ? "← Slice" : "Slice →");
  };
  const lines = row === null || !model.epochs.length ? null : await trajectories(id, run, model.epochs[epoch]);
  dialog.replaceChildren(
    el("div", { class: "dialog-head" },
      el("h2", { id: "slice-title" }, ...title, el("br"), el("small", { class: "muted small" }, name(data.runs[run].name))),
      el("div", { class: "steps" }, row === null ? null : [step(-1), step(1)],
        el("button", { type: "button", onclick: () => dialog.close(), autofocus: true }, "Close"))),
    el("div", { class: "dialog-body" },
      el("div", {}, pictureSide(shown, run), ...facts(model, row, epoch, shown)),
      lines ?? el("p", { class: "muted" }, row === null
        ? "This slice was not trained on, so it has no weight and no trajectory." : "There is no history of this slice.")));
  if (!dialog.open) dialog.showModal();
}
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
