// Learners at work: a row each, drawn on a canvas as far as it is in view. Names are buttons beside it.

const ROW = 20;
const STATES = { "at work": "work", idle: "band", silent: "silent", refused: "refused" };

class Gantt {
  constructor(body, state, open) {
    this.state = state;
    this.open = open;
    this.span = null;   // seconds in view, or null: from the beginning
    this.back = 0;      // seconds between the right edge and the moment
    this.wanted = "";
    const tool = (text, label, action) => h("button", { type: "button", "aria-label": label, onclick: action }, text);
    const find = h("input", { type: "search", placeholder: "Find a learner", "aria-label": "Find a learner", size: "14" });
    find.addEventListener("input", () => { this.wanted = find.value.toLowerCase(); this.draw(); });
    const key = [["work", "at work"], ["refused", "not applied"], ["silent", "silent"], ["evaluate", "evaluates"]];
    this.scale = h("canvas", { class: "scale", "aria-hidden": "true" });
    this.canvas = h("canvas", { role: "img", tabindex: "0" });
    this.rows = h("div", { class: "rows" }, this.canvas);
    this.scroller = h("div", { class: "gantt", role: "region", "aria-label": "Learners", tabindex: "-1" }, this.rows);
    body.append(
      h("div", { class: "bar" },
        h("span", { class: "plot-tools" },
          tool("+", "Show less time", () => this.zoom(0.5)), " ", tool("−", "Show more time", () => this.zoom(2)), " ",
          tool("‹", "Earlier", () => this.move(0.4)), " ", tool("›", "Later", () => this.move(-0.4)), " ",
          tool("all", "Show the whole time", () => { this.span = null; this.back = 0; this.draw(); })), find,
        h("p", { class: "key" }, key.map(([name, text]) => h("span", {}, h("i", { tone: `var(--${name})` }), text)))),
      this.scale, this.scroller);
    this.scroller.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.scroller);
    this.canvas.addEventListener("pointerdown", event => this.drag(event));
    this.canvas.addEventListener("keydown", event => this.press(event));
    this.canvas.addEventListener("mousemove", event => { this.canvas.title = this.words(event); });
  }

  get window() {
    const t = Math.max(this.state.time, 1e-9);
    if (this.span == null) return [0, t];
    const to = Math.max(this.span, t - this.back);
    return [to - this.span, to];
  }

  zoom(factor) {
    const [from, to] = this.window, span = (to - from) * factor;
    if (span >= this.state.time) { this.span = null; this.back = 0; } else this.span = span;
    this.draw();
  }

  move(share) {
    const [from, to] = this.window, span = to - from;
    this.span = span;
    this.back = Math.min(Math.max(0, this.back + share * span), Math.max(0, this.state.time - span));
    this.draw();
  }

  press(event) {
    const action = { "+": () => this.zoom(0.5), "-": () => this.zoom(2), ArrowLeft: () => this.move(0.2), ArrowRight: () => this.move(-0.2) }[event.key];
    if (action) { action(); event.preventDefault(); }
  }

  drag(event) {
    const begun = event.clientX, [from, to] = this.window, back = this.back, row = this.rowAt(event);
    let moved = false;
    const move = next => {
      const by = next.clientX - begun;
      moved ||= Math.abs(by) > 4;
      if (!moved || this.span == null) return;
      this.back = Math.min(Math.max(0, back + (by / this.canvas.clientWidth) * (to - from)), Math.max(0, this.state.time - this.span));
      this.draw();
    };
    const end = () => {
      removeEventListener("pointermove", move);
      if (!moved && row) this.open(row);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end, { once: true });
  }

  rowAt(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.shown?.[Math.floor((event.clientY - box.top + this.offset) / ROW)];
  }

  words(event) {
    const learner = this.rowAt(event);
    if (!learner) return "";
    const [from, to] = this.window, timeline = this.state.timeline;
    const at = from + ((event.clientX - this.canvas.getBoundingClientRect().left) / this.canvas.clientWidth) * (to - from);
    const { state, row } = timeline.stateOf(learner, at);
    const task = row === undefined ? "" : `, task ${timeline.task.id[row]} on version ${timeline.task.version[row]}`;
    return `${learner.name}: ${state}${task} at ${seconds(at)}`;
  }

  draw() {
    const timeline = this.state.timeline;
    this.shown = timeline.training.filter(one => !this.wanted || one.name.toLowerCase().includes(this.wanted));
    const height = Math.max(ROW, Math.min(this.shown.length * ROW, 480));
    this.rows.style.height = `${Math.max(1, this.shown.length) * ROW}px`;
    this.offset = Math.min(this.scroller.scrollTop, Math.max(0, this.shown.length * ROW - height));
    const width = Math.max(80, this.scroller.clientWidth - parseFloat(getComputedStyle(this.canvas).marginLeft));
    const context = prepared(this.canvas, width, height), first = Math.floor(this.offset / ROW);
    const tones = Object.fromEntries(["work", "band", "silent", "refused", "evaluate", "card"].map(name => [name, tone(name)]));
    const visible = this.shown.slice(first, first + Math.ceil(height / ROW) + 1);
    visible.forEach((learner, place) => {
      context.save();
      context.translate(0, (first + place) * ROW - this.offset);
      this.drawRow(context, learner, width, tones);
      context.restore();
    });
    this.drawScale(width);
    this.label(visible, first);
    const counts = timeline.countStates(this.state.time);
    const told = Object.entries(counts).map(([name, count]) => `${count} ${name}`).join(", ");
    this.canvas.setAttribute("aria-label", `Learners at ${seconds(this.state.time)}: ${told}. Arrow keys move, plus and minus zoom.`);
  }

  drawRow(context, learner, width, tones) {
    const timeline = this.state.timeline, { task } = timeline, t = this.state.time, [from, to] = this.window;
    const x = time => ((time - from) / (to - from)) * width;
    const bar = (start, stop, tint, top, high) => {
      const left = Math.max(0, x(start)), right = Math.min(width, x(stop));
      if (right < 0 || left > width) return;
      context.fillStyle = tint;
      context.fillRect(left, top, Math.max(1, right - left), high);
      if (right - left > 5) { context.fillStyle = tones.card; context.fillRect(right - 1, top, 1, high); }
    };
    context.fillStyle = tones.band;
    context.fillRect(0, 3, x(Math.min(t, to)), ROW - 6);
    learner.member.forEach((time, place) => {
      if (!learner.there[place] && time < Math.min(t, to)) bar(time, Math.min(learner.member[place + 1] ?? t, t), tones.silent, 3, ROW - 6);
    });
    let drawn = -1;
    const begun = upTo(learner.starts, Math.min(t, to));
    for (let place = Math.max(0, upTo(learner.starts, from) - 1); place < begun; place += 1) {
      const row = learner.rows[place], stop = Math.min(task.stop[row], t);
      if (stop < from || (x(stop) <= drawn && x(stop) - x(task.start[row]) < 1)) continue;  // inside a pixel that is drawn
      const refused = task.refused[row] != null && task.settled[row] <= t;
      bar(task.start[row], stop, refused ? tones.refused : tones.work, 3, ROW - 6);
      drawn = Math.ceil(x(stop));
    }
    for (const [time, lasts] of learner.asked) {
      if (time < Math.min(t, to) && time + lasts > from) bar(time, Math.min(time + lasts, t), tones.evaluate, ROW - 6, 3);
    }
  }

  // Times, and a tick for each version.
  drawScale(width) {
    const context = prepared(this.scale, width, 26), [from, to] = this.window, { commit } = this.state.timeline;
    const x = time => ((time - from) / (to - from)) * width;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = tone("faint");
    const step = niceStep((to - from) / Math.max(2, width / 90));
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
      const text = String(+time.toPrecision(6)), wide = context.measureText(text).width;
      context.fillText(text, Math.min(width - wide, Math.max(0, x(time) - wide / 2)), 11);
    }
    context.fillStyle = tone("ink");
    // from pixel to pixel, not from version to version: many share a pixel
    const end = upTo(commit.time, Math.min(to, this.state.time));
    for (let place = upTo(commit.time, from); place < end;) {
      const at = Math.round(x(commit.time[place]));
      context.fillRect(at, 17, 1, 7);
      place = Math.max(place + 1, upTo(commit.time, from + ((at + 0.5) / width) * (to - from)));
    }
  }

  label(visible, first) {
    const timeline = this.state.timeline;
    const names = visible.map((learner, place) => {
      const { state, since } = timeline.stateOf(learner, this.state.time);
      return h("button", { class: "name", type: "button", "data-key": learner.name, top: `${(first + place) * ROW}px`,
        tone: `var(--${STATES[state]})`, title: `${learner.name}: ${state} since ${seconds(since)}`, "aria-label": `${learner.name}, ${state} since ${seconds(since)}`,
        onclick: () => this.open(learner) }, learner.name);
    });
    const said = names.map(name => name.outerHTML).join();
    if (said === this.said) return;
    this.said = said;
    const held = this.rows.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    this.rows.querySelectorAll(".name").forEach(name => name.remove());
    this.rows.append(...names);
    if (held) this.rows.querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus({ preventScroll: true });
  }
}

// A canvas of a size in CSS pixels, sharp on every screen, and empty.
const prepared = (canvas, width, height) => {
  const ratio = devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    [canvas.width, canvas.height] = [wide, high];
    [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
};

const niceStep = rough => {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find(factor => factor * power >= rough) ?? 10);
};
