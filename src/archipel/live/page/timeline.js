// A run as columns that grow, and its state at any moment. The lines are described in timeline.py.

// How many of the sorted times are not after t.
const upTo = (times, t) => {
  let low = 0, high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] <= t) low = middle + 1; else high = middle;
  }
  return low;
};

const KINDS = ["to learners, to train", "back from learners", "to be weighed", "to be scored"];

class Timeline {
  constructor() {
    this.now = 0;
    this.learners = [];
    // by row of a task; `settled` is when it was merged or refused
    this.task = { id: [], start: [], stop: [], settled: [], learner: [], version: [], steps: [], epochs: [], before: [], after: [], refused: [], recalled: [] };
    this.rows = new Map();
    this.closed = [];
    this.returned = [];
    this.settled = [];
    this.commit = { time: [], version: [], rounds: [], traffic: [], parts: [], layers: [] };
    this.scores = new Map();  // metrics by version
    this.score = { time: [], version: [], rounds: [], metrics: [], validation: [] };
    this.refusal = { time: [], task: [], learner: [], reason: [] };
    this.probe = { time: [], task: [], asked: [] };
    this.layers = { time: [], moved: [] };
    this.divergence = { time: [], version: [], names: [], values: [], split: [] };
    this.notes = { time: [], text: [] };
    this.anyNorms = false;
    this.privacy = { time: [], epsilon: [], delta: [] };
  }

  add(lines) {
    for (const line of lines) this[`_${line[0]}`]?.(line);
  }

  _L([, place, name, group, role, examples]) {
    this.learners[place] = { place, name, group, role, examples, rows: [], starts: [], member: [], there: [], asked: [], norms: [], normTimes: [], refusals: [] };
  }
  _tick(time) { if (time > this.now) this.now = time; }
  _h([, time, id, learner, version]) {
    const task = this.task, row = task.id.length;
    this._tick(time);
    this.rows.set(id, row);
    task.id.push(id); task.start.push(time); task.stop.push(Infinity); task.settled.push(Infinity);
    task.learner.push(learner); task.version.push(version); task.steps.push(null); task.epochs.push(null);
    task.before.push(null); task.after.push(null); task.refused.push(null); task.recalled.push(0);
    this.learners[learner].rows.push(row);
    this.learners[learner].starts.push(time);
  }
  _close(row, time) {
    if (this.task.stop[row] === Infinity) { this.task.stop[row] = time; this.closed.push(time); return true; }
    return false;
  }
  _settle(row, time) {
    if (this.task.settled[row] === Infinity) { this.task.settled[row] = time; this.settled.push(time); }
  }
  _r([, time, id, steps, epochs, before, after, recalled]) {
    const row = this.rows.get(id);
    this._tick(time);
    if (row === undefined) return;
    if (this._close(row, time)) this.returned.push(time);
    const task = this.task;
    task.steps[row] = steps; task.epochs[row] = epochs; task.before[row] = before; task.after[row] = after; task.recalled[row] = recalled;
  }
  _x([, time, id, learner, reason]) {
    this._tick(time);
    const { refusal, task } = this, row = this.rows.get(id);
    refusal.time.push(time); refusal.task.push(id); refusal.learner.push(learner); refusal.reason.push(reason);
    if (learner >= 0) this.learners[learner].refusals.push(refusal.time.length - 1);
    if (row === undefined) return;
    if (task.stop[row] !== Infinity) this._settle(row, time);
    this._close(row, time);
    task.refused[row] = reason;
    if (task.settled[row] === Infinity) task.settled[row] = time;
  }
  _c([, time, version, rounds, traffic, parts, layers]) {
    const commit = this.commit;
    this._tick(time);
    commit.time.push(time); commit.version.push(version); commit.rounds.push(rounds);
    commit.traffic.push(traffic); commit.parts.push(parts); commit.layers.push(layers);
    for (const [id] of parts) {
      const row = this.rows.get(id);
      if (row !== undefined) this._settle(row, time);
    }
  }
  _s([, time, version, rounds, metrics, validation]) {
    const score = this.score;
    this._tick(time);
    score.time.push(time); score.version.push(version); score.rounds.push(rounds); score.metrics.push(metrics); score.validation.push(validation);
    this.scores.set(version, metrics);
  }
  _m([, time, learner, there]) {
    this._tick(time);
    this.learners[learner].member.push(time);
    this.learners[learner].there.push(there);
  }
  _p([, time, task, asked]) {
    this._tick(time);
    this.probe.time.push(time); this.probe.task.push(task); this.probe.asked.push(asked);
    for (const [learner, lasts] of asked) this.learners[learner].asked.push([time, lasts]);
  }
  _d([, time, version, names, values, split]) {
    const divergence = this.divergence;
    divergence.time.push(time); divergence.version.push(version); divergence.names.push(names);
    divergence.values.push(values); divergence.split.push(split);
  }
  _k([, time, learner, what, share]) { this._note(time, `${this.learners[learner].name} claims more than ${percent(share)} of the ${what}; it is cut to that`); }
  _b([, time, version, earlier]) { this._note(time, `version ${version} has the numbers of version ${earlier}: the model was rolled back`); }
  _note(time, text) { this.notes.time.push(time); this.notes.text.push(text); }
  _n([, time, learner, norm, clipped]) {
    const { norms, normTimes } = this.learners[learner];
    this.anyNorms = true;
    normTimes.push(time);
    norms.push([norm, (norms[norms.length - 1]?.[1] ?? 0) + clipped]);
  }
  _e([, time, , epsilon, delta]) { this.privacy.time.push(time); this.privacy.epsilon.push(epsilon); this.privacy.delta.push(delta); }
  _y([, time, moved]) { this._tick(time); this.layers.time.push(time); this.layers.moved.push(moved); }

