// The picture: NiiVue with a scan, label layers over it, and one crosshair.
const { Niivue, SLICE_TYPE, SHOW_RENDER, MULTIPLANAR_TYPE } = globalThis.niivue;

export const VIEWS = [
  { key: "all", text: "All", type: SLICE_TYPE.MULTIPLANAR },
  { key: "axial", text: "Axial", type: SLICE_TYPE.AXIAL, plane: [0, 1, 2] },
  { key: "coronal", text: "Coronal", type: SLICE_TYPE.CORONAL, plane: [0, 2, 1] },
  { key: "sagittal", text: "Sagittal", type: SLICE_TYPE.SAGITTAL, plane: [1, 2, 0] },
  { key: "3d", text: "3D", type: SLICE_TYPE.RENDER },
];

class Screen extends Niivue {
  // The scan is smooth; a label map has no values between its classes.
  updateInterpolation(layer, linear = false) {
    this.opts.isNearestInterpolation = layer > 0;
    super.updateInterpolation(layer, linear);
  }
}

export class Stage {
  // `moved(mm, settled)` hears of every place that is pointed at, and of each that the crosshair has come to.
  constructor(canvas, scene, moved) {
    this.canvas = canvas;
    this.scene = scene;
    this.view = VIEWS[scene.scan.picture ? 1 : 0]; // a picture has one plane
    this.hidden = new Set(); // classes, by value
    this.screen = new Screen({
      logLevel: "error",
      backColor: [0, 0, 0, 1],
      fontColor: [0.75, 0.75, 0.75, 1],
      crosshairColor: [1, 1, 1, 0.5],
      clipPlaneColor: [0, 0, 0, 0],
      crosshairWidth: 1,
      crosshairWidthUnit: "pixels",
      crosshairGap: 6,
      dragAndDropEnabled: false, // the page shows what the server was given
      multiplanarShowRender: SHOW_RENDER.ALWAYS,
      multiplanarLayout: MULTIPLANAR_TYPE.GRID,
      multiplanarPadPixels: 4,
      isForceMouseClickToVoxelCenters: true,
      isRadiologicalConvention: true,
      isCornerOrientationText: true,
      isOrientationTextVisible: !scene.scan.picture,
      loadingText: "",
    });
    this.screen.onLocationChange = ({ mm }) => moved([...mm].slice(0, 3), true);
    canvas.addEventListener("pointermove", (event) => {
      const mm = event.buttons ? null : this.pointed(event);
      if (mm) moved(mm, false);
    });
    canvas.addEventListener("pointerleave", () => moved(this.place(), false));
  }

  async open() {
    await this.screen.attachToCanvas(this.canvas);
    this.canvas.tabIndex = 0;
    await this.screen.loadVolumes(this.scene.volumes.map((url) => ({ url, colormap: "gray", opacity: 1 })));
    const [scan, ...layers] = this.screen.volumes;
    this.scan = scan;
    this.inColour = scan.hdr.datatypeCode === 128; // red, green and blue
    this.layers = layers.map((volume, number) => ({ volume, areas: volume.img, ...this.scene.layers[number] }));
    for (const layer of this.layers) this.paint(layer);
    this.setView(this.view.key);
    this.screen.scene.renderAzimuth = 150;
    this.screen.scene.renderElevation = 15;
    this.restart();
  }

  // Draws once, however many settings change before the next frame.
  update() {
    this.drawn ??= new Promise(requestAnimationFrame).then(() => {
      this.drawn = null;
      this.screen.updateGLVolume();
    });
    return this.drawn;
  }

