// Line charts as SVG: a colour and a marker for each run, a dash for each series of it.
const DASHES = ["", "6 3", "2 3"];
const colourOf = (run) => `s${run % 6}`;

function ticksOf(low, high, count) {
  const rough = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) ticks.push(tick);
  return ticks;
}

// Numbers 1, 2 and 5 of every power of ten, and where an axis in logarithms begins and ends: at such a number.
const roundAtMost = (value) => {
  const power = 10 ** Math.floor(Math.log10(value) + 1e-9);
  return [5, 2, 1].map((one) => one * power).find((one) => one <= value * (1 + 1e-9));
};
const roundAtLeast = (value) => {
  const below = roundAtMost(value);
  return below >= value * (1 - 1e-9) ? below : below * (/^2/.test(below.toExponential()) ? 2.5 : 2);
};
function logTicksOf(low, high) {
  const decades = Math.log10(high / low);
  const [ticks, every] = [[], Math.ceil(decades / 6)]; // many decades: some of them
  for (let power = Math.floor(Math.log10(low) + 1e-9); power <= Math.log10(high) + 1e-9; power++) {
    for (const one of decades <= 2.5 ? [1, 2, 5] : power % every ? [] : [1]) ticks.push(Number(`${one}e${power}`));
  }
  return ticks.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
}
const LOG_SPAN = 1e-8; // what is smaller than this part of the largest value counts as zero

// Values in a form that an axis in logarithms can show: null where it cannot. Negative numbers: none of them can.
function forLog(series) {
  const numbers = series.flatMap((one) => one.values).filter((value) => value !== null && Number.isFinite(value));
  const most = numbers.reduce((a, b) => Math.max(a, b), 0);
  if (!(most > 0) || numbers.some((value) => value < 0)) return null;
  return series.map((one) => ({ ...one, values: one.values.map((value) => (value > most * LOG_SPAN ? value : null)) }));
}
function logNote(series) {
  if (!forLog(series)) return "";
  return series.some((one) => one.values.includes(0)) ? "logarithmic; zeros are not drawn" : "logarithmic";
}

function marker(run, x, y, size = 3.4) {
  const shapes = [
    `M${x - size} ${y}a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0`,
    `M${x - size} ${y - size}h${2 * size}v${2 * size}h${-2 * size}z`,
    `M${x} ${y - size * 1.2}l${size * 1.2} ${size * 2.2}h${-size * 2.4}z`,
    `M${x} ${y - size * 1.3}l${size * 1.3} ${size * 1.3}l${-size * 1.3} ${size * 1.3}l${-size * 1.3} ${-size * 1.3}z`,
    `M${x} ${y + size * 1.2}l${size * 1.2} ${-size * 2.2}h${-size * 2.4}z`,
    `M${x - size * 0.45} ${y - size * 1.2}h${size * 0.9}v${size * 0.75}h${size * 0.75}v${size * 0.9}h${-size * 0.75}v${size * 0.75}h${-size * 0.9}v${-size * 0.75}h${-size * 0.75}v${-size * 0.9}h${size * 0.75}z`,
  ];
  return svg("path", { d: shapes[run % shapes.length], class: `f${run % 6}` });
}

// A line with the marker of a run, for legends.
const keyOf = (run, dash = 0) => svg("svg", { class: "key", viewBox: "0 0 26 11", "aria-hidden": "true" },
  svg("path", { d: "M1 5.5H25", class: `series ${colourOf(run)}`, "stroke-dasharray": DASHES[dash] }), marker(run, 13, 5.5));

// The axis of the values: its ticks, and where between bottom (0) and top (1) a value lies.
function valueAxis(series, { low, high, log }) {
  const numbers = series.flatMap((one) => one.values).filter((value) => value !== null && Number.isFinite(value));
  const most = numbers.reduce((a, b) => Math.max(a, b), -Infinity);
  const least = numbers.reduce((a, b) => Math.min(a, b), Infinity);
  if (log) {
    const [start, end] = [roundAtMost(least), Math.max(roundAtLeast(most), roundAtLeast(roundAtMost(least) * 1.5))];
    return { levels: logTicksOf(start, end), part: (value) => Math.log(value / start) / Math.log(end / start) };
  }
  const start = low ?? Math.min(0, least);
  const end = Math.max(high ?? -Infinity, most, start + 1e-9);
  return { levels: ticksOf(start, end, 4), part: (value) => (value - start) / (end - start) };
}

