// The panels that are tables and numbers: runs, tiles, versions, traffic, norms, refusals.

const SHOWN = 12;  // versions, refusals and norms in a panel

const drawRuns = (state, choose) => {
  const { feed } = state, runs = feed.overview?.runs ?? [];
  document.getElementById("runs").hidden = runs.length < 2;
  if (runs.length < 2) return;
  const methods = [...new Set(runs.map(methodOf))];
  const done = runs.filter(run => run.stage === "finished").length;
  const failed = runs.filter(run => run.stage === "failed").length;
  document.getElementById("runs-head").textContent =
    `Runs: ${done} of ${runs.length} finished${failed ? `, ${failed} failed` : ""}${done + failed < runs.length ? `, ${runs.length - done - failed} left` : ""}`;
  const rows = runs.map((run, place) => {
    const curve = feed.runs[place]?.curve, last = curve ? curve[0].length - 1 : -1, share = run.share ?? 0;
    const name = `${methodOf(run)}${run.seed == null ? "" : `, seed ${run.seed}`}${run.fold == null ? "" : `, fold ${run.fold}`}`;
    return h("tr", { "aria-current": String(place === feed.chosen) },
      h("td", { class: "left" }, link(run.name ? name : run.place, `run ${place}`, () => choose(place))),
      h("td", { class: "left" }, run.stage, run.stage === "running" && [" ", h("span", { class: "meter" }, h("i", { width: wide(share) }))]),
      h("td", {}, last < 0 ? "" : score(curve[4][last])), h("td", { class: "roomy" }, run.final_score == null ? "" : score(run.final_score)),
      h("td", {}, last < 0 ? "" : number(curve[3][last])), h("td", { class: "roomy" }, last < 0 ? "" : number(curve[1][last])),
      h("td", {}, last < 0 ? "" : `${number(curve[2][last])} MB`), h("td", {}, last < 0 ? "" : seconds(curve[0][last])));
  });
  const heads = [["run", "left"], ["state", "left"], ["last score", ""], ["final score", "roomy"], ["version", ""], ["rounds", "roomy"], ["moved", ""], ["time", ""]];
  fill(part("runs"), h("div", { class: runs.length > 14 ? "scroll" : "" }, table(heads, rows, "Runs")));
};

const drawTiles = state => {
  const { timeline, time, feed } = state, place = timeline.versionAt(time), scored = timeline.scoreAt(time);
  const metric = feed.overview?.runs[feed.chosen]?.metric, counts = timeline.countStates(time);
  const traffic = timeline.commit.traffic[place] ?? [0, 0, 0, 0];
  const metrics = timeline.score.metrics[scored] ?? {};
  const tile = (name, value, more) => h("div", {}, h("dt", {}, name), h("dd", {}, value, more && [" ", h("small", {}, more)]));
  const run = feed.overview?.runs[feed.chosen], spent = upTo(timeline.privacy.time, time) - 1;
  // at the newest moment a controller knows more than its records
  const told = (state.moment == null && feed.overview?.federation?.tasks != null) ? feed.overview.federation : null;
  document.getElementById("now-head").textContent = `State of ${run ? methodOf(run) : "the run"} at ${seconds(time)}`;
  fill(part("now"), h("dl", { class: "tiles" },
    tile("version", number(timeline.commit.version[place] ?? 0)),
    tile(metric ? metric.replaceAll("_", " ") : "score", score(metrics[metric]), scored < 0 ? "" : `v${timeline.score.version[scored]}`),
    tile("rounds", number(timeline.commit.rounds[place] ?? 0)),
    tile("moved", megabytes(traffic[0] + traffic[1] + traffic[2])),
    tile("at work", number(counts["at work"]), `of ${number(timeline.training.length)}`),
    tile("idle", number(counts.idle)), tile("silent", number(counts.silent)),
    tile("refused", number(counts.refused), `${number(upTo(timeline.refusal.time, time))} in all`),
    tile("tasks out", number(told ? told.tasks : timeline.tasksOut(time))),
    tile("queue", number(told ? told["updates waiting"] : timeline.queue(time)), "updates"),
    tile("evidence", number(told ? told.evidence : timeline.evidence(time)), "awaited"),
    spent >= 0 && tile("epsilon", number(timeline.privacy.epsilon[spent]), `delta ${timeline.privacy.delta[spent]}`)));
};

