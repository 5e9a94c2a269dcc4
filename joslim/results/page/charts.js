// Charts as SVG: scales, axes, and one way to read them by pointer and by keyboard.

const WIDE = 20; // values that differ by more are drawn on a logarithmic scale
const isWide = (low, high) => low > 0 && high / low > WIDE;

// A function from values to pixels, with its inverse and its ticks.
function scaleOf(low, high, from, to, log, wanted) {
  const bend = log ? Math.log : (x) => x;
  const unbend = log ? Math.exp : (x) => x;
  const [a, b] = [bend(low), bend(high)];
  const scale = (value) => from + ((bend(value) - a) / (b - a || 1)) * (to - from);
  scale.inverse = (pixel) => unbend(a + ((pixel - from) / (to - from || 1)) * (b - a));
  scale.ticks = log ? logTicks(low, high, wanted) : linearTicks(low, high, wanted);
  return scale;
}

function linearTicks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted);
  if (!(raw > 0)) return [low];
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = size * [1, 2, 2.5, 5, 10].find((factor) => size * factor >= raw * 0.75);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, at) => (first + at) * step);
}

function logTicks(low, high, wanted) {
  for (const factors of [[1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      for (const factor of factors) {
        const value = Number(`${factor}e${power}`);
        if (value >= low * 0.999 && value <= high * 1.001) ticks.push(value);
      }
    }
    if (ticks.length <= wanted + 1) return ticks.length > 1 ? ticks : [low, high];
    if (factors.length === 1) {
      const every = Math.ceil(ticks.length / wanted);
      return ticks.filter((_, at) => at % every === 0);
    }
  }
  return [];
}

// What an axis spans, with some air on both sides.
function withAir(values, log, air = 0.06) {
  const [low, high] = ends(values);
  if (log) return [low / (high / low) ** air, high * (high / low) ** air];
  const room = (high - low || Math.abs(high) || 1) * air;
  return [low - room, high + room];
}

// The least and the most: too many for one call of Math.min.
function ends(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

// An axis of values: {low, high, log, words, tick}.
function axisOf(values, words, tick, { air = 0.06, zero = false, mayBend = true } = {}) {
  const [least, most] = ends(values);
  const log = mayBend && isWide(least, most);
  let [low, high] = withAir([least, most], log, air);
  if (zero && !log) low = 0;
  else if (!log && least >= 0) low = Math.max(0, low);
  return { low, high, log, words, tick };
}

const costAxis = (key, values) =>
  axisOf(values, costWords(key), (value) => costTick(key, value), { air: 0.03 });

const stepAxis = (steps) => ({
  low: 0,
  high: ends(steps)[1],
  log: false,
  words: "step",
  tick: formatCount,
});

// An upright line in a chart, with words beside it where there is more room.
function upright(box, at, words) {
  const right = at > (box.left + box.right) / 2;
  return [
    drawn("line", { class: "budget", x1: at, x2: at, y1: box.top, y2: box.bottom }),
    drawn(
      "text",
      {
        class: "label",
        x: right ? at - 6 : at + 6,
        y: box.top + 12,
        "text-anchor": right ? "end" : "start",
      },
      words,
    ),
  ];
}

// An empty chart: its root, its scales, and where things are drawn.
function frame(place, x, y, margin = 14) {
  const width = Math.max(240, place.clientWidth);
  const height = place.clientHeight;
  const [top, bottom] = [26, height - 40];
  const sy = scaleOf(
    y.low,
    y.high,
    bottom,
    top,
    y.log,
    Math.min(7, Math.max(3, Math.round((bottom - top) / 62))),
  );
  const left = 14 + 7 * Math.max(...sy.ticks.map((value) => y.tick(value).length));
  const box = { left, right: width - margin, top, bottom };
  const across = Math.max(2, Math.floor((box.right - left) / 78));
  const sx = scaleOf(x.low, x.high, left, box.right, x.log, across);
  const root = drawn("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const grid = drawn("g", { class: "axes" });
  for (const value of sy.ticks) {
    grid.append(
      drawn("line", { x1: left, x2: box.right, y1: sy(value), y2: sy(value) }),
      drawn("text", { x: left - 8, y: sy(value) + 4, "text-anchor": "end" }, y.tick(value)),
    );
  }
  for (const value of sx.ticks) {
    const at = sx(value);
    const anchor = at > width - 26 ? "end" : "middle";
    grid.append(
      drawn(
        "text",
        { x: anchor === "end" ? width : at, y: box.bottom + 18, "text-anchor": anchor },
        x.tick(value),
      ),
    );
  }
  grid.append(
    drawn("line", { class: "base", x1: left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    drawn("text", { class: "title", x: 2, y: 13 }, y.words + (y.log ? ", log scale" : "")),
    drawn(
      "text",
      { class: "title", x: box.right, y: height - 5, "text-anchor": "end" },
      x.words + (x.log ? ", log scale" : ""),
    ),
  );
  const plot = drawn("g", { class: "plot" });
  root.append(grid, plot);
  for (const old of place.querySelectorAll(":scope > svg")) old.remove();
  place.prepend(root);
  return { root, plot, sx, sy, box, width, height };
}

// A budget between two children buys the cheaper one: hence steps, and no slanted lines.
function stairs(points, end, sx, sy) {
  return (
    points
      .map(([x, y], at) => (at ? `H${px(sx(x))}V${px(sy(y))}` : `M${px(sx(x))} ${px(sy(y))}`))
      .join("") + `H${px(sx(end))}`
  );
}

const polyline = (points, sx, sy) =>
  points.map(([x, y], at) => `${at ? "L" : "M"}${px(sx(x))} ${px(sy(y))}`).join("");

// Thousands of dots are one path of lines without length, and no thousand elements.
const dots = (points, sx, sy) => points.map(([x, y]) => `M${px(sx(x))} ${px(sy(y))}h0`).join("");

// Words beside lines: [{words, look, x, y}], from the lowest up, moved apart where they would touch.
function putLabels(plot, labels, box) {
  let above = box.bottom + 12;
  for (const { words, look, x, y } of [...labels].sort((a, b) => b.y - a.y)) {
    above = Math.min(y, above - 16);
    plot.append(drawn("text", { class: `label c${look % LOOKS}`, x, y: above }, words));
  }
}

const px = (value) => value.toFixed(1);

const SHAPES = [
  (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
  (r) => `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (r) => `M0 ${-1.3 * r}L${1.2 * r} ${r}H${-1.2 * r}z`,
  (r) => `M0 ${-1.4 * r}L${1.4 * r} 0L0 ${1.4 * r}L${-1.4 * r} 0z`,
  (r) => `M0 ${1.3 * r}L${1.2 * r} ${-r}H${-1.2 * r}z`,
  (r) =>
    `M${-r} ${-r / 2.5}h${r * 0.6}v${-r * 0.6}h${r * 0.8}v${r * 0.6}h${r * 0.6}v${r * 0.8}h${-r * 0.6}v${r * 0.6}h${-r * 0.8}v${-r * 0.6}h${-r * 0.6}z`,
];
const DASHES = ["", "7 4", "2 4", "9 4 2 4", "12 3", "4 2"];
const LOOKS = 6;

const marker = (look, r, attributes) =>
  drawn("path", { d: SHAPES[look % LOOKS](r), ...attributes });

// Charts draw themselves when their place gets a width, or another one.
const drawings = new Map();
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) redraw(target);
});

function chart(id, label, draw) {
  const place = byId(id);
  place.tabIndex = 0;
  place.setAttribute("role", "group");
  place.setAttribute("aria-roledescription", "chart");
  place.setAttribute("aria-label", `${label} Arrow keys read its values.`);
  const known = drawings.has(place);
  drawings.set(place, { draw, width: 0 });
  if (known) redraw(place);
  else {
    readable(place);
    resized.observe(place);
  }
}

function redraw(place) {
  const drawing = drawings.get(place);
  if (!place.clientWidth || drawing.width === place.clientWidth) return;
  drawing.width = place.clientWidth;
  hideTip(place);
  // A reading is {x, y, lines(), act()}: what can be pointed at, from left to right.
  drawing.readings = drawing.draw(place) || [];
  drawing.at = -1;
}

// The pointer finds the nearest reading; arrow keys go from one to the next.
function readable(place) {
  const point = (event) => {
    const { left, top } = place.getBoundingClientRect();
    read(place, nearest(drawings.get(place), event.clientX - left, event.clientY - top), false);
  };
  place.addEventListener("pointermove", point);
  place.addEventListener("pointerdown", point);
  place.addEventListener("pointerleave", () => hideTip(place));
  place.addEventListener("click", () => act(place));
  place.addEventListener("blur", () => hideTip(place));
  place.addEventListener("focus", () => {
    if (place.matches(":focus-visible")) move(place, 0);
  });
  place.addEventListener("keydown", (event) => {
    const steps = {
      ArrowRight: 1,
      ArrowUp: 1,
      ArrowLeft: -1,
      ArrowDown: -1,
      Home: -Infinity,
      End: Infinity,
    };
    if (event.key in steps) move(place, steps[event.key]);
    else if (event.key === "Enter" || event.key === " ") act(place);
    else if (event.key === "Escape") hideTip(place);
    else return;
    event.preventDefault();
  });
}

function nearest({ readings }, x, y) {
  let [best, least] = [-1, Infinity];
  readings.forEach((reading, at) => {
    // By column where a reading says so: then the height of the pointer tells nothing.
    const far = Math.hypot(reading.x - x, reading.column ? 0 : reading.y - y);
    if (far < least) [best, least] = [at, far];
  });
  return best >= 0 && (readings[best].column || least < 48) ? best : -1;
}

function move(place, by) {
  const drawing = drawings.get(place);
  const last = drawing.readings.length - 1;
  if (last < 0) return;
  const from = drawing.at < 0 ? (drawing.start || 0) - (by === 0 ? 0 : Math.sign(by)) : drawing.at;
  read(place, Math.min(last, Math.max(0, from + by)), true);
}

function act(place) {
  const { readings, at } = drawings.get(place);
  if (at >= 0 && readings[at].act) readings[at].act();
}

function read(place, at, aloud) {
  const drawing = drawings.get(place);
  if (at < 0) return hideTip(place);
  drawing.at = at;
  const reading = drawing.readings[at];
  showTip(place, reading);
  if (aloud) byId("spoken").textContent = reading.lines().join(", ");
}

function showTip(place, { x, y, lines }) {
  hideTip(place, true);
  const root = place.querySelector("svg");
  root.append(
    drawn("path", { class: "halo", d: SHAPES[0](9), transform: `translate(${px(x)} ${px(y)})` }),
  );
  const tip = element(
    "div",
    { class: "tip", "aria-hidden": "true" },
    ...lines().map((line, at) => element(at ? "span" : "b", {}, line)),
  );
  place.append(tip);
  const room = place.clientWidth - tip.offsetWidth - 4;
  const above = y - tip.offsetHeight - 14;
  tip.style.left = `${Math.max(4, Math.min(room, x - tip.offsetWidth / 2))}px`;
  tip.style.top = `${above > 0 ? above : y + 16}px`;
}

function hideTip(place, keep = false) {
  for (const old of place.querySelectorAll(".tip, .halo")) old.remove();
  if (!keep && drawings.has(place)) drawings.get(place).at = -1;
}