// series: [{ run, dash, text, epochs, values, thin }]; low and high fix the range where that has a meaning. With share,
// both axes are percentages, and a line marks where they are equal.
function lineChart(title, series, { low, high, log = false, half = false, share = false, now = null, width = 360, height = 190 } = {}) {
  const [right, top, bottom] = [10, 8, 24];
  const positive = log ? forLog(series) : null;
  const { levels, part } = valueAxis(positive ?? series, { low, high, log: positive !== null });
  const left = Math.max(40, 12 + 6.5 * Math.max(...levels.map((tick) => number(tick).length))); // the longest must fit
  const all = share ? [0, 100] : series.flatMap((one) => one.epochs);
  const first = all.reduce((a, b) => Math.min(a, b), Infinity);
  const last = all.reduce((a, b) => Math.max(a, b), -Infinity);
  const x = (epoch) => left + ((epoch - first) / Math.max(last - first, 1)) * (width - left - right);
  const y = (value) => height - bottom - part(value) * (height - top - bottom);
  const words = series.map((one) => describe(one, share ? "confidence" : "epoch")).join("; ");
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${title}${positive ? ", logarithmic" : ""}. ${words}` });
  for (const tick of levels) {
    chart.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
      svg("text", { x: left - 5, y: y(tick) + 3.5, "text-anchor": "end" }, number(tick)));
  }
  for (const tick of ticksOf(first, last, 5).filter((one) => Number.isInteger(one))) {
    chart.append(svg("text", { x: x(tick), y: height - 8, "text-anchor": "middle" }, String(tick)));
  }
  if (share) chart.append(svg("line", { class: "half", x1: x(0), x2: x(100), y1: y(0), y2: y(100) }));
  if (half) chart.append(svg("line", { class: "half", x1: left, x2: width - right, y1: y(0.5), y2: y(0.5) }));
  if (now !== null) chart.append(svg("line", { class: "now", x1: x(now), x2: x(now), y1: top, y2: height - bottom }));
  for (const one of positive ?? series) chart.append(...drawn(one, x, y));
  return chart;
}

function drawn(one, x, y) {
  let [path, pen, end] = ["", "M", null];
  one.values.forEach((value, place) => {
    if (value === null || !Number.isFinite(value)) { pen = "M"; return; }
    end = [x(one.epochs[place]), y(value)];
    path += `${pen}${end[0].toFixed(1)} ${end[1].toFixed(1)}${pen === "M" ? "h0" : ""}`; // h0: a dot, if it stays alone
    pen = "L";
  });
  if (!end) return [];
  const line = svg("path", { d: path, class: `series ${colourOf(one.run)}${one.thin ? " thin" : ""}`,
    "stroke-dasharray": DASHES[one.dash ?? 0] });
  return [line, marker(one.run, end[0], end[1], one.thin ? 2.4 : 3.4)];
}

function describe(one, along) {
  const there = one.values.map((value, place) => [value, one.epochs[place]])
    .filter(([value]) => value !== null && Number.isFinite(value));
  if (!there.length) return `${one.text}: no values`;
  const [[start, first], [end, last]] = [there[0], there[there.length - 1]];
  return `${one.text}: ${number(start)} at ${along} ${number(first)}, ${number(end)} at ${along} ${number(last)}`;
}

// Means with intervals, one line a class and run. rows: [{ name, cells: [{ run, mean, low, high }] }]
function intervalChart(title, rows, runs, scale = 1) {
  const [width, left, right, step] = [360, 122, 12, 13];
  const block = Math.max(runs.length * step + 8, 22);
  const height = rows.length * block + 26;
  const cells = rows.flatMap((row) => row.cells).filter(Boolean);
  const lows = cells.map((cell) => cell.low ?? cell.mean), highs = cells.map((cell) => cell.high ?? cell.mean);
  const largest = Math.max(...highs);
  const pad = (largest - Math.min(...lows) || Math.abs(largest) || 0.1) * 0.06; // a single value has room for two ticks
  const [low, high] = [Math.min(...lows) - pad, largest + pad];
  const x = (value) => left + ((value - low) / (high - low)) * (width - left - right);
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${title}: means and 95 % intervals; the table has the numbers` });
  for (const tick of ticksOf(low, high, 5)) {
    chart.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: height - 22 }),
      svg("text", { x: x(tick), y: height - 8, "text-anchor": "middle" }, number(scale * tick)));
  }
  rows.forEach((row, place) => {
    const middle = place * block + block / 2;
    const text = row.name.length > 20 ? `${row.name.slice(0, 19)}…` : row.name;
    chart.append(svg("text", { x: left - 10, y: middle + 4, "text-anchor": "end" }, text));
    row.cells.forEach((cell, index) => {
      if (!cell) return;
      const at = place * block + (block - (runs.length - 1) * step) / 2 + index * step;
      if (cell.low !== null && cell.high !== null) {
        chart.append(svg("path", { class: `series ${colourOf(runs[index])}`, d: `M${x(cell.low)} ${at}H${x(cell.high)}` }));
      }
      chart.append(marker(runs[index], x(cell.mean), at, 4));
    });
  });
  return chart;
}
