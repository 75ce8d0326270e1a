// This script makes data and layout of every chart for plotly.js, and draws a chart when it comes into view.
const layers = figures.layers;
const compared = layers.some((layer) => layer.cascade !== null);
const steps = ["#a50026", "#dd3d2d", "#f67e4b", "#fdb366", "#feda8b", "#c2e4ef", "#98cae1", "#6ea6cd", "#4a7bb7"];
const colour = (token) => getComputedStyle(document.documentElement).getPropertyValue("--" + token).trim();
const sqnrColour = (value) => (value === null ? colour("line") : steps[Math.min(Math.max(Math.floor((value - 10) / 5) + 1, 0), 8)]);
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (name) => plain(name.length > 26 ? "…" + name.slice(-25) : name);
const sum = (values) => values.reduce((a, b) => a + b, 0);
const digits = (value, n = 4) => (value === null || value === undefined ? "–" : String(Number(value.toPrecision(n))));
const percent = (share) => digits(100 * share, 3) + " %";

const axis = (title, more) => ({ title: { text: title, standoff: 8 }, gridcolor: colour("axis"), zerolinecolor: colour("axis"),
  linecolor: colour("axis"), tickcolor: colour("axis"), automargin: true, ...more });
const layout = (x, y, more) => ({
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 48, r: 12, t: 28, b: 40 },
  font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("ink") },
  legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)" },
  hoverlabel: { bgcolor: colour("card"), bordercolor: colour("strong-line"), font: { color: colour("ink") } },
  xaxis: x, yaxis: y, ...more,
});

// An axis of layers shows as many names as there is room for.
function namesOf(indices) {
  const room = Math.min(24, Math.max(6, Math.floor(innerWidth / 40)));
  const stride = Math.ceil(indices.length / room);
  const shown = indices.map((_, i) => i).filter((i) => i % stride === 0);
  return { tickmode: "array", tickvals: shown, ticktext: shown.map((i) => short(layers[indices[i]].name)), tickangle: -45, showgrid: false, zeroline: false };
}

function depth() {
  const rated = layers.map((_, i) => i).filter((i) => layers[i].cascade !== null);
  const mode = rated.length > 200 ? "lines" : "lines+markers"; // a marker is an element
  const line = (key, name, token, symbol, dash) => ({
    type: "scatter", mode, name, x: rated.map((_, i) => i), y: rated.map((i) => layers[i][key]),
    customdata: rated, text: rated.map((i) => plain(layers[i].name)), connectgaps: true,
    hovertemplate: "%{text}<br>%{y:.1f} dB<extra>" + name + "</extra>",
    line: { color: colour(token), width: 2, dash }, marker: { size: 7, symbol },
  });
  const own = rated.filter((i) => layers[i].own !== null).sort((a, b) => layers[a].own - layers[b].own);
  return {
    data: [line("own", "own", "own", "circle", "solid"), line("cascade", "cascade", "cascade", "diamond", "dot")],
    layout: layout(axis("", namesOf(rated)), axis("SQNR, dB"), { hovermode: "x unified" }),
    label: own.length ? `SQNR of ${rated.length} layers. Smallest of their own: ${own.slice(0, 3).map((i) => `${layers[i].name} ${digits(layers[i].own, 3)} dB`).join(", ")}.` : "No layer has an error.",
    table: () => [["Layer", "Own SQNR, dB", "Cascade SQNR, dB"], rated.map((i) => [layers[i].name, digits(layers[i].own), digits(layers[i].cascade)])],
  };
}

const measures = { time: ["time", "ms"], bytes: ["bytes of weights", "bytes"], macs: ["multiplications", "macs"], ops: ["number of operations", null] };

// Of a module with hundreds of parts the largest are shown and the others become one: to draw a part takes milliseconds.
const MOST_PARTS = 60;
function foldSmall(nodes, worse) {
  const parts = new Map();
  for (const [id, node] of nodes) if (node.parent !== null) parts.set(node.parent, [...(parts.get(node.parent) ?? []), id]);
  const remove = (id) => { (parts.get(id) ?? []).forEach(remove); nodes.delete(id); };
  for (const [parent, ids] of parts) {
    if (ids.length <= MOST_PARTS || !nodes.has(parent)) continue;
    const rest = ids.sort((a, b) => nodes.get(b).value - nodes.get(a).value).slice(MOST_PARTS);
    const label = `${rest.length} more`;
    const value = sum(rest.map((id) => nodes.get(id).value));
    nodes.set("r:" + parent, { label, parent, value, worst: rest.map((id) => nodes.get(id).worst).reduce(worse), runs: "", name: label });
    rest.forEach(remove);
  }
}

