// The page of `mhagen report`: its sections, the filters before them, and its theme.
"use strict";

// ---- filters ----

const chosen = new Map([...axes.keys()].map((key) => [key, new Set()])); // nothing chosen: all

const passes = (row) => [...chosen].every(([key, values]) => !values.size || values.has(row[key]));

function buildFilters() {
  const form = $("axes");
  for (const axis of smallAxes) {
    const { title, doc } = columns.get(axis.key);
    const chips = make("div", { className: "chips" });
    for (const value of axis.values) {
      const input = make("input", { type: "checkbox", name: axis.key, value: String(value) });
      input.onchange = () => {
        chosen.get(axis.key)[input.checked ? "add" : "delete"](value);
        refresh();
      };
      chips.append(make("label", {}, input, make("span", { textContent: String(value) })));
    }
    form.append(make("fieldset", { title: doc }, make("legend", { textContent: title }), chips));
  }
  form.append(make("button", { type: "reset", id: "clear", textContent: "Clear all" }));
  form.onreset = () => {
    for (const values of chosen.values()) values.clear();
    refresh();
  };
  form.onsubmit = (event) => event.preventDefault();
  $("filters").open = matchMedia("(min-width: 50rem)").matches;
  document.querySelector("aside").hidden = axes.size === 0;
}

// ---- speed over an axis ----

const speed = {
  x: axes.has("seq") ? "seq" : plainAxes[0]?.key, by: axes.has("isa") ? "isa" : "none", logX: false,
  left: "us_median", right: columns.has("fraction") ? "fraction" : "slowdown", log: {},
};

// A column of dots for each group at each value of the axis, and a line through their medians.
function drawOver(side) {
  const [x, y, axis] = [columns.get(speed.x), columns.get(speed[side]), axes.get(speed.x)];
  const known = shown.filter((row) => row[y.key] !== undefined);
  const log = speed.log[side] && known.every((row) => row[y.key] > 0);
  const { numeric, place, scale } = placing(axis, speed.logX);
  const groups = groupBy(known, speed.by);
  const dots = groupBy(sample(known), speed.by);
  const together = speed.by === speed.x;
  const width = together ? .6 : .6 / groups.size;
  const datasets = [...groups].flatMap(([value, group], i) => {
    const n = groupOf(speed.by, value);
    const middle = together ? 0 : (i + .5) * width - .3;
    const medians = [...groupBy(group, speed.x)].map(([at, part]) => (
      { x: place(at, middle), y: median(valuesOf(part, y.key)) }));
    const apart = (k) => middle + .8 * width * ((k * .618 + .5) % 1 - .5);
    const points = (dots.get(value) ?? []).map((row, k) => (
      { x: place(row[speed.x], apart(k)), y: row[y.key], row }));
    return [
      { ...pointsOf(n, medians, .9), label: String(value ?? "median"), order: 0, pointRadius: 5,
        showLine: numeric, borderWidth: 2, pointBorderColor: color("paper"), pointBorderWidth: 1 },
      { ...pointsOf(n, points), order: 1 },
    ];
  });
  draw(`${side}-chart`, `${labelOf(y)} over ${labelOf(x)}`, "scatter", datasets,
       { x: scaleOf(labelOf(x), scale), y: numberScale(y, log) },
       { tooltip: pointTooltip(speed.x, y.key) });
}

function drawSpeed() {
  drawOver("left");
  drawOver("right");
  $("sampled").textContent = shown.length <= MOST_POINTS ? ""
    : `Of ${count(shown.length)} points ${count(MOST_POINTS)} are drawn.`;
}

// Scales are logarithmic where that helps, until their box is used.
function buildSpeed() {
  const parent = $("speed-controls");
  const chooseLogX = () => {
    const { values } = axes.get(speed.x);
    logX.disabled = !values.every((value) => value > 0);
    logX.checked = speed.logX = !logX.disabled && prefersLog(values, 8);
  };
  choose(parent, "Over", speed, "x", columnsOf(plainAxes), () => { chooseLogX(); drawSpeed(); });
  choose(parent, "Coloured by", speed, "by", [{ key: "none", title: "nothing" },
                                              ...columnsOf(smallAxes)], drawCharts);
  const logX = check(parent, "log x", "log-x", (on) => { speed.logX = on; drawSpeed(); });
  chooseLogX();
  for (const side of ["left", "right"]) {
    const controls = $(`${side}-controls`);
    const chooseLog = () => {
      log.checked = speed.log[side] = prefersLog(valuesOf(measured, speed[side]));
    };
    choose(controls, "Value", speed, side, metrics, () => { chooseLog(); drawOver(side); });
    const log = check(controls, "log", `log-${side}`, (on) => {
      speed.log[side] = on;
      drawOver(side);
    });
    chooseLog();
  }
}

