// What the page of `mhagen report` is made of: its data, texts, elements, charts and tables. The
// charts are Chart.js's; report.js says what is shown.
"use strict";

const MOST_POINTS = 2000; // drawn in one plot; medians and the Pareto front are of all
const MOST_LABEL = 48; // characters of what an axis is, behind its name
const MOST_VALUES = 40; // an axis with more is not offered where each value takes room
const PAGE = 25; // rows of a table at a time
const HIGHER_IS_BETTER = new Set(["gflops", "fraction"]);
// One for each --group-N of the style sheet.
const MARKS = ["circle", "triangle", "rect", "rectRot", "star", "crossRot"];

// ---- the data ----

const data = JSON.parse(document.getElementById("data").textContent);

const columns = new Map(data.columns.map((column) => [column.key, column]));
columns.set("slowdown", {
  key: "slowdown", title: "relative time", unit: "x", decimals: 2,
  doc: "time over that of the fastest config shown of the same shape",
});

// The values of each column that varies: a list, or the places of its values in a list of texts.
const rows = Array.from({ length: data.count }, () => ({ ...data.constants }));
JSON.parse(document.getElementById("lists").textContent).forEach((list, i) => {
  const key = data.varying[i];
  const values = Array.isArray(list) ? list : list.at.map((place) => place === null ? null : list.of[place]);
  values.forEach((value, n) => {
    if (value !== null) rows[n][key] = value;
  });
});
const measured = rows.filter((row) => row.status === "ok");

const axes = new Map(data.axes.map((axis) => [axis.key, axis]));
const smallAxes = [...axes.values()].filter((axis) => axis.values.length <= MOST_VALUES);
// What can be plotted over: also numbers of which there are too many to choose from.
const plainAxes = [...axes.values()].filter((axis) => axis.key !== "shape"
  && (smallAxes.includes(axis) || axis.values.every((value) => typeof value === "number")));
const tableAxes = smallAxes.filter((axis) => axis.key !== "shape");
const choices = [...axes.values()].filter((axis) => !axis.in_shape && axis.key !== "shape");
const columnsOf = (list) => list.map((axis) => columns.get(axis.key));

const varies = (key) => measured.some((row) => row[key] !== measured[0][key]);
const metrics = [...columns.values()].filter(({ key }) => key === "slowdown"
  || !axes.has(key) && measured.some((row) => typeof row[key] === "number") && varies(key));

// The rows of each value of an axis, in its order; without an axis, all of them.
function groupBy(list, key) {
  const groups = new Map((axes.get(key)?.values ?? []).map((value) => [value, []]));
  for (const row of list) {
    if (!groups.has(row[key])) groups.set(row[key], []);
    groups.get(row[key]).push(row);
  }
  for (const [value, group] of groups) if (group.length === 0) groups.delete(value);
  return groups;
}
const placeOf = (key, value) => axes.get(key)?.values.indexOf(value) ?? 0;

// The number of a value's colour and mark: its place, but the same for a verdict everywhere.
const VERDICTS = { slower: 1, faster: 2, within: 5 };
const groupOf = (key, value) => VERDICTS[value] ?? placeOf(key, value);

