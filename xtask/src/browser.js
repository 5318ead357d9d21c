// Runs after the page's own script, and replaces the page by its result as text.
(() => {
  const wrong = window.problems;
  const check = (holds, what) => { if (!holds) wrong.push(what); };
  const press = (button) => button.dispatchEvent(new MouseEvent("click", { bubbles: true }));

  const figures = [...document.querySelectorAll("figure.plot")];
  check(figures.length > 0, "there is no plot");
  for (const figure of figures) {
    const name = figure.closest("section").id;
    const data = JSON.parse(figure.querySelector("script").textContent);
    const points = (all) => all.flatMap((series) => series.points).filter((point) => point.y.some((y) => y)).length;
    const shown = data.series.filter((series) => !series.hidden);
    const drawn = () => figure.querySelectorAll("svg path.median").length;
    const curves = () => figure.querySelectorAll("svg path.curve").length;
    check(points(shown) > 0 && drawn() === points(shown), `${name}: ${drawn()} points are drawn of ${points(shown)}`);
    check(curves() === shown.length, `${name}: a curve is missing`);
    const modelled = shown.filter((series) => series.points.some((point) => point.y[0]?.model != null)).length;
    check(figure.querySelectorAll("svg path.model").length === modelled, `${name}: ${modelled} curves have a model`);
    const note = figure.querySelector(".legend .note");
    check(note.checkVisibility() === (modelled > 0), `${name}: the legend does not say what dotted lines are`);
    const others = [...figure.querySelectorAll(".others button")];
    check(others.length === data.series.length - shown.length, `${name}: a variant cannot be chosen`);
    others.forEach(press);
    check(curves() === data.series.length && drawn() === points(data.series), `${name}: a chosen variant is not drawn`);
    others.forEach(press);
    check(curves() === shown.length, `${name}: a variant that was switched off is still there`);
    if (/window|batch$/.test(name)) check(modelled > 0, `${name}: there is no model`);
    check(!/NaN|Infinity/.test(figure.innerHTML), `${name}: something is drawn nowhere`);
    for (const button of figure.querySelectorAll(".controls button")) {
      if (button.hidden) continue;
      press(button);
      check(drawn() > 0, `${name}: nothing is drawn after "${button.textContent}"`);
    }
    for (const limit of data.limits) {
      press(figure.querySelector(`.controls button[data-quantity="${limit.quantity}"]`));
      const names = [...figure.querySelectorAll("svg text.limit")].map((text) => text.textContent);
      check(names.some((name) => name.startsWith(limit.name)), `${name}: "${limit.name}" is not drawn`);
    }
    const before = drawn();
    const key = figure.querySelector(".legend button");
    press(key);
    check(drawn() < before, `${name}: a curve that was switched off is still there`);
    press(key);
    check(drawn() === before, `${name}: a curve that was switched on again is not there`);
    const svg = [...figure.querySelectorAll("svg")].find((svg) => svg.getAttribute("role") === "img");
    const box = svg.getBoundingClientRect();
    svg.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, clientY: box.top + 50 }));
    const tip = figure.querySelector(".tip");
    check(!tip.hidden && tip.textContent.length > 5, `${name}: pointing at the plot says nothing`);
    const inside = tip.getBoundingClientRect();
    check(inside.left >= figure.getBoundingClientRect().left - 1 && inside.right <= innerWidth + 1, `${name}: the tip is outside`);
  }

  const first = document.querySelector("main > *");
  check(first.id === "answers" && first.querySelectorAll("figure").length === 2, "the page does not begin with its answers");
  const verdicts = document.querySelector("#verdicts");
  const isBefore = (node) => node.compareDocumentPosition(verdicts) & Node.DOCUMENT_POSITION_FOLLOWING;
  check(verdicts && figures.every(isBefore), "a plot comes after the verdicts");
  check(document.querySelectorAll(".others button").length > 0, "no plot hides a variant");
  for (const answer of first.querySelectorAll("tbody td")) {
    check(/window \d+, batch \d+|not measured/.test(answer.textContent), `"${answer.textContent}" is no answer`);
  }
  if (innerWidth > 1000) {
    const end = first.querySelector("table").getBoundingClientRect().bottom + scrollY;
    check(end <= innerHeight, `the answers end at ${end}, the first screen at ${innerHeight}`);
  }
  // Contrast of text by WCAG 2.2, 1.4.3.
  const channels = (color) => color.match(/^rgba?\(([^)]*)\)$/)?.[1].split(",").map(Number);
  const luminance = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    const color = node ? channels(getComputedStyle(node).backgroundColor) : [255, 255, 255];
    return color?.[3] === 0 ? behind(node.parentElement) : color;
  };
  for (const node of document.querySelectorAll("body, a, h1, .kicker, .where, .setting, .badge, .tiles li, .legend button, small, td, th")) {
    const [front, back] = [channels(getComputedStyle(node).color), behind(node)];
    if (!front || !back) continue;
    const [dark, light] = [luminance(front), luminance(back)].sort((a, b) => a - b);
    const contrast = (light + 0.05) / (dark + 0.05);
    check(contrast >= 4.5, `${node.tagName}.${node.className}: the contrast is ${contrast.toFixed(2)}`);
  }

  check(figures.some((figure) => figure.querySelector("svg text.limit")), "no plot has the rate of a link");
  check(document.querySelector("#changed") && document.querySelector("#differences"), "the runs are not compared");
  check(document.querySelectorAll("table.changes").length > 0, "no experiment has its changes");
  check(document.querySelector("#parameters") && document.querySelector("#interventions"), "there is no model");
  const tables = [...document.querySelectorAll("table.sortable")];
  check(tables.length > figures.length, "a table is missing");
  for (const table of document.querySelectorAll("table")) {
    const frame = table.parentElement;
    const { left, right } = frame.getBoundingClientRect();
    check(frame.classList.contains("scroll") && left >= 0 && right <= innerWidth, "a table does not scroll within its frame");
  }
  for (const table of tables) {
    const rows = table.tBodies[0].rows.length;
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      for (const direction of ["ascending", "descending"]) {
        press(heading.querySelector("button"));
        check(heading.getAttribute("aria-sort") === direction, `"${heading.textContent}" is not ${direction}`);
        const cells = [...table.tBodies[0].rows].map((row) => row.cells[column]);
        check(cells.length === rows, `"${heading.textContent}": rows are lost`);
        // Cells without a number have an empty value, and stay last.
        const values = cells.map((cell) => Number(cell.dataset.value || NaN)).filter((value) => !Number.isNaN(value));
        const sign = direction === "ascending" ? 1 : -1;
        check(values.every((value, i) => i === 0 || sign * (value - values[i - 1]) >= 0), `"${heading.textContent}" is not sorted`);
      }
    });
  }
  check(document.documentElement.scrollWidth <= innerWidth, `the page is ${document.documentElement.scrollWidth} wide, the window ${innerWidth}`);
  check(performance.getEntriesByType("resource").length === 0, "something was loaded");
  check(window.owned === undefined, "text of a record was run");
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = wrong.length === 0 ? `sound: ${figures.length} plots, ${tables.length} tables` : `wrong: ${wrong.join("; ")}`;
  document.body.replaceChildren(result);
})();
