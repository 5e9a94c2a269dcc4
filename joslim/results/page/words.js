// Words and elements. All text goes in as text: nothing from a file is ever read as markup.

// What a measure is called, such as test error or test perplexity. The metric, {label, unit}, is
// that of the run that is shown, or that of a comparison.
function measureWords(measure, metric = view.story.metric) {
  if (measure === "train_loss") return "training loss";
  return `${measure === "test_error" ? "test" : "validation"} ${metric.label}`;
}
const PREFIXES = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "K"],
];

// The data of the page say how each cost is called and printed.
const costWords = (cost) => DATA.costs[cost].axis;
const costName = (cost) => DATA.costs[cost].label;
// Counts and bytes take the prefixes K, M, G and T; other units none.
const takesPrefixes = (symbol) => symbol === "" || symbol === "B";

// As Python rounds: an exact tie goes to the even digit, where toFixed would go up.
function fixed(value, digits) {
  if (Math.abs((value * 2 ** (digits + 1)) % 2) !== 1) return value.toFixed(digits);
  const below = Math.floor(value * 10 ** digits);
  return ((below % 2 === 0 ? below : below + 1) / 10 ** digits).toFixed(digits);
}

// 40.6M, 205.8 KB (1000 bytes), 3.21 ms: as the tables of the terminal have it.
function formatSize(cost, value) {
  const unit = DATA.costs[cost].symbol;
  if (!takesPrefixes(unit)) return `${decimals(value)} ${unit}`;
  for (const [size, prefix] of PREFIXES) {
    if (Number(fixed(value / (size / 1000), 1)) >= 1000) {
      return `${decimals(value / size)}${unit ? " " : ""}${prefix}${unit}`;
    }
  }
  const number = Number.isInteger(value) ? String(value) : decimals(value);
  return `${number} ${unit}`.trimEnd();
}

// Two below ten, one above; a small number keeps three digits.
function decimals(value) {
  if (value > 0 && value < 0.1) return String(Number(value.toPrecision(3)));
  return Number(fixed(value, 2)) < 10 ? fixed(value, 2) : fixed(value, 1);
}

function formatMeasure(measure, value, metric = view.story.metric) {
  if (value === null || value === undefined) return "–";
  return measure === "train_loss" ? formatLoss(value) : formatError(value, metric);
}

// 12.34 %, or 12.34 for plain numbers.
function formatError(value, { unit }) {
  if (!unit && Math.abs(value) < 1) return String(Number(value.toPrecision(3)));
  return `${fixed(value, 2)} ${unit}`.trimEnd();
}

const formatLoss = (value) => (Math.abs(value) < 0.001 ? value.toExponential(1) : fixed(value, 4));
const formatCount = (value) => value.toLocaleString("en-GB");

// 20M, 200 KB, 3 ms: as short as it gets, for an axis.
function costTick(cost, value) {
  const unit = DATA.costs[cost].symbol;
  const [size, prefix] = (takesPrefixes(unit) && PREFIXES.find(([s]) => value >= s)) || [1, ""];
  return `${Number((value / size).toPrecision(4))}${unit ? " " : ""}${prefix}${unit}`;
}

const plainTick = (value) => String(Number(value.toPrecision(4)));
const percentTick = (value) => `${plainTick(value)} %`;
const measureTick = (measure, metric = view.story.metric) =>
  measure === "train_loss" || !metric.unit ? plainTick : percentTick;

function duration(seconds) {
  if (seconds < 60) return `${decimals(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// [mean, deviation] with these words for a number.
function spreadWords(spread, words) {
  if (spread === null) return "–";
  return spread[1] === null ? words(spread[0]) : `${words(spread[0])} ± ${words(spread[1])}`;
}

const byId = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return node;
}

// A list of [name, value, remark] as terms and their values.
function putFigures(list, rows) {
  list.replaceChildren(
    ...rows.map(([name, value, remark]) =>
      element(
        "div",
        {},
        element("dt", {}, name),
        element("dd", {}, value),
        ...(remark ? [element("dd", { class: "remark" }, remark)] : []),
      ),
    ),
  );
}

// A name, a bar of so many percent, and words.
function barOf(name, percent, words, attributes = {}) {
  return element(
    "div",
    { class: "bar", ...attributes },
    element("span", { class: "name" }, name),
    element(
      "span",
      { class: "track" },
      element("span", { class: "fill", style: `width:${percent}%` }),
    ),
    element("span", { class: "number" }, words),
  );
}

function tableOf(table, columns, rows, caption) {
  const head = columns.map((name) => element("th", { scope: "col" }, name));
  const body = rows.map((cells) =>
    element(
      "tr",
      {},
      ...cells.map((cell, at) => element(at ? "td" : "th", at ? {} : { scope: "row" }, cell)),
    ),
  );
  table.replaceChildren(
    ...(caption ? [element("caption", {}, caption)] : []),
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body),
  );
  return table;
}

function options(select, pairs) {
  select.replaceChildren(...pairs.map(([value, words]) => element("option", { value }, words)));
}
