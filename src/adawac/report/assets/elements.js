// Making elements and texts. Names from a data set come in as text nodes only, never as markup.
const byId = (id) => document.getElementById(id);

function fill(element, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") element.setAttribute("class", value);
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
const el = (tag, properties = {}, ...children) => fill(document.createElement(tag), properties, children);
const svg = (tag, properties = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);

// A name of unknown writing direction, which must not turn the sentence around it.
const name = (text, properties = {}) => el("bdi", { class: "name", ...properties }, String(text));
const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
const percent = (part, digits = 0) => `${(100 * part).toFixed(digits)}\u00a0%`; // kept on one line

function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isSafeInteger(value)) return String(value).replace("-", "−"); // counts, seeds: never rounded
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e5) return value.toExponential(1).replace("-", "−");
  return String(Number(value.toPrecision(3))).replace("-", "−");
}

function table(caption, head, rows, properties = {}) {
  const cell = (tag, content, more) => el(tag, more, ...(Array.isArray(content) ? content : [content]));
  return el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
    el("table", properties,
      el("caption", {}, el("span", {}, caption)),
      el("thead", {}, el("tr", {}, head.map((one) =>
        cell("th", one.text ?? one, { scope: "col", class: one.number ? "number" : null })))),
      el("tbody", {}, rows.map((row) => el("tr", { class: row.class }, row.cells.map((one, place) =>
        place === (row.header ?? 0) ? cell("th", one.text ?? one, { scope: "row", class: one.number ? "number" : null })
          : cell("td", one.text ?? one, { class: one.number ? "number" : null })))))));
}

const choice = (label, options, value, change) => {
  const select = el("select", { onchange: () => change(select.value) },
    options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
  return el("label", {}, label, select);
};

function segments(title, group, options, value, change) {
  return el("fieldset", {}, el("legend", {}, title), el("div", { class: "segments" },
    options.map(({ key, text, disabled, why }) => el("label", { title: why },
      el("input", { type: "radio", name: group, value: key, checked: key === value, disabled,
        onchange: () => change(key) }),
      el("span", {}, text)))));
}
