"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  // Only the model is dotted.
  const DASHES = ["", "7 4", "14 4", "9 3 2 3"];
  const DOTS = { "stroke-width": 1.5, "stroke-dasharray": "1 4", "stroke-linecap": "round" };

  // Text from records becomes only text or attribute values, never markup.
  const make = (name, attributes = {}, ...children) => {
    const node = SVG_NAMES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const SVG_NAMES = new Set(["svg", "g", "path", "line", "circle", "text", "rect", "title"]);

  const number = (value) => {
    if (value === 0) return "0";
    const size = Math.floor(Math.log10(Math.abs(value)));
    if (size < -6 || size >= 15) return value.toExponential(2);
    return value.toFixed(Math.min(8, Math.max(0, 2 - size)));
  };
  const bytes = (value) => {
    for (const [unit, size] of [["MiB", 1 << 20], ["KiB", 1024]]) {
      if (value >= size && value % size === 0) return `${value / size} ${unit}`;
    }
    return `${value} B`;
  };
  const short = (value) => {
    if (value === 0) return "0";
    for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
      if (Math.abs(value) >= size) return `${+(value / size).toPrecision(3)}${unit}`;
    }
    return `${+value.toPrecision(3)}`;
  };

  // Ticks of a linear axis: steps of 1, 2 or 5.
  const steps = (least, most) => {
    const raw = (most - least) / 5 || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= raw);
    const ticks = [];
    for (let k = Math.ceil(least / step - 1e-9); k * step <= most * (1 + 1e-9); k++) ticks.push(k * step);
    return ticks;
  };
  // Ticks of a logarithmic axis: powers of ten, and 2 and 5 times these powers if the axis has few of them.
  const decades = (least, most) => {
    const span = Math.log10(most / least);
    const factors = span > 3 ? [1] : span > 1.5 ? [1, 3] : [1, 2, 5];
    const ticks = [];
    for (let e = Math.floor(Math.log10(least)); e <= Math.ceil(Math.log10(most)); e++) {
      for (const f of factors) {
        const tick = f * 10 ** e;
        if (tick >= least * 0.999 && tick <= most * 1.001) ticks.push(tick);
      }
    }
    return ticks.length > 1 ? ticks : [least, most];
  };

  const marker = (shape, x, y, r) => {
    switch (shape % 5) {
      case 0: return `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`;
      case 1: return `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
      case 2: return `M${x},${y - 1.25 * r}l${1.2 * r},${2.1 * r}h${-2.4 * r}z`;
      case 3: return `M${x},${y - 1.3 * r}l${1.3 * r},${1.3 * r}l${-1.3 * r},${1.3 * r}l${-1.3 * r},${-1.3 * r}z`;
      default: return `M${x},${y + 1.25 * r}l${1.2 * r},${-2.1 * r}h${-2.4 * r}z`;
    }
  };

  const plot = (figure) => {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const several = data.runs.length > 1;
    // The same configuration has the same colour in every run.
    const names = [...new Set(data.series.map((series) => series.name))];
    const style = (series) => {
      const index = names.indexOf(series.name);
      return {
        color: `var(--c${index % 8})`, shape: index,
        dash: DASHES[(series.run + Math.floor(index / 8)) % DASHES.length],
      };
    };
    const simulated = (series) => data.simulated[series.run] === true;
    const label = (series) => (several ? `${series.name} (${data.runs[series.run]})`
      : simulated(series) ? `${series.name} (simulated)` : series.name);
    // Markers of simulated points are hollow.
    const ink = (series, color) => (simulated(series) ? { fill: "var(--card)", stroke: color, "stroke-width": 1.5 } : { fill: color });
    const shown = data.series.map((series) => !series.hidden);
    const usable = data.quantities.map((_, q) => data.series.some((s) => s.points.some((p) => p.y[q])));
    let quantity = Math.max(0, usable.indexOf(true));
    let log = data.quantities[quantity]?.log ?? false;

    const key = (line, ...more) => make("svg", { width: 30, height: 12, viewBox: "0 0 30 12", "aria-hidden": "true", style: "width:30px" },
      make("line", { x1: 0, x2: 30, y1: 6, y2: 6, ...line }), ...more);

    const controls = make("div", { class: "controls" });
    const stage = make("div");
    const legend = make("div", { class: "legend" });
    const others = make("div", { class: "legend" });
    const tip = make("div", { class: "tip", hidden: "" });
    figure.append(controls, stage, legend, tip);

    data.quantities.forEach((q, index) => {
      if (!usable[index]) return;
      const button = make("button", { type: "button" }, q.unit ? `${q.name}, ${q.unit}` : q.name);
      button.addEventListener("click", () => { quantity = index; log = q.log; draw(); });
      button.dataset.quantity = index;
      controls.append(button);
    });
    const scale = make("button", { type: "button", class: "scale" });
    scale.addEventListener("click", () => { log = !log; draw(); });
    controls.append(scale);

    data.series.forEach((series, index) => {
      const { color, shape, dash } = style(series);
      const line = { stroke: color, "stroke-width": 2, "stroke-dasharray": dash };
      const button = make("button", { type: "button", "aria-pressed": shown[index] },
        key(line, make("path", { d: marker(shape, 15, 6, 4), ...ink(series, color) })), label(series));
      button.addEventListener("click", () => {
        shown[index] = !shown[index];
        button.setAttribute("aria-pressed", shown[index]);
        draw();
      });
      (series.hidden ? others : legend).append(button);
    });
    const dotted = make("span", { class: "note" }, key({ stroke: "currentColor", ...DOTS }), "dotted: the model\u2019s prediction");
    legend.append(dotted);
    const count = others.childElementCount;
    if (count > 0) legend.after(make("details", { class: "others" }, make("summary", {}, `other variants: ${count}`), others));

    let width = 0;
    function draw() {
      tip.hidden = true;
      const q = data.quantities[quantity];
      for (const button of controls.querySelectorAll("[data-quantity]")) {
        button.setAttribute("aria-pressed", Number(button.dataset.quantity) === quantity);
      }
      const live = data.series.filter((_, index) => shown[index]);
      const points = live.flatMap((s) => s.points.filter((p) => p.y[quantity]));
      dotted.hidden = !points.some((p) => p.y[quantity].model != null);
      if (!q || points.length === 0) {
        stage.replaceChildren(make("p", {}, "Nothing is shown: choose something below."));
        return;
      }
      const ys = points.flatMap((p) => [p.y[quantity].least, p.y[quantity].most, p.y[quantity].model ?? p.y[quantity].median]);
      const canLog = ys.every((y) => y > 0);
      const isLog = log && canLog;
      const limits = (data.limits ?? []).filter((limit) => limit.quantity === quantity);
      // On a linear scale, omit a limit far above all curves, which would flatten the curves.
      ys.push(...limits.map((limit) => limit.value).filter((value) => isLog || value <= 4 * Math.max(...ys)));
      scale.hidden = !canLog;
      scale.textContent = isLog ? "linear scale" : "logarithmic scale";
      let [least, most] = [Math.min(...ys), Math.max(...ys)];
      if (isLog) { least /= 1.15; most *= 1.15; } else { least = Math.min(0, least); most = most * 1.06 || 1; }
      const xs = [...new Set(points.map((p) => p.x))].sort((a, b) => a - b);
      const logX = xs[0] > 0 && xs[xs.length - 1] / xs[0] > 8;
      const m = { left: 58, right: 14, top: 12, bottom: 44 };
      const h = figure.classList.contains("small") ? 240 : 360;
      const along = (v, low, high, isLog) => high === low ? 0.5 : isLog ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low);
      const px = (v) => m.left + 12 + along(v, xs[0], xs[xs.length - 1], logX) * (width - m.left - m.right - 24);
      const py = (v) => h - m.bottom - along(v, least, most, isLog) * (h - m.top - m.bottom);
      const place = (x) => (data.bytes ? bytes(x) : number(x).replace(/\.0+$/, ""));

      const svg = make("svg", { viewBox: `0 0 ${width} ${h}`, role: "img", tabindex: "0" },
        make("title", {}, `${q.name} over ${data.sweep}; the table below has the numbers`));
      for (const tick of isLog ? decades(least, most) : steps(least, most)) {
        svg.append(make("line", { class: "grid", x1: m.left, x2: width - m.right, y1: py(tick), y2: py(tick) }),
          make("text", { x: m.left - 7, y: py(tick) + 4, "text-anchor": "end" }, short(tick)));
      }
      let last = -Infinity;
      for (const x of xs) {
        svg.append(make("line", { class: "axis", x1: px(x), x2: px(x), y1: h - m.bottom, y2: h - m.bottom + 5 }));
        const text = place(x);
        const half = text.length * 3.4;
        if (px(x) - half > last + 6) {
          svg.append(make("text", { x: px(x), y: h - m.bottom + 19, "text-anchor": "middle" }, text));
          last = px(x) + half;
        }
      }
      svg.append(make("line", { class: "axis", x1: m.left, x2: width - m.right, y1: h - m.bottom, y2: h - m.bottom }),
        make("text", { x: (m.left + width - m.right) / 2, y: h - 6, "text-anchor": "middle" }, data.sweep.replace(/, B$/, "")),
        make("text", { x: 12, y: (h - m.bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(h - m.bottom) / 2})` },
          q.unit ? `${q.name}, ${q.unit}` : q.name));
      for (const limit of limits) {
        const above = limit.value > most;
        const y = above ? m.top : py(limit.value);
        if (!above) svg.append(make("line", { class: "limit", x1: m.left, x2: width - m.right, y1: y, y2: y }));
        svg.append(make("text", { class: "limit", x: width - m.right - 4, y: above ? y + 9 : y - 4, "text-anchor": "end" },
          above ? `${limit.name} \u2191` : limit.name));
      }
      for (const series of live) {
        const { color, shape, dash } = style(series);
        const at = series.points.filter((p) => p.y[quantity]);
        if (at.length === 0) continue;
        const path = (of, points = at) => points.map((p, i) => `${i ? "L" : "M"}${px(p.x).toFixed(1)},${py(of(p.y[quantity])).toFixed(1)}`).join("");
        const group = make("g", { style: `color:${color}` });
        const modelled = at.filter((p) => p.y[quantity].model != null);
        if (modelled.length > 0) {
          group.append(make("path", { class: "model", d: path((y) => y.model, modelled), fill: "none", stroke: "currentColor", ...DOTS }));
        }
        group.append(make("path", { class: "curve", d: path((y) => y.median), fill: "none", stroke: "currentColor",
          "stroke-width": 2, "stroke-dasharray": dash, "stroke-linejoin": "round" }));
        for (const p of at) {
          const [x, y] = [px(p.x), p.y[quantity]];
          group.append(make("line", { x1: x, x2: x, y1: py(y.least), y2: py(y.most), stroke: "currentColor", "stroke-width": 1.2, opacity: 0.6 }));
          for (const value of y.values) {
            group.append(make("circle", { cx: x, cy: py(value), r: 1.8, fill: "currentColor", opacity: 0.4 }));
          }
          group.append(make("path", { class: "median", d: marker(shape, x, py(y.median), 4), ...ink(series, "currentColor") }));
        }
        svg.append(group);
      }
      const guide = make("line", { class: "guide", y1: m.top, y2: h - m.bottom, visibility: "hidden" });
      svg.append(guide);
      stage.replaceChildren(svg);

      // Show the points at the position that is nearest to the pointer or chosen with arrow keys.
      let chosen = -1;
      const choose = (index) => {
        chosen = Math.min(Math.max(index, 0), xs.length - 1);
        const x = xs[chosen];
        guide.setAttribute("x1", px(x));
        guide.setAttribute("x2", px(x));
        guide.setAttribute("visibility", "visible");
        const rows = live.flatMap((series) => {
          const y = series.points.find((p) => p.x === x)?.y[quantity];
          return y ? [[series, y]] : [];
        }).sort((a, b) => b[1].median - a[1].median);
        tip.replaceChildren(make("b", {}, `${data.sweep.replace(/, B$/, "")}: ${place(x)}`), ...rows.map(([series, y]) => {
          const predicted = y.model == null ? "" : `, predicted ${number(y.model)}`;
          const range = y.values.length > 1 ? ` (${number(y.least)} – ${number(y.most)})` : "";
          return make("div", {}, make("i", { style: `background:${style(series).color}` }), make("span", {}, label(series)),
            make("span", {}, `${number(y.median)} ${q.unit}${range}${predicted}`));
        }));
        tip.hidden = false;
        const shift = stage.getBoundingClientRect().width / width;
        const left = px(x) * shift + (px(x) > width / 2 ? -tip.offsetWidth - 14 : 14);
        tip.style.left = `${Math.max(0, Math.min(left, figure.clientWidth - tip.offsetWidth))}px`;
        tip.style.top = `${stage.offsetTop + 16}px`;
      };
      const leave = () => { tip.hidden = true; guide.setAttribute("visibility", "hidden"); };
      const point = (event) => {
        const box = svg.getBoundingClientRect();
        const x = (event.clientX - box.left) * (width / box.width);
        const near = xs.reduce((best, v, i) => (Math.abs(px(v) - x) < Math.abs(px(xs[best]) - x) ? i : best), 0);
        choose(near);
      };
      svg.addEventListener("pointermove", point);
      svg.addEventListener("pointerdown", point);
      svg.addEventListener("pointerleave", leave);
      svg.addEventListener("blur", leave);
      svg.addEventListener("keydown", (event) => {
        const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (step) { choose(chosen + step); event.preventDefault(); }
        if (event.key === "Escape") leave();
      });
    }

    const fit = () => {
      const now = Math.max(280, Math.round(figure.clientWidth));
      if (now !== width && !matchMedia("print").matches) { width = now; draw(); }
    };
    fit();
    new ResizeObserver(fit).observe(figure);
  };

  const sortable = (table) => {
    const headings = [...table.tHead.rows[0].cells];
    const key = (row, column) => {
      const cell = row.cells[column];
      const value = cell.dataset.value;
      return value === undefined ? cell.textContent : value === "" ? NaN : Number(value);
    };
    headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].map((row) => [key(row, column), row]);
      rows.sort(([a], [b]) => {
        if (typeof a === "string" || typeof b === "string") return String(a).localeCompare(String(b), "en", { numeric: true }) * (down ? -1 : 1);
        // Sort missing values last in both directions.
        if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
        return a === b ? 0 : (a < b ? -1 : 1) * (down ? -1 : 1);
      });
      table.tBodies[0].append(...rows.map(([, row]) => row));
    }));
  };

  document.querySelectorAll("figure.plot").forEach(plot);
  document.querySelectorAll("table.sortable").forEach(sortable);
})();
