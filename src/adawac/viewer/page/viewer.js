// The page: reads what the server describes, opens the stage, and connects it to the controls and the keyboard.
import { byId, el, name, number, swatch } from "./elements.js";
import { buildClasses, buildDisplay, buildLayers, buildViews, buildWindow } from "./panel.js";
import { Stage } from "./stage.js";

const root = document.documentElement;

function buildTheme() {
  const button = byId("theme");
  const show = () => button.setAttribute("aria-pressed", String(root.dataset.theme === "dark"));
  button.addEventListener("click", () => {
    const detail = root.dataset.theme === "dark" ? "light" : "dark";
    document.dispatchEvent(new CustomEvent("choose-theme", { detail }));
  });
  document.addEventListener("theme", show);
  show();
}

// What is at a place: for the eye wherever the pointer is, and in words where the crosshair has come to rest.
function buildReadout(stage, scene) {
  const classes = new Map(scene.classes.map((one) => [one.value, one]));
  const describe = (value) => (value === null ? "outside" : classes.get(value)?.name || (classes.has(value) ? `class ${value}` : "background"));
  let waiting = 0;
  return function moved(mm, settled) {
    const scan = stage.valueAt(mm);
    const labels = stage.labelsAt(mm);
    const world = mm.map((one) => number(one));
    const voxel = scan ? scan.voxel.join(", ") : "outside";
    const grey = scan ? scan.values.map((one) => String(Number(one.toPrecision(6))).replace("-", "−")).join(", ") : "–";
    const entry = (term, ...content) => el("div", {}, el("dt", {}, term), el("dd", {}, ...content));
    byId("readout").replaceChildren(
      ...(scene.scan.picture ? [] : [entry("World, mm (R A S)", world.join("  "))]),
      entry(scene.scan.picture ? "Column, row, page" : "Voxel", voxel), entry("Value", grey),
      ...labels.map((value, place) => entry(name(scene.layers[place].title),
        classes.has(value) ? swatch(classes.get(value).colour) : null, name(describe(value)))));
    if (!settled) return;
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const said = labels.map((value, place) => `${scene.layers[place].title}: ${describe(value)}`);
      byId("live").textContent = [`Voxel ${voxel}`, `value ${grey}`, ...said].join("; ");
    }, 250); // a held key moves often; what it comes to is what is said
  };
}

function buildKeys(stage, switches, nextView) {
  const moves = { ArrowLeft: [-1, 0, 0], ArrowRight: [1, 0, 0], ArrowUp: [0, 1, 0], ArrowDown: [0, -1, 0], PageUp: [0, 0, 1], PageDown: [0, 0, -1] };
  const press = (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return false;
    if (moves[event.key]) stage.move(...moves[event.key].map((one) => one * (event.shiftKey ? 10 : 1)));
    else if (event.key === "Home") stage.restart();
    else if (event.key.toLowerCase() === "v") byId("live").textContent = `View: ${nextView()}`;
    else if (switches[event.key - 1]) byId("live").textContent = `Layer ${event.key} ${switches[event.key - 1]() ? "on" : "off"}`;
    else return false;
    return true;
  };
  // Before NiiVue hears them: it has shortcuts of its own, which the page does not offer.
  byId("screen").addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (press(event)) event.preventDefault();
  }, true);
  byId("screen").addEventListener("keyup", (event) => event.stopPropagation(), true);
}

function fail(error) {
  const reason = error instanceof Error ? error.message : String(error);
  byId("message").hidden = false;
  byId("message").textContent = document.createElement("canvas").getContext("webgl2")
    ? `The scan cannot be shown: ${reason}`
    : "The scan cannot be shown: this browser has no WebGL2. Update it, or switch on graphics acceleration.";
  root.dataset.failed = "";
}

async function main() {
  buildTheme();
  const answer = await fetch("scene.json");
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  const scene = await answer.json();
  byId("title").textContent = scene.scan.title;
  document.title = `${scene.scan.title} · adawac view`;
  byId("notes").append(...scene.notes.map((note) => el("p", { class: "note" }, name(note))));
  let moved = () => {};
  const stage = new Stage(byId("canvas"), scene, (...place) => moved(...place));
  await stage.open();
  byId("message").hidden = true;
  byId("canvas").setAttribute("aria-label", `Scan ${scene.scan.title}`);
  const switches = buildLayers(stage);
  buildClasses(stage);
  buildWindow(stage);
  buildDisplay(stage);
  buildKeys(stage, switches, buildViews(stage));
  moved = buildReadout(stage, scene);
  stage.restart();
  await stage.update();
  globalThis.adawac = { stage }; // for the browser's console
  root.dataset.ready = "";
}

main().catch(fail);
