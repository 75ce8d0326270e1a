"use strict";
// This script folds, filters, sorts and opens rows of tables. Without it the page can still be read.
const figures = JSON.parse(document.getElementById("figures").textContent);
const table = document.getElementById("ops");
const body = table.tBodies[0];
const all = [...body.rows];
const operations = all.filter((row) => row.classList.contains("op"));
const modules = new Map(all.filter((row) => row.classList.contains("module")).map((row) => [row.id, row]));
const detail = (row) => document.getElementById("d" + row.dataset.index);
const folded = new Set();

const find = document.getElementById("find");
const kind = document.getElementById("kind");
const only = document.getElementById("only");

function matches(row) {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  return words.every((word) => row.dataset.text.includes(word))
    && (!kind.value || row.dataset.kind === kind.value)
    && (!only.value || row.dataset.flags.split(" ").includes(only.value));
}

function inFolded(row) {
  for (let up = modules.get(row.dataset.parent); up; up = modules.get(up.dataset.parent)) {
    if (folded.has(up.id)) return true;
  }
  return false;
}

function refresh() {
  const flat = table.classList.contains("flat");
  const filtering = Boolean(find.value || kind.value || only.value);
  const alive = new Set();
  let count = 0;
  for (const row of operations) {
    const fits = matches(row);
    count += fits;
    // A row that is searched for is shown even where its module is folded.
    row.hidden = !fits || (!flat && !filtering && inFolded(row));
    detail(row).hidden = row.hidden || row.querySelector(".open").getAttribute("aria-expanded") !== "true";
    if (fits) {
      for (let up = modules.get(row.dataset.parent); up; up = modules.get(up.dataset.parent)) alive.add(up.id);
    }
  }
  for (const row of modules.values()) {
    row.hidden = flat || !alive.has(row.id) || (!filtering && inFolded(row));
    row.querySelector(".fold").setAttribute("aria-expanded", String(filtering || !folded.has(row.id)));
  }
  document.getElementById("shown").textContent = `${count} of ${operations.length} operations`;
}

// What a row opens is put into the page when it is first opened: a thousand operations would be a hundred thousand elements.
let details = null;
function open(row, on) {
  const cell = detail(row).cells[0];
  if (on && !cell.firstChild) {
    details ??= JSON.parse(document.getElementById("details").textContent);
    cell.innerHTML = details[row.dataset.index];
    cell.querySelectorAll("figure.chart").forEach(prepare);
  }
  row.querySelector(".open").setAttribute("aria-expanded", String(on));
  detail(row).hidden = !on || row.hidden;
}

table.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  const row = button.closest("tr");
  if (button.classList.contains("open")) open(row, button.getAttribute("aria-expanded") !== "true");
  if (button.classList.contains("fold")) {
    if (!folded.delete(row.id)) folded.add(row.id);
    refresh();
  }
});
for (const control of [find, kind, only]) control.addEventListener("input", refresh);
for (const form of document.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());
document.getElementById("expand").addEventListener("click", () => { folded.clear(); refresh(); });
function collapse() {
  for (const id of modules.keys()) folded.add(id);
  for (const row of operations) open(row, false);
  refresh();
}
document.getElementById("collapse").addEventListener("click", collapse);
if (operations.length > 300) collapse(); // the layout of all rows takes long

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
  const keyed = rows.map((row) => [row.cells[head.cellIndex].dataset.v, row]);
  keyed.sort(compare(button.dataset.sort, descending ? -1 : 1));
  grid.tBodies[0].append(...keyed.flatMap(([, row]) => (grid === table ? [row, detail(row)] : [row])));
  if (grid === table) {
    grid.classList.add("flat");
    document.getElementById("order").hidden = false;
    refresh();
  }
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
  body.append(...all);
  event.target.hidden = true;
  refresh();
  find.focus();
});

// A link to an operation opens it, even where it was filtered out or folded.
function show(index) {
  const row = document.getElementById("o" + index);
  find.value = kind.value = only.value = "";
  for (let up = modules.get(row.dataset.parent); up; up = modules.get(up.dataset.parent)) folded.delete(up.id);
  refresh();
  open(row, true);
  row.querySelector(".open").focus({ preventScroll: true });
  row.scrollIntoView({ block: "center" });
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