  // Colours by class. NiiVue raises the lowest colours of a long table, so there are unused places below the first.
  paint(layer) {
    const unused = 1 + Math.ceil(layer.values.length / 64);
    const table = { R: [0, 0], G: [0, 0], B: [0, 0], A: [0, 0], I: [-unused, layer.values.length] };
    const colours = new Map(this.scene.classes.map((one) => [one.value, one.colour]));
    layer.values.forEach((value, place) => {
      const colour = colours.get(value);
      const [red, green, blue] = colour ? [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)) : [0, 0, 0];
      const seen = colour && !this.hidden.has(value);
      for (const [key, one] of Object.entries({ R: red, G: green, B: blue, A: seen ? 255 : 0, I: place })) table[key].push(one);
    });
    layer.volume.setColormapLabel(table);
  }

  showClass(value, shown) {
    if (shown) this.hidden.delete(value);
    else this.hidden.add(value);
    for (const layer of this.layers) this.paint(layer);
    this.update();
  }

  showLayer(number, { shown, opacity, outline }) {
    const layer = this.layers[number];
    if (outline && !layer.outlines) layer.outlines = outlines(layer);
    layer.volume.img = outline ? layer.outlines : layer.areas;
    layer.volume.opacity = shown ? opacity : 0;
    this.update();
  }

  setWindow(low, high) {
    this.scan.cal_min = low;
    this.scan.cal_max = high;
    this.update();
  }

  setView(key) {
    this.view = VIEWS.find((one) => one.key === key);
    this.screen.setSliceType(this.view.type);
  }

  // Takes the front half of the scan away in 3D; the layers stay whole.
  setCut(on) {
    this.screen.setClipPlane(on ? [0, 180, 0] : [2, 0, 0]);
  }

  setRadiological(on) {
    this.screen.setRadiologicalConvention(on);
  }

  // Back to the middle of what is labelled, or of the scan.
  restart() {
    this.screen.scene.crosshairPos = this.screen.vox2frac(this.screen.frac2vox(this.screen.mm2frac(this.scene.start, 0, true)));
    this.screen.createOnLocationChange();
    this.update();
  }

  // Steps to the right and up on the screen, and to the next slice; in 3D the first two turn the head.
  move(right, up, slices) {
    if (this.view.key === "3d" && !slices) {
      const { renderAzimuth, renderElevation } = this.screen.scene;
      this.screen.setRenderAzimuthElevation(renderAzimuth + 5 * right, renderElevation + 5 * up);
      return;
    }
    const [across, along, through] = this.view.plane ?? [0, 1, 2];
    const steps = [0, 0, 0];
    steps[across] = across === 0 && this.screen.opts.isRadiologicalConvention ? -right : right;
    steps[along] = up;
    steps[through] = slices;
    this.screen.moveCrosshairInVox(...steps);
  }

  // -- places ---------------------------------------------------------------------------------------------------------

  place() {
    return [...this.screen.frac2mm(this.screen.scene.crosshairPos, 0, true)].slice(0, 3);
  }

  pointed(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = this.canvas.width / box.width;
    const frac = this.screen.canvasPos2frac([(event.clientX - box.left) * scale, (event.clientY - box.top) * scale]);
    return frac[0] < 0 ? null : [...this.screen.frac2mm(frac, 0, true)].slice(0, 3);
  }

  valueAt(mm) {
    const at = voxelAt(this.scene.scan, mm);
    const { scl_slope: slope, scl_inter: shift } = this.scan.hdr;
    if (!at) return at;
    const channels = this.inColour ? 3 : 1;
    const values = [...this.scan.img.subarray(channels * at.place, channels * (at.place + 1))];
    return { voxel: at.voxel, values: channels === 3 ? values : values.map((one) => one * slope + shift) };
  }

  // The label value of each layer, or null outside of it.
  labelsAt(mm) {
    return this.layers.map((layer) => {
      const at = voxelAt(layer, mm);
      return at && layer.values[layer.areas[at.place]];
    });
  }
}

// The voxel of a grid at a place in the world, and its place in the file.
function voxelAt({ inverse, shape }, mm) {
  const voxel = inverse.slice(0, 3).map((row) => Math.round(row[0] * mm[0] + row[1] * mm[1] + row[2] * mm[2] + row[3]));
  if (voxel.some((one, axis) => one < 0 || one >= shape[axis])) return null;
  return { voxel, place: voxel[0] + shape[0] * (voxel[1] + shape[1] * voxel[2]) };
}

// The border voxels of each class. Between thick slices nothing counts as a border: it would fill whole slices.
function outlines({ areas, shape, spacing, values, background: value }) {
  const strides = [1, shape[0], shape[0] * shape[1]];
  const axes = [0, 1, 2].filter((axis) => spacing[axis] < 2.5 * Math.min(...spacing));
  const background = values.indexOf(value);
  const result = new areas.constructor(areas.length).fill(values.length); // which stands for nothing
  const at = [0, 0, 0];
  for (let k = 0; k < areas.length; k++) {
    const own = areas[k];
    if (own !== background && axes.some((axis) => at[axis] === 0 || at[axis] === shape[axis] - 1
      || areas[k - strides[axis]] !== own || areas[k + strides[axis]] !== own)) result[k] = own;
    if (++at[0] === shape[0]) {
      at[0] = 0;
      if (++at[1] === shape[1]) { at[1] = 0; at[2]++; }
    }
  }
  return result;
}
