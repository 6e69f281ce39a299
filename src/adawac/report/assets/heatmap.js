// The heat map: all cells are drawn once into a picture of one pixel a cell; after that only the cursor is.
const ZOOMS = [0, 2, 4, 8, 16]; // pixels a sample; 0: all samples in view
const tone = (token) => getComputedStyle(document.documentElement).getPropertyValue(`--${token}`).trim();

class HeatMap {
  constructor({ moved, opened, announced }) {
    Object.assign(this, { moved, opened, announced, zoom: 0, row: 0, epoch: 0, hover: null, pending: false });
    this.map = el("canvas", { "aria-hidden": "true" });
    this.cursor = el("canvas", { class: "cursor", "aria-hidden": "true" });
    this.stage = el("div", { class: "stage" }, this.map, this.cursor);
    this.spacer = el("div", { class: "spacer" }, this.stage);
    this.viewport = el("div", { class: "viewport", tabindex: "0", role: "application", id: "heatmap",
      "aria-roledescription": "heat map", "aria-describedby": "heatmap-keys" }, this.spacer);
    this.axis = el("canvas", { class: "axis", "aria-hidden": "true" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.picture = el("canvas");
    this.strip = el("canvas");
    document.body.append(this.tip);
    this.listen();
  }

  listen() {
    this.viewport.addEventListener("scroll", () => this.draw());
    this.viewport.addEventListener("keydown", (event) => this.key(event));
    this.cursor.addEventListener("pointermove", (event) => this.point(event));
    this.cursor.addEventListener("pointerleave", () => { this.hover = null; this.tip.hidden = true; this.later(); });
    this.cursor.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) { this.moveTo(...cell, false); this.opened(this.row, this.epoch); }
    });
    new ResizeObserver(() => this.layout()).observe(this.viewport);
    document.addEventListener("theme", () => this.layout());
    addEventListener("beforeprint", () => this.setZoom(0));
  }

  show(model, field, by) {
    const row = this.model === model ? this.order[this.row] : null;
    Object.assign(this, { model, field, by, order: model.order(by) });
    this.position = new Uint32Array(model.size);
    this.order.forEach((sample, place) => { this.position[sample] = place; });
    this.row = row === null ? 0 : this.position[row];
    this.epoch = Math.min(row === null ? model.epochs.length - 1 : this.epoch, model.epochs.length - 1);
    this.viewport.setAttribute("aria-label", `Heat map of ${FIELDS[field].long}: ${plural(model.size, "sample")} by ${
      plural(model.epochs.length, "epoch")}. Arrow keys move, Enter opens the slice.`);
    this.paint();
    this.layout();
  }

  // The colours of all 65536 codes, so that painting is one look-up a cell.
  palette() {
    const field = this.model.fields[this.field];
    const map = data.maps[this.field === "beta" ? "diverging" : "sequential"];
    this.range = this.field === "beta" || this.field === "disagreement" ? [0, 65534] : this.quantiles();
    const colours = new Uint32Array(65536);
    for (let code = 0; code < MISSING; code++) {
      const part = (code - this.range[0]) / Math.max(this.range[1] - this.range[0], 1);
      const [red, green, blue] = map[Math.max(0, Math.min(255, Math.round(part * 255)))];
      colours[code] = (255 << 24) | (blue << 16) | (green << 8) | red;
    }
    this.limits = this.range.map((code) => decode(field, code));
    return colours; // a missing cell stays transparent
  }

  quantiles() {
    const [codes, counts] = [this.model.codes[this.field], new Uint32Array(65536)];
    for (const code of codes) counts[code]++;
    const seen = codes.length - counts[MISSING];
    const at = (share) => {
      let [sum, code] = [0, 0];
      while (code < MISSING - 1 && (sum += counts[code]) < share * seen) code++;
      return code;
    };
    return [at(0.01), at(0.99)];
  }

  paint() {
    const [size, count] = [this.model.size, this.model.epochs.length];
    const [codes, colours] = [this.model.codes[this.field], this.palette()];
    [this.picture.width, this.picture.height] = [count, size];
    const image = new ImageData(count, size);
    const cells = new Uint32Array(image.data.buffer);
    for (let place = 0; place < size; place++) {
      const from = this.order[place] * count;
      for (let epoch = 0; epoch < count; epoch++) cells[place * count + epoch] = colours[codes[from + epoch]];
    }
    this.picture.getContext("2d").putImageData(image, 0, 0);
  }

  // How much foreground each sample has, as a column beside the picture.
  paintStrip() {
    const most = this.model.samples.share.reduce((a, b) => Math.max(a, b ?? 0), 1e-9);
    const colour = document.documentElement.dataset.theme === "dark" ? [0xc9, 0x9b, 0xee] : [0x6b, 0x3d, 0x8f];
    const strip = new ImageData(1, this.model.size);
    this.order.forEach((row, place) => {
      const share = this.model.samples.share[row];
      if (share === null) strip.data.set([0x80, 0x80, 0x80, 200], 4 * place); // unlabelled, which is not empty
      else strip.data.set([...colour, share > 0 ? 70 + 185 * Math.sqrt(share / most) : 0], 4 * place);
    });
    [this.strip.width, this.strip.height] = [1, this.model.size];
    this.strip.getContext("2d").putImageData(strip, 0, 0);
  }

  layout() {
    if (!this.model || !this.viewport.clientWidth) return;
    this.width = this.viewport.clientWidth;
    this.height = this.viewport.clientHeight;
    this.gutter = this.width < 560 ? 62 : 132;
    this.step = this.zoom ? Math.max(this.zoom, this.height / this.model.size) : this.height / this.model.size;
    this.stage.style.height = `${this.height}px`;
    this.spacer.style.height = `${Math.max(this.height, this.step * this.model.size)}px`;
    this.viewport.style.setProperty("--ratio", String(this.width / this.height));
    const scale = devicePixelRatio || 1;
    for (const [canvas, height] of [[this.map, this.height], [this.cursor, this.height], [this.axis, 37]]) {
      [canvas.width, canvas.height] = [Math.round(this.width * scale), Math.round(height * scale)];
      canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    }
    this.paintStrip();
    this.draw();
    this.drawAxis();
  }

  get column() { return (this.width - this.gutter) / this.model.epochs.length; }

  draw() {
    if (!this.model || !this.width) return;
    const [pen, count] = [this.map.getContext("2d"), this.model.epochs.length];
    this.top = this.viewport.scrollTop / this.step;
    const visible = Math.min(this.height / this.step, this.model.size - this.top);
    pen.clearRect(0, 0, this.width, this.height);
    this.hatch(pen);
    pen.imageSmoothingEnabled = this.step < 1 || this.column < 1;
    pen.drawImage(this.picture, 0, this.top, count, visible, this.gutter, 0, this.width - this.gutter, visible * this.step);
    pen.drawImage(this.strip, 0, this.top, 1, visible, this.gutter - 14, 0, 10, visible * this.step);
    this.drawGutter(pen, visible);
    this.drawCursor();
  }

  hatch(pen) {
    pen.fillStyle = tone("soft");
    pen.fillRect(this.gutter, 0, this.width - this.gutter, this.height);
    if (!this.model.codes[this.field].includes(MISSING)) return;
    pen.strokeStyle = tone("line");
    pen.beginPath();
    for (let x = this.gutter - this.height; x < this.width; x += 8) { pen.moveTo(Math.max(x, this.gutter), Math.max(0, this.gutter - x)); pen.lineTo(x + this.height, this.height); }
    pen.stroke();
  }

  // Names of the cases where they are in order, or else the value that the samples are sorted by.
  drawGutter(pen, visible) {
    const [first, last] = [Math.floor(this.top), Math.min(this.model.size, Math.ceil(this.top + visible))];
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "end";
    const right = this.gutter - 20;
    if (this.by === "case") {
      for (let place = first; place < last;) {
        const own = this.model.samples.case[this.order[place]];
        let end = place;
        while (end < last && this.model.samples.case[this.order[end]] === own) end++;
        const [y0, y1] = [(place - this.top) * this.step, (end - this.top) * this.step];
        pen.fillStyle = tone("ink");
        if (place > first) pen.fillRect(this.gutter - 16, y0, this.width, this.column < 3 || this.step < 2 ? 0.6 : 1);
        if (y1 - y0 >= 12) { pen.fillStyle = tone("muted"); this.write(pen, this.model.samples.cases[own], right, (y0 + y1) / 2); }
        place = end;
      }
      return;
    }
    pen.fillStyle = tone("muted");
    for (let y = 10; y < Math.min(this.height, visible * this.step); y += 64) {
      const row = this.order[Math.min(this.model.size - 1, Math.floor(this.top + y / this.step))];
      const late = this.by === "beta" ? this.model.lateBeta[row] : this.model.lateDisagreement[row];
      this.write(pen, this.by === "foreground" ? this.model.shareText(row) : late.toFixed(2), right, y);
    }
  }

  write(pen, text, x, y) {
    let shown = text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, " ").slice(0, 60);
    while (shown.length > 1 && pen.measureText(shown).width > x - 2) shown = `${shown.slice(0, -2)}…`;
    pen.fillText(shown, x, y);
  }

  drawAxis() {
    const pen = this.axis.getContext("2d");
    pen.clearRect(0, 0, this.width, 37);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = tone("muted");
    pen.textAlign = "center";
    const epochs = this.model.epochs;
    const every = Math.max(1, Math.ceil(epochs.length / Math.max(2, Math.floor((this.width - this.gutter) / 64))));
    const round = [1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000].find((one) => one >= every) ?? every;
    epochs.forEach((epoch, place) => {
      if (epochs.length > 12 ? epoch % round : place % every) return;
      const x = this.gutter + (place + 0.5) * this.column;
      pen.fillRect(x, 0, 1, 4);
      pen.fillText(String(epoch), Math.min(x, this.width - 10), 15);
    });
    pen.fillText("epoch", this.gutter + (this.width - this.gutter) / 2, 31);
    pen.textAlign = "end";
    pen.fillText(this.gutter < 100 ? "fg." : "foreground", this.gutter - 2, 15);
  }

  later() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.drawCursor(); document.dispatchEvent(new Event("atlas-drawn")); });
  }

  drawCursor() {
    const pen = this.cursor.getContext("2d");
    pen.clearRect(0, 0, this.width, this.height);
    this.frame(pen, this.row, this.epoch, true);
    if (this.hover) this.frame(pen, ...this.hover, false);
  }

  frame(pen, row, epoch, main) {
    const [x, y] = [this.gutter + epoch * this.column, (row - this.top) * this.step];
    const [width, height] = [Math.max(this.column, 5), Math.max(this.step, 5)];
    if (y < -height || y > this.height) return;
    const within = (value, low, high) => Math.max(low, Math.min(value, high));
    const box = [within(x + (this.column - width) / 2, this.gutter + 2, this.width - width - 2),
      within(y + (this.step - height) / 2, 2, this.height - height - 2), width, height];
    for (const [colour, line] of [["#000", main ? 5 : 3], ["#fff", main ? 2.5 : 1.5]]) {
      [pen.strokeStyle, pen.lineWidth] = [colour, line];
      pen.strokeRect(...box);
    }
    pen.fillStyle = tone("ink");
    pen.fillRect(this.gutter - 4, y + this.step / 2 - 1.5, 4, 3);
  }

  cellAt(event) {
    const box = this.cursor.getBoundingClientRect();
    const x = event.clientX - box.left - this.gutter;
    const row = Math.floor(this.top + (event.clientY - box.top) / this.step);
    if (x < 0 || row < 0 || row >= this.model.size) return null;
    return [row, Math.min(this.model.epochs.length - 1, Math.floor(x / this.column))];
  }

  point(event) {
    this.hover = this.cellAt(event);
    this.tip.hidden = !this.hover || event.pointerType === "touch";
    if (!this.tip.hidden) {
      this.tip.replaceChildren(...this.moved(this.order[this.hover[0]], this.hover[1]));
      const beyond = event.clientX > innerWidth - 260;
      this.tip.style.left = `${beyond ? Math.max(4, event.clientX - this.tip.offsetWidth - 14) : event.clientX + 14}px`;
      this.tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - this.tip.offsetHeight - 8))}px`;
    }
    this.later();
  }

  moveTo(row, epoch, tell = true) {
    this.row = Math.max(0, Math.min(this.model.size - 1, row));
    this.epoch = Math.max(0, Math.min(this.model.epochs.length - 1, epoch));
    const y = this.row * this.step;
    const { scrollTop } = this.viewport;
    if (y < scrollTop || y + this.step > scrollTop + this.height) this.viewport.scrollTop = y - this.height / 2;
    this.announced(this.order[this.row], this.epoch, tell);
    this.later();
  }

  setZoom(zoom) {
    this.zoom = zoom;
    this.layout();
    this.viewport.scrollTop = Math.max(0, this.row * this.step - this.height / 2);
    this.draw();
  }

  key(event) {
    const far = event.shiftKey ? 10 : 1;
    const page = Math.max(1, Math.floor(Math.min(this.height / this.step, this.model.size) / 5));
    const [rows, epochs] = [this.model.size, this.model.epochs.length];
    const moves = {
      ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far],
      PageUp: [-page, 0], PageDown: [page, 0], Home: event.ctrlKey ? [-rows, 0] : [0, -epochs], End: event.ctrlKey ? [rows, 0] : [0, epochs],
    };
    if (event.key === "Enter") this.opened(this.row, this.epoch);
    else if (moves[event.key]) this.moveTo(this.row + moves[event.key][0], this.epoch + moves[event.key][1]);
    else return;
    event.preventDefault();
  }
}