function map(measure) {
  const weight = (layer) => (measures[measure][1] === null ? 1 : layer[measures[measure][1]] || 0);
  const nodes = new Map([["", { label: figures.title, parent: null, value: 0, worst: null, runs: "", name: figures.title }]]);
  const worse = (a, b) => (a === null ? b : b === null ? a : Math.min(a, b));
  layers.forEach((layer, index) => {
    let parent = "";
    const up = [""];
    for (const module of layer.modules) {
      const path = "m:" + module;
      if (!nodes.has(path)) nodes.set(path, { label: module.slice(module.lastIndexOf(".") + 1), parent, value: 0, worst: null, runs: "", name: module });
      parent = path;
      up.push(path);
    }
    const around = layer.modules.at(-1) ?? "";
    const label = around && layer.name.startsWith(around + ".") ? layer.name.slice(around.length + 1) : layer.name;
    nodes.set("o:" + index, { label, parent, value: weight(layer), worst: layer.own, runs: layer.runs, name: layer.name });
    for (const path of up) {
      nodes.get(path).value += weight(layer);
      nodes.get(path).worst = worse(nodes.get(path).worst, layer.own);
    }
  });
  foldSmall(nodes, worse);
  const ids = [...nodes.keys()].filter((id) => nodes.get(id).value > 0);
  const get = (key) => ids.map((id) => nodes.get(id)[key]);
  const tiny = (id) => nodes.get(id).value < nodes.get("").value / 400; // no text fits, and to find that out takes long
  const worstOf = (id) => (nodes.get(id).worst === null ? "" : digits(nodes.get(id).worst, 3) + " dB");
  const unit = { time: " ms", bytes: " bytes", macs: "", ops: "" }[measure];
  const runs = { int8: colour("int8"), move: colour("strong-line"), float32: colour("float"), "": colour("note-soft") };
  return {
    data: [{
      type: "treemap", ids, labels: ids.map((id) => (tiny(id) ? "" : plain(nodes.get(id).label))), parents: get("parent").map((p) => p ?? undefined), values: get("value"), branchvalues: "total",
      sort: false, tiling: { packing: "squarify", pad: 2 }, pathbar: { visible: true, thickness: 24, textfont: { color: colour("ink") } },
      text: ids.map((id) => (tiny(id) ? "" : worstOf(id))),
      textinfo: compared ? "label+text" : "label", textfont: { size: 13 }, maxdepth: 4,
      hovertemplate: "%{customdata[0]}<br>%{value:.4~s}" + unit + ", %{percentRoot:.1%}<br>%{customdata[1]}<extra></extra>",
      customdata: ids.map((id) => [plain(nodes.get(id).name), worstOf(id)]),
      marker: { colors: ids.map((id) => (!id.startsWith("o:") ? colour(["card", "note-soft", "hover"][(id && id.split(".").length) % 3]) : compared ? sqnrColour(nodes.get(id).worst) : runs[nodes.get(id).runs])), line: { width: 0 }, pad: { t: 20, l: 4, r: 4, b: 4 } },
    }],
    layout: layout({}, {}, { margin: { l: 0, r: 0, t: 4, b: 0 } }),
    label: `Map of the network by ${measures[measure][0]}. Largest: ` + ids.filter((id) => id.startsWith("o:")).sort((a, b) => nodes.get(b).value - nodes.get(a).value).slice(0, 3).map((id) => nodes.get(id).name).join(", ") + ".",
    table: () => [["Module or operation", measures[measure][0], "Worst own SQNR inside, dB"], ids.map((id) => [nodes.get(id).name, digits(nodes.get(id).value), digits(nodes.get(id).worst)])],
    height: 480,
  };
}

