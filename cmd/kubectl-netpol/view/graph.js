// The graph of who connects to whom. dagre places its nodes and arrows.
"use strict";

// text returns what an arrow says: lines with a class each.
function text(label) {
  const lines = wrap((label.some && !label.text.includes("~") ? "~" : "") + label.text).map((line) => [line, ""]);
  if (label.gained) lines.push(...wrap("+" + label.gained).map((line) => [line, "gained"]));
  if (label.lost) lines.push(...wrap("−" + label.lost).map((line) => [line, "lost"]));
  return lines.filter(([line]) => line);
}

// wrap breaks a list of ports into lines of at most that many characters, if it can.
function wrap(list, most = 22) {
  const lines = [""];
  for (const part of list.split(/(?<=[ ,])/)) {
    if (lines.at(-1) && (lines.at(-1) + part).trim().length > most) lines.push("");
    lines[lines.length - 1] += part;
  }
  return lines.map((line) => line.trim());
}

// summarize returns, for each node that at least three quarters of the others reach at the same
// ports, a note that stands for those arrows, and the arrows that remain.
function summarize(data) {
  const others = data.nodes.length - 1, counts = new Map(), notes = new Map();
  const key = (edge) => edge[1] + " " + edge[2];
  data.edges.forEach((edge) => counts.set(key(edge), (counts.get(key(edge)) ?? 0) + 1));
  const most = (edge) => others > 3 && counts.get(key(edge)) >= others * 3 / 4;
  for (const edge of data.edges.filter(most)) {
    const says = text(data.labels[edge[2]]).map(([line]) => line).join(" ") || "reached";
    notes.set(edge[1], `← ${counts.get(key(edge))} of ${others}: ${says}`);
  }
  return { notes, edges: data.edges.filter((edge) => !most(edge)) };
}

