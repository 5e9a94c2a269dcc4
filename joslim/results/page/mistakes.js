// The test images of each class that the picked child takes for another class.

const MATRIX = 20; // up to so many classes all confusions are known
const TOP = 10;

function showMistakes(front, child, position) {
  const { mistakes } = child;
  if (!present("mistakes-card", mistakes !== null)) return;
  const { classes, confusions } = mistakes;
  const all = Object.keys(front.classes).length;
  const small = classes.length <= MATRIX && all <= classes.length;
  byId("mistakes-note").textContent =
    `Of child ${position + 1}, on test images. ` +
    (small
      ? "A row is a class, and a column what its images are taken for."
      : all > classes.length
        ? `The ${classes.length} classes with the largest error.`
        : "The classes with the largest error come first.");
  byId("matrix").hidden = !small;
  byId("class-errors").hidden = small;
  if (small) putMatrix(front.classes, classes, confusions);
  else putClassErrors(front.classes, classes);
  const top = small ? [] : confusions.slice(0, TOP);
  byId("confusions-title").hidden = byId("confusions").hidden = top.length === 0;
  const images = new Map(classes.map(([label, , count]) => [label, count]));
  byId("confusions").replaceChildren(
    ...top.map(([label, taken, count]) =>
      element(
        "li",
        {},
        `${front.classes[label]} taken for ${front.classes[taken]}: ${formatCount(count)}` +
          (images.has(label) ? ` of ${formatCount(images.get(label))}` : ""),
      ),
    ),
  );
}

function putMatrix(names, classes, confusions) {
  const counts = new Map(confusions.map(([label, taken, count]) => [`${label} ${taken}`, count]));
  const head = classes.map(([label]) =>
    element("th", { scope: "col", title: names[label] }, element("span", {}, names[label])),
  );
  byId("matrix").classList.toggle("long", classes.some(([label]) => names[label].length > 3));
  const rows = classes.map(([label, wrong, images]) => {
    const cells = classes.map(([taken]) => {
      const count = taken === label ? images - wrong : counts.get(`${label} ${taken}`) || 0;
      // Darker where more of the class goes; the root keeps rare mistakes visible.
      const shade = Math.round(100 * Math.sqrt(images ? count / images : 0));
      return element(
        "td",
        {
          class: taken === label ? "right" : "mistake",
          style: `--share:${taken === label ? 0.22 * shade : 0.7 * shade}%`,
          title: `${names[label]} taken for ${names[taken]}`,
        },
        count || "",
      );
    });
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, names[label]),
      element("td", { class: "error" }, share(wrong, images)),
      ...cells,
    );
  });
  byId("matrix").replaceChildren(
    element(
      "thead",
      {},
      element("tr", {}, element("th", {}, "class"), element("th", { scope: "col" }, "error"), ...head),
    ),
    element("tbody", {}, ...rows),
  );
}

function putClassErrors(names, classes) {
  const worst = [...classes].sort((a, b) => b[1] / (b[2] || 1) - a[1] / (a[2] || 1));
  byId("class-errors").replaceChildren(
    ...worst.map(([label, wrong, images]) =>
      barOf(
        names[label],
        (100 * wrong) / (images || 1),
        `${share(wrong, images)} of ${formatCount(images)}`,
      ),
    ),
  );
}