function sensitivity() {
  const metric = figures.metric;
  const scored = layers.map((_, i) => i).filter((i) => layers[i].sensitivity !== null);
  const ranked = scored.sort((a, b) => (metric.higher ? 1 : -1) * (layers[a].sensitivity - layers[b].sensitivity));
  const top = ranked.slice(0, 25);
  const known = top.map((i) => layers[i].sensitivity).concat(metric.quantized ?? []);
  const [least, most] = [Math.min(...known), Math.max(...known)];
  // A float score far away (a number of decibels that stands for perfect, say) would leave no room for the others.
  const near = (value) => value !== null && value >= least - (most - least) && value <= most + (most - least);
  const marks = [["everything quantized", metric.quantized, "int8"], ["float32", metric.float, "float"]].filter(([, value]) => near(value));
  const shown = known.concat(marks.map(([, value]) => value));
  const room = 0.04 * (Math.max(...shown) - Math.min(...shown)) || 1;
  return {
    data: [{
      type: "scatter", mode: "markers", name: "one layer quantized", x: top.map((i) => layers[i].sensitivity), y: top.map((_, i) => i), customdata: top,
      text: top.map((i) => plain(layers[i].name)), hovertemplate: "%{text}<br>%{x:.4g}<extra></extra>", marker: { size: 9, color: colour("range") },
    }, ...marks.map(([name, value, token]) => ({ type: "scatter", mode: "lines", name, x: [value, value], y: [-0.5, top.length - 0.5], hoverinfo: "name", line: { color: colour(token), dash: "dash", width: 2 } }))],
    layout: layout(axis(plain(metric.name), { range: [Math.min(...shown) - room, Math.max(...shown) + room] }), axis("", { tickmode: "array", tickvals: top.map((_, i) => i), ticktext: top.map((i) => short(layers[i].name)), autorange: "reversed", zeroline: false })),
    label: `${metric.name} with one layer quantized; everything quantized ${digits(metric.quantized)}, float32 ${digits(metric.float)}. Most sensitive: ${top.slice(0, 3).map((i) => `${layers[i].name} ${digits(layers[i].sensitivity)}`).join(", ")}.`,
    table: () => [["Layer", metric.name], ranked.map((i) => [layers[i].name, digits(layers[i].sensitivity)])],
    height: Math.max(240, 90 + 19 * top.length),
  };
}

function speed() {
  const indices = layers.map((_, i) => i);
  const kinds = [["int8", "int8"], ["move", "strong-line"], ["float32", "float"]].filter(([kind]) => layers.some((l) => l.runs === kind));
  const slow = [...indices].sort((a, b) => layers[b].ms - layers[a].ms).slice(0, 3);
  return {
    data: kinds.map(([kind, token]) => {
      const mine = indices.filter((i) => layers[i].runs === kind);
      return { type: "bar", name: kind, x: mine, y: mine.map((i) => layers[i].ms), customdata: mine, text: mine.map((i) => plain(layers[i].name)), textposition: "none",
        hovertemplate: "%{text}<br>%{y:.3g} ms<extra></extra>", marker: { color: colour(token) } };
    }),
    layout: layout(axis("", namesOf(indices)), axis("ms"), { bargap: 0.15, barmode: "stack", showlegend: true }),
    label: `Time of ${layers.length} operations. Slowest: ${slow.map((i) => `${layers[i].name} ${digits(layers[i].ms, 3)} ms`).join(", ")}.`,
    table: () => [["Layer", "Milliseconds"], indices.map((i) => [layers[i].name, digits(layers[i].ms)])],
  };
}

// Histograms of different bins are drawn as densities: share of the values per step of the grid.
function density(histogram, step) {
  const total = sum(histogram.counts) + histogram.below + histogram.above;
  const width = (histogram.high - histogram.low) / histogram.counts.length || 1;
  return {
    x: histogram.counts.map((_, i) => histogram.low + (i + 0.5) * width),
    y: histogram.counts.map((count) => (count ? (count / total) * (step / width) : null)),
    width,
  };
}
const logarithmic = (title) => axis(title, { type: "log", tickformat: ".0%", nticks: 5, tickvals: [1e-8, 1e-6, 1e-4, 1e-2, 1], ticktext: ["10⁻⁶ %", "10⁻⁴ %", "0.01 %", "1 %", "100 %"] });