// ---- heat map: a table, so that its numbers can be read, copied and heard ----

const heat = {
  row: (tableAxes.find(({ key }) => key === speed.x) ?? tableAxes[0])?.key,
  column: axes.has("isa") ? "isa" : tableAxes.find(({ key }) => key !== speed.x)?.key,
  value: speed.right, of: "best",
};

function drawHeat() {
  const column = columns.get(heat.value);
  const [best, word] = HIGHER_IS_BETTER.has(heat.value) ? [1, "highest"] : [0, "lowest"];
  const of = heat.of === "best" ? (values) => extent(values)[best] : median;
  const known = shown.filter((row) => row[heat.value] !== undefined);
  const across = [...groupBy(known, heat.column).keys()];
  const lines = [...groupBy(known, heat.row)].map(([value, group]) => {
    const parts = groupBy(group, heat.column);
    return [value, across.map((at) => parts.has(at) && of(valuesOf(parts.get(at), heat.value)))];
  });
  const all = lines.flatMap(([, cells]) => cells.filter((cell) => cell !== false));
  const log = prefersLog(all);
  const [there, [least, most]] = [log ? Math.log : Number, extent(all)];
  const shareOf = (value) => most === least ? .5
    : .06 + .94 * (there(value) - there(least)) / (there(most) - there(least));
  const short = (value) => column.decimals === "e" ? value.toExponential(1)
    : value.toLocaleString("en-US", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 });

  function cellOf(value) {
    if (value === false) return make("td", { className: "none", textContent: "–" });
    const share = shareOf(value);
    const cell = make("td", { textContent: short(value), className: share > .55 ? "strong" : "" });
    cell.style.setProperty("--share", `${Math.round(100 * share)}%`);
    return cell;
  }
  const head = (scope, textContent) => make("th", { scope, textContent });
  const corner = `${columns.get(heat.row).title} ↓ ${columns.get(heat.column).title} →`;
  $("heat-table").replaceChildren(
    make("thead", {}, make("tr", {}, head("col", corner), ...across.map((at) => head("col", at)))),
    make("tbody", {}, ...lines.map(([value, cells]) => (
      make("tr", {}, head("row", value), ...cells.map(cellOf))))));
  $("heat-scale").textContent = all.length === 0 ? ""
    : `${labelOf(column)}, the ${heat.of === "best" ? word : "median"} of the configs of a cell: `
      + `from ${short(least)}, pale, to ${short(most)}, strong`
      + `${log ? ", on a logarithmic scale" : ""}.`;
}

function buildHeat() {
  const controls = $("heat-controls");
  choose(controls, "Down", heat, "row", columnsOf(smallAxes), drawHeat);
  choose(controls, "Across", heat, "column", columnsOf(smallAxes), drawHeat);
  choose(controls, "Value", heat, "value", metrics, drawHeat);
  choose(controls, "Of each cell", heat, "of", [{ key: "best", title: "best" },
                                                { key: "median", title: "median" }], drawHeat);
}

// ---- speed against what it costs: code, or exactness where number types differ ----

const speeds = metrics.filter(({ key }) => /^(gflops|fraction|us_median|slowdown)$/.test(key));
const costs = metrics.filter(({ key }) => /^(text_bytes|error)$/.test(key));
const types = [...axes.keys()].some((key) => /(^|_)dtype$/.test(key));
const size = { y: columns.has("gflops") ? "gflops" : "us_median",
               against: types && columns.has("error") ? "error" : costs[0]?.key };

// From the least cost on, each row that is faster than all before.
function frontOf(list, cost, key) {
  const sign = HIGHER_IS_BETTER.has(key) ? -1 : 1;
  const sorted = [...list].sort((a, b) => a[cost] - b[cost] || sign * (a[key] - b[key]));
  let best = Infinity;
  return sorted.filter((row) => sign * row[key] < best && ((best = sign * row[key]), true));
}

function drawSize() {
  const [x, y] = [columns.get(size.against), columns.get(size.y)];
  const known = shown.filter((row) => row[x.key] > 0 && row[y.key] !== undefined);
  const front = frontOf(known, x.key, y.key);
  const pointOf = (row) => ({ x: row[x.key], y: row[y.key], row });
  const datasets = [...groupBy(sample(known), speed.by)].map(([value, group]) => (
    { ...pointsOf(groupOf(speed.by, value), group.map(pointOf)), order: 1,
      label: String(value ?? "config") }));
  datasets.push({
    data: front.map(pointOf), label: "Pareto front", order: 0, showLine: true, stepped: "before",
    pointRadius: 3, borderWidth: 1.5, borderColor: color("ink"), backgroundColor: color("ink") });
  draw("size-chart", `${labelOf(y)} against ${labelOf(x)}`, "scatter", datasets, {
    x: numberScale(x, prefersLog(valuesOf(known, x.key), 8)),
    y: numberScale(y, prefersLog(valuesOf(known, y.key))),
  }, { tooltip: pointTooltip(x.key, y.key) });
  $("front").replaceChildren(...front.map((row) => make("li", {}, linkTo(row, row.name),
    `: ${withUnit(x, row[x.key])}, ${withUnit(y, row[y.key])}`)));
}

