// Samples to check, plainest first; each leads into the atlas and to its slice.
function startSuspects() {
  const body = byId("suspects-body");
  const listed = mergeSuspects();
  body.append(el("p", {}, "Samples whose weight or loss contradicts their label, or whose weight jumped. A suspect is a question, not a verdict: "
    + "look at the slice, then at the label."));
  for (const run of data.runs.filter((one) => one.suspects_remark)) {
    body.append(el("p", { class: "note small" }, name(run.name), ": ", run.suspects_remark));
  }
  if (data.list) {
    body.append(el("p", { class: "note small" }, "A labeller's list, with room for verdicts: ", el("a", { href: data.list }, data.list), "."));
  }
  if (!listed.length) {
    const able = data.runs.some((run) => run.atlas);
    body.append(el("p", { class: "muted" }, able ? "No single sample stands out." : "There is no history to look at yet."));
    return;
  }
  let kind = "all";
  const place = el("div", {});
  const draw = () => place.replaceChildren(suspectTable(listed.filter((one) => kind === "all" || one.kind === kind)));
  const count = (key) => listed.filter((one) => one.kind === key).length;
  const options = [["all", `all (${listed.length})`], ...Object.entries(data.kinds).filter(([key]) => count(key)).map(([key, text]) => [key, `${text} (${count(key)})`])];
  body.append(el("div", { class: "bar" }, choice("Show", options, kind, (value) => { kind = value; draw(); }),
    el("button", { type: "button", id: "suspects-csv", onclick: () => download(listed) }, "Download as CSV")), place);
  for (const run of data.runs.filter((one) => one.suspects_found > one.suspects.length)) {
    body.append(el("p", { class: "small muted" }, `Of ${plural(run.suspects_found, "suspect")} in `, name(run.name), `, the first ${run.suspects.length} are listed.`));
  }
  draw();
}

// The same slice for the same reason in several runs is one suspect: the plainest of them, with all runs named.
function mergeSuspects() {
  const found = new Map();
  const all = data.runs.flatMap((run, place) => run.suspects.map((one) => ({ ...one, run: place, runs: [place] })))
    .sort((a, b) => b.score - a.score || a.run - b.run || a.row - b.row);
  for (const one of all) {
    const key = JSON.stringify([one.kind, data.runs[one.run].samples.id[one.row]]);
    if (found.has(key)) found.get(key).runs.push(one.run);
    else found.set(key, one);
  }
  return [...found.values()];
}
const runNames = (one) => [...one.runs].sort((a, b) => a - b).map((run) => data.runs[run].name);

function suspectTable(listed) {
  const most = 25; // on the screen at first, and on paper
  const several = data.runs.length > 1;
  const row = (one, place) => {
    const { samples } = data.runs[one.run];
    const title = [name(samples.cases[samples.case[one.row]], { class: "name clip" }), ` slice ${samples.slice[one.row]}`];
    return { class: place >= most ? "beyond-print" : null, cells: [
      { text: [el("button", { type: "button", class: "link", onclick: () => openSlice(one.run, one.row, one.epoch) }, ...title)] },
      ...(several ? [{ text: runNames(one).flatMap((text, index) => [index ? ", " : "", name(text)]) }] : []),
      { text: [el("strong", {}, `${data.kinds[one.kind]}. `), one.reason] },
      { text: one.score.toFixed(2), number: true },
      { text: [el("button", { type: "button", class: "link act", onclick: () => showInAtlas(one.run, one.row, one.epoch) }, "show in atlas")] },
    ] };
  };
  const head = ["Slice", ...(several ? ["Runs"] : []), "Why", { text: "Score", number: true }, { text: [el("span", { class: "unseen" }, "Atlas")] }];
  const draw = (count) => table(`${plural(listed.length, "suspect")}, the plainest first; the score runs from 0 to 1`, head,
    listed.slice(0, count).map(row), { class: "suspect-table" });
  const place = el("div", {}, draw(most));
  if (listed.length > most) {
    place.append(el("button", { type: "button", class: "act", onclick: () => place.replaceChildren(draw(listed.length)) }, `Show all ${listed.length}`));
  }
  return place;
}

function csv(listed) {
  // A spreadsheet takes a cell that begins like a formula for one.
  const cell = (value) => `"${String(value).replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
  const rows = listed.map((one) => {
    const run = data.runs[one.run];
    return [runNames(one).join("; "), run.samples.id[one.row], run.samples.cases[run.samples.case[one.row]], run.samples.slice[one.row],
      run.samples.share[one.row] ?? "", one.kind, one.score, run.atlas.epochs[one.epoch], one.reason];
  });
  return [["runs", "id", "case", "slice", "foreground", "kind", "score", "epoch", "reason"], ...rows]
    .map((row) => row.map(cell).join(",")).join("\r\n");
}

function download(listed) {
  const address = URL.createObjectURL(new Blob(["\ufeff", csv(listed), "\r\n"], { type: "text/csv" }));
  el("a", { href: address, download: "suspects.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