// The shares of a version's weights by learner, the largest first.
const sharesOf = (timeline, place) => {
  const found = new Map();
  for (const [, learner, weight, stale] of timeline.commit.parts[place]) {
    const one = found.get(learner) ?? { learner: timeline.learners[learner], weight: 0, stale: 0 };
    one.weight += weightOf(weight);
    one.stale = Math.max(one.stale, stale);
    found.set(learner, one);
  }
  const whole = [...found.values()].reduce((sum, one) => sum + one.weight, 0) || 1;
  return [...found.values()].map(one => ({ ...one, share: one.weight / whole })).sort((a, b) => b.share - a.share);
};

const shareBar = shares =>
  h("div", { class: "shares", "aria-hidden": "true" }, shares.slice(0, 24).map(({ learner, share }) =>
    h("i", { width: wide(share), tone: colour(learner.place), title: `${learner.name} ${percent(share)}` })));

const drawVersions = (state, openLearner, openVersion) => {
  const { timeline, time, feed } = state, { commit } = timeline, end = timeline.versionAt(time) + 1;
  const metric = feed.overview?.runs[feed.chosen]?.metric;
  const rows = [];
  for (let place = end - 1; place >= Math.max(0, end - SHOWN); place -= 1) {
    const shares = sharesOf(timeline, place), version = commit.version[place];
    const names = shares.slice(0, 2).flatMap(({ learner }, at) =>
      [at ? ", " : "", link(learner.name, `v${version} ${learner.name}`, () => openLearner(learner))]);
    rows.push(h("tr", {},
      h("td", {}, link(String(version), `version ${version}`, () => openVersion(place))),
      h("td", {}, seconds(commit.time[place])),
      h("td", {}, score(timeline.scores.get(version)?.[metric])),
      h("td", { class: "left" }, names, shares.length > 2 ? ` and ${shares.length - 2} more` : ""),
      h("td", { class: "left roomy" }, shares.length === 1 ? number(shares[0].weight) : shareBar(shares)),
      h("td", {}, number(shares.reduce((most, one) => Math.max(most, one.stale), 0)))));
  }
  const heads = [["version", ""], ["time", ""], ["score", ""], ["contributors", "left"], ["weights", "left roomy"], ["staleness", ""]];
  fill(part("versions"), rows.length ? table(heads, rows, "The last versions") : h("p", { class: "note" }, "No version yet."),
    end > SHOWN && h("p", { class: "note" }, `The last ${SHOWN} of ${number(end)} at this moment; the slider leads to earlier ones. Staleness in versions, the largest.`));
};

const drawTraffic = state => {
  const { timeline, time } = state, bytes = timeline.commit.traffic[timeline.versionAt(time)] ?? [0, 0, 0, 0];
  const most = Math.max(...bytes, 1);
  const bar = (name, parts, whole, text) => [h("span", {}, name),
    h("span", { class: "track" }, parts.map(([amount, tint]) => h("i", { width: wide(amount / whole), tone: tint }))),
    h("span", { class: "number" }, text)];
  const tints = [colour(0), colour(5), colour(1), "var(--silent)"];
  const kinds = KINDS.flatMap((name, place) => !bytes[place] && place > 1 ? [] : bar(name, [[bytes[place], tints[place]]], most, megabytes(bytes[place])));
  const place = upTo(timeline.layers.time, time) - 1, moved = timeline.layers.moved[place];
  const layers = new Map();
  for (const [kind, ledger] of Object.entries(moved ?? {})) {
    const column = ["train down", "train up", "evaluate down", "score down"].indexOf(kind);
    for (const [layer, amount] of Object.entries(ledger)) {
      if (!layers.has(layer)) layers.set(layer, [0, 0, 0, 0]);
      if (column >= 0) layers.get(layer)[column] += amount;
    }
  }
  const sum = parts => parts.reduce((total, amount) => total + amount, 0);
  const widest = Math.max(1, ...[...layers.values()].map(sum));
  const byLayer = [...layers].flatMap(([layer, parts]) => bar(layer, parts.map((amount, at) => [amount, tints[at]]), widest, megabytes(sum(parts))));
  const last = timeline.layers.time.length === 0 ? "" : place < 0
    ? "By layer it is known from the end of the run on: move the slider there."
    : "By layer, with tasks still out.";
  fill(part("traffic"), h("div", { class: "stack" }, kinds), last && h("h3", {}, "By layer"),
    byLayer.length ? h("div", { class: "stack scroll" }, byLayer) : null, last && h("p", { class: "note" }, last));
};