function buildSize() {
  const controls = $("size-controls");
  choose(controls, "Speed as", size, "y", speeds, drawSize);
  choose(controls, "Against", size, "against", costs, drawSize);
}

// ---- histograms ----

// How many configs have which value, on a logarithmic scale, a colour for each value of `by`.
function drawHistogram(id, key, by) {
  const column = columns.get(key);
  const known = shown.filter((row) => row[key] > 0);
  const [least, most] = extent(known.map((row) => Math.log(row[key])));
  const bins = most > least ? 32 : 1;
  const binOf = (row) => most > least
    ? Math.min(bins - 1, Math.floor((Math.log(row[key]) - least) / (most - least) * bins)) : 0;
  const labels = known.length === 0 ? [] : Array.from({ length: bins }, (_, i) => (
    textOf(column, Math.exp(least + (i + .5) * (most - least) / bins))));
  const datasets = [...groupBy(known, by)].map(([value, group]) => {
    const counts = new Array(bins).fill(0);
    for (const row of group) counts[binOf(row)]++;
    return { data: counts, label: String(value ?? "configs"), pointStyle: "rect",
             backgroundColor: groupColor(groupOf(by, value), .85),
             categoryPercentage: 1, barPercentage: .94 };
  });
  draw(id, `Configs by ${labelOf(column)}`, "bar", datasets, {
    x: scaleOf(`${labelOf(column)}, logarithmic`,
               { stacked: true, ticks: { maxTicksLimit: 7, maxRotation: 0 } }),
    y: scaleOf("configs", { stacked: true, ticks: { precision: 0 } }),
  }, { labels });
}

// ---- tuning ----

function drawTuning() {
  [...groupBy(data.tuning, "shape")].forEach(([shape, list], n) => {
    const id = `tuning-chart-${n}`;
    if (!$(id)) {
      $("tuning-charts").append(make("figure", {}, make("figcaption", { textContent: shape }),
        make("div", { className: "plot low" }, make("canvas", { id }))));
    }
    const end = Math.max(...list.map((row) => row.second));
    const line = (label, points, name, borderDash = []) => ({
      data: points, label, showLine: true, stepped: "before", pointRadius: 0, pointStyle: "line",
      borderColor: color(name), borderWidth: 2, borderDash });
    const soFar = (method) => {
      let best = Infinity;
      const points = list.filter((row) => row.method === method)
        .sort((a, b) => a.second - b.second)
        .map((row) => ({ x: row.second, y: best = Math.min(best, row.us) }));
      return points.length > 0 ? [...points, { x: end, y: best }] : points;
    };
    const y = list[0].default_us;
    draw(id, `Best time so far for ${shape}`, "scatter", [
      line("tune", soFar("model"), "group-0"), line("random", soFar("random"), "group-1", [6, 4]),
      line("default", [{ x: 0, y }, { x: end, y }], "faint", [2, 3]),
    ], { x: scaleOf("search (s)", { type: "linear", min: 0 }),
         y: scaleOf("best time (µs)", { type: "linear" }) });
  });
}

// ---- the head, and what is said once ----

const MACHINE = ["cpu", "cores", "system", "compiler", "flags", "version"];

function fact(title, value, unit = "") {
  $("summary").append(make("div", {}, make("dt", { textContent: title }),
                           make("dd", {}, value, make("small", { textContent: ` ${unit}` }))));
}

function buildHead() {
  document.title = `mhagen report: ${data.dir}`;
  $("dir").textContent = data.dir;
  $("notes").append(...data.notes.map((note) => make("li", { textContent: note })));
  fact("configs", count(rows.length));
  const skipped = rows.filter((row) => row.status === "skipped").length;
  fact("failed", count(rows.length - measured.length - skipped));
  if (skipped > 0) fact("skipped", count(skipped));
  for (const [title, key] of [["highest share of peak", "fraction"], ["highest speed", "gflops"],
                              ["largest error", "error"]]) {
    const values = valuesOf(measured, key);
    const column = columns.get(key);
    if (values.length > 0) fact(title, textOf(column, extent(values)[1]), unitOf(column));
  }
  const machine = MACHINE.filter((key) => columns.has(key)).map((key) => (
    [columns.get(key), [...new Set(rows.map((row) => row[key]))].filter(Boolean).join("; ")]));
  $("machine-line").textContent = machine.filter(([{ key }]) => key === "cpu" || key === "compiler")
    .map(([, text]) => text).join(" · ");
  $("machine-list").append(...machine.flatMap(([{ title, doc }, text]) => (
    [make("dt", { textContent: title, title: doc }), make("dd", { textContent: text })])));
}

