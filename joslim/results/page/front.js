// The front of one run, and the child of it that fits a budget.

// As Front.pick: the child of the best rank within the budget.
function pick(children, cost, budget) {
  let best = null;
  for (const child of children) {
    if (child.costs[cost] <= budget && (best === null || child.rank < best.rank))
      best = child;
  }
  return best;
}

// The children that some budget buys, by rising cost; others are beaten in this cost.
function buyable(children, cost) {
  const sorted = [...children].sort((a, b) => a.costs[cost] - b.costs[cost]);
  return sorted.filter((child) => pick(children, cost, child.costs[cost]) === child);
}

// Of the children with a better rank than the picked one, the cheapest.
function nextBetter(children, cost, picked) {
  const better = children.filter((child) => child.rank < picked.rank);
  return better.reduce((a, b) => (a === null || b.costs[cost] < a.costs[cost] ? b : a), null);
}

function childLines(front, child) {
  return [
    `child ${front.children.indexOf(child) + 1} of ${front.children.length}`,
    ...front.costs.map((cost) => `${costName(cost)} ${formatSize(cost, child.costs[cost])}`),
    ...front.measures.map(
      (measure) => `${measureWords(measure)} ${formatMeasure(measure, child[measure])}`,
    ),
  ];
}

// What the slider spans: from the cheapest child to the full network, or the dearest child.
function budgetEnds(front, cost) {
  const [low, high] = ends(front.children.map((child) => child.costs[cost]));
  return [low, cost === front.key ? Math.max(high, ...front.span) : high];
}

function showFront() {
  const { front } = view.story;
  const beaten = front.children.length - buyable(front.children, view.cost).length;
  byId("front-note").textContent = front.judged
    ? `Each mark is a child that can be cut out; the line goes through the children that are picked by ${measureWords(front.by)}.` +
      (beaten
        ? ` Hollow ones are picked for no budget: others cost no more ${costName(view.cost)} and are better by ${measureWords(front.by)}.`
        : "")
    : `Not judged yet: the best of ${formatCount(view.story.visits.length)} children by the training loss known so far.`;
  const label = `${measureWords(view.measure)} of ${front.children.length} children against ${costWords(view.cost)}.`;
  chart("front-chart", `${label} Enter takes a child as the budget.`, drawFront);
  tableOf(
    byId("front-table"),
    [
      "child",
      ...front.costs.map(costName),
      ...front.measures.map((measure) => measureWords(measure)),
    ],
    front.children.map((child, at) => [
      at + 1,
      ...front.costs.map((cost) => formatSize(cost, child.costs[cost])),
      ...front.measures.map((measure) => formatMeasure(measure, child[measure])),
    ]),
  );
}

function drawFront(place) {
  const { front } = view.story;
  const { cost, measure } = view;
  const value = (child) => [child.costs[cost], child[measure]];
  const x = costAxis(cost, [
    ...front.children.map((child) => child.costs[cost]),
    ...budgetEnds(front, cost),
  ]);
  const y = axisOf(
    front.children.map((child) => child[measure]),
    measureWords(measure),
    measureTick(measure),
    { air: 0.12 },
  );
  const { plot, sx, sy, box } = frame(place, x, y);
  const bought = buyable(front.children, cost);
  plot.append(
    drawn("path", {
      class: "line c0",
      d: stairs(bought.map(value), budgetEnds(front, cost)[1], sx, sy),
    }),
    drawn("g", { id: "budget-mark" }),
  );
  for (const child of front.children) {
    plot.append(
      marker(0, front.children.length > 120 ? 3 : 4.5, {
        class: bought.includes(child) ? "mark c0" : "mark c0 hollow",
        transform: `translate(${px(sx(child.costs[cost]))} ${px(sy(child[measure]))})`,
      }),
    );
  }
  plot.append(drawn("g", { id: "picked-mark" }));
  view.marks = { sx, sy, box };
  markPick();
  const sorted = [...front.children].sort((a, b) => a.costs[cost] - b.costs[cost]);
  return sorted.map((child) => ({
    x: sx(child.costs[cost]),
    y: sy(child[measure]),
    lines: () => childLines(front, child),
    act: () => setBudget(child.costs[cost]),
  }));
}

// Only what the budget changes: the rest of the chart stays as it is.
function markPick() {
  const line = byId("budget-mark");
  if (!line) return;
  const { sx, sy, box } = view.marks;
  const at = Math.min(box.right, Math.max(box.left, sx(view.budget)));
  line.replaceChildren(
    drawn("rect", {
      class: "within",
      x: box.left,
      y: box.top,
      width: Math.max(0, at - box.left),
      height: box.bottom - box.top,
    }),
    ...upright(box, at, `budget ${formatSize(view.cost, view.budget)}`),
  );
  const mark = byId("picked-mark");
  mark.replaceChildren();
  if (!view.child) return;
  const [x, y] = [sx(view.child.costs[view.cost]), sy(view.child[view.measure])];
  // Under the curve there is room; beside the axes there is not.
  const [left, low] = [x < box.left + 80, y > box.bottom - 30];
  const place = { x: left ? x + 13 : x - 12, y: low ? y - 13 : y + 23 };
  mark.append(
    marker(0, 8, { class: "picked", transform: `translate(${px(x)} ${px(y)})` }),
    drawn(
      "text",
      { class: "label strong", ...place, "text-anchor": left ? "start" : "end" },
      formatMeasure(view.measure, view.child[view.measure]),
    ),
  );
}