function values(index) {
  const layer = layers[index];
  const step = layer.scale || 1;
  const data = [];
  const tables = [];
  if (layer.floats) {
    const d = density(layer.floats, layer.scale || (layer.floats.high - layer.floats.low) / layer.floats.counts.length || 1);
    data.push({ type: "bar", name: "float32", x: d.x, y: d.y, width: d.width, marker: { color: colour("float"), opacity: 0.6 }, hovertemplate: "%{x:.4g}<br>%{y:.3%}<extra>float32</extra>" });
    tables.push(...layer.floats.counts.map((count, i) => ["float32", digits(d.x[i]), String(count)]));
  }
  if (layer.integers) {
    const total = sum(layer.integers);
    data.push({ type: "scatter", mode: layer.floats ? "markers" : "lines", name: "int8", x: layer.integers.map((_, q) => (q - layer.zero) * step),
      y: layer.integers.map((count) => (count ? count / total : null)), marker: { color: colour("int8"), size: 4 }, line: { color: colour("int8"), shape: "hvh" },
      hovertemplate: "%{x:.4g}<br>%{y:.3%}<extra>int8</extra>" });
    tables.push(...layer.integers.map((count, q) => ["int8", digits((q - layer.zero) * step), String(count)]));
  }
  const shapes = [];
  const annotations = [];
  let clipped = "";
  if (layer.scale !== null) {
    const ends = [-layer.zero * step, (255 - layer.zero) * step];
    const low = Math.min(layer.floats ? layer.floats.low : ends[0], ends[0]);
    const high = Math.max(layer.floats ? layer.floats.high : ends[1], ends[1]);
    const room = 0.04 * (high - low);
    const shade = (x0, x1) => ({ type: "rect", xref: "x", yref: "paper", x0, x1, y0: 0, y1: 1, fillcolor: colour("clip"), line: { width: 0 }, layer: "below" });
    shapes.push(shade(low - room, layer.low), shade(layer.high, high + room));
    for (const [x, anchor] of [[layer.low, "left"], [layer.high, "right"]]) {
      shapes.push({ type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: colour("range"), width: 2, dash: "dash" } });
      annotations.push({ x, xref: "x", y: 1, yref: "paper", yanchor: "bottom", xanchor: anchor, showarrow: false, text: digits(x, 3), font: { color: colour("range"), size: 11 } });
    }
    clipped = ` The clamp goes from ${digits(layer.low)} to ${digits(layer.high)} in steps of ${digits(step)}.` + (layer.clipped ? ` Clipped: ${percent(layer.clipped[0])} below, ${percent(layer.clipped[1])} above the grid.` : "");
  }
  const extent = layer.floats ? `Float values of ${layer.name} from ${digits(layer.floats.low)} to ${digits(layer.floats.high)}.` : `Integers of ${layer.name}.`;
  return {
    data, label: extent + clipped,
    layout: layout(axis("value"), logarithmic("share per step"), { bargap: 0, shapes, annotations, legend: { orientation: "h", x: 0.5, xanchor: "center", y: -0.28, yanchor: "top" } }),
    table: () => [["Network", "Value", "Count"], tables.filter((row) => row[2] !== "0")],
  };
}

function error(index) {
  const layer = layers[index];
  const kinds = [["own", layer.ownError, "own"], ["cascade", layer.cascadeError, "cascade"]].filter(([, h]) => h);
  const line = ([name, h, token]) => {
    const d = density(h, 1);
    return { type: "scatter", mode: "lines", name, x: d.x, y: d.y, line: { color: colour(token), shape: "hvh", width: 2, dash: name === "own" ? "solid" : "dot" },
      hovertemplate: "%{x:.3g} steps<br>%{y:.3%}<extra>" + name + "</extra>" };
  };
  const beyond = (h) => (h.below + h.above ? `, ${percent((h.below + h.above) / (sum(h.counts) + h.below + h.above))} beyond` : "");
  return {
    data: kinds.map(line),
    layout: layout(axis(layer.scale === null ? "int8 − float32" : "int8 − float32, steps of the scale"), logarithmic("share per step"), { legend: { orientation: "h", x: 0.5, xanchor: "center", y: -0.28, yanchor: "top" } }),
    label: `Errors of ${layer.name}: ` + kinds.map(([name, h]) => `${name} from ${digits(h.low, 3)} to ${digits(h.high, 3)}${beyond(h)}`).join("; ") + (layer.scale === null ? "." : " steps."),
    table: () => [["Error", "Steps", "Count"], kinds.flatMap(([name, h]) => [[name, "below", String(h.below)], ...h.counts.map((count, i) => [name, digits(density(h, 1).x[i]), String(count)]), [name, "above", String(h.above)]].filter((row) => row[2] !== "0"))],
  };
}

function weights(index) {
  const layer = layers[index];
  const w = layer.weights;
  const x = w.low.map((_, i) => i);
  const edge = (y, name, token, more) => ({ type: "scatter", mode: "lines", name, x, y, line: { color: colour(token), width: 1.2, shape: "hvh" }, hovertemplate: "channel %{x}<br>%{y:.4g}<extra>" + name + "</extra>", ...more });
  const grid = w.scale.map((s) => 127 * s);
  const data = [
    edge(grid.map((v) => -v), "grid", "range", { line: { color: colour("range"), width: 1, dash: "dot", shape: "hvh" }, showlegend: false }),
    edge(grid, "grid, ±127 steps", "range", { line: { color: colour("range"), width: 1, dash: "dot", shape: "hvh" } }),
    edge(w.floatLow || w.low, "smallest", w.floatLow ? "float" : "int8", { showlegend: false }),
    edge(w.floatHigh || w.high, w.floatLow ? "float32 weights" : "weights", w.floatLow ? "float" : "int8", { fill: "tonexty", fillcolor: w.floatLow ? "rgba(217, 115, 13, 0.3)" : "rgba(80, 140, 210, 0.3)" }),
  ];
  const sizes = grid.filter((v) => v > 0);
  return {
    data,
    layout: layout(axis("output channel", { showgrid: false, zeroline: false }), axis("weight"), { hovermode: "x unified", legend: { orientation: "h", x: 0.5, xanchor: "center", y: -0.28, yanchor: "top" } }),
    label: `Weights of ${layer.name}, ${x.length} output channels; the widest grid is ${digits(Math.max(...sizes) / Math.min(...sizes), 3)} times the narrowest.`,
    table: () => [["Channel", "Smallest", "Largest", "Scale"], x.map((i) => [String(i), digits((w.floatLow || w.low)[i]), digits((w.floatHigh || w.high)[i]), digits(w.scale[i])])],
  };
}

