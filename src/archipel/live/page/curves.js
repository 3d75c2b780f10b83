// Scores of all runs against time, local rounds and megabytes: a line a run, a colour and a switch a method.

const AXES = [["time", "time (s)"], ["rounds", "local rounds"], ["megabytes", "moved (MB)"]];
const POINTS = 4000;  // points of all lines together: more than a screen has columns
const MANY = 12;      // lines that keep points of their own; more share the columns of a grid
const COLUMNS = 600;
const DASHES = [[], [6, 4], [2, 3], [9, 3, 2, 3]];

// Keep the first, the last, the lowest and the highest point of equal pieces of the first `end` points.
const thinned = (xs, ys, end, most) => {
  if (end <= most) return [xs.slice(0, end), ys.slice(0, end)];
  const kept = [], size = (4 * end) / most;
  for (let start = 0; start < end; start += size) {
    const from = Math.floor(start), to = Math.min(end, Math.floor(start + size));
    let low = from, high = from;
    for (let place = from; place < to; place += 1) {
      if (ys[place] < ys[low]) low = place;
      if (ys[place] > ys[high]) high = place;
    }
    kept.push(...new Set([from, low, high, to - 1].sort((a, b) => a - b)));
  }
  return [kept.map(place => xs[place]), kept.map(place => ys[place])];
};

// Keep the last point of each column of a window, and one on either side of it: many lines then share their places.
const gridded = (xs, ys, end, [from, to]) => {
  const x = [], y = [], step = (to - from) / COLUMNS;
  const last = Math.min(end, upTo(xs, to) + 1);
  for (let place = Math.max(0, upTo(xs, from) - 1); place < last; place += 1) {
    if (ys[place] == null) continue;
    const at = from + step * Math.round((xs[place] - from) / step);
    if (at === x[x.length - 1]) y[y.length - 1] = ys[place]; else { x.push(at); y.push(ys[place]); }
  }
  return [x, y];
};

const methodOf = run => {
  const settings = Object.entries({ ...run.settings, ...run.tuned }).map(([key, value]) => `, ${key}=${value}`);
  return `${run.name ?? run.place ?? "run"}${settings.join("")}`;
};

