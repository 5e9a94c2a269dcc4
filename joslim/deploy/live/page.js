// The demo page: a drawing or an image, a slider over the front, and what the child says of it.

const byId = (id) => document.getElementById(id);
const view = { net: null, child: null, drawn: false, photo: null, busy: false, again: false };
// The time of a pass is the median of so many parts; browsers measure no less than 0.1 ms.
const PARTS = 5;
const PART_MS = 8;

async function start() {
  ort.env.wasm.numThreads = 1; // more need headers that simple servers do not send
  ort.env.wasm.wasmPaths = new URL("ort/", document.baseURI).href;
  const response = await fetch("net.joslim");
  if (!response.ok) throw new Error(`net.joslim cannot be loaded: ${response.status}.`);
  view.net = new Network(await openBundle(await response.arrayBuffer()));
  const { children, cost } = view.net.manifest;
  const slider = byId("slider");
  slider.max = children.length - 1;
  slider.value = slider.max;
  slider.addEventListener("input", () => choose(Number(slider.value)));
  byId("ends").firstElementChild.textContent = withUnit(cost, children[0].costs[cost]);
  byId("ends").lastElementChild.textContent = withUnit(cost, children.at(-1).costs[cost]);
  setUpPad();
  clearPad();
  choose(Number(slider.max));
  byId("content").hidden = false;
  byId("state").textContent = "";
  document.body.dataset.ready = "yes";
}

// The child

function choose(position) {
  const { children, dims } = view.net.manifest;
  view.child = children[position];
  const tested = view.child.test_error !== null;
  const error = tested ? view.child.test_error : view.child.val_error;
  byId("child").textContent = `Child ${position + 1} of ${children.length}`;
  byId("slider").setAttribute("aria-valuetext", `child ${position + 1}`);
  const largest = children.at(-1);
  const figures = Object.entries(view.child.costs).map(([name, value]) => [
    COST_WORDS[name] ?? name,
    costText(name, value),
    `${((100 * value) / largest.costs[name]).toFixed(0)} % of the largest`,
  ]);
  if (error !== null)
    figures.push([tested ? "test error" : "validation error", `${error.toFixed(1)} %`, ""]);
  byId("figures").replaceChildren(
    ...figures.map(([name, value, remark]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value), element("small", {}, remark)),
    ),
  );
  byId("layers").replaceChildren(
    ...dims.map((dim, at) =>
      bar(dim.name, view.child.channels[at] / dim.full, `${view.child.channels[at]} / ${dim.full}`),
    ),
  );
  predict();
}

const COST_WORDS = { macs: "multiply-adds", params: "parameters", latency_ms: "latency, measured" };

function costText(name, value) {
  if (name === "latency_ms") return `${value.toPrecision(3)} ms`;
  const [size, unit] = [
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "K"],
    [1, ""],
  ].find(([size]) => Math.abs(value) >= size) ?? [1, ""];
  const digits = value / size < 100 && size > 1 ? 1 : 0;
  return `${(value / size).toFixed(digits)}${name === "memory" ? ` ${unit}B` : unit}`;
}

const withUnit = (name, value) =>
  ["latency_ms", "memory"].includes(name)
    ? costText(name, value)
    : `${costText(name, value)} ${COST_WORDS[name] ?? name}`;

// One prediction at a time; the newest wish is served when it ends.
async function predict() {
  if (view.busy) {
    view.again = true;
    return;
  }
  view.busy = true;
  do {
    view.again = false;
    await predictOnce().catch(complain);
  } while (view.again);
  view.busy = false;
}

async function predictOnce() {
  const { child, net } = view;
  const image = currentImage();
  const shape = net.shape(child);
  const pixels = resized(prepared(image, net.manifest), net.manifest.shape, shape);
  showSeen(pixels, shape);
  const scores = await net.scores(child, pixels); // the first pass opens the child
  const ms = await timeOfPass(() => net.scores(child, pixels));
  const empty = !view.drawn && !view.photo;
  showScores(scores, empty);
  byId("time").textContent = `${ms.toPrecision(2)} ms`;
  document.body.dataset.shown = child.name;
}

async function timeOfPass(pass) {
  const times = [];
  for (let part = 0; part < PARTS; part++) {
    const begun = performance.now();
    let passes = 0;
    for (; performance.now() - begun < PART_MS; passes++) await pass();
    times.push((performance.now() - begun) / passes);
  }
  return times.sort((a, b) => a - b)[Math.floor(PARTS / 2)];
}