const charts = { depth, map, sensitivity, speed, values, error, weights };

function chart(figure) {
  const [name, argument] = figure.dataset.chart.split(":");
  return charts[name](name === "map" ? figure.querySelector("select").value : argument && Number(argument));
}

let library = null;
// The page's policy names the text of the library by its hash.
function loadLibrary() {
  library ??= (async () => {
    const packed = Uint8Array.from(atob(document.getElementById("library").textContent), (c) => c.charCodeAt(0));
    const script = document.createElement("script");
    script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.append(script);
  })();
  return library;
}

async function draw(figure) {
  const plot = figure.querySelector(".plot");
  const made = chart(figure);
  plot.setAttribute("aria-label", made.label);
  if (made.height) plot.style.height = made.height + "px";
  await loadLibrary();
  await Plotly.react(plot, made.data, made.layout, { displayModeBar: false, responsive: true });
  if (!figure.dataset.drawn && Number.isInteger(made.data[0].customdata?.[0])) plot.on("plotly_click", (event) => show(event.points[0].customdata));
  if (!figure.dataset.drawn && figure.dataset.chart === "map") {
    plot.on("plotly_treemapclick", (event) => {
      const id = event.points[0].id;
      if (!id.startsWith("o:")) return true;
      show(Number(id.slice(2)));
      return false;
    });
  }
  figure.dataset.drawn = "yes";
}

function fillTable(details) {
  const [head, rows] = chart(details.closest("figure")).table();
  const grid = document.createElement("table");
  grid.className = "grid";
  const line = (section, cells, tag) => {
    const row = section.insertRow();
    cells.forEach((text, i) => {
      const cell = document.createElement(i === 0 || tag === "th" ? "th" : "td");
      if (cell.tagName === "TH") cell.scope = tag === "th" ? "col" : "row";
      if (i > 0) cell.className = "num";
      cell.textContent = text;
      row.append(cell);
    });
  };
  line(grid.createTHead(), head, "th");
  const section = grid.createTBody();
  rows.forEach((cells) => line(section, cells, "td"));
  const scroll = document.createElement("div");
  scroll.className = "scroll";
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", details.closest("figure").querySelector("h3").textContent + ", as a table");
  scroll.append(grid);
  details.querySelector(".scroll")?.remove();
  details.append(scroll);
}

// One chart is drawn at a time; in between, what was drawn is shown and the page answers.
let drawn = Promise.resolve();
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    drawn = drawn.then(() => draw(entry.target)).then(() => new Promise((next) => requestAnimationFrame(() => setTimeout(next))));
  }
}, { rootMargin: "100px" });

function prepare(figure) {
  if (figure.dataset.chart === "map") chooseMeasure(figure);
  figure.querySelector(".data").addEventListener("toggle", (event) => { if (event.target.open) fillTable(event.target); });
  seen.observe(figure);
}

function chooseMeasure(figure) {
  const choices = Object.keys(measures).filter((key) => key !== "time" || layers.some((layer) => layer.ms !== null));
  const select = document.createElement("select");
  select.setAttribute("aria-label", "Measure of the map");
  for (const key of choices) select.add(new Option(measures[key][0], key));
  select.addEventListener("change", () => {
    draw(figure);
    const details = figure.querySelector(".data");
    if (details.open) fillTable(details);
  });
  const head = document.createElement("div");
  head.className = "head";
  figure.querySelector("h3").replaceWith(head);
  head.append(Object.assign(document.createElement("h3"), { textContent: "The network as a map" }), select);
}

document.querySelectorAll("figure.chart").forEach(prepare);
document.addEventListener("themechange", () => {
  for (const figure of document.querySelectorAll("figure.chart[data-drawn]")) draw(figure);
});