class Curves {
  constructor(body, state) {
    this.state = state;
    this.axis = 0;
    this.hidden = new Set();
    this.zoom = null;   // [from, to] on the axis, or null: everything
    this.shape = "";
    this.legend = h("ul", { class: "legend", "aria-label": "Methods" });
    this.place = h("div", { class: "plot", role: "img" });
    const axes = AXES.map(([name], axis) =>
      h("button", { type: "button", "aria-pressed": String(axis === 0), onclick: () => this.turn(axis) }, name));
    this.axes = h("div", { class: "choice", role: "group", "aria-label": "Horizontal axis" }, axes);
    const tool = (text, label, action) => h("button", { type: "button", "aria-label": label, onclick: action }, text);
    const tools = h("span", { class: "plot-tools" },
      tool("+", "Zoom in", () => this.scale(0.5)), " ", tool("−", "Zoom out", () => this.scale(2)), " ",
      tool("all", "Show everything", () => this.show(null)));
    body.append(h("div", { class: "bar" }, this.axes, tools, this.legend), this.place,
      h("p", { class: "note" }, "Drag to zoom, double-click for everything. A click on a method hides it."));
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.shape = ""; this.draw(); });
  }

  size() { return { width: this.place.clientWidth, height: this.place.clientHeight }; }

  turn(axis) {
    this.axis = axis;
    this.zoom = null;
    [...this.axes.children].forEach((button, place) => button.setAttribute("aria-pressed", String(place === axis)));
    this.shape = "";
    this.draw();
  }

  show(zoom) { this.zoom = zoom; this.draw(); }

  scale(factor) {
    const [from, to] = this.zoom ?? this.range;
    const middle = (from + to) / 2, half = ((to - from) / 2) * factor;
    const all = this.range;
    this.show(2 * half >= all[1] - all[0] ? null : [Math.max(all[0], middle - half), Math.min(all[1], middle + half)]);
  }

  // The lines to draw: runs that have points and the same metric as the chosen one.
  lines() {
    const { feed } = this.state, told = feed.overview?.runs ?? [];
    const metric = told[feed.chosen]?.metric;
    const found = told.map((run, number) => ({ number, run, curve: feed.runs[number]?.curve, method: methodOf(run) }))
      .filter(({ run, curve }) => curve?.[0].length && run.metric === metric);
    const methods = [...new Set(told.map(methodOf))];
    return { metric, methods, found };
  }

  draw() {
    const { metric, methods, found } = this.lines();
    const t = this.state.moment ?? Infinity;  // the newest of every run, which may be later than the chosen one's
    document.getElementById("curves-head").textContent = metric ? capital(metric) : "Score";
    const most = Math.max(200, Math.floor(POINTS / Math.max(1, found.length)));
    const ends = found.map(({ curve }) => curve[this.axis][curve[0].length - 1]);
    this.range = [0, Math.max(1e-9, ...ends)];
    const [from, to] = this.zoom ?? this.range;
    const tables = found.map(({ curve }) => {
      const xs = curve[this.axis], end = upTo(curve[0], t);
      return found.length > MANY ? gridded(xs, curve[4], end, [from, to]) : thinned(xs, curve[4], end, most);
    });
    const shape = JSON.stringify([this.axis, metric, found.map(({ number }) => number), methods]);
    if (shape !== this.shape) this.build(shape, metric, methods, found);
    if (!this.plot) return;
    const data = tables.length ? uPlot.join(tables.map(([x, y]) => unique(x, y))) : [[], []];
    found.forEach(({ method }, place) => { this.plot.series[place + 1].show = !this.hidden.has(method); });
    this.plot.setData(data, false);
    this.plot.batch(() => this.plot.setScale("x", { min: from, max: to }));
    this.describe(found, t);
  }

  build(shape, metric, methods, found) {
    this.shape = shape;
    this.plot?.destroy();
    this.plot = null;
    if (!found.length) return this.fillLegend([], []);
    const grid = { stroke: tone("line"), width: 1 }, ink = tone("faint"), font = "12px system-ui, sans-serif";
    const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font, labelFont: font };
    const series = found.map(({ method }) => {
      const place = methods.indexOf(method);
      return { label: method, stroke: tone(`c${place % TONES}`), width: 1.75, spanGaps: true, points: { show: false },
        dash: DASHES[Math.floor(place / TONES) % DASHES.length] };
    });
    this.plot = new uPlot({
      ...this.size(),
      scales: { x: { time: false }, y: { range: (plot, low, high) => (low == null ? [0, 1] : uPlot.rangeNum(low, high, 0.08, true)) } },
      axes: [{ ...axis, label: AXES[this.axis][1], labelSize: 20, size: 34 }, { ...axis, size: 56 }],
      series: [{}, ...series],
      legend: { show: false },
      cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 6 }, focus: { prox: 24 } },
      focus: { alpha: 0.35 },
      hooks: { setSelect: [plot => this.select(plot)], setCursor: [plot => this.read(plot)] },
    }, [[], ...found.map(() => [])], this.place);
    this.plot.over.addEventListener("dblclick", () => this.show(null));
    this.fillLegend(methods.filter(method => found.some(one => one.method === method)), methods);
    this.found = found;
  }

  select(plot) {
    if (plot.select.width < 8) return;
    const from = plot.posToVal(plot.select.left, "x"), to = plot.posToVal(plot.select.left + plot.select.width, "x");
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.show([from, to]);
  }

  // Write the scores under the cursor beside the methods' names.
  read(plot) {
    const place = plot.cursor.idx;
    for (const output of this.legend.querySelectorAll("output")) {
      const at = this.found.findIndex(({ method }) => method === output.dataset.method);
      let value = null;
      if (place != null) for (let back = place; back >= 0 && value == null; back -= 1) value = plot.data[at + 1][back];
      output.textContent = value == null ? "" : score(value);
    }
  }

  fillLegend(shown, methods) {
    this.legend.replaceChildren(...shown.map(method => {
      const button = h("button", { type: "button", "aria-pressed": String(!this.hidden.has(method)) },
        h("i", { tone: colour(methods.indexOf(method)) }), method);
      button.addEventListener("click", () => {
        if (!this.hidden.delete(method)) this.hidden.add(method);
        button.setAttribute("aria-pressed", String(!this.hidden.has(method)));
        this.draw();
      });
      return h("li", {}, button, " ", h("output", { "data-method": method }));
    }));
  }

  // What a screen reader says of the picture.
  describe(found, t) {
    const last = found.map(({ run, curve }) => {
      const place = upTo(curve[0], t) - 1;
      return `${methodOf(run)} ${score(curve[4][place])}`;
    });
    this.place.setAttribute("aria-label", `Score against ${AXES[this.axis][0]}. Last scores: ${last.join("; ")}.`);
  }
}

// One point for each place on the axis, the first: a stream commits many times before its count of rounds moves on.
const unique = (xs, ys) => {
  const x = [], y = [];
  xs.forEach((value, place) => {
    if (ys[place] != null && value !== x[x.length - 1]) { x.push(value); y.push(ys[place]); }
  });
  return [x, y];
};
