// The search: how the front grew, which children were visited, and what they cost.

function showGrowth() {
  const { growth } = view.story;
  if (!present("growth-card", growth.length > 1)) return;
  const slider = byId("moment");
  slider.max = growth.length - 1;
  slider.value = growth.length - 1;
  byId("growth-note").textContent =
    "For each budget, the best loss known at a moment; each round looks at one batch. Thin lines are the other moments.";
  drawMoment();
}

function drawMoment() {
  const { growth } = view.story;
  const at = Number(byId("moment").value);
  const words = `step ${formatCount(growth[at].step)}`;
  byId("moment-words").textContent = words;
  byId("moment").setAttribute("aria-valuetext", words);
  chart("growth-chart", `Training loss against cost at ${words}.`, (place) =>
    drawGrowth(place, growth, at),
  );
}

function drawGrowth(place, growth, chosen) {
  const { key } = view.story.front;
  const points = growth.flatMap((moment) => moment.points);
  const x = costAxis(
    key,
    points.map(([cost]) => cost),
  );
  const y = axisOf(
    points.map(([, loss]) => loss),
    measureWords("train_loss"),
    plainTick,
  );
  const { plot, sx, sy } = frame(place, x, y);
  const end = ends(points.map(([cost]) => cost))[1];
  growth.forEach((moment, at) => {
    if (at === chosen || !moment.points.length) return;
    plot.append(
      drawn("path", {
        class: at < chosen ? "line past" : "line future",
        d: stairs(moment.points, end, sx, sy),
      }),
    );
  });
  const { step, points: now } = growth[chosen];
  plot.append(
    drawn("path", { class: "line c0 bold", d: now.length ? stairs(now, end, sx, sy) : "" }),
  );
  plot.append(drawn("path", { class: "dots c0", d: dots(now, sx, sy) }));
  return now.map(([cost, loss]) => ({
    x: sx(cost),
    y: sy(loss),
    lines: () => [
      `step ${formatCount(step)}`,
      `${costName(key)} ${formatSize(key, cost)}`,
      `training loss ${formatLoss(loss)}`,
    ],
  }));
}

const RAMP = 6;

function showSearch() {
  const { visits, targets } = view.story;
  if (!present("search-card", visits.length > 0)) return;
  const rings = visits.filter((visit) => visit[3]).length;
  byId("search-note").textContent =
    `${formatCount(visits.length)} children visited, each with its latest training loss. ${formatCount(rings)} of them, with a ring, are on the front.` +
    (targets ? ` ${targets.words}.` : "");
  const [first, last] = ends(visits.map((visit) => visit[0]));
  byId("search-ramp").replaceChildren(
    `visited at step ${formatCount(first)}`,
    ...Array.from({ length: RAMP }, (_, at) => element("i", { class: `r${at}` })),
    `step ${formatCount(last)}`,
  );
  chart(
    "search-chart",
    `Training loss against cost of ${visits.length} visited children.`,
    (place) => drawSearch(place, visits, first, last),
  );
}

function drawSearch(place, visits, first, last) {
  const { key } = view.story.front;
  const x = costAxis(
    key,
    visits.map((visit) => visit[1]),
  );
  const y = axisOf(
    visits.map((visit) => visit[2]),
    measureWords("train_loss"),
    plainTick,
  );
  const { plot, sx, sy } = frame(place, x, y);
  for (let shade = 0; shade < RAMP; shade += 1) {
    const some = visits.filter(
      ([step]) =>
        Math.min(RAMP - 1, Math.floor((RAMP * (step - first)) / Math.max(1, last - first))) === shade,
    );
    plot.append(
      drawn("path", {
        class: `dots r${shade}${visits.length > 1500 ? " many" : ""}`,
        d: dots(
          some.map(([, cost, loss]) => [cost, loss]),
          sx,
          sy,
        ),
      }),
    );
  }
  const ring = SHAPES[0](4.5);
  plot.append(
    drawn("path", {
      class: "rings",
      d: visits
        .filter((visit) => visit[3])
        .map(([, cost, loss]) => `M${px(sx(cost))} ${px(sy(loss))}m0 0${ring.replace("M", "m")}`)
        .join(""),
    }),
  );
  return visits
    .map(([step, cost, loss, kept]) => ({
      x: sx(cost),
      y: sy(loss),
      lines: () => [
        `visited at step ${formatCount(step)}${kept ? ", on the front" : ""}`,
        `${costName(key)} ${formatSize(key, cost)}`,
        `training loss ${formatLoss(loss)}`,
      ],
    }))
    .sort((a, b) => a.x - b.x);
}

function showHistogram() {
  const { visits, front } = view.story;
  if (!present("histogram-card", visits.length > 1)) return;
  byId("histogram-note").textContent = `Visited children by ${costName(front.key)}.`;
  chart(
    "histogram-chart",
    `How many of ${visits.length} visited children lie in each range of ${costWords(front.key)}.`,
    drawHistogram,
  );
}

function drawHistogram(place) {
  const { visits, front } = view.story;
  const { key } = front;
  const [low, high] = ends(visits.map((visit) => visit[1]));
  const x = {
    low,
    high: high > low ? high : low + 1,
    log: isWide(low, high),
    words: costWords(key),
    tick: (v) => costTick(key, v),
  };
  const bins = Math.max(5, Math.min(30, Math.round(Math.sqrt(visits.length) * 1.6)));
  const place01 = scaleOf(x.low, x.high, 0, bins, x.log, 2);
  const counts = new Array(bins).fill(0);
  for (const visit of visits) counts[Math.min(bins - 1, Math.floor(place01(visit[1])))] += 1;
  const most = Math.max(...counts);
  const y = {
    low: 0,
    high: most * 1.08,
    log: false,
    words: "visited children",
    tick: (v) => (Number.isInteger(v) ? String(v) : ""),
  };
  const { plot, sy, sx, box } = frame(place, x, y);
  return counts.map((count, at) => {
    const [from, to] = [place01.inverse(at), place01.inverse(at + 1)];
    const [left, right] = [sx(from), sx(to)];
    plot.append(
      drawn("rect", {
        class: "column",
        x: px(left + 1),
        y: px(sy(count)),
        width: px(Math.max(1, right - left - 2)),
        height: px(box.bottom - sy(count)),
        rx: 1.5,
      }),
    );
    return {
      x: (left + right) / 2,
      y: sy(count),
      column: true,
      lines: () => [
        `${formatCount(count)} ${count === 1 ? "child" : "children"}`,
        `${formatSize(key, from)} to ${formatSize(key, to)}`,
      ],
    };
  });
}
