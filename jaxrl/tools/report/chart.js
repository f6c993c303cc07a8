// Draws curves into SVG panels, with the values under the pointer. Used by the report and by the live page.
"use strict";
const Chart = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const HEIGHT = 210, LEFT = 52, RIGHT = 20, TOP = 8, BOTTOM = 36;

  function element(name, attributes, parent) {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  }

  function html(name, className, text, parent) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== "") made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  // About `count` round numbers from low to high.
  function ticks(low, high, count) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const stride = power * ([1, 2, 2.5, 5, 10].find(factor => factor * power >= raw * 0.999));
    const found = [];
    for (let k = Math.ceil(low / stride - 1e-9); k * stride <= high + stride * 1e-9; k++) found.push(k * stride);
    return found;
  }

  function steps(value) {
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= size) return +(value / size).toPrecision(4) + letter;
    return String(+value.toPrecision(4));
  }

  function number(value) {
    if (value === null || value === undefined) return "–";
    if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3))
      return (+value.toPrecision(3)).toExponential();
    return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4));
  }

  // Values of an axis, with as many decimals as tell neighbours apart.
  function label(tick, stride) {
    if (tick !== 0 && (Math.abs(tick) >= 1e6 || Math.abs(tick) < 1e-3)) return number(tick);
    return (+tick.toFixed(Math.min(8, Math.max(0, Math.ceil(-Math.log10(stride)) + 1)))).toLocaleString("en",
      { maximumFractionDigits: 8 });
  }

  // Lowest and highest of all that is to be seen, widened where they are one.
  function range(lines, names) {
    let low = Infinity, high = -Infinity;
    for (const line of lines)
      for (const name of names)
        for (const value of line[name] || [])
          if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
    if (low > high) return [0, 1];
    if (low === high) { const room = Math.abs(low) * 0.1 || 1; return [low - room, high + room]; }
    return [low, high];
  }

  function nearest(sorted, value) {
    let low = 0, high = sorted.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= value) low = middle; else high = middle;
    }
    return Math.abs(sorted[high] - value) < Math.abs(sorted[low] - value) ? high : low;
  }

  // Pieces of a line, cut where there is no value.
  function path(line, name, x, y) {
    let text = "", pen = "M";
    line.step.forEach((step, i) => {
      const value = line[name][i];
      if (value === null) { pen = "M"; return; }
      text += pen + x(step).toFixed(1) + " " + y(value).toFixed(1);
      pen = "L";
    });
    return text;
  }

  function band(line, x, y) {
    const known = line.step.map((_, i) => i).filter(i => line.low[i] !== null && line.high[i] !== null);
    const point = (i, name) => x(line.step[i]).toFixed(1) + " " + y(line[name][i]).toFixed(1);
    return "M" + [...known.map(i => point(i, "high")), ...known.reverse().map(i => point(i, "low"))].join("L") + "Z";
  }

  // A panel under `parent`; `draw(lines)` draws {label, color, step, mean, low?, high?, thin?} and may be called again.
  function panel(parent, title, hint) {
    const figure = html("figure", "panel", "", parent);
    html("figcaption", "", title, figure).title = hint || title;
    const svg = element("svg", { height: HEIGHT, tabindex: 0, role: "img", "aria-label": title }, figure);
    const tip = html("div", "tip", "", figure);
    let lines = [], x, y, grid = [], at = null, width = 0;

    function axes([first, last], [low, high]) {
      const right = width - RIGHT, floor = HEIGHT - BOTTOM;
      const shown = ticks(low, high, 4);
      for (const tick of shown) {
        element("line", { x1: LEFT, x2: right, y1: y(tick), y2: y(tick), class: "grid" }, svg);
        element("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, svg).textContent = label(tick, shown[1] - shown[0]);
      }
      element("line", { x1: LEFT, x2: right, y1: floor, y2: floor, class: "axis" }, svg);
      for (const tick of ticks(first, last, Math.max(2, Math.min(6, width / 80)))) {
        element("line", { x1: x(tick), x2: x(tick), y1: floor, y2: floor + 4, class: "axis" }, svg);
        element("text", { x: x(tick), y: floor + 17, "text-anchor": "middle" }, svg).textContent = steps(tick);
      }
      element("text", { x: right, y: HEIGHT - 4, "text-anchor": "end", class: "unit" }, svg).textContent = "agent steps";
    }

    function paint() {
      svg.replaceChildren();
      width = figure.clientWidth;
      if (!width) return;  // hidden: painted when it is shown
      svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      const across = [0, Math.max(...lines.map(line => line.step.at(-1)), 1)], upwards = range(lines, ["mean", "low", "high"]);
      const room = (upwards[1] - upwards[0]) * 0.04;
      x = step => LEFT + (step - across[0]) / (across[1] - across[0]) * (width - LEFT - RIGHT);
      y = value => HEIGHT - BOTTOM - (value - upwards[0] + room) / (upwards[1] - upwards[0] + 2 * room)
        * (HEIGHT - TOP - BOTTOM);
      axes(across, upwards);
      for (const line of lines)
        if (line.low) element("path", { d: band(line, x, y), fill: line.color, class: "band" }, svg);
      for (const line of lines) {
        const drawn = { d: path(line, "mean", x, y), stroke: line.color, class: line.thin ? "line thin" : "line" };
        element("path", drawn, svg);
        if (line.step.length === 1 && line.mean[0] !== null)  // a single summary is no line
          element("circle", { cx: x(line.step[0]), cy: y(line.mean[0]), r: 3.5, fill: line.color }, svg);
      }
      grid = [...new Set(lines.filter(line => !line.thin).flatMap(line => line.step))].sort((a, b) => a - b);
      if (at !== null) point(at);
    }

    function point(step) {
      svg.querySelectorAll(".at").forEach(mark => mark.remove());
      at = step;
      tip.replaceChildren();
      tip.hidden = step === null || !grid.length;
      if (tip.hidden) return;
      at = grid[nearest(grid, step)];
      element("line", { x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM, class: "at" }, svg);
      html("div", "step", `step ${at.toLocaleString("en")}`, tip);
      for (const line of lines) {
        if (line.thin || at < line.step[0] || at > line.step[line.step.length - 1]) continue;
        const i = nearest(line.step, at), value = line.mean[i];
        const row = html("div", "", "", tip);
        html("i", "", "", row).style.background = line.color;
        const known = line.low && line.low[i] !== null;
        const text = number(value) + (known ? ` [${number(line.low[i])}, ${number(line.high[i])}]` : "");
        html("b", "", text, row);
        html("span", "", line.label, row);
        if (value !== null)
          element("circle", { cx: x(line.step[i]), cy: y(value), r: 3.5, fill: line.color, class: "at" }, svg);
      }
      const middle = x(at), room = figure.clientWidth - tip.offsetWidth;
      tip.style.left = Math.max(0, Math.min(room, middle > width / 2 ? middle - tip.offsetWidth - 10 : middle + 10)) + "px";
    }

    const under = event => {
      const box = svg.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      if (grid.length) point(grid[0] + share * (grid[grid.length - 1] - grid[0]));
    };
    svg.addEventListener("pointermove", under);
    svg.addEventListener("pointerdown", under);
    svg.addEventListener("pointerleave", () => point(null));
    svg.addEventListener("blur", () => point(null));
    svg.addEventListener("keydown", event => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move || !grid.length) return;
      event.preventDefault();
      point(at === null ? grid[move > 0 ? 0 : grid.length - 1]
        : grid[Math.max(0, Math.min(grid.length - 1, grid.indexOf(at) + move))]);
    });
    tip.hidden = true;
    new ResizeObserver(() => { if (figure.clientWidth !== width) paint(); }).observe(figure);
    return { figure, draw(given) { lines = given; paint(); } };
  }

  // Names that are `drawn`, with their colors; a click hides or shows one, and `changed` gets the hidden ones.
  function legend(parent, names, colors, drawn, changed) {
    const hidden = new Set(), list = html("div", "legend", "", parent);
    names.forEach((name, i) => {
      if (!drawn.has(i)) return;
      const button = html("button", "", "", list);
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      html("i", "", "", button).style.background = colors[i];
      html("span", "", name, button);
      button.addEventListener("click", () => {
        if (!hidden.delete(i)) hidden.add(i);
        button.setAttribute("aria-pressed", String(!hidden.has(i)));
        changed(hidden);
      });
    });
    return list;
  }

  return { panel, legend, html, steps, number };
})();
