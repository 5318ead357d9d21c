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
    const expected = data.series.flatMap((series) => series.points).filter((point) => point.y.some((y) => y)).length;
    const drawn = () => figure.querySelectorAll("svg path.median").length;
    check(expected > 0 && drawn() === expected, `${name}: ${drawn()} points are drawn of ${expected}`);
    check(figure.querySelectorAll("svg path.curve").length === data.series.length, `${name}: a curve is missing`);
    const modelled = data.series.filter((series) => series.points.some((point) => point.y[0]?.model != null)).length;
    check(figure.querySelectorAll("svg path.model").length === modelled, `${name}: ${modelled} curves have a model`);
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

  check(figures.some((figure) => figure.querySelector("svg text.limit")), "no plot has the rate of a link");
  check(document.querySelector("#changed") && document.querySelector("#differences"), "the runs are not compared");
  check(document.querySelectorAll("table.changes").length > 0, "no experiment has its changes");
  check(document.querySelector("#parameters") && document.querySelector("#interventions"), "there is no model");
  const tables = [...document.querySelectorAll("table.sortable")];
  check(tables.length > figures.length, "a table is missing");
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