function drawGraph(section, data) {
  const svg = section.querySelector("svg"), chosen = document.getElementById("chosen"), every = document.getElementById("every");
  const groups = [...new Set(data.nodes.map((n) => n.group))];
  const sizes = Object.fromEntries(groups.map((g) => [g, data.nodes.filter((n) => n.group === g).length]));
  const manyNodes = 30, summary = summarize(data);
  let folded = new Set(data.nodes.length > manyNodes ? groups.filter((g) => sizes[g] > 1) : []);
  const context = document.createElement("canvas").getContext("2d");
  const width = (line, font) => { context.font = `${font} ${getComputedStyle(document.body).fontFamily}`; return Math.ceil(context.measureText(line).width); };
  const make = (parent, name, attributes, content) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
    if (content !== undefined) e.textContent = content;
    parent.append(e);
    return e;
  };
  const place = (i) => folded.has(data.nodes[i].group) ? "group " + data.nodes[i].group : "node " + i;
  const link = (from, to) => {
    const [a, b] = [data.nodes[from], data.nodes[to]];
    if (!data.cell || a.row < 0 || b.column < 0) return "";
    if (data.cell.startsWith("#")) return `${data.cell}${a.row}-${b.column}`;
    return `${data.cell}&from=${encodeURIComponent(a.name)}&to=${encodeURIComponent(b.name)}`;
  };

  // What is seen: a node for each workload or folded namespace, and one arrow for all between two.
  const look = () => {
    const nodes = new Map(), arrows = new Map();
    data.nodes.forEach((n, i) => {
      const id = place(i), isFolded = folded.has(n.group);
      const seen = nodes.get(id) ?? { id, group: n.group, isFolded, lines: [[isFolded ? n.group : n.label, ""]], members: [], notes: new Map() };
      seen.members.push(i);
      const note = every.checked ? undefined : summary.notes.get(i);
      if (note) seen.notes.set(note, [...(seen.notes.get(note) ?? []), n.label]);
      nodes.set(id, seen);
    });
    for (const seen of nodes.values()) {
      if (seen.isFolded) seen.lines.push([`${seen.members.length} ${data.unit}`, ""]);
      for (const [note, labels] of seen.notes) {
        const who = labels.length === 1 ? labels[0] : `${labels.length} ${data.unit}`;
        wrap((seen.isFolded ? who + " " : "") + note, 40).forEach((line) => seen.lines.push([line, "many"]));
      }
    }
    for (const [from, to, label] of every.checked ? data.edges : summary.edges) {
      const [v, w] = [place(from), place(to)];
      if (v === w) continue;
      const arrow = arrows.get(v + "\n" + w) ?? { v, w, labels: new Set(), from, to, count: 0 };
      arrow.labels.add(label);
      arrow.count++;
      arrows.set(v + "\n" + w, arrow);
    }
    for (const arrow of arrows.values()) {
      const labels = [...arrow.labels].map((l) => data.labels[l]), most = 2;
      arrow.lines = labels.slice(0, most).flatMap(text);
      if (labels.length > most) arrow.lines.push([`and ${labels.length - most} more`, ""]);
      arrow.classes = ["edge", labels.every((l) => l.some) && "some", labels.some((l) => l.gained) && "gained", labels.some((l) => l.lost) && "lost"];
    }
    return { nodes, arrows };
  };

  // A frame's title is above it, in the space that edgesep leaves between frames.
  const lineHeight = 16, edgeLine = 13, padding = 8, titleHeight = 20;
  const arrange = ({ nodes, arrows }) => {
    const g = new dagre.graphlib.Graph({ compound: true, multigraph: true });
    g.setGraph({ rankdir: "LR", nodesep: titleHeight + 4, edgesep: titleHeight, ranksep: 40, marginx: 8, marginy: 8 });
    for (const seen of nodes.values()) {
      g.setNode(seen.id, {
        width: Math.max(...seen.lines.map(([line]) => width(line, "13px"))) + 2 * padding + (seen.isFolded ? 20 : 0),
        height: seen.lines.length * lineHeight + padding,
      });
      if (!seen.isFolded && sizes[seen.group] > 1) {
        g.setNode("frame " + seen.group, {});
        g.setParent(seen.id, "frame " + seen.group);
      }
    }
    for (const [name, a] of arrows) {
      const size = a.lines.length ? { width: Math.max(...a.lines.map(([line]) => width(line, "bold 11px"))) + 6, height: a.lines.length * edgeLine + 2 } : {};
      g.setEdge(a.v, a.w, { ...size, labelpos: "c" }, name);
    }
    dagre.layout(g);
    return g;
  };

  const lines = (parent, all, x, y, height, anchor) => all.forEach(([line, kind], i) =>
    make(parent, "text", { x, y: y + height * (i + 0.75), "text-anchor": anchor, class: kind }, line));

  const drawArrow = (layer, g, name, a) => {
    const at = g.edge(a.v, a.w, name), one = a.count === 1 && link(a.from, a.to);
    const e = make(layer, one ? "a" : "g", { class: a.classes.filter(Boolean).join(" "), "data-from": a.v, "data-to": a.w });
    if (one) { e.setAttribute("href", one); e.setAttribute("tabindex", "-1"); }
    const p = at.points.map(({ x, y }) => [x.toFixed(1), y.toFixed(1)]);
    let path = `M${p[0]}`;
    for (let i = 1; i < p.length - 1; i++) {
      const end = i === p.length - 2 ? p[i + 1] : [(+p[i][0] + +p[i + 1][0]) / 2, (+p[i][1] + +p[i + 1][1]) / 2];
      path += `Q${p[i]} ${end}`;
    }
    make(e, "path", { d: p.length < 3 ? path + `L${p[1]}` : path, "marker-end": "url(#arrow)" });
    if (a.lines.length) {
      make(e, "rect", { x: at.x - at.width / 2, y: at.y - at.height / 2, width: at.width, height: at.height });
      lines(e, a.lines, at.x, at.y - at.height / 2, edgeLine, "middle");
    }
  };

  // Enter and Space do what a click does.
  const press = (e, action) => {
    e.addEventListener("click", action);
    e.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      action();
    });
  };
  const mark = (id) => {
    svg.classList.toggle("chosen", id !== undefined);
    svg.querySelectorAll(".edge").forEach((e) => e.classList.toggle("chosen", e.dataset.from === id || e.dataset.to === id));
  };
  const fold = (group, shut) => {
    if (shut) folded.add(group); else folded.delete(group);
    draw();
    svg.querySelector(`[data-group="${CSS.escape(group)}"]`)?.focus();
  };

  const drawNode = (layer, g, seen) => {
    const at = g.node(seen.id), [left, top] = [at.x - at.width / 2, at.y - at.height / 2];
    const e = make(layer, "g", { class: seen.isFolded ? "node folded" : "node", tabindex: 0, role: "button", "data-id": seen.id });
    make(e, "rect", { x: left, y: top, width: at.width, height: at.height, rx: 4 });
    lines(e, seen.lines.map(([line, kind], i) => [(seen.isFolded && i === 0 ? "▸ " : "") + line, kind]), left + padding, top + padding / 2, lineHeight, "start");
    if (seen.isFolded) {
      e.dataset.group = seen.group;
      e.setAttribute("aria-expanded", "false");
      press(e, () => fold(seen.group, false));
    } else {
      e.dataset.name = data.nodes[seen.members[0]].name;
      press(e, () => list(seen.members[0]));
    }
    for (const event of ["mouseenter", "focus"]) e.addEventListener(event, () => mark(seen.id));
    for (const event of ["mouseleave", "blur"]) e.addEventListener(event, () => mark());
  };

  const drawFrame = (layer, g, group) => {
    const at = g.node("frame " + group), [left, top] = [at.x - at.width / 2, at.y - at.height / 2];
    const e = make(layer, "g", { class: "group" }), name = "▾ " + group;
    make(e, "rect", { x: left, y: top, width: at.width, height: at.height, rx: 6 });
    const title = make(e, "g", { class: "title", tabindex: 0, role: "button", "aria-expanded": "true", "data-group": group });
    make(title, "rect", { x: left, y: top - titleHeight, width: width(name, "bold 13px") + 12, height: titleHeight, fill: "transparent" });
    make(title, "text", { x: left + 4, y: top - 5 }, name);
    press(title, () => fold(group, true));
  };

  const draw = () => {
    const seen = look(), g = arrange(seen), size = g.graph();
    const frames = groups.filter((group) => g.hasNode("frame " + group));
    svg.replaceChildren();
    mark();
    // A title may be wider than its frame, and stands above it.
    const right = Math.max(size.width, ...frames.map((f) => g.node("frame " + f).x - g.node("frame " + f).width / 2 + width("▾ " + f, "bold 13px") + 16));
    svg.setAttribute("viewBox", `0 ${-titleHeight} ${right} ${size.height + titleHeight}`);
    svg.setAttribute("width", right);
    svg.style.minWidth = right * 0.7 + "px"; // smaller text would be hard to read
    const marker = make(make(svg, "defs", {}), "marker", { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" });
    make(marker, "path", { d: "M0 0 8 4 0 8z" });
    const [back, middle, front] = [0, 1, 2].map(() => make(svg, "g", {}));
    frames.forEach((group) => drawFrame(back, g, group));
    for (const [name, a] of seen.arrows) drawArrow(middle, g, name, a);
    for (const n of seen.nodes.values()) drawNode(front, g, n);
  };

  // list shows the connections of a node, also those without arrows.
  const list = (i) => {
    const direction = (title, own, other) => {
      const items = data.edges.filter((edge) => edge[own] === i).map((edge) => {
        const item = document.createElement("li"), a = document.createElement("a"), href = link(edge[0], edge[1]);
        if (href) a.href = href;
        a.textContent = data.nodes[edge[other]].name;
        const says = text(data.labels[edge[2]]).map(([line]) => line).join(" ");
        item.append(a, says && ": " + says);
        return item;
      });
      const heading = document.createElement("h3"), all = document.createElement("ul");
      heading.textContent = `${data.nodes[i].name} ${title} ${items.length}`;
      all.append(...items);
      return [heading, all];
    };
    chosen.replaceChildren(...direction("connects to", 0, 1), ...direction("is reached by", 1, 0));
  };

  document.getElementById("fold").addEventListener("click", () => { folded = new Set(groups.filter((g) => sizes[g] > 1)); draw(); });
  document.getElementById("unfold").addEventListener("click", () => { folded = new Set(); draw(); });
  every.addEventListener("change", draw);
  section.hidden = false;
  draw();
}

const graph = document.getElementById("graph");
if (graph) drawGraph(graph, JSON.parse(document.getElementById("graph-data").textContent));
