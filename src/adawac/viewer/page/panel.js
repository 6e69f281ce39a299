// The controls beside the picture. Every one is a plain form element with a label.
import { byId, el, name, number, swatch, tick } from "./elements.js";
import { VIEWS } from "./stage.js";

export function buildViews(stage) {
  const inputs = VIEWS.map(({ key, text }) => {
    const input = el("input", { type: "radio", name: "view", value: key, checked: key === stage.view.key,
      onchange: () => stage.setView(key) });
    byId("views").append(el("label", {}, input, el("span", {}, text)));
    return input;
  });
  return function next() {
    const place = (inputs.findIndex((input) => input.checked) + 1) % inputs.length;
    inputs[place].checked = true;
    stage.setView(inputs[place].value);
    return VIEWS[place].text;
  };
}

// Layers: the first as areas, those after it as outlines, so that both can be seen. Returns what switches one of them.
export function buildLayers(stage) {
  const { layers } = stage.scene;
  if (!layers.length) byId("layers").append(el("p", { class: "muted" }, "No label maps were given (--labels)."));
  return layers.map((layer, place) => {
    const state = { shown: true, opacity: place ? 0.9 : 0.5, outline: place > 0 };
    const apply = () => stage.showLayer(place, state);
    const text = el("output", {}, `${Math.round(100 * state.opacity)} %`);
    const slider = el("input", { type: "range", min: 0, max: 100, value: 100 * state.opacity, "aria-label": `Opacity of ${layer.title}`,
      oninput: () => { state.opacity = slider.value / 100; text.value = `${slider.value} %`; apply(); } });
    const shown = tick(el("span", { class: "title" }, el("b", {}, String(place + 1)), " ", name(layer.title)), true,
      (on) => { state.shown = on; apply(); });
    byId("layers").append(el("div", { class: "layer" }, shown,
      el("div", { class: "row" },
        el("label", { class: "slider" }, el("span", {}, "Opacity"), slider, text),
        tick("Outline", state.outline, (on) => { state.outline = on; apply(); }, { "aria-label": `Outline of ${layer.title}` }))));
    apply();
    const box = shown.querySelector("input");
    return () => { box.click(); return box.checked; };
  });
}

// One row for each class: its colour, name, value, and how large it is in each layer.
export function buildClasses(stage) {
  const { classes, layers } = stage.scene;
  if (!classes.length) return;
  byId("classes-section").hidden = false;
  const volume = (layer, value) => {
    const place = layer.values.indexOf(value);
    return place < 0 ? "–" : stage.scene.scan.picture ? String(layer.voxels[place]) : number(layer.voxels[place] * layer.millilitres, 1);
  };
  const row = ({ value, name: text, colour }) => el("tr", {},
    el("th", { scope: "row" }, tick([swatch(colour), el("span", {}, name(text || `class ${value}`), el("small", {}, text === colour ? "" : ` ${value}`))], true,
      (on) => stage.showClass(value, on))),
    layers.map((layer) => el("td", {}, volume(layer, value))));
  byId("classes").append(el("table", {},
    el("caption", {}, stage.scene.scan.picture ? "Pixels, by layer" : "Volumes in ml, by layer"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Class"),
      layers.map((layer, place) => el("th", { scope: "col", title: layer.title }, String(place + 1))))),
    el("tbody", {}, classes.map(row))));
}

const WINDOWS = [
  ["auto", "Automatic", ({ scan }) => [scan.robust_min, scan.robust_max]],
  ["full", "Whole range", ({ scene }) => scene.scan.range],
  ["abdomen", "CT: abdomen", () => [-125, 275]],
  ["lung", "CT: lung", () => [-1350, 150]],
  ["bone", "CT: bone", () => [-450, 1050]],
];

export function buildWindow(stage) {
  const box = (label) => el("input", { type: "number", step: "any", "aria-label": label });
  const [low, high] = [box("Black at"), box("White at")];
  const select = el("select", {}, WINDOWS.map(([key, text]) => el("option", { value: key }, text)),
    el("option", { value: "own" }, "Chosen by hand"));
  const show = () => [[low, stage.scan.cal_min], [high, stage.scan.cal_max]].forEach(([input, value]) => {
    input.value = Number(value.toPrecision(4));
  });
  const choose = () => {
    const found = WINDOWS.find(([key]) => key === select.value);
    if (found) stage.setWindow(...found[2](stage));
    show();
  };
  const type = () => {
    const [black, white] = [low, high].map((input) => input.valueAsNumber);
    if (!(black < white)) return;
    select.value = "own";
    stage.setWindow(black, white);
  };
  select.addEventListener("change", choose);
  for (const input of [low, high]) input.addEventListener("change", type);
  stage.screen.onIntensityChange = () => { select.value = "own"; show(); };
  // Hounsfield units of air: it is a CT, and the automatic choice would be mostly air.
  const [lowest, highest] = stage.scene.scan.range;
  if (lowest <= -900 && highest >= 200) select.value = "abdomen";
  choose();
  byId("window").append(el("label", {}, "Window", select), el("label", {}, "Black", low), el("label", {}, "White", high));
}

export function buildDisplay(stage) {
  if (stage.scene.scan.picture) { // it has no sides of a patient, and nothing to cut open
    byId("display").closest("section").hidden = true;
    byId("window").closest("section").hidden = stage.inColour;
    return;
  }
  const cut = stage.layers.length > 0; // or else the body hides what is labelled in it
  byId("display").append(
    tick("Patient's right on the left (radiological)", true, (on) => stage.setRadiological(on)),
    tick("Cut the scan open in 3D", cut, (on) => stage.setCut(on)));
  stage.setCut(cut);
}
