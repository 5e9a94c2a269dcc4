// The child that fits a budget: its figures, its channels, its command, and the inputs.

function showPick() {
  const { front } = view.story;
  view.child = pick(front.children, view.cost, view.budget);
  markPick();
  const rows = byId("front-table").querySelectorAll("tbody tr");
  const position = front.children.indexOf(view.child);
  rows.forEach((row, at) =>
    at === position
      ? row.setAttribute("aria-current", "true")
      : row.removeAttribute("aria-current"),
  );
  byId("slider").setAttribute(
    "aria-valuetext",
    view.child
      ? `${formatSize(view.cost, view.budget)}: child ${position + 1}, ${formatMeasure(view.measure, view.child[view.measure])}`
      : `${formatSize(view.cost, view.budget)}: no child`,
  );
  sayOfBudget(`${formatSize(view.cost, view.budget)}.`);
  byId("pick-card").classList.toggle("empty", !view.child);
  if (view.child) showChild(front, view.child, position);
  else showNothing(budgetEnds(front, view.cost)[0]);
}

// Beside the input, with what can be typed there.
function sayOfBudget(words, wrong = false) {
  const { front } = view.story;
  const [low, high] = budgetEnds(front, view.cost);
  byId("budget-words").textContent =
    `${words} The cheapest child costs ${formatSize(view.cost, low)}, ${view.cost === front.key ? "the full network" : "the dearest"} ${formatSize(view.cost, high)}.`;
  byId("budget-words").classList.toggle("wrong", wrong);
  byId("budget").setAttribute("aria-invalid", String(wrong));
}

function showChild(front, child, position) {
  byId("child-title").textContent = `Child ${position + 1} of ${front.children.length}`;
  const left = view.budget - child.costs[view.cost];
  const dearest = front.children[front.children.length - 1];
  putFigures(byId("child-figures"), [
    ...front.measures.map((measure) => [
      measureWords(measure),
      formatMeasure(measure, child[measure]),
    ]),
    ...front.costs.map((cost) => [
      costName(cost),
      formatSize(cost, child.costs[cost]),
      `${share(child.costs[cost], cost === front.key ? front.span[1] : dearest.costs[cost])} of the ${cost === front.key ? "full network" : "largest child"}`,
    ]),
    ["left of the budget", formatSize(view.cost, left), share(left, view.budget)],
  ]);
  const better = nextBetter(front.children, view.cost, child);
  byId("child-next").textContent = better
    ? `Next by ${measureWords(front.by)}: ${formatMeasure(view.measure, better[view.measure])} for ${formatSize(view.cost, better.costs[view.cost])}, ${formatSize(view.cost, better.costs[view.cost] - view.budget)} over this budget.`
    : `No child of this front is better by ${measureWords(front.by)}.`;
  byId("channels").replaceChildren(...bars(front.dims, child.counts));
  putCommand(front.judged ? exportCommand(child) : "Once the training has ended.");
  byId("command-words").hidden = !(front.judged && view.story.export.unnamed);
  byId("copy").disabled = !front.judged;
  showMistakes(front, child, position);
}

function showNothing(low) {
  byId("child-title").textContent = "No child fits";
  putFigures(byId("child-figures"), []);
  byId("child-next").textContent = `Type ${low} or more: so much does the cheapest child cost.`;
  byId("channels").replaceChildren();
  putCommand("");
  byId("command-words").hidden = true;
  byId("copy").disabled = true;
  present("mistakes-card", false);
}

const share = (value, of) => `${of ? ((100 * value) / of).toFixed(1) : "0.0"} %`;

// The size of the input and the depth of the stages come before the channels of the layers.
function bars(dims, counts) {
  const gone = dims.flatMap((dim, at) =>
    dim.kind === "blocks" ? dim.layers.slice(counts[at]).map((name) => `${name}.`) : [],
  );
  const isGone = (dim) =>
    dim.kind === "channels" &&
    dim.layers.length > 0 &&
    dim.layers.every((layer) => gone.some((block) => layer.startsWith(block)));
  return ["pixels", "blocks", "channels"].flatMap((kind) =>
    dims.flatMap((dim, at) => (dim.kind === kind ? [bar(dim, counts[at], isGone(dim))] : [])),
  );
}

function bar(dim, count, isGone) {
  const words = { pixels: " pixels", blocks: " blocks", channels: "" }[dim.kind];
  const verb = dim.kind === "blocks" ? "has" : "makes";
  const layers = dim.layers.length > 1 ? `${verb} ${dim.layers.join(", ")}` : null;
  return barOf(
    dim.name,
    isGone ? 0 : (100 * count) / dim.full,
    isGone ? "left out" : `${count} / ${dim.full}${words}`,
    { class: `bar ${dim.kind}`, title: layers },
  );
}

