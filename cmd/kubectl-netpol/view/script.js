// The page is complete without this script, which adds a filter by name and arrow keys in the
// matrix, but for reasons that are packed. The graph is in graph.js.
"use strict";

const find = document.getElementById("find");
const table = document.getElementById("matrix");
const paper = 900; // pixels across A4 in landscape, less than 1047

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

// A file with many cells has their reasons packed by row, and leaves out links and what all empty
// cells have in common. Reasons are unpacked when a link to their cell is followed.
if (table && document.getElementById("row-0")) {
  const rows = [...table.tBodies[0].rows], columns = [...table.querySelectorAll("th.column")];
  rows.forEach((row, r) => row.querySelectorAll("td a").forEach((a, c) => {
    a.href = `#cell-${r}-${c}`;
    a.ariaLabel ??= `${row.dataset.name} → ${columns[c].dataset.name}: nothing`;
  }));
  const make = (parent, name, content = "") => {
    const e = document.createElement(name);
    e.textContent = content;
    parent.append(e);
    return e;
  };
  const unpack = async (row) => {
    const text = document.getElementById(`row-${row}`).textContent.replaceAll("-", "+").replaceAll("_", "/");
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  };
  const explain = async () => {
    const [, row, column] = location.hash.match(/^#cell-(\d+)-(\d+)$/) ?? [];
    const link = rows[row]?.querySelectorAll("td a")[column];
    if (!link || document.getElementById(`cell-${row}-${column}`)) return;
    const { lines, cells } = await unpack(row);
    if (document.getElementById(`cell-${row}-${column}`)) return; // it was followed twice
    const section = make(document.querySelector("main"), "section");
    section.className = "explanation";
    section.id = `cell-${row}-${column}`;
    make(section, "h2", link.ariaLabel);
    cells[column].forEach((text, i) => {
      const details = make(section, "details");
      details.open = i === 0;
      make(details, "summary", lines[text[0]]);
      make(details, "pre", text.map((line) => lines[line]).join("\n"));
    });
    make(make(section, "p"), "a", "Back to the matrix").href = "#matrix";
    if (location.hash === "#" + section.id) location.replace(location.hash); // now there is a target
  };
  addEventListener("hashchange", explain);
  explain();
}

// On paper, lists are open, and what is too wide is made as wide as the paper.
addEventListener("beforeprint", () => {
  document.querySelectorAll("#summary details").forEach((d) => { d.dataset.open = d.open; d.open = true; });
  document.querySelectorAll(".scroll").forEach((s) => {
    s.style.zoom = Math.min(1, paper / s.firstElementChild.scrollWidth);
  });
});
addEventListener("afterprint", () => {
  document.querySelectorAll("#summary details").forEach((d) => { d.open = d.dataset.open === "true"; });
  document.querySelectorAll(".scroll").forEach((s) => { s.style.zoom = ""; });
});

// One cell is in the tab order; arrow keys, Home and End move to the others.
if (table) {
  const links = [...table.tBodies[0].rows].map((row) => [...row.querySelectorAll("td a")]);
  links.flat().forEach((a, i) => { a.tabIndex = i === 0 ? 0 : -1; });
  table.addEventListener("mouseover", (event) => {
    const a = event.target.closest("td a");
    if (a) a.title = a.ariaLabel;
  });
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

// Flows are read again every few seconds while they can be seen, unless that is paused. What
// has the focus stays: cells keep their links.
const live = 5000; // milliseconds
if (table && document.querySelector("#flows[data-live]")) {
  const pause = document.createElement("button");
  pause.type = "button";
  pause.id = "pause";
  pause.textContent = "Pause";
  pause.setAttribute("aria-pressed", "false");
  pause.addEventListener("click", () => pause.setAttribute("aria-pressed", String(pause.getAttribute("aria-pressed") !== "true")));
  document.getElementById("flows").before(pause);
  const renew = (page) => {
    const cells = table.querySelectorAll("tbody td"), fresh = page.querySelectorAll("#matrix tbody td");
    const section = page.getElementById("flows");
    if (!section || cells.length !== fresh.length) return;
    cells.forEach((cell, i) => {
      const [link, now] = [cell.querySelector("a"), fresh[i].querySelector("a")];
      link.ariaLabel = now.ariaLabel;
      link.title = now.title;
      cell.querySelectorAll("small").forEach((s) => s.remove());
      cell.append(...fresh[i].querySelectorAll("small"));
    });
    document.getElementById("flows").replaceChildren(...section.childNodes);
  };
  const poll = async () => {
    if (!document.hidden && pause.getAttribute("aria-pressed") !== "true") {
      try {
        const answer = await fetch(location.href);
        renew(new DOMParser().parseFromString(await answer.text(), "text/html"));
      } catch { /* the command has ended: what was read last stays, with its time */ }
    }
    setTimeout(poll, live);
  };
  setTimeout(poll, live);
}
