// The page: the moment it shows, what is drawn when something changes, and the keys.

const FRAME = 25;      // milliseconds between two drawings, and up to 16 more until the screen is ready: above 20 a second
const REPLAY = 20;     // seconds that a replay of a whole run takes

const page = (() => {
  const state = {
    moment: null,        // the slider's time; null: the newest
    get timeline() { return this.feed.run(this.feed.chosen).timeline; },
    get end() { return Math.max(this.timeline.now, this.feed.overview?.federation?.seconds ?? 0); },
    get time() { return this.moment == null ? this.end : Math.min(this.moment, this.end); },
  };
  let asked = false, drawnAt = -FRAME, playing = null;
  state.feed = new Feed(() => ask());

  const story = new Story(state);
  const curves = new Curves(part("curves"), state);
  const gantt = new Gantt(part("learners"), state, learner => story.learner(learner));
  const clock = buildClock();

  function ask() {
    if (asked) return;
    asked = true;
    setTimeout(() => requestAnimationFrame(draw), Math.max(0, FRAME - (performance.now() - drawnAt)));
  }

  function draw() {
    asked = false;
    drawnAt = performance.now();
    sayWhat();
    drawRuns(state, choose);
    drawTiles(state);
    curves.draw();
    gantt.draw();
    drawVersions(state, story.learner, story.version);
    drawTraffic(state);
    drawNorms(state, story.learner);
    drawRefusals(state, story.learner);
    drawFederation(state, story.learner);
    story.draw();
    clock.draw();
    document.documentElement.dataset.drawn = String(1 + Number(document.documentElement.dataset.drawn ?? 0));
  }

  function sayWhat() {
    const { feed } = state, told = feed.overview, run = told?.runs[feed.chosen];
    if (!told) return;
    if (!feed.frozen) {
      document.getElementById("title").textContent = told.title;
      document.title = `${told.title} · Archipel`;
    }
    const doing = run?.reason ? `ended because ${run.reason}` : run?.stage ?? "no run yet";
    const line = run?.left_out ? " Its events are too many for a report: archipel view shows them." : feed.connected ? "" : " The server is away; this page keeps what it has and comes back by itself.";
    const words = `${run ? methodOf(run) : ""}${run?.seed == null ? "" : `, seed ${run.seed}`}: ${doing}.${line}`;
    const lede = document.getElementById("lede");
    if (lede.textContent !== words) lede.textContent = words;
  }

  function choose(number) {
    state.moment = null;
    state.feed.choose(number);
  }

  function goTo(moment) {
    state.moment = moment != null && moment >= state.end ? null : moment;
    ask();
  }

  function buildClock() {
    const slider = h("input", { type: "range", min: "0", max: "1000", value: "1000", step: "1", "aria-label": "Time" });
    const output = h("output", { "aria-hidden": "true" });
    const play = h("button", { type: "button", onclick: () => toggle() }, "Replay");
    const live = h("button", { class: "live", type: "button", onclick: () => { stop(); goTo(null); } }, "Newest");
    document.getElementById("clock").append(play, slider, output, live);
    slider.addEventListener("input", () => {
      stop();
      goTo((Number(slider.value) / 1000) * state.end);
    });
    return {
      draw() {
        const share = state.end ? state.time / state.end : 1;
        if (document.activeElement !== slider || state.moment == null) slider.value = String(Math.round(1000 * share));
        slider.setAttribute("aria-valuetext", `${seconds(state.time)} of ${seconds(state.end)}`);
        output.textContent = state.moment == null ? seconds(state.end) : `${seconds(state.time)} of ${seconds(state.end)}`;
        live.setAttribute("aria-pressed", String(state.moment == null));
        play.textContent = playing ? "Pause" : "Replay";
      },
    };
  }

  // Step to the version before or after the moment.
  function step(by) {
    const { commit } = state.timeline, place = state.timeline.versionAt(state.time) + by;
    stop();
    goTo(place < 0 ? 0 : place >= commit.time.length ? null : commit.time[place]);
  }

  function toggle() {
    if (playing) return stop();
    if (state.moment == null) state.moment = 0;
    let last = performance.now();
    playing = setInterval(() => {
      const now = performance.now();
      goTo(state.time + (state.end * (now - last)) / (1000 * REPLAY));
      last = now;
      if (state.moment == null) stop();
    }, FRAME);
    ask();
  }

  function stop() {
    clearInterval(playing);
    playing = null;
    ask();
  }

  document.addEventListener("keydown", event => {
    if (event.target.closest("input, textarea, select, button, canvas, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = { " ": toggle, ArrowLeft: () => step(-1), ArrowRight: () => step(1), Home: () => goTo(0), End: () => goTo(null) }[event.key];
    if (action) { action(); event.preventDefault(); }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ask);
  addEventListener("beforeprint", draw);
  document.getElementById("live").hidden = false;
  state.feed.start();
  ask();
  return { state, curves, goTo, choose, draw };
})();
