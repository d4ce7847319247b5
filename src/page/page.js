"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);

  // The theme: the system's, or one of the reader's choice, kept where the browser lets a file keep things.
  const themes = ["system", "light", "dark"];
  let theme = "system";
  try { theme = localStorage.getItem("eglu-theme") || theme; } catch { /* not for files here */ }
  const paint = () => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    byId("theme").textContent = `theme: ${theme}`;
    views.forEach((view) => view.drawMap());
  };
  byId("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.setItem("eglu-theme", theme); } catch { /* as above */ }
    paint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);

  // The timeline stretches about its middle.
  const lanes = document.querySelector(".lanes-scroll");
  byId("stretch").addEventListener("input", (event) => {
    const middle = (lanes.scrollLeft + lanes.clientWidth / 2) / lanes.scrollWidth;
    document.querySelector(".stretch").style.width = `${100 * 2 ** event.target.value}%`;
    lanes.scrollLeft = middle * lanes.scrollWidth - lanes.clientWidth / 2;
  });

  const ROW = 60, WIDE = 152, HIGH = 40, THIN = 22, PASSING = 9;
  const safe = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const shape = (type) => type.replace(/, /g, ",");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  /** One graph: only the ranks in sight are drawn, as a deep model has thousands. */
  class View {
    constructor(side) {
      const graph = data[side];
      this.side = side;
      this.graph = graph;
      this.box = byId(side);
      this.view = this.box.querySelector(".view");
      this.svg = this.box.querySelector("svg");
      this.map = this.box.querySelector("canvas");
      this.scale = 1;
      this.rows = Array.from({ length: graph.ranks }, () => []);
      this.reads = graph.nodes.map(() => []);
      this.readBy = graph.nodes.map(() => []);
      this.far = graph.nodes.map(() => [[], []]);
      this.byName = new Map();
      graph.nodes.forEach((node, i) => {
        this.rows[node.r].push(i);
        if (!this.byName.has(node.n)) this.byName.set(node.n, i);
      });
      this.rows.forEach((row) => row.sort((a, b) => graph.nodes[a].x - graph.nodes[b].x));
      this.edges = Array.from({ length: graph.ranks }, () => []);
      for (const edge of graph.edges) this.edges[graph.nodes[edge[0]].r].push(edge);
      const link = (from, to) => { this.reads[to].push(from); this.readBy[from].push(to); };
      for (const [from, to] of graph.edges) link(from, to);
      for (const [from, to] of graph.long) { link(from, to); this.far[to][0].push(from); this.far[from][1].push(to); }
      const ops = graph.nodes.filter((node) => node.o !== "input" && node.o !== "output");
      this.box.querySelector("h3 small").textContent = `${ops.filter((node) => !node.v).length} ops, ${ops.filter((node) => node.v).length} views`;
      this.view.addEventListener("scroll", () => this.later());
      this.view.addEventListener("keydown", (event) => this.key(event));
      this.svg.addEventListener("click", (event) => {
        const at = event.target.closest("[data-i]");
        choose(at ? this : null, at ? Number(at.dataset.i) : 0, false);
      });
      const drag = (event) => {
        if (event.buttons === 0) return;
        const share = event.offsetY / this.map.clientHeight;
        this.view.scrollTop = share * this.height() - this.view.clientHeight / 2;
      };
      this.map.addEventListener("pointerdown", drag);
      this.map.addEventListener("pointermove", drag);
      new ResizeObserver(() => { this.drawMap(); this.later(); }).observe(this.view);
    }

    height() { return (this.graph.ranks * ROW + 20) * this.scale; }

    fit() {
      const room = this.view.clientWidth / Math.max(this.graph.width + 24, 1);
      this.resize(Math.max(0.75, Math.min(1, room)));
      // Begin with what stands at the top, which in a wide graph need not be the middle.
      const top = this.rows.slice(0, 8).flat();
      const middle = top.reduce((sum, i) => sum + this.x(i), 0) / Math.max(top.length, 1);
      this.view.scrollLeft = middle * this.scale - this.view.clientWidth / 2;
    }

    resize(scale) {
      const middle = (this.view.scrollTop + this.view.clientHeight / 2) / this.scale;
      this.scale = scale;
      const size = this.box.querySelector(".size");
      size.style.width = `${(this.graph.width + 16) * scale}px`;
      size.style.height = `${this.height()}px`;
      this.view.scrollTop = middle * scale - this.view.clientHeight / 2;
      this.later();
    }

    later() {
      if (this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => { this.waiting = false; this.draw(); });
    }

    x(i) { return this.graph.nodes[i].x + 8; }
    y(i) { return this.graph.nodes[i].r * ROW + 10 + ROW / 2; }
    half(i) { return (this.graph.nodes[i].v ? THIN : HIGH) / 2; }

    draw() {
      const { nodes, ranks, width } = this.graph;
      const step = ROW * this.scale;
      const first = Math.max(0, Math.floor(this.view.scrollTop / step) - 2);
      const last = Math.min(ranks - 1, Math.ceil((this.view.scrollTop + this.view.clientHeight) / step) + 2);
      const wide = width + 16, top = first * ROW, high = (last - first + 1) * ROW + 20;
      this.svg.setAttribute("viewBox", `0 ${top} ${wide} ${high}`);
      this.svg.style.width = `${wide * this.scale}px`;
      this.svg.style.height = `${high * this.scale}px`;
      this.svg.style.top = `${top * this.scale}px`;
      this.svg.style.left = `${Math.max(0, (this.view.clientWidth - wide * this.scale) / 2)}px`;
      const lit = chosen && chosen.groups(this);
      const out = [];
      for (let rank = Math.max(0, first - PASSING); rank <= last; rank++) {
        for (const [from, to, via] of this.edges[rank]) {
          if (nodes[to].r < first) continue;
          let x = this.x(from), y = this.y(from) + this.half(from);
          let path = `M${x} ${y}`;
          const points = via.map((at, k) => [at + 8, (rank + k + 1) * ROW + 10 + ROW / 2]);
          points.push([this.x(to), this.y(to) - this.half(to)]);
          for (const [px, py] of points) {
            const bend = Math.min(28, (py - y) / 2);
            path += `C${x} ${y + bend} ${px} ${py - bend} ${px} ${py}`;
            [x, y] = [px, py];
          }
          const near = chosen && chosen.view === this && (chosen.i === from || chosen.i === to);
          out.push(`<path class="edge${near ? " near" : ""}" d="${path}"/>`);
        }
      }
      for (let rank = first; rank <= last; rank++) for (const i of this.rows[rank]) out.push(this.box1(i, nodes[i], lit));
      this.svg.innerHTML = out.join("");
      this.drawSight();
    }

    box1(i, node, lit) {
      const x = this.x(i) - WIDE / 2, y = this.y(i) - this.half(i), high = 2 * this.half(i);
      const marks = [`k-${node.k}`];
      if (node.v) marks.push("free");
      if (hits.has(`${this.side} ${i}`)) marks.push("hit");
      if (lit) marks.push(chosen.view === this && chosen.i === i ? "chosen" : lit.has(i) ? "kin" : "dim");
      const tag = node.g >= 0 && node.k !== "plain" ? `<text class="sub" x="${x + WIDE - 5}" y="${y + 12}" text-anchor="end">${node.g + 1}</text>` : "";
      const lines = node.v
        ? `<text class="sub" x="${x + 9}" y="${y + 14}">${safe(cut(node.o === node.n || node.o === "output" ? node.n : `${node.o} ${node.n}`, tag ? 20 : 24))}</text>`
        : `<text x="${x + 11}" y="${y + 16}">${safe(cut(node.n, tag ? 17 : 20))}</text><text class="sub" x="${x + 11}" y="${y + 31}">${safe(cut(`${node.o} ${shape(node.t)}`, 23))}</text>`;
      const [up, down] = this.far[i];
      const names = up.map((from) => this.graph.nodes[from].n).join(", ");
      const far = (up.length ? `<text class="far" data-i="${up[0]}" x="${x + 2}" y="${y - 3}">↑ ${safe(cut(names, 26))}</text>` : "")
        + (down.length ? `<text class="far" data-i="${down[0]}" x="${x + WIDE - 2}" y="${y + high + 9}" text-anchor="end">↓ ${down.length} further down</text>` : "");
      const miss = node.m ? `<text class="miss" x="${x + WIDE - 12}" y="${y + high - 6}">!</text>` : "";
      return `<g class="${marks.join(" ")}" data-i="${i}"><title>${safe(`${node.n}: ${node.o} ${node.t}`)}</title><rect class="node-box" x="${x}" y="${y}" width="${WIDE}" height="${high}" rx="2"/>`
        + `<rect class="node-bar" x="${x}" y="${y}" width="5" height="${high}"/>${lines}${tag}${miss}${far}</g>`;
    }

    /** The whole graph in a strip at its side. */
    drawMap() {
      const [wide, high] = [this.map.clientWidth, this.map.clientHeight];
      if (!wide || !high) return;
      const dense = devicePixelRatio || 1;
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [wide * dense, high * dense];
      const pen = canvas.getContext("2d");
      pen.scale(dense, dense);
      const { nodes, ranks, width } = this.graph;
      const step = Math.min(high / Math.max(ranks, 1), 12);
      const across = (wide - 8) / Math.max(width, 1);
      const colours = new Map();
      const lit = chosen && chosen.groups(this);
      for (const [i, node] of nodes.entries()) {
        if (!colours.has(node.k)) colours.set(node.k, colour(node.k));
        pen.fillStyle = colours.get(node.k);
        pen.globalAlpha = lit && !lit.has(i) ? 0.15 : node.k === "plain" ? (node.v ? 0.25 : 0.6) : 1;
        const long = Math.max(WIDE * across, 3);
        pen.fillRect(4 + node.x * across - long / 2, node.r * step, long, Math.max(step * 0.8, 1));
      }
      this.base = canvas;
      this.mapHeight = step * ranks;
      this.drawSight();
    }

    drawSight() {
      if (!this.base) return;
      const { width, height } = this.base;
      if (this.map.width !== width || this.map.height !== height) [this.map.width, this.map.height] = [width, height];
      const pen = this.map.getContext("2d");
      pen.clearRect(0, 0, width, height);
      pen.drawImage(this.base, 0, 0);
      const share = this.mapHeight * (devicePixelRatio || 1) / Math.max(this.height(), 1);
      pen.strokeStyle = colour("ink");
      pen.lineWidth = 2;
      pen.strokeRect(1, this.view.scrollTop * share + 1, width - 2, Math.max(this.view.clientHeight * share - 2, 4));
    }

    show(i) {
      const y = this.y(i) * this.scale, x = this.x(i) * this.scale;
      const { scrollTop, scrollLeft, clientHeight, clientWidth } = this.view;
      if (y < scrollTop + 40 || y > scrollTop + clientHeight - 40) this.view.scrollTop = y - clientHeight / 2;
      if (x < scrollLeft + 60 || x > scrollLeft + clientWidth - 60) this.view.scrollLeft = x - clientWidth / 2;
      this.later();
    }

    key(event) {
      const here = chosen && chosen.view === this ? chosen.i : null;
      const step = (to) => { if (to !== undefined) { event.preventDefault(); choose(this, to, true); } };
      if (event.key === "Escape") choose(null, 0, false);
      if (!event.key.startsWith("Arrow")) return;
      if (here === null) {
        const rank = Math.floor((this.view.scrollTop / this.scale + 20) / ROW);
        return step(this.rows[Math.min(rank, this.rows.length - 1)]?.[0]);
      }
      const row = this.rows[this.graph.nodes[here].r];
      if (event.key === "ArrowUp") step(this.reads[here][0]);
      if (event.key === "ArrowDown") step(this.readBy[here][0]);
      if (event.key === "ArrowLeft") step(row[row.indexOf(here) - 1]);
      if (event.key === "ArrowRight") step(row[row.indexOf(here) + 1]);
    }
  }

  /** What is chosen, and what belongs to it on either side. */
  let chosen = null;
  const hits = new Set();
  const choose = (view, i, show) => {
    chosen = view && {
      view, i,
      groups(other) {
        const { g } = view.graph.nodes[i];
        const kin = new Set(other === view ? [i] : []);
        if (g >= 0) other.graph.nodes.forEach((node, at) => { if (node.g === g) kin.add(at); });
        return kin;
      },
    };
    if (chosen) {
      if (show) view.show(i);
      for (const other of views) {
        const [kin] = chosen.groups(other);
        if (other !== view && kin !== undefined) other.show(kin);
      }
    }
    about();
    views.forEach((each) => { each.drawMap(); each.later(); });
  };

  const element = (tag, text, className) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const link = (view, i) => {
    const button = element("button", view.graph.nodes[i].n, "node");
    button.addEventListener("click", () => choose(view, i, true));
    return button;
  };
  const listed = (what, view, list) => {
    const line = element("p", `${what} `);
    list.slice(0, 24).forEach((i) => line.append(link(view, i), " "));
    if (list.length > 24) line.append(`and ${list.length - 24} more`);
    return line;
  };
  const hint = byId("about").innerHTML;
  const about = () => {
    const box = byId("about");
    if (!chosen) { box.innerHTML = hint; return; }
    const { view, i } = chosen;
    const node = view.graph.nodes[i];
    const head = element("h4", `${node.n}  `);
    head.append(element("code", `${node.o}  ${node.t}`));
    box.replaceChildren(head);
    const group = data.groups[node.g];
    if (group) {
      const line = element("p");
      line.append(element("span", "", `swatch k-${group.kind}`));
      const other = views.find((each) => each !== view);
      const kin = [...chosen.groups(other)];
      if (view.side === "before") line.append("runs in ", ...kin.flatMap((at) => [link(other, at), " "]), group.op);
      else line.append(`stands for ${kin.length} node${kin.length === 1 ? "" : "s"}`);
      if (group.rule) line.append(group.rule === "cluster" ? ", by clustering" : `, by the rule ${group.rule}`);
      if (group.launches) line.append(`; saves ${group.launches} launches and ${group.bytes} of traffic`);
      box.append(line);
      if (view.side === "after" && kin.length) box.append(listed("from", other, kin));
    }
    if (view.reads[i].length) box.append(listed("reads", view, view.reads[i]));
    if (node.w) box.append(element("p", `weights ${node.w.join(" · ")}`));
    if (view.readBy[i].length) box.append(listed("read by", view, view.readBy[i]));
    const misses = (node.m || []).map((at) => `near-miss of ${data.misses[at][0]}: ${data.misses[at][1]}`);
    for (const text of new Set(misses)) box.append(element("p", text, "why"));
  };

  const views = [new View("before"), new View("after")];
  const scale = (factor) => {
    const to = Math.max(0.2, Math.min(1.6, views[0].scale * factor));
    views.forEach((view) => view.resize(to));
    byId("scale").textContent = `${Math.round(100 * to)} %`;
  };
  byId("smaller").addEventListener("click", () => scale(0.8));
  byId("larger").addEventListener("click", () => scale(1.25));
  views.forEach((view) => view.fit());
  scale(views[1].scale / views[0].scale);

  let found = [], turn = -1;
  byId("find").addEventListener("input", (event) => {
    const words = event.target.value.trim().toLowerCase();
    hits.clear();
    found = [];
    turn = -1;
    if (words) views.forEach((view) => view.graph.nodes.forEach((node, i) => {
      if (node.n.toLowerCase().includes(words) || node.o.includes(words)) { found.push([view, i]); hits.add(`${view.side} ${i}`); }
    }));
    byId("hits").textContent = words ? views.map((view) => `${found.filter(([of]) => of === view).length} ${view.side}`).join(", ") : "";
    views.forEach((view) => view.later());
  });
  const next = () => {
    if (!found.length) return;
    turn = (turn + 1) % found.length;
    choose(found[turn][0], found[turn][1], true);
  };
  byId("next").addEventListener("click", next);
  byId("find").addEventListener("keydown", (event) => { if (event.key === "Enter") next(); });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-node]");
    const view = button && views.find((each) => each.side === button.dataset.side);
    const at = view && view.byName.get(button.dataset.node);
    if (at === undefined || at === null) return;
    byId("graph").scrollIntoView();
    choose(view, at, true);
  });
  paint();
  views.forEach((view) => view.draw());
  document.documentElement.dataset.ready = "yes";
})();