  // ---------------------------------------------------------------------------------------- the state at a moment

  get training() { return this.learners.filter(one => one.role === "train"); }

  // What a learner does at a moment: its state, since when, and the row of its task.
  stateOf(learner, t) {
    const joined = upTo(learner.member, t);
    if (joined > 0 && !learner.there[joined - 1]) return { state: "silent", since: learner.member[joined - 1] };
    const begun = upTo(learner.starts, t);
    if (begun === 0) return { state: "idle", since: joined ? learner.member[joined - 1] : 0 };
    const row = learner.rows[begun - 1], task = this.task;
    if (task.stop[row] > t) return { state: "at work", since: task.start[row], row };
    if (task.refused[row] != null && task.settled[row] <= t) return { state: "refused", since: task.settled[row], row };
    return { state: "idle", since: task.stop[row], row };
  }

  countStates(t) {
    const counts = { "at work": 0, idle: 0, silent: 0, refused: 0 };
    for (const one of this.learners) if (one.role === "train") counts[this.stateOf(one, t).state] += 1;
    return counts;
  }

  versionAt(t) { return upTo(this.commit.time, t) - 1; }  // a place in `commit`
  scoreAt(t) { return upTo(this.score.time, t) - 1; }
  tasksOut(t) { return upTo(this.task.start, t) - upTo(this.closed, t); }
  queue(t) { return Math.max(0, upTo(this.returned, t) - upTo(this.settled, t)); }
  evidence(t) {
    let waited = 0;
    for (let place = upTo(this.probe.time, t) - 1, looked = 0; place >= 0 && looked < 500; place -= 1, looked += 1) {
      for (const [, lasts] of this.probe.asked[place]) if (this.probe.time[place] + lasts > t) waited += 1;
    }
    return waited;
  }
}

// One number for a weight that may differ by layer.
const weightOf = weight => (Array.isArray(weight) ? weight.reduce((sum, one) => sum + (one ?? 0), 0) / weight.length : weight ?? 0);