function buildComparison() {
  const { dir, counts, band, mean, only_there: onlyThere } = data.comparison;
  $("other-dir").textContent = `with ${dir}`;
  $("comparison-text").textContent =
    `${count(counts.slower)} configs are slower there by more than ${band} %, `
    + `${count(counts.faster)} faster, ${count(counts.within)} within. `
    + (mean ? `The geometric mean of the ratios is ${mean.toFixed(3)}. ` : "")
    + `${counts.fails} fail only there, ${counts.fixed} only here. `
    + `${counts["only here"]} are only here, ${onlyThere.length} only there.`;
  fact("slower there", count(counts.slower));
  $("only-there").hidden = onlyThere.length === 0;
  $("only-there-count").textContent = `Configs only there (${onlyThere.length})`;
  $("only-there-list").append(...onlyThere.map((name) => make("li", { textContent: name })));
}

function buildContents() {
  for (const section of document.querySelectorAll("section:not([hidden])")) {
    const { textContent } = section.querySelector("h2").firstChild;
    $("contents").append(make("a", { href: `#${section.id}`, textContent }));
  }
}

// ---- the page ----

let shown = []; // the measured rows that pass the filters

const keysOf = (list) => list.map(({ key }) => key);
const fillConfigs = rowTable($("configs-table"), "Configs", [
  "shape", "us_median", ...keysOf(choices), "slowdown", "gflops", "fraction", "text_bytes", "error",
  "us_there", "ratio"], "us_median");
const fillFailures = rowTable($("failures-table"), "Failed or skipped", [
  "shape", "status", "message", ...keysOf(choices)], "status");
const listConfigs = () => {
  fillConfigs($("fastest").checked ? shown.filter((row) => row.slowdown === 1) : shown);
};
$("fastest").onchange = listConfigs;

// Each section: whether there is anything to show; what to do once, and for new rows or colours.
const any = measured.length > 0;
const sections = [
  { id: "comparison", has: data.comparison, build: buildComparison,
    draw: () => drawHistogram("comparison-chart", "ratio", "verdict") },
  { id: "speed", has: any && plainAxes.length > 0, build: buildSpeed, draw: drawSpeed },
  { id: "heat", has: any && tableAxes.length > 1, build: buildHeat, draw: drawHeat },
  { id: "size", has: measured.some((row) => row[size.against] > 0), build: buildSize, draw: drawSize },
  { id: "errors", has: measured.some((row) => row.error > 0),
    draw: () => drawHistogram("errors-chart", "error", speed.by) },
  { id: "tuning", has: data.tuning?.length > 0, draw: drawTuning },
  { id: "configs", has: any },
  { id: "failures", has: measured.length < rows.length },
].filter(({ id, has }) => { $(id).hidden = !has; return has; });

const drawCharts = () => { for (const section of sections) section.draw?.(); };

function refresh() {
  const passed = rows.filter(passes);
  shown = passed.filter((row) => row.status === "ok");
  for (const group of groupBy(shown, "shape").values()) {
    const [fastest] = extent(valuesOf(group, "us_median"));
    for (const row of group) row.slowdown = row.us_median / fastest;
  }
  const words = [...chosen].filter(([, values]) => values.size > 0)
    .map(([key, values]) => `${columns.get(key).title} ${[...values].join(" or ")}`);
  $("count").textContent = words.length === 0 ? `All ${count(rows.length)} configs`
    : `${count(passed.length)} of ${count(rows.length)} configs: ${words.join("; ")}`;
  listConfigs();
  fillFailures(passed.filter((row) => row.status !== "ok"));
  drawCharts();
}

// ---- theme ----

const dark = matchMedia("(prefers-color-scheme: dark)");

function setTheme(isDark) {
  document.documentElement.style.colorScheme = isDark ? "dark" : "light";
  $("theme").textContent = isDark ? "Light theme" : "Dark theme";
  $("theme").onclick = () => setTheme(!isDark);
  drawCharts();
}
dark.onchange = () => setTheme(dark.matches);
for (const [event, printing] of [["beforeprint", true], ["afterprint", false]]) {
  addEventListener(event, () => {
    document.documentElement.classList.toggle("printing", printing);
    drawCharts();
  });
}

Chart.defaults.font.family = getComputedStyle(document.documentElement).fontFamily;
buildHead();
buildFilters();
for (const section of sections) section.build?.();
buildContents();
refresh();
setTheme(dark.matches);