const drawNorms = (state, openLearner) => {
  const { timeline, time } = state;
  document.getElementById("norms").hidden = !timeline.anyNorms;
  if (!timeline.anyNorms) return;
  const found = lastNorms(timeline, time);
  const rows = found.slice(0, SHOWN).map(({ learner, norm, medians, clipped }) => h("tr", {},
    h("td", { class: "left" }, link(learner.name, `norm ${learner.name}`, () => openLearner(learner))),
    h("td", {}, number(norm)), h("td", {}, isOutlier(medians, found.length) ? h("span", { class: "warn" }, `${number(medians)} ×`) : `${number(medians)} ×`),
    h("td", {}, number(clipped))));
  const outliers = found.filter(({ medians }) => isOutlier(medians, found.length)).length;
  fill(part("norms"), table([["learner", "left"], ["last norm", ""], ["of the median", ""], ["clipped", ""]], rows, "Norms of last updates"),
    h("p", { class: "note" }, `${plural(outliers, "outlier")}: three times the median or more, or a third or less. The furthest from it first.`));
};

// The norm of each learner's last update, and how many medians of all of them that is; the furthest from it first.
const lastNorms = (timeline, time) => {
  const found = [];
  for (const learner of timeline.learners) {
    const last = learner.norms[upTo(learner.normTimes, time) - 1];
    if (last?.[0] != null) found.push({ learner, norm: last[0], clipped: last[1] });
  }
  const norms = found.map(one => one.norm).sort((a, b) => a - b), median = norms[(norms.length - 1) >> 1];
  for (const one of found) {
    one.medians = median ? one.norm / median : one.norm ? Infinity : 1;
    one.far = one.medians ? Math.abs(Math.log(one.medians)) : Infinity;
  }
  return found.sort((a, b) => b.far - a.far || 0);
};
const isOutlier = (medians, count) => count > 2 && (medians >= 3 || medians <= 1 / 3);

const drawRefusals = (state, openLearner) => {
  const { refusal, learners, notes } = state.timeline, end = upTo(refusal.time, state.time), noted = upTo(notes.time, state.time);
  document.getElementById("refusals").hidden = !refusal.time.length && !notes.time.length;
  const rows = [];
  for (let place = end - 1; place >= Math.max(0, end - SHOWN); place -= 1) {
    const learner = learners[refusal.learner[place]];
    rows.push(h("tr", {}, h("td", {}, seconds(refusal.time[place])),
      h("td", { class: "left" }, learner ? link(learner.name, `refusal ${place}`, () => openLearner(learner)) : "–"),
      h("td", { class: "left" }, refusal.reason[place])));
  }
  fill(part("refusals"), table([["time", ""], ["learner", "left"], ["reason", "left"]], rows, "What was not applied"),
    notes.text.slice(Math.max(0, noted - 5), noted).map(text => h("p", { class: "note" }, text)),
    end > SHOWN && h("p", { class: "note" }, `The last ${SHOWN} of ${number(end)}.`));
};
