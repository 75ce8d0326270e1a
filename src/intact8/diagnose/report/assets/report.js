"use strict";
// This script folds, filters, sorts and opens rows of tables. Without it the page can still be read.
const figures = JSON.parse(document.getElementById("figures").textContent);
// Rows are the text of an element until they are first seen; each begins with its class, its id and that of its module.
const source = document.getElementById("rows");
const [head, ...texts] = source.textContent.split(/(?=<tr class="(?:module|op)")/);
source.outerHTML = head;
const table = document.getElementById("ops");
const body = table.tBodies[0];
const inert = document.createElement("template");
function elementOf(text) {
  inert.innerHTML = text;
  return inert.content.firstElementChild;
}

class Row {
  #text;
  #element;
  detail = null; // the row below with charts, once it was opened
  constructor(text) {
    const [, kind, id, parent] = /^<tr class="(\w+)" id="(\w+)" data-parent="(\w*)"/.exec(text);
    Object.assign(this, { kind, id, parent });
    this.#text = text;
  }
  get element() { return (this.#element ??= elementOf(this.#text)); }
  get data() { return this.element.dataset; }
  get button() { return this.element.querySelector("button"); }
  get opened() { return this.detail !== null && this.button.getAttribute("aria-expanded") === "true"; }
  set expanded(on) { this.button.setAttribute("aria-expanded", String(on)); }
}
const all = texts.map((text) => new Row(text));
const byId = new Map(all.map((row) => [row.id, row]));
const operations = all.filter((row) => row.kind === "op");
let order = all; // as they are shown
const folded = new Set();

const find = document.getElementById("find");
const kind = document.getElementById("kind");
const only = document.getElementById("only");

function matches(row) {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  return words.every((word) => row.data.text.includes(word))
    && (!kind.value || row.data.kind === kind.value)
    && (!only.value || row.data.flags.split(" ").includes(only.value));
}

function* modulesAround(row) {
  for (let up = byId.get(row.parent); up; up = byId.get(up.parent)) yield up;
}
const inFolded = (row) => [...modulesAround(row)].some((module) => folded.has(module.id));

function refresh() {
  const filtering = Boolean(find.value || kind.value || only.value);
  const fitting = filtering ? operations.filter(matches) : operations;
  const shown = new Set(fitting);
  if (order === all) fitting.forEach((row) => [...modulesAround(row)].forEach((module) => shown.add(module)));
  // A row that is searched for is shown even where its module is folded.
  const visible = order.filter((row) => shown.has(row) && (filtering || order !== all || !inFolded(row)));
  for (const row of visible) if (row.kind === "module") row.expanded = filtering || !folded.has(row.id);
  const wanted = visible.flatMap((row) => (row.opened ? [row.element, row.detail] : [row.element]));
  const staying = new Set(wanted);
  for (const element of [...body.rows]) if (!staying.has(element)) element.remove();
  // Rows that stay where they are keep the focus.
  let next = body.firstElementChild;
  for (const element of wanted) {
    if (element === next) next = next.nextElementSibling;
    else body.insertBefore(element, next);
  }
  document.getElementById("shown").textContent = `${fitting.length} of ${operations.length} operations`;
}

// What a row opens is put into the page when it is first opened: a thousand operations would be a hundred thousand elements.
let details = null;
function open(row, on) {
  if (on && !row.detail) {
    details ??= JSON.parse(document.getElementById("details").textContent);
    row.detail = elementOf(`<tr class="detail" id="d${row.data.index}"><td colspan="${table.tHead.rows[0].cells.length}"></td></tr>`);
    row.detail.cells[0].innerHTML = details[row.data.index];
    row.detail.querySelectorAll("figure.chart").forEach(prepare);
  }
  row.expanded = on;
}

table.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const row = byId.get(button.closest("tr").id);
  if (button.classList.contains("open")) open(row, !row.opened);
  if (button.classList.contains("fold") && !folded.delete(row.id)) folded.add(row.id);
  if (row) refresh();
});
for (const control of [find, kind, only]) control.addEventListener("input", refresh);
for (const form of document.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());
document.getElementById("expand").addEventListener("click", () => { folded.clear(); refresh(); });
function collapse() {
  for (const row of all) {
    if (row.kind === "module") folded.add(row.id);
    else if (row.opened) open(row, false);
  }
  refresh();
}
document.getElementById("collapse").addEventListener("click", collapse);
if (operations.length > 300) collapse(); // all rows take long
else refresh();
// Tables in closed details are text until they are opened.
for (const text of document.querySelectorAll("details > noscript")) {
  text.parentNode.addEventListener("toggle", () => { text.outerHTML = text.textContent; }, { once: true });
}

// Rows without a value come last in both directions.
function compare(kind, direction) {
  return ([a], [b]) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const order = kind === "number" ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true });
    return direction * order;
  };
}

function sort(button) {
  const head = button.closest("th");
  const grid = head.closest("table");
  const descending = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentNode.cells) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const rows = grid === table ? operations : [...grid.tBodies[0].rows];
  const keyed = rows.map((row) => [(row.element ?? row).cells[head.cellIndex].dataset.v, row]);
  keyed.sort(compare(button.dataset.sort, descending ? -1 : 1));
  const sorted = keyed.map(([, row]) => row);
  if (grid !== table) {
    grid.tBodies[0].append(...sorted);
    return;
  }
  order = sorted;
  grid.classList.add("flat");
  document.getElementById("order").hidden = false;
  refresh();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest(".sort");
  if (button) sort(button);
  const link = event.target.closest("[data-layer]");
  if (link) {
    event.preventDefault(); // following the link would move the focus
    show(Number(link.dataset.layer));
  }
});
document.getElementById("order").addEventListener("click", (event) => {
  table.classList.remove("flat");
  for (const head of table.tHead.rows[0].cells) head.setAttribute("aria-sort", "none");
  order = all;
  event.target.hidden = true;
  refresh();
  find.focus();
});

// A link to an operation opens it, even where it was filtered out or folded.
function show(index) {
  const row = byId.get("o" + index);
  find.value = kind.value = only.value = "";
  for (const module of modulesAround(row)) folded.delete(module.id);
  open(row, true);
  refresh();
  row.button.focus({ preventScroll: true });
  row.element.scrollIntoView({ block: "center" });
}

for (const box of document.querySelectorAll("input[data-severity]")) {
  box.addEventListener("change", () => {
    for (const item of document.querySelectorAll(`.finding[data-severity="${box.dataset.severity}"]`)) item.hidden = !box.checked;
  });
}

// The theme is the system's unless one is chosen. The browser may forbid a page from disk to store the choice.
const themes = ["system", "light", "dark"];
const themeButton = document.getElementById("theme");
function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  themeButton.textContent = "Theme: " + theme;
  themeButton.dataset.theme = theme;
  document.dispatchEvent(new Event("themechange"));
}
function remembered() {
  try { return localStorage.getItem("intact8-theme"); } catch { return null; }
}
themeButton.addEventListener("click", () => {
  const next = themes[(themes.indexOf(themeButton.dataset.theme) + 1) % themes.length];
  setTheme(next);
  try { localStorage.setItem("intact8-theme", next); } catch { /* the choice is not stored */ }
});
setTheme(themes.includes(remembered()) ? remembered() : "system");
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("themechange")));