// Word by word, so that a line breaks between words and not after a dash.
function putCommand(command) {
  const words = command.split(" ").flatMap((word) => [element("span", {}, word), " "]);
  byId("command").replaceChildren(...words.slice(0, -1));
}

// Its own cost as the budget: then exactly this child is picked again.
function exportCommand(child) {
  const { before, after, path } = view.story.export;
  const { flag } = DATA.costs[view.cost];
  if (flag)
    return `${before} ${flag} ${child.costs[view.cost]} -o child.onnx${after}`;
  const run = `joslim.load(${JSON.stringify(path)})`;
  return `run = ${run}; joslim.export(run, run.front.pick(${view.cost}=${child.costs[view.cost]}), "child.onnx")`;
}

// The budget's inputs

function setUpBudget() {
  const { front } = view.story;
  options(
    byId("cost"),
    front.costs.map((cost) => [cost, costWords(cost)]),
  );
  byId("cost").value = view.cost;
  const { unit, symbol } = DATA.costs[view.cost];
  byId("unit").textContent = symbol ? unit : "";
  options(
    byId("measure"),
    front.measures.map((measure) => [measure, measureWords(measure)]),
  );
  byId("measure").value = view.measure;
}

function sliderScale() {
  const [low, high] = budgetEnds(view.story.front, view.cost);
  return scaleOf(low, high, 0, 1000, isWide(low, high), 2);
}

function setBudget(budget, from = null) {
  view.budget = budget;
  if (from !== "number") byId("budget").value = String(budget);
  if (from !== "slider")
    byId("slider").value = String(Math.round(Math.min(1000, Math.max(0, sliderScale()(budget)))));
  showPick();
  remember();
}

// A place of the slider as a number people would type; its ends exactly.
function budgetAt(place) {
  const [low, high] = budgetEnds(view.story.front, view.cost);
  if (place <= 0) return low;
  if (place >= 1000) return high;
  const value = sliderScale().inverse(place);
  const whole = Number.isInteger(low) && Number.isInteger(high) && high > 1000;
  return Math.min(high, Math.max(low, whole ? Math.round(value) : Number(value.toPrecision(6))));
}

// From child to child: each press of an arrow key shows another one.
function stepBudget(by) {
  const costs = buyable(view.story.front.children, view.cost).map(
    (child) => child.costs[view.cost],
  );
  const at = costs.filter((cost) => cost <= view.budget).length - 1;
  setBudget(costs[Math.min(costs.length - 1, Math.max(0, at + by))]);
}

function listenToBudget() {
  byId("budget-form").addEventListener("submit", (event) => event.preventDefault());
  byId("slider").addEventListener("input", () =>
    setBudget(budgetAt(Number(byId("slider").value)), "slider"),
  );
  byId("slider").addEventListener("keydown", (event) => {
    const steps = {
      ArrowRight: 1,
      ArrowUp: 1,
      ArrowLeft: -1,
      ArrowDown: -1,
      PageUp: 5,
      PageDown: -5,
    };
    if (!(event.key in steps)) return;
    event.preventDefault();
    stepBudget(steps[event.key]);
  });
  byId("budget").addEventListener("input", () => {
    const typed = Number(byId("budget").value);
    if (typed > 0 && Number.isFinite(typed)) setBudget(typed, "number");
    else
      sayOfBudget(
        `Type a number above 0, such as ${defaultBudget()}; shown is ${formatSize(view.cost, view.budget)}.`,
        true,
      );
  });
  byId("cost").addEventListener("change", () => {
    // The same child, seen by another cost.
    const kept = view.child;
    view.cost = byId("cost").value;
    setUpBudget();
    showFront();
    setBudget(kept ? kept.costs[view.cost] : defaultBudget());
  });
  byId("measure").addEventListener("change", () => {
    view.measure = byId("measure").value;
    showFront();
    showPick();
    remember();
  });
  byId("copy").addEventListener("click", copyCommand);
}

// What the child in the middle costs, of those that some budget buys.
function defaultBudget() {
  const bought = buyable(view.story.front.children, view.cost);
  return bought[Math.floor(bought.length / 2)].costs[view.cost];
}

async function copyCommand() {
  const text = byId("command").textContent;
  try {
    await navigator.clipboard.writeText(text);
    byId("copy").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(byId("command"));
    byId("copy").textContent = "Selected";
  }
  byId("spoken").textContent = `${byId("copy").textContent}: ${text}`;
  setTimeout(() => (byId("copy").textContent = "Copy"), 2000);
}
