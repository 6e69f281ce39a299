// Making elements. Names from files come in as text nodes only, never as markup.
export const byId = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// A name of unknown writing direction, which must not turn the sentence around it.
export const name = (text, properties = {}) => el("bdi", { class: "name", ...properties }, text);

export function swatch(colour) {
  const square = el("span", { class: "swatch", "aria-hidden": "true" });
  square.style.backgroundColor = colour;
  return square;
}

export function tick(label, checked, change, properties = {}) {
  const box = el("input", { type: "checkbox", checked, ...properties, onchange: () => change(box.checked) });
  return el("label", { class: "tick" }, box, label);
}

export function number(value, digits = 1) {
  return (Object.is(Math.round(value * 10 ** digits), -0) ? 0 : value).toFixed(digits).replace("-", "−");
}
