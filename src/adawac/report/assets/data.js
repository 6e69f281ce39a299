// The report's data: small things as JSON, heat maps as compressed 16-bit codes that are unpacked when they are needed.
const data = JSON.parse(byId("data").textContent);
const MISSING = 65535;

function bytesOf(blob) {
  const text = atob(byId(`blob-${blob}`).textContent);
  const bytes = new Uint8Array(text.length);
  for (let place = 0; place < text.length; place++) bytes[place] = text.charCodeAt(place);
  return bytes;
}
function imageOf(blob) {
  const text = byId(`blob-${blob}`).textContent;
  return `data:image/${text.startsWith("/9j/") ? "jpeg" : "png"};base64,${text}`; // how every JPEG begins
}

async function codesOf(blob) {
  const stream = new Blob([bytesOf(blob)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint16Array(await new Response(stream).arrayBuffer()); // little-endian, as every browser's machine is
}

// What a code of a field stands for; the scale is stated in the data.
function decode(field, code) {
  if (code === MISSING) return NaN;
  if (field.kind === "log") return code === 0 ? 0 : field.low * (field.high / field.low) ** ((code - 1) / 65533);
  return field.low + ((field.high - field.low) * code) / 65534;
}
function encode(field, value) {
  if (field.kind === "log") {
    return value <= 0 ? 0 : 1 + (Math.log(value / field.low) / Math.max(Math.log(field.high / field.low), 1e-12)) * 65533;
  }
  return ((value - field.low) / (field.high - field.low)) * 65534;
}

const FIELDS = {
  beta: { text: "β", long: "β, the weight of cross-entropy" },
  ell_ce: { text: "CE", long: "cross-entropy" },
  reg_ac: { text: "ACR", long: "consistency (ACR)" },
  disagreement: { text: "Disagreement", long: "disagreement of β with the label: β where there is no foreground, 1 − β where there is" },
};

// One run with its heat maps unpacked.
class Model {
  constructor(place, codes) {
    this.place = place;
    this.run = data.runs[place];
    this.samples = this.run.samples;
    this.size = this.samples.id.length;
    this.fields = { ...this.run.atlas?.fields };
    this.epochs = this.run.atlas?.epochs ?? [];
    this.codes = codes;
    this.rowOf = new Map(this.samples.id.map((id, row) => [id, row]));
    if (codes.beta && this.fields.beta.moves) this.addDisagreement();
    this.lateBeta = this.late("beta");
    this.lateDisagreement = this.late("disagreement");
  }

  addDisagreement() {
    const [from, to, count] = [this.codes.beta, new Uint16Array(this.codes.beta.length), this.epochs.length];
    for (let row = 0; row < this.size; row++) {
      const share = this.samples.share[row];
      for (let place = row * count; place < (row + 1) * count; place++) {
        const code = from[place];
        to[place] = code === MISSING || share === null ? MISSING : share > 0 ? 65534 - code : code;
      }
    }
    this.codes.disagreement = to;
    this.fields.disagreement = { kind: "linear", low: 0, high: 1 };
  }

  late(field) {
    const [codes, count, result] = [this.codes[field], this.epochs.length, new Float64Array(this.size).fill(NaN)];
    if (!codes) return result;
    for (let row = 0; row < this.size; row++) {
      let [sum, seen] = [0, 0];
      for (let epoch = count - this.run.atlas.late; epoch < count; epoch++) {
        const value = decode(this.fields[field], codes[row * count + epoch]);
        if (!Number.isNaN(value)) [sum, seen] = [sum + value, seen + 1];
      }
      if (seen) result[row] = sum / seen;
    }
    return result;
  }

  value(field, row, epoch) {
    const codes = this.codes[field];
    return codes ? decode(this.fields[field], codes[row * this.epochs.length + epoch]) : NaN;
  }
  trajectory(field, row) { return this.epochs.map((_, epoch) => this.value(field, row, epoch)); }
  caseOf(row) { return this.samples.cases[this.samples.case[row]]; }
  shareText(row) {
    const share = this.samples.share[row];
    const text = share === null ? "unknown (unlabelled)" : share === 0 ? "none" : percent(share, share < 0.001 ? 3 : 2);
    return this.samples.ignored.includes(row) ? `${text} (partly ignored)` : text;
  }

  order(by) {
    const rows = Uint32Array.from({ length: this.size }, (_, row) => row);
    const missingLast = (value) => (value === null || Number.isNaN(value) ? -Infinity : value);
    const keys = { foreground: this.samples.share, beta: this.lateBeta, disagreement: this.lateDisagreement }[by];
    return keys ? rows.sort((a, b) => missingLast(keys[b]) - missingLast(keys[a]) || a - b) : rows;
  }
}

const models = new Map();
function loadModel(place) {
  if (!models.has(place)) {
    models.set(place, (async () => {
      const fields = Object.entries(data.runs[place].atlas?.fields ?? {});
      const codes = await Promise.all(fields.map(([, field]) => codesOf(field.blob)));
      return new Model(place, Object.fromEntries(fields.map(([key], index) => [key, codes[index]])));
    })());
  }
  return models.get(place);
}

const pictureOf = new Map(data.pictures.map((picture) => [picture.id, picture]));
