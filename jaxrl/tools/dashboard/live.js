// The live page: asks every two seconds what the runs do, and draws the curves of those that are chosen.
"use strict";
(() => {
  const EVERY = 2000, CHOSEN_AT_FIRST = 4;
  const { html, number, steps } = Chart;
  const get = id => document.getElementById(id);
  const colorOf = new Map(), rows = new Map(), charts = new Map(), sections = new Map(), curves = new Map();
  const films = new Map();
  let colors = [], chosen = null;  // null: nobody has chosen yet

  function color(name) {
    if (!colorOf.has(name)) colorOf.set(name, colors[colorOf.size % colors.length]);
    return colorOf.get(name);
  }

  function ago(seconds) {
    if (seconds === null) return "–";
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]])
      if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ago`;
    return `${Math.floor(seconds)} s ago`;
  }

  function choose(name, on) {
    if (on) chosen.add(name); else chosen.delete(name);
    update();
  }

  function makeRow(name) {
    const row = document.createElement("tr"), cells = [];
    for (const title of ["", "run", "state", "step", "steps/s", "score", "last summary"]) {
      cells.push(html("td", "", "", row));
      cells.at(-1).dataset.title = title;
    }
    const box = html("input", "", "", cells[0]);
    box.type = "checkbox";
    box.setAttribute("aria-label", `curves of ${name}`);
    box.addEventListener("change", () => choose(name, box.checked));
    row.addEventListener("click", event => { if (event.target !== box) choose(name, !box.checked); });
    return { row, cells, box };
  }

  // Cells are written only when their text changes: selected text and tool tips stay.
  function write(cell, parts) {
    const text = JSON.stringify(parts);
    if (cell.shown === text) return;
    cell.shown = text;
    cell.classList.toggle("nothing", parts.every(([, content]) => content === "–"));
    cell.replaceChildren();
    for (const [className, content, title] of parts) html("div", className, content, cell).title = title || "";
  }

  function fill({ cells, box }, run) {
    const each = Object.entries(run.behaviors), several = each.length > 1;
    const of = (find, shown) => each.map(([name, b]) => ["", (several ? `${name}: ` : "") + shown(find(b), b)]);
    box.checked = chosen.has(run.name);
    box.style.accentColor = box.checked ? color(run.name) : "";
    write(cells[1], [["", run.name], ...(run.behind ? [["small", "is being read"]] : []), ...(run.problem ? [["small broken", run.problem]] : [])]);
    write(cells[2], [[`state ${run.state}`, run.state, run.why]]);
    write(cells[3], each.flatMap(([name, b]) => {
      const seeds = b.seeds > 1 ? `, ${b.seeds} seeds` : "";
      const most = b.max_steps ? ` of ${steps(b.max_steps)}` : "";
      return [["", (several ? `${name}: ` : "") + steps(b.step) + most + seeds], ["progress"]];
    }));
    cells[3].querySelectorAll(".progress").forEach((bar, i) => {
      const b = each[i][1], inner = bar.firstChild || html("div", "", "", bar);
      bar.hidden = !b.max_steps;
      inner.style.width = `${Math.min(100, 100 * b.step / (b.max_steps || 1))}%`;
    });
    write(cells[4], of(b => run.state === "running" ? b.speed : null, number));
    write(cells[5], of(b => b.score, (score, b) => number(score) + (b.score_tag ? ` ${b.score_tag}` : "")));
    write(cells[6], [["", ago(run.age)]]);
  }

  function table(runs) {
    const body = get("runs").tBodies[0];
    for (const [name, { row }] of rows)
      if (!runs.some(run => run.name === name)) { row.remove(); rows.delete(name); curves.delete(name); }
    runs.forEach((run, i) => {
      if (!rows.has(run.name)) rows.set(run.name, makeRow(run.name));
      const made = rows.get(run.name);
      fill(made, run);
      if (body.children[i] !== made.row) body.insertBefore(made.row, body.children[i] || null);
    });
    get("none").hidden = runs.length > 0;
    get("runs").hidden = !runs.length;
  }

  function chart(curve) {
    const key = JSON.stringify([curve.behavior, curve.tag]);
    if (charts.has(key)) return charts.get(key);
    if (!sections.has(curve.behavior)) {
      const section = html("section", "", "", get("curves"));
      html("h2", "", curve.behavior, section);
      const first = html("div", "panels", "", section), details = html("details", "", "", section);
      html("summary", "", "more statistics", details);
      sections.set(curve.behavior, { section, first, more: html("div", "panels", "", details), details });
    }
    const home = sections.get(curve.behavior)[curve.first ? "first" : "more"];
    charts.set(key, { ...Chart.panel(home, curve.title, curve.tag), behavior: curve.behavior, first: curve.first });
    return charts.get(key);
  }

  function draw() {
    const lines = new Map();
    for (const name of rows.keys()) {
      if (!chosen.has(name) || !curves.has(name)) continue;
      for (const curve of curves.get(name).curves) {
        const made = chart(curve);
        if (!lines.has(made)) lines.set(made, []);
        lines.get(made).push({ ...curve, label: name, color: color(name) });
      }
    }
    for (const made of charts.values()) {
      made.figure.hidden = !lines.has(made);
      if (lines.has(made)) made.draw(lines.get(made));
    }
    for (const [behavior, { section, details }] of sections) {
      const shown = [...charts.values()].filter(made => made.behavior === behavior && !made.figure.hidden);
      section.hidden = !shown.length;
      details.hidden = shown.every(made => made.first);
    }
  }

  function showFilms(runs) {
    const home = document.querySelector("#films .films");
    const wanted = new Map(runs.filter(run => run.film && chosen.has(run.name)).map(run => [run.name, run.film]));
    for (const [name, { figure, film }] of films)
      if (wanted.get(name) !== film) { figure.remove(); films.delete(name); }
    for (const [name, film] of wanted) {
      if (films.has(name)) continue;
      const figure = html("figure", "", "", home), moving = film.endsWith(".mp4");
      const shown = html(moving ? "video" : "img", "", "", figure);
      if (moving) Object.assign(shown, { controls: true, loop: true, muted: true, playsInline: true });
      shown.src = `/film?run=${encodeURIComponent(name)}&film=${encodeURIComponent(film)}`;
      html("figcaption", "", `${name}: ${film}`, figure);
      films.set(name, { figure, film });
    }
    get("films").hidden = !films.size;
  }

  async function ask(address) {
    const answer = await fetch(address, { signal: AbortSignal.timeout(10000) });
    if (!answer.ok && answer.status !== 404) throw new Error(`${answer.status}`);
    return answer.ok ? answer.json() : null;
  }

  async function update() {
    const told = await ask("/api/runs");
    colors = told.colors;
    get("results").textContent = told.results;
    document.title = `jaxrl: ${told.results.split(/[\\/]/).pop()}`;
    if (chosen === null && told.runs.length) {
      const active = told.runs.filter(run => ["running", "starting"].includes(run.state)).slice(0, CHOSEN_AT_FIRST);
      const drawn = told.runs.filter(run => run.version > 0);
      chosen = new Set([...active, ...(active.some(run => run.version > 0) ? [] : drawn.slice(0, 1))].map(run => run.name));
    }
    table(told.runs);
    if (chosen === null) return;
    let changed = false;
    for (const run of told.runs.filter(run => chosen.has(run.name))) {
      const known = curves.get(run.name);
      if (known && known.version === run.version) continue;
      const now = await ask(`/api/curves?run=${encodeURIComponent(run.name)}&known=${known ? known.version : ""}`);
      if (now && now.curves) { curves.set(run.name, now); changed = true; }
    }
    const shown = JSON.stringify([...rows.keys()].filter(name => chosen.has(name)));
    if (changed || shown !== draw.shown) { draw(); draw.shown = shown; }
    showFilms(told.runs);
  }

  async function follow() {
    if (!document.hidden) {
      try {
        await update();
        get("notice").hidden = true;
      } catch (error) {
        get("notice").textContent = `No answer from jaxrl dashboard (${error.message}); it is asked again every two seconds.`;
        get("notice").hidden = false;
      }
    }
    setTimeout(follow, EVERY);
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) update().catch(() => {}); });
  follow();
})();
