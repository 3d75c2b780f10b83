// The story of a learner or a version, up to the moment of the slider, in a dialog.

const LAST_TASKS = 40;

class Story {
  constructor(state) {
    this.state = state;
    this.dialog = document.getElementById("story");
    this.dialog.addEventListener("click", event => { if (event.target === this.dialog) this.dialog.close(); });
    this.dialog.addEventListener("close", () => { this.tell = null; });
  }

  learner = learner => this.show(() => this.ofLearner(this.state.timeline.learners[learner.place] ?? learner));
  version = place => this.show(() => this.ofVersion(place));

  show(tell) {
    this.tell = tell;
    this.draw();
    if (!this.dialog.open) this.dialog.showModal();
  }

  draw() {
    if (!this.tell) return;
    const [head, ...rest] = this.tell();
    const close = h("button", { class: "close", type: "button", "data-key": "close", onclick: () => this.dialog.close() }, "Close");
    fill(this.dialog, h("h2", { id: "story-head" }, head), close, ...rest);
  }

  ofLearner(learner) {
    const { timeline, time } = this.state, { task, commit } = timeline;
    const { state, since } = timeline.stateOf(learner, time), begun = upTo(learner.starts, time);
    const tasks = learner.rows.slice(0, begun), returned = tasks.filter(row => task.stop[row] <= time && task.refused[row] == null);
    const busy = tasks.reduce((sum, row) => sum + Math.min(task.stop[row], time) - task.start[row], 0);
    const rows = tasks.slice(-LAST_TASKS).reverse().map(row => h("tr", {},
      h("td", {}, number(task.id[row])), h("td", {}, number(task.version[row])), h("td", {}, seconds(task.start[row])),
      h("td", {}, task.stop[row] <= time ? seconds(task.stop[row] - task.start[row]) : "…"),
      h("td", {}, task.stop[row] <= time ? number(task.steps[row]) : ""),
      h("td", {}, task.after[row] == null || task.stop[row] > time ? "" : `${number(task.before[row])} → ${number(task.after[row])}`),
      h("td", { class: "left" }, outcome(task, row, time))));
    const counted = this.contributions(learner);
    const facts = [learner.group && `group ${learner.group}`, learner.examples != null && plural(learner.examples, "example"),
      `${state} since ${seconds(since)}`, `${plural(begun, "task")}, ${returned.length} returned`,
      begun > 0 && `${percent(time ? busy / time : 0)} of the time at work`].filter(Boolean);
    const norm = lastNorms(timeline, time).find(one => one.learner.place === learner.place);
    const changes = learner.member.slice(0, upTo(learner.member, time)).map((at, place) => `${learner.there[place] ? "joined" : "left"} at ${seconds(at)}`);
    const refusals = learner.refusals.filter(place => timeline.refusal.time[place] <= time).slice(-10).reverse();
    return [learner.name, h("p", {}, `${facts.join("; ")}.`),
      counted.versions > 0 && h("p", {}, `It contributed to ${plural(counted.versions, "version")}, with ${percent(counted.share)} of their weights, ${number(counted.stale)} versions stale on average.`),
      norm && h("p", {}, `The norm of its last update is ${number(norm.norm)}, ${number(norm.medians)} times the median of all; ${number(norm.clipped)} were clipped.`),
      changes.length > 0 && h("p", {}, `It ${changes.slice(-6).join(", ")}.`),
      this.commands(learner),
      h("h3", {}, "Tasks"), table([["task", ""], ["version", ""], ["given", ""], ["took", ""], ["steps", ""], ["loss", ""], ["outcome", "left"]], rows, "Tasks"),
      tasks.length > LAST_TASKS && h("p", { class: "note" }, `The last ${LAST_TASKS} of ${number(tasks.length)}.`),
      refusals.length > 0 && [h("h3", {}, "Not applied"), refusals.map(place => h("p", { class: "note" }, `${seconds(timeline.refusal.time[place])}: ${timeline.refusal.reason[place]}`))]];
  }

  // How much a learner has given: versions, share of their weights, mean staleness.
  contributions(learner) {
    const { commit } = this.state.timeline, end = this.state.timeline.versionAt(this.state.time) + 1;
    let versions = 0, own = 0, whole = 0, stale = 0;
    for (let place = 0; place < end; place += 1) {
      let mine = null, all = 0;
      for (const [, who, weight, behind] of commit.parts[place]) {
        const amount = weightOf(weight);
        all += amount;
        if (who === learner.place) { mine = (mine ?? 0) + amount; stale += behind; }
      }
      if (mine != null) { versions += 1; own += mine; whole += all; }
    }
    return { versions, share: whole ? own / whole : 0, stale: versions ? stale / versions : 0 };
  }

  ofVersion(place) {
    const { timeline } = this.state, { commit } = timeline, version = commit.version[place];
    const metrics = Object.entries(timeline.scores.get(version) ?? {}).map(([name, value]) => `${name.replaceAll("_", " ")} ${score(value)}`);
    const before = commit.traffic[place - 1] ?? [0, 0, 0, 0], moved = commit.traffic[place].reduce((sum, bytes, kind) => sum + bytes - before[kind], 0);
    const whole = commit.parts[place].reduce((sum, [, , weight]) => sum + weightOf(weight), 0) || 1;
    const rows = [...commit.parts[place]].sort((a, b) => weightOf(b[2]) - weightOf(a[2])).slice(0, 200).map(([id, who, weight, stale, steps, path]) => {
      const share = weightOf(weight) / whole, learner = timeline.learners[who];
      return h("tr", {},
        h("td", { class: "left" }, link(learner.name, `by ${id}`, () => this.learner(learner)), path && h("div", { class: "note" }, path.map(one => timeline.learners[one].name).join(" → "))),
        h("td", {}, number(id)), h("td", {}, Array.isArray(weight) ? weight.map(number).join(", ") : number(weight)),
        h("td", { class: "left" }, h("span", { class: "meter" }, h("i", { width: wide(share), tone: colour(who) })), ` ${percent(share)}`),
        h("td", {}, number(stale)), h("td", {}, number(steps)));
    });
    return [`Version ${version}`,
      h("p", {}, `Committed at ${seconds(commit.time[place])}, after ${plural(commit.rounds[place], "local round")}; ${megabytes(moved)} moved since the version before, ${plural(commit.layers[place].length, "layer")} changed. ${metrics.length ? `Score: ${metrics.join(", ")}.` : "Not scored."}`),
      this.state.feed.overview?.federation && command(`archipel operator rollback ${version}${this.state.feed.overview.federation.reach ?? ""}`),
      h("h3", {}, "Contributors"),
      table([["learner", "left"], ["task", ""], ["weight", ""], ["share", "left"], ["stale versions", ""], ["stale steps", ""]], rows, "Contributors"),
      commit.parts[place].length > 200 && h("p", { class: "note" }, `The 200 largest of ${number(commit.parts[place].length)}.`)];
  }

  // What an operator may want to do, to copy: the page itself changes nothing.
  commands(learner) {
    const federation = this.state.feed.overview?.federation;
    if (!federation) return null;
    return ["pause", "resume", "withdraw"].map(action => command(`archipel operator ${action} ${quoted(learner.name)}${federation.reach ?? ""}`));
  }
}

const outcome = (task, row, time) => {
  if (task.stop[row] > time) return "at work";
  if (task.refused[row] != null && task.settled[row] <= time) return `not applied: ${task.refused[row]}`;
  const end = task.recalled[row] ? "recalled" : "returned";
  return task.settled[row] <= time ? end : `${end}, in the queue`;
};
