// The report's page: panels from the data in it, single seeds on demand, and the data as a file.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const colors = data.experiments.map((_, i) => data.colors[i % data.colors.length]);

  data.behaviors.forEach((behavior, place) => {
    let hidden = new Set(), single = false;
    const charts = behavior.panels.map(panel => ({
      panel, chart: Chart.panel(document.getElementById(`panels-${place}-${panel.first ? "first" : "more"}`),
        panel.title, panel.tag),
    }));

    function seedsOf(tag) {
      return data.points
        .filter(p => p.behavior === behavior.name && p.tag === tag && !hidden.has(p.experiment))
        .map(p => ({ label: "", color: colors[p.experiment], step: p.step, mean: p.value, thin: true }));
    }

    function draw() {
      for (const { panel, chart } of charts) {
        const means = panel.curves.filter(curve => !hidden.has(curve.experiment)).map(curve => ({
          ...curve, label: data.experiments[curve.experiment], color: colors[curve.experiment],
        }));
        chart.draw(single ? [...seedsOf(panel.tag), ...means] : means);
      }
    }

    const tools = document.getElementById(`tools-${place}`);
    const drawn = new Set(behavior.panels.flatMap(panel => panel.curves.map(curve => curve.experiment)));
    Chart.legend(tools, data.experiments, colors, drawn, now => { hidden = now; draw(); });
    if (data.points) {
      const label = Chart.html("label", "", "", tools), box = Chart.html("input", "", "", label);
      box.type = "checkbox";
      label.append(" single seeds");
      box.addEventListener("change", () => { single = box.checked; draw(); });
    }
    draw();
  });

  const quoted = text => /[",\n\r]/.test(text) ? `"${String(text).replaceAll('"', '""')}"` : String(text);

  function csv() {
    const rows = [];
    if (data.points) {
      rows.push(["experiment", "run", "behavior", "seed", "tag", "step", "value"]);
      for (const p of data.points)
        p.step.forEach((step, i) =>
          rows.push([data.experiments[p.experiment], p.run, p.behavior, p.seed, p.tag, step, p.value[i] ?? ""]));
    } else {
      rows.push(["experiment", "behavior", "tag", "seeds", "step", "mean", "low", "high"]);
      for (const behavior of data.behaviors)
        for (const panel of behavior.panels)
          for (const c of panel.curves)
            c.step.forEach((step, i) => rows.push([data.experiments[c.experiment], behavior.name, panel.tag, c.seeds,
              step, c.mean[i] ?? "", c.low?.[i] ?? "", c.high?.[i] ?? ""]));
    }
    return rows.map(row => row.map(quoted).join(",")).join("\n") + "\n";
  }

  function give(id, kind, name, content) {
    document.getElementById(id).addEventListener("click", () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([content()], { type: kind }));
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }
  give("csv", "text/csv", "report.csv", csv);
  give("json", "application/json", "report.json", () => {
    const { colors, ...own } = data;
    return JSON.stringify(own);
  });
})();
