// Several runs: all fronts of one data set and cost in one chart, seeds as a band.

function showBoards() {
  const place = byId("compare");
  place.hidden = DATA.runs.length < 2;
  if (place.hidden) return;
  const unfinished = DATA.runs.filter((story) => story.status.state !== "finished");
  const notes = [];
  if (DATA.boards.length > 1)
    notes.push("Runs of different data or cost cannot be compared: they are drawn apart.");
  if (unfinished.length)
    notes.push(
      `Not finished, and not compared: ${unfinished.map((story) => story.name).join(", ")}.`,
    );
  place.append(...notes.map((note) => element("p", { class: "banner" }, note)));
  DATA.boards.forEach((board, at) => {
    place.append(boardCard(board, at));
    const words = `${measureWords(board.measure, board.metric)} against ${costWords(board.key)} of ${board.groups.map((group) => group.name).join(", ")}.`;
    chart(`board-${at}`, words, (here) => drawBoard(here, board));
  });
}

function boardCard(board, at) {
  const many = DATA.boards.length > 1;
  const apart = board.difference ? ` (${board.difference})` : "";
  const title = many
    ? `Fronts on ${board.data}${apart}, by ${costName(board.key)}`
    : "Fronts side by side";
  const bands = board.groups.some((group) => group.band);
  return element(
    "article",
    { class: "card" },
    element("header", {}, element("h2", {}, title)),
    element(
      "p",
      { class: "note" },
      bands
        ? "For each budget, what it buys: the mean over seeds, and a band of one standard deviation to both sides."
        : "For each budget, what it buys.",
    ),
    legendOf(board, at),
    element("div", { class: "chart tall", id: `board-${at}` }),
    element(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": `${title}, as a table` },
      boardTable(board),
    ),
  );
}

function legendOf(board, at) {
  const entries = board.groups.map((group, look) => {
    const box = element("input", { type: "checkbox", checked: "" });
    box.addEventListener("change", () => {
      group.hidden = !box.checked;
      chart(`board-${at}`, byId(`board-${at}`).getAttribute("aria-label"), (here) =>
        drawBoard(here, board),
      );
    });
    return element("label", {}, box, swatch(look, !group.band), groupWords(group));
  });
  return element(
    "div",
    { class: "legend", role: "group", "aria-label": "Shown fronts" },
    ...entries,
  );
}

const groupWords = (group) =>
  group.runs.length > 1 ? `${group.name} (${group.runs.length} seeds)` : group.name;

function swatch(look, marked) {
  return drawn(
    "svg",
    { class: "swatch", viewBox: "0 0 34 14", "aria-hidden": "true" },
    drawn("path", {
      class: `line c${look % LOOKS}`,
      d: "M1 7H33",
      "stroke-dasharray": DASHES[look % LOOKS],
    }),
    ...(marked
      ? [marker(look, 4, { class: `mark c${look % LOOKS}`, transform: "translate(17 7)" })]
      : []),
  );
}

function boardTable(board) {
  return tableOf(
    element("table"),
    [
      "front",
      "seeds",
      "area (lower is better)",
      "area by training loss",
      "hypervolume (higher is better)",
      "children",
      "time",
    ],
    board.groups.map((group) => [
      group.name,
      group.seeds.join(", "),
      spreadWords(group.area, (value) => formatError(value, board.metric)),
      spreadWords(group.loss_area, (value) => fixed(value, 3)),
      spreadWords(group.hypervolume, (value) => fixed(value, 4)),
      spreadWords(group.children, (value) => String(Number(value.toFixed(1)))),
      spreadWords(group.seconds, (value) => duration(Math.round(10 * value) / 10)),
    ]),
  );
}

// What a group buys: [cost, value, deviation].
function curveOf(group, board) {
  if (group.band)
    return group.band.budgets.map((x, at) => [x, group.band.mean[at], group.band.deviation[at]]);
  const { children } = DATA.runs[group.runs[0]].front;
  return buyable(children, board.key).map((child) => [
    child.costs[board.key],
    child[board.measure],
    0,
  ]);
}

function drawBoard(place, board) {
  const shown = board.groups.map((group, look) => ({ group, look, curve: curveOf(group, board) }));
  const values = shown
    .flatMap(({ curve }) => curve.flatMap(([, y, d]) => [y - d, y + d]))
    .map((y) => Math.max(0, y));
  const costs = shown.flatMap(({ curve }) => curve.map(([x]) => x));
  const x = costAxis(board.key, [...costs, ...board.span]);
  const words = measureWords(board.measure, board.metric);
  const y = axisOf(values, words, measureTick(board.measure, board.metric), {
    air: 0.1,
    mayBend: false,
  });
  const { plot, sx, sy } = frame(place, x, y);
  const end = Math.max(...board.span, ends(costs)[1]);
  const readings = [];
  for (const { group, look, curve } of shown) {
    if (group.hidden) continue;
    const colour = `c${look % LOOKS}`;
    if (group.band)
      plot.append(drawn("path", { class: `band ${colour}`, d: bandPath(curve, sx, sy) }));
    plot.append(
      drawn("path", {
        class: `line ${colour}`,
        d: stairs(curve, end, sx, sy),
        "stroke-dasharray": DASHES[look % LOOKS],
      }),
    );
    // A mark is a child; a mean over seeds is none.
    for (const [cx, cy] of group.band ? [] : curve) {
      plot.append(
        marker(look, 4, {
          class: `mark ${colour}`,
          transform: `translate(${px(sx(cx))} ${px(sy(cy))})`,
        }),
      );
    }
    readings.push(
      ...curve.map(([cx, cy, d]) => ({
        x: sx(cx),
        y: sy(cy),
        lines: () => [
          group.name,
          `${costName(board.key)} ${formatSize(board.key, cx)}`,
          `${words} ${formatMeasure(board.measure, cy, board.metric)}${group.band ? ` ± ${d.toFixed(2)}` : ""}`,
        ],
      })),
    );
  }
  return readings.sort((a, b) => a.x - b.x);
}

function bandPath(curve, sx, sy) {
  const upper = polyline(
    curve.map(([x, y, d]) => [x, y + d]),
    sx,
    sy,
  );
  const lower = polyline(
    [...curve].reverse().map(([x, y, d]) => [x, Math.max(0, y - d)]),
    sx,
    sy,
  );
  return `${upper}L${lower.slice(1)}Z`;
}
