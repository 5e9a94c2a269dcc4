// The course of a training: losses, time, settings; and what shows all of it.

function showCourse() {
  showGrowth();
  showSearch();
  showHistogram();
  showLosses();
  showValidation();
  showTime();
  showConfig();
}

// A card without anything to show is not there.
function present(id, there) {
  byId(id).hidden = !there;
  return there;
}

const ROLES = ["full", "sampled", "smallest"];

function showLosses() {
  const { curves } = view.story;
  const roles = ROLES.filter((role) => curves[role]);
  if (!present("loss-card", roles.length > 0 && curves.step.length > 1)) return;
  byId("loss-note").textContent =
    roles.length > 1
      ? "On training batches: of the full network, of the widths that were sampled, and of the smallest network."
      : "On training batches.";
  chart("loss-chart", "Training loss over the steps.", (place) =>
    drawCurves(place, curves, roles, "train_loss"),
  );
}

function showValidation() {
  const { validation, status } = view.story;
  if (!present("validation-card", validation !== null && validation.steps.length > 1)) return;
  const { steps, full, smallest, best } = validation;
  const curves = { step: steps, full, ...(smallest.length ? { smallest } : {}) };
  const roles = ROLES.filter((role) => curves[role]);
  const least = roles.length > 1 ? "the mean of both is least" : "it is least";
  byId("validation-note").textContent =
    status.state === "finished"
      ? `The front is that of the weights of step ${formatCount(best)}, where ${least}.`
      : `So far ${least} at step ${formatCount(best)}; the front will be that of the best step.`;
  const words = measureWords("val_error");
  byId("validation-title").textContent = `${words[0].toUpperCase()}${words.slice(1)} over training`;
  chart("validation-chart", `${words} over the steps.`, (place) =>
    drawCurves(place, curves, roles, "val_error", best),
  );
}

// Curves over the steps by role, {step, full, ...}; a line marks the best step.
function drawCurves(place, curves, roles, measure, best = null) {
  const all = roles.flatMap((role) => curves[role]).filter((loss) => loss !== null);
  const x = stepAxis(curves.step);
  const y = axisOf(all, measureWords(measure), measureTick(measure));
  const { plot, sx, sy, box } = frame(place, x, y, 74);
  if (best !== null) plot.append(...upright(box, sx(best), "best"));
  const labels = roles.map((role, look) => {
    const points = curves.step
      .map((step, at) => [step, curves[role][at]])
      .filter(([, loss]) => loss !== null);
    plot.append(
      drawn("path", {
        class: `line thin c${look}`,
        d: polyline(points, sx, sy),
        "stroke-dasharray": DASHES[look],
      }),
    );
    return { words: role, look, x: box.right + 6, y: 4 + sy(points[points.length - 1][1]) };
  });
  putLabels(plot, labels, box);
  return curves.step.map((step, at) => ({
    x: sx(step),
    y: sy(curves[roles[0]][at] ?? y.high),
    column: true,
    lines: () => [
      `step ${formatCount(step)}`,
      ...roles.map((role) => `${role} ${formatMeasure(measure, curves[role][at])}`),
    ],
  }));
}

const PART_WORDS = {
  training: "training steps",
  data: "waiting for data",
  search: "searching widths",
  scoring: "scoring children",
  validation: "validation",
  judging: "judging the front",
};

function showTime() {
  const { times } = view.story;
  if (!present("time-card", times.seconds > 0)) return;
  const place = byId("time");
  const parts = Object.entries(times.parts).map(([name, seconds]) => [
    PART_WORDS[name] || name,
    seconds,
  ]);
  const list = element("dl", { class: "figures small" });
  putFigures(list, [
    ["wall time", duration(times.seconds)],
    ["a step, on average", `${decimals((1000 * times.step_seconds) / times.step)} ms`],
  ]);
  place.replaceChildren(list);
  if (parts.length) place.append(element("h3", {}, "Time by part"), sharesOf(parts, duration));
  showPace(times.pace);
}

function showPace(pace) {
  if (!present("pace-chart", pace.length > 2)) return;
  chart("pace-chart", "Milliseconds of a step over the training.", (place) =>
    drawPace(place, pace),
  );
}

function drawPace(place, pace) {
  const points = pace
    .slice(1)
    .map(([step, seconds], at) => [step, (1000 * (seconds - pace[at][1])) / (step - pace[at][0])]);
  const x = stepAxis(pace.map(([step]) => step));
  const y = axisOf(
    points.map(([, ms]) => ms),
    "time of a step, search included",
    (v) => `${plainTick(v)} ms`,
    { zero: true, mayBend: false },
  );
  const { plot, sx, sy } = frame(place, x, y);
  plot.append(drawn("path", { class: "line thin c0", d: polyline(points, sx, sy) }));
  return points.map(([step, ms]) => ({
    x: sx(step),
    y: sy(ms),
    column: true,
    lines: () => [`${decimals(ms)} ms a step`, `up to step ${formatCount(step)}`],
  }));
}

// Each number as a bar of the whole.
function sharesOf(entries, words) {
  const whole = entries.reduce((sum, [, value]) => sum + value, 0);
  return element(
    "div",
    { class: "bars" },
    ...entries.map(([name, value]) =>
      barOf(name, (100 * value) / (whole || 1), `${words(value)}, ${share(value, whole)}`),
    ),
  );
}

function showConfig() {
  const every = byId("all-settings").checked;
  const settings = Object.entries(view.story.config).filter(
    ([, value]) => every || value !== null,
  );
  const rows = [
    ...settings,
    ...Object.entries(view.story.facts).map(([name, text]) => [
      name === "data" ? "data, exactly" : name,
      text,
    ]),
  ];
  tableOf(
    byId("config-table"),
    ["setting", "value"],
    rows.map(([name, value]) => [name, value ?? "–"]),
  );
}

function listenToCourse() {
  byId("moment").addEventListener("input", drawMoment);
  byId("all-settings").addEventListener("change", showConfig);
}
