// What only a federation has: membership, certificates, refused calls, the audit, commands to copy.

const drawFederation = (state, openLearner) => {
  const federation = state.feed.overview?.federation;
  document.getElementById("federation").hidden = !federation;
  if (!federation) return;
  const byName = new Map(state.timeline.learners.map(learner => [learner.name, learner]));
  const members = (federation.learners ?? []).slice(0, 500).map(one => h("tr", {},
    h("td", { class: "left" }, byName.has(one.name) ? link(one.name, `member ${one.name}`, () => openLearner(byName.get(one.name))) : one.name),
    h("td", { class: "left" }, one.state), h("td", {}, number(one.examples)), h("td", {}, one.training.join(", ")),
    h("td", {}, one.evaluating || ""), h("td", {}, one.seen == null ? "" : `${seconds(one.seen)} ago`),
    h("td", { class: "left" }, one.capped.length ? h("span", { class: "warn" }, `cut: ${one.capped.join(", ")}`) : "")));
  const soon = (federation.certificates ?? []).filter(one => one.soon);
  const certificates = soon.map(one => h("tr", {}, h("td", { class: "left" }, one.who), h("td", { class: "left" }, h("span", { class: "warn" }, one.expires.slice(0, 10)))));
  const detail = text => Object.entries(JSON.parse(text)).filter(([, value]) => value !== "" && value != null).map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
  const audit = (rows, caption) => table([["at (UTC)", "left"], ["who", "left"], ["what", "left"], ["detail", "left"]],
    (rows ?? []).map(([, at, who, what, more]) => h("tr", {}, h("td", { class: "left" }, at.slice(0, 19).replace("T", " ")),
      h("td", { class: "left" }, who), h("td", { class: "left" }, what), h("td", { class: "left" }, detail(more)))), caption);
  const reach = federation.reach ?? "";
  fill(part("federation"),
    h("h3", {}, `Membership: ${plural(members.length, "learner")}`),
    h("div", { class: "scroll" }, table([["learner", "left"], ["state", "left"], ["examples", ""], ["tasks", ""], ["evaluating", ""], ["seen", ""], ["", "left"]], members, "Membership")),
    h("div", { class: "pair" },
      h("div", {}, h("h3", {}, "Certificates that end soon"), certificates.length ? table([["who", "left"], ["ends", "left"]], certificates, "Certificates") : h("p", { class: "note" }, "None.")),
      h("div", {}, h("h3", {}, "Act from the command line"), command(`archipel status${reach}`), command(`archipel operator pause NAME${reach}`))),
    h("h3", {}, "Last refusals"), federation.refusals?.length ? h("div", { class: "scroll" }, audit(federation.refusals, "Refusals")) : h("p", { class: "note" }, "None."),
    h("h3", {}, "Log"), h("div", { class: "scroll" }, audit(federation.log, "Log")));
};
