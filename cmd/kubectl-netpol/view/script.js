// The page is complete without this script, which adds: a filter by name, arrow keys in the
// matrix, and the edges of one node of the graph.
"use strict";

const find = document.getElementById("find");
const table = document.getElementById("matrix");
const svg = document.getElementById("graph");

// Rows and columns whose names do not have the text are hidden.
if (find && table) {
  find.disabled = false;
  const columns = [...table.querySelectorAll("th.column")];
  const rows = [...table.tBodies[0].rows];
  const groups = [...table.tHead.rows[0].querySelectorAll("th.group")];
  find.addEventListener("input", () => {
    const has = (e) => e.dataset.name.toLowerCase().includes(find.value.trim().toLowerCase());
    const anyRow = rows.some(has), anyColumn = columns.some(has);
    columns.forEach((c) => { c.hidden = anyColumn && !has(c); });
    rows.forEach((row) => {
      row.hidden = anyRow && !has(row);
      [...row.querySelectorAll("td")].forEach((cell, i) => { cell.hidden = columns[i].hidden; });
    });
    // Headings of groups would span what is hidden.
    const filtered = find.value.trim() !== "";
    groups.forEach((g) => { g.hidden = filtered; });
    table.querySelectorAll("tbody th.group").forEach((g) => { g.hidden = filtered; });
    table.tHead.rows[0].cells[0].colSpan = filtered ? 1 : 2;
  });
}

// One cell is in the tab order; arrow keys, Home and End move to the others.
if (table) {
  const links = [...table.tBodies[0].rows].map((row) => [...row.querySelectorAll("td a")]);
  links.flat().forEach((a, i) => { a.tabIndex = i === 0 ? 0 : -1; });
  table.addEventListener("keydown", (event) => {
    const row = links.findIndex((r) => r.includes(event.target));
    if (row < 0) return;
    const column = links[row].indexOf(event.target);
    const moves = {
      ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
      Home: [0, -links[row].length], End: [0, links[row].length],
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const within = (i, n) => Math.max(0, Math.min(n - 1, i));
    let [r, c] = [row, column], next = null;
    do { // past those that are hidden
      const [r1, c1] = [within(r + move[0], links.length), within(c + move[1], links[row].length)];
      if (r1 === r && c1 === c) return;
      [r, c, next] = [r1, c1, links[r1][c1]];
    } while (next.offsetParent === null);
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}

// The edges of the node under the pointer, or with the focus, stand out.
if (svg) {
  const choose = (name) => {
    svg.classList.toggle("chosen", name !== undefined);
    svg.querySelectorAll(".edge").forEach((e) => {
      e.classList.toggle("chosen", e.dataset.from === name || e.dataset.to === name);
    });
  };
  svg.querySelectorAll(".node").forEach((node) => {
    for (const event of ["mouseenter", "focus"]) node.addEventListener(event, () => choose(node.dataset.name));
    for (const event of ["mouseleave", "blur"]) node.addEventListener(event, () => choose());
  });
}