function showScores(scores, empty) {
  const { classes } = view.net.manifest;
  const most = Math.max(...scores);
  const powers = Array.from(scores, (score) => Math.exp(score - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  const order = powers.map((_, at) => at).sort((a, b) => powers[b] - powers[a]);
  byId("class").textContent = empty ? "–" : classes[order[0]];
  byId("classes").replaceChildren(
    ...order.slice(0, 5).map((at) => {
      const share = empty ? 0 : powers[at] / sum;
      return bar(classes[at], share, empty ? "" : `${(100 * share).toFixed(0)} %`);
    }),
  );
}

// The picture

const PAD = 280;
const context = byId("pad").getContext("2d", { willReadFrequently: true });

function setUpPad() {
  const pad = byId("pad");
  let last = null;
  const place = (event) => {
    const box = pad.getBoundingClientRect();
    const scale = PAD / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  };
  pad.addEventListener("pointerdown", (event) => {
    if (view.photo) clearPad();
    pad.setPointerCapture(event.pointerId);
    last = place(event);
    stroke(last, last);
  });
  pad.addEventListener("pointermove", (event) => {
    if (!last) return;
    const now = place(event);
    stroke(last, now);
    last = now;
  });
  for (const kind of ["pointerup", "pointercancel"])
    pad.addEventListener(kind, () => {
      last = null;
    });
  byId("clear").addEventListener("click", () => {
    clearPad();
    predict();
  });
  byId("file").addEventListener("change", (event) => openFile(event.target.files[0]));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    openFile(event.dataTransfer.files[0]);
  });
}

function stroke(from, to) {
  context.lineWidth = PAD / 10;
  context.lineCap = "round";
  context.strokeStyle = "#fff";
  context.beginPath();
  context.moveTo(...from);
  context.lineTo(...to);
  context.stroke();
  view.drawn = true;
  predict();
}

function clearPad() {
  context.fillStyle = "#000";
  context.fillRect(0, 0, PAD, PAD);
  view.drawn = false;
  view.photo = null;
}

async function openFile(file) {
  if (!file) return;
  try {
    const bitmap = await createImageBitmap(file);
    const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
    const own = canvas.getContext("2d");
    own.drawImage(bitmap, 0, 0);
    clearPad();
    view.photo = own.getImageData(0, 0, bitmap.width, bitmap.height);
    const scale = Math.min(PAD / bitmap.width, PAD / bitmap.height);
    const [width, height] = [bitmap.width * scale, bitmap.height * scale];
    context.drawImage(bitmap, (PAD - width) / 2, (PAD - height) / 2, width, height);
    predict();
  } catch (error) {
    complain(new Error(`${file.name} cannot be opened as an image.`));
  }
}

// A photograph as it is; of a drawing the square around the ink, since digits fill their image.
function currentImage() {
  if (view.photo) return view.photo;
  const { data } = context.getImageData(0, 0, PAD, PAD);
  let [left, top, right, bottom] = [PAD, PAD, 0, 0];
  for (let y = 0; y < PAD; y++)
    for (let x = 0; x < PAD; x++)
      if (data[4 * (y * PAD + x)] > 127) {
        [left, right] = [Math.min(left, x), Math.max(right, x + 1)];
        [top, bottom] = [Math.min(top, y), Math.max(bottom, y + 1)];
      }
  if (right === 0) return context.getImageData(0, 0, PAD, PAD);
  const side = Math.max(right - left, bottom - top);
  const square = document.createElement("canvas");
  square.width = square.height = side;
  const own = square.getContext("2d");
  own.fillRect(0, 0, side, side);
  const [x, y] = [(side - right + left) / 2, (side - bottom + top) / 2];
  own.drawImage(
    byId("pad"),
    ...[left, top, right - left, bottom - top],
    ...[x, y, right - left, bottom - top],
  );
  return own.getImageData(0, 0, side, side);
}

// The pixels that the network sees.
function showSeen(pixels, [channels, height, width]) {
  const { mean, std } = view.net.manifest;
  const canvas = byId("seen");
  [canvas.width, canvas.height] = [width, height];
  const image = new ImageData(width, height);
  for (let at = 0; at < width * height; at++) {
    for (let colour = 0; colour < 3; colour++) {
      const channel = Math.min(colour, channels - 1);
      const value = pixels[channel * width * height + at] * std[channel] + mean[channel];
      image.data[4 * at + colour] = 255 * value;
    }
    image.data[4 * at + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// Elements

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function bar(name, share, number) {
  const fill = element("span", { class: "fill" });
  fill.style.width = `${100 * share}%`;
  return element(
    "div",
    { class: "bar" },
    element("span", { class: "name", title: name }, name),
    element("span", { class: "track" }, fill),
    element("span", { class: "number" }, number),
  );
}

function complain(error) {
  byId("state").textContent = error.message;
  byId("state").classList.add("wrong");
}

start().catch(complain);
