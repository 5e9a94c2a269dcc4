// What is looked at, and its place in the address, so that a reload comes back to it.

const DATA = JSON.parse(byId("data").textContent);
const view = {
  at: 0,
  story: null,
  cost: null,
  measure: null,
  budget: null,
  child: null,
  marks: null,
};

function showRun(at, wish = {}) {
  view.at = at;
  view.story = DATA.runs[at];
  const { front } = view.story;
  showHead();
  // Before the first child is scored there are only the losses of the full network.
  present("mistakes-card", false);
  if (present("front-and-child", front !== null)) {
    view.cost = front.costs.includes(wish.cost) ? wish.cost : front.key;
    view.measure = front.measures.includes(wish.measure) ? wish.measure : front.measures[0];
    setUpBudget();
    view.child = null;
    view.budget = wish.budget > 0 && Number.isFinite(wish.budget) ? wish.budget : defaultBudget();
    showFront();
    setBudget(view.budget);
  }
  showCourse();
}

function showHead() {
  const { story } = view;
  const { front, status, times } = story;
  byId("title").textContent = DATA.runs.length > 1 ? `${DATA.runs.length} runs` : story.name;
  byId("subtitle").textContent =
    DATA.runs.length > 1
      ? DATA.runs.map((run) => run.name).join(", ")
      : [
          `${story.model} on ${story.data}`,
          // A loop of somebody's own may not tell them.
          story.method && `method ${story.method}`,
          story.seed && `seed ${story.seed}`,
        ]
          .filter(Boolean)
          .join(", ");
  putFigures(byId("figures"), [
    ...(front ? figuresOf(story) : figuresSoFar(story)),
    ...(times.seconds
      ? [["wall time", duration(times.seconds), `${formatCount(status.step)} steps`]]
      : []),
  ]);
  showTraining();
}

function figuresSoFar({ curves, status }) {
  const losses = curves.full.filter((loss) => loss !== null);
  const now = losses.length ? formatLoss(losses[losses.length - 1]) : "–";
  return [["training loss", now, `full network, step ${formatCount(status.step)}`]];
}

function figuresOf({ front, visits, metric }) {
  const best = front.measures[0];
  const values = front.children.map((child) => child[best]);
  const [least, most] = ends(values);
  return [
    [
      measureWords(best),
      `${formatMeasure(best, least).replace(" %", "")}–${formatMeasure(best, most)}`,
      "best to worst child",
    ],
    [
      costName(front.key),
      `${formatSize(front.key, front.span[0])}–${formatSize(front.key, front.span[1])}`,
      "smallest to full network",
    ],
    [
      "children on the front",
      formatCount(front.children.length),
      `of ${formatCount(visits.length)} visited`,
    ],
    ...(front.area[best] === undefined
      ? []
      : [
          [
            "area under the curve",
            formatError(front.area[best], metric),
            `lower is better; training loss: ${fixed(front.area.train_loss, 3)}`,
          ],
          ...(front.hypervolume[best] === null
            ? []
            : [["hypervolume", fixed(front.hypervolume[best], 4), "higher is better"]]),
        ]),
  ];
}

function showTraining() {
  const open = DATA.runs.filter((story) => story.status.state !== "finished");
  byId("training").hidden = open.length === 0;
  byId("training").textContent =
    open
      .map((story) => `${DATA.runs.length > 1 ? `${story.name}: ` : ""}${statusWords(story)}`)
      .join("; ") +
    (DATA.refresh ? `. This page reads itself again every ${DATA.refresh} seconds.` : ".");
}

function statusWords({ status: { state, step, total, alone_until }, front }) {
  const place = `step ${formatCount(step)}${total ? ` of ${formatCount(total)}` : ""}`;
  const children = front
    ? ""
    : step < alone_until
      ? `. Children are not trained yet: the full network trains alone until step ${formatCount(alone_until)}`
      : ". No child has been scored yet";
  if (state === "stopped") return `stopped at ${place}; joslim resume goes on with it${children}`;
  return `training: ${place}${DATA.refresh ? "" : " when this page was written"}${children}`;
}

// The address: #run=0&cost=macs&measure=test_error&budget=20000

let remembering = null;

// A little later: browsers refuse an address that changes with every move of a slider.
function remember() {
  clearTimeout(remembering);
  remembering = setTimeout(() => {
    const { at, cost, measure, budget } = view;
    history.replaceState(
      history.state,
      "",
      `#${new URLSearchParams({ run: at, cost, measure, budget })}`,
    );
  }, 150);
}

function remembered() {
  const place = new URLSearchParams(location.hash.slice(1));
  const at = Number(place.get("run"));
  return {
    at: Number.isInteger(at) && at >= 0 && at < DATA.runs.length ? at : 0,
    cost: place.get("cost"),
    measure: place.get("measure"),
    budget: Number(place.get("budget")),
  };
}

function begin() {
  const { at, ...wish } = remembered();
  byId("run-choice").hidden = DATA.runs.length < 2;
  options(
    byId("run"),
    DATA.runs.map((story, place) => [place, story.name]),
  );
  byId("run").value = String(at);
  byId("run").addEventListener("change", () =>
    showRun(Number(byId("run").value), { cost: view.cost, measure: view.measure }),
  );
  addEventListener("hashchange", () => {
    const { at: other, ...wanted } = remembered();
    byId("run").value = String(other);
    showRun(other, wanted);
  });
  listenToBudget();
  listenToCourse();
  showRun(at, wish);
  showBoards();
  comeBack();
  if (DATA.refresh) setInterval(readAgain, 1000 * DATA.refresh);
}

// While a run trains the page is read again, and the reader keeps the place.

function readAgain() {
  // Half a number is no budget yet.
  if (document.activeElement === byId("budget")) return;
  const open = document.querySelector("details").open;
  history.replaceState({ focused: document.activeElement.id, open }, "");
  location.reload();
}

function comeBack() {
  const { focused, open } = history.state || {};
  document.querySelector("details").open = Boolean(open);
  if (focused) byId(focused)?.focus({ preventScroll: true });
}

begin();