function median(values) {
  const sorted = Float64Array.from(values).sort(), middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

const extent = (values) => values.reduce(([least, most], value) => (
  [Math.min(least, value), Math.max(most, value)]), [Infinity, -Infinity]);

// Whether values differ by so much that a logarithmic scale helps.
function prefersLog(values, ratio = 20) {
  const [least, most] = extent(values);
  return least > 0 && most / least >= ratio;
}
const valuesOf = (list, key) => list.map((row) => row[key]).filter(Number.isFinite);

// ---- text ----

const count = (n) => n.toLocaleString("en-US");
const unitOf = (column) => ({ us: "µs", x: "×" })[column.unit] ?? column.unit;
const withUnit = (column, value) => `${textOf(column, value)} ${unitOf(column)}`.trim();

function labelOf(column) {
  if (column.unit) return `${column.title} (${unitOf(column)})`;
  const what = axes.has(column.key) ? column.doc.split(/[;:]/)[0] : ""; // the first clause, if it is short
  return what && what.length <= MOST_LABEL ? `${column.title}: ${what}` : column.title;
}

function textOf(column, value) {
  if (value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (column.decimals === "e") return value.toExponential(1);
  const minimumFractionDigits = column.decimals ?? 0;
  return value.toLocaleString("en-US", {
    minimumFractionDigits, maximumFractionDigits: column.decimals ?? 3 });
}

// ---- elements ----

const $ = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// A labelled choice of a column; state[name] is the key of the chosen one.
function choose(parent, title, state, name, options, changed) {
  const select = make("select", { id: `choose-${name}` });
  for (const { key, title } of options) {
    select.append(make("option", { value: key, textContent: title }));
  }
  select.value = state[name];
  select.onchange = () => { state[name] = select.value; changed(); };
  parent.append(make("label", {}, title, select));
}

function check(parent, title, id, changed) {
  const input = make("input", { type: "checkbox", id });
  input.onchange = () => changed(input.checked);
  parent.append(make("label", { className: "check" }, input, title));
  return input;
}

// ---- details of one config ----

function showDetails(row) {
  $("details-name").textContent = row.name;
  $("details-message").textContent =
    row.status === "ok" ? "" : `${row.status}: ${row.message ?? ""}`;
  $("details-command").textContent = row.command ?? "";
  $("copy").textContent = "Copy";
  $("copy").parentElement.hidden = row.command === undefined;
  const told = ["name", "status", "message", "command"];
  const facts = [...columns.values()]
    .filter(({ key }) => row[key] !== undefined && !told.includes(key));
  const measure = (column) => column.unit !== "" || column.decimals !== undefined;
  facts.sort((a, b) => measure(b) - measure(a)); // what was measured comes first
  $("details-table").replaceChildren(...facts.map((column) => make("tr", {},
    make("th", { scope: "row", textContent: column.title }),
    make("td", {}, withUnit(column, row[column.key]),
         make("small", { textContent: column.doc === column.title ? "" : column.doc })))));
  $("details").showModal();
}

$("copy").onclick = async () => {
  const code = $("details-command");
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch { // no clipboard, or no leave to use it
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  $("copy").textContent = "Copied";
};
$("details").onclick = (event) => { if (event.target === $("details")) $("details").close(); };

// ---- charts ----

const charts = new Map();

// A colour of the style sheet, as it is on this theme.
function color(name, alpha = 1) {
  const probe = $("theme");
  probe.style.color = `var(--${name})`;
  const [r, g, b] = getComputedStyle(probe).color.match(/[\d.]+/g);
  probe.style.color = "";
  return `rgb(${r} ${g} ${b} / ${alpha})`;
}
const groupColor = (n, alpha) => color(`group-${n % MARKS.length}`, alpha);

const scaleOf = (text, more) => ({
  ...more,
  title: { display: true, text, color: color("ink") },
  grid: { color: color("line"), borderColor: color("line") },
  ticks: { color: color("faint"), maxRotation: 60, ...more.ticks },
});

function draw(id, label, type, datasets, scales, { labels, tooltip = {} } = {}) {
  charts.get(id)?.destroy();
  if (!labels) for (const { data } of datasets) data.sort((a, b) => a.x - b.x); // a chart looks points up by halving
  const canvas = $(id);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  charts.set(id, new Chart(canvas, {
    type,
    data: { labels, datasets },
    options: {
      animation: false, maintainAspectRatio: false, normalized: true, parsing: labels !== undefined,
      interaction: labels ? { mode: "index", intersect: false } : { mode: "nearest" },
      onClick: (event, items) => {
        const points = items.map((item) => datasets[item.datasetIndex].data[item.index]);
        const point = points.find(({ row }) => row);
        if (point) showDetails(point.row);
      },
      plugins: {
        legend: {
          display: datasets.some((set) => set.label), align: "start", onClick: null,
          labels: { usePointStyle: true, boxHeight: 7, color: color("ink"),
                    filter: (item) => item.text },
        },
        tooltip: { usePointStyle: true, callbacks: tooltip },
      },
      scales,
    },
  }));
}

// What is said of a config whose point is at these two columns.
const pointTooltip = (...keys) => ({
  title: ([item]) => item?.raw.row?.shape ?? "",
  label: ({ raw: { row, y }, dataset }) => {
    const values = keys.filter((key) => !axes.has(key)).map((key) => columns.get(key));
    if (!row) return `${dataset.label}: median ${withUnit(values.at(-1), y)}`;
    return [...choices.map(({ key }) => `${key} ${row[key]}`),
            ...values.map((column) => `${column.title} ${withUnit(column, row[column.key])}`)];
  },
});

const sample = (list) => list.length <= MOST_POINTS ? list
  : Array.from({ length: MOST_POINTS }, (_, i) => list[Math.floor(i * list.length / MOST_POINTS)]);

const pointsOf = (n, points, alpha = .3) => ({
  data: points, pointStyle: MARKS[n % MARKS.length], pointRadius: 3, pointHoverRadius: 6,
  backgroundColor: groupColor(n, alpha), borderColor: groupColor(n, alpha + .2), borderWidth: 1,
});

// A scale of numbers; a logarithmic one has labels at 1, 2 and 5 of each decade.
const numberScale = (column, log) => scaleOf(labelOf(column), {
  type: log ? "logarithmic" : "linear", beginAtZero: !log && column.unit !== "bytes",
  ticks: { callback: (value) => {
    if (log && !/^[125]/.test(value.toExponential(0))) return null;
    const plain = value === 0 || value >= 1e-3 && value < 1e7;
    return plain ? value.toLocaleString("en-US") : value.toExponential(0);
  } },
});

// How the values of an axis lie on a scale: by size if all are numbers, else side by side. place()
// puts a value there, moved by a share of the least distance of two.
function placing(axis, log) {
  const numeric = axis.values.every((value) => typeof value === "number");
  const there = !numeric ? (value) => axis.values.indexOf(value) : log ? Math.log : Number;
  const back = numeric && log ? Math.exp : Number;
  const at = axis.values.map(there);
  const gap = Math.min(...at.slice(1).map((x, i) => x - at[i]));
  const marked = []; // the values with a label, so far apart that they can be read
  at.forEach((x, i) => {
    if (marked.length === 0 || x - at[marked.at(-1)] >= (at.at(-1) - at[0]) / 16) marked.push(i);
  });
  return {
    numeric,
    place: (value, share) => numeric ? value : back(there(value) + share * gap), // words have room beside them
    scale: {
      type: numeric && log ? "logarithmic" : "linear",
      min: back(at[0] - gap / 2), max: back(at.at(-1) + gap / 2),
      afterBuildTicks: (scale) => { scale.ticks = marked.map((i) => ({ value: back(at[i]) })); },
      ticks: { callback: (_, k) => String(axis.values[marked[k]]), autoSkip: false },
    },
  };
}

// ---- tables of rows ----

const collator = new Intl.Collator("en", { numeric: true });

// Orders rows by a column; what has no value comes last.
function ordering(key, down) {
  const compare = axes.has(key) ? (a, b) => placeOf(key, a) - placeOf(key, b)
    : (a, b) => typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b);
  return ({ [key]: a }, { [key]: b }) => {
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    return down ? compare(b, a) : compare(a, b);
  };
}

const linkTo = (row, textContent) => make("button", {
  type: "button", className: "link", textContent, onclick: () => showDetails(row) });

// A sorted table, a page at a time; returns the function that fills it with rows.
function rowTable(parent, caption, keys, key) {
  const state = { key, down: false, page: 0, rows: [] };
  const used = keys.filter((each) => columns.has(each)).map((each) => columns.get(each));
  const wordsOf = (column) => column.words ? "words" : "";
  const heads = used.map((column) => {
    const button = make("button", { type: "button", title: column.doc },
                        make("span", { className: "head", textContent: column.title }));
    if (column.unit) {
      button.append(make("span", { className: "unit", textContent: unitOf(column) }));
    }
    button.onclick = () => {
      state.down = state.key === column.key ? !state.down : HIGHER_IS_BETTER.has(column.key);
      [state.key, state.page] = [column.key, 0];
      show();
    };
    return make("th", { scope: "col", className: wordsOf(column) }, button);
  });
  const body = make("tbody");
  const where = make("span", { className: "quiet" });
  const turn = (textContent, step) => make("button", {
    type: "button", textContent, onclick: () => { state.page += step; show(); } });
  const [before, after] = [turn("Previous", -1), turn("Next", 1)];
  parent.append(
    make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: caption },
         make("table", { className: "results" },
              make("thead", {}, make("tr", {}, ...heads)), body)),
    make("div", { className: "pager" }, before, after, where));

  const cellOf = (row, column, i) => {
    const text = textOf(column, row[column.key]);
    const className = wordsOf(column) + (column.key === "message" ? " message" : "");
    return make("td", { className }, i === 0 ? linkTo(row, text) : text);
  };
  function show() {
    const list = [...state.rows].sort(ordering(state.key, state.down));
    const first = state.page * PAGE;
    const part = list.slice(first, first + PAGE);
    body.replaceChildren(...part.map((row) => (
      make("tr", {}, ...used.map((column, i) => cellOf(row, column, i))))));
    heads.forEach((head, i) => {
      const sorted = used[i].key === state.key;
      head.ariaSort = !sorted ? "none" : state.down ? "descending" : "ascending";
    });
    before.disabled = state.page === 0;
    after.disabled = first + PAGE >= list.length;
    where.textContent = list.length === 0 ? "No configs"
      : `${count(first + 1)}–${count(first + part.length)} of ${count(list.length)}`;
  }
  return (list) => { [state.rows, state.page] = [list, 0]; show(); };
}
