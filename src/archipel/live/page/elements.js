"use strict";
// Elements, numbers and words. What users wrote only ever becomes text, never markup.

const h = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "tone") element.style.setProperty("--tone", value);
    else if (name === "width" || name === "height" || name === "top") element.style[name] = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(child => child != null && child !== false));
  return element;
};

const part = id => document.querySelector(`#${id} .body`);

// Replace the children of an element unless they say the same: a focused button must not vanish under its user.
const fill = (element, ...children) => {
  const next = h("div", {}, ...children);
  if (next.innerHTML === element.innerHTML) return;
  const held = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  element.replaceChildren(...next.childNodes);
  if (held) element.querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus();
};

const link = (text, key, action, more = {}) =>
  h("button", { class: "plain", type: "button", "data-key": key, onclick: action, ...more }, text);

const digits = new Intl.NumberFormat("en");
const number = value =>
  value == null ? "–"
  : Math.abs(value) >= 1000 ? digits.format(Math.round(value))
  : Number.isInteger(value) ? String(value)
  : Math.abs(value) >= 100 ? value.toFixed(0) : String(+value.toPrecision(3));
const score = value => (value == null ? "–" : value.toFixed(4));
const percent = share => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
const wide = share => `${(100 * share).toFixed(2)}%`;
const capital = text => text.charAt(0).toUpperCase() + text.slice(1).replaceAll("_", " ");
const megabytes = bytes => `${number(bytes / 2 ** 20)} MB`;
const seconds = value => {
  if (value == null) return "–";
  if (value < 100) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  if (value < 6000) return `${Math.floor(value / 60)} min ${String(Math.floor(value % 60)).padStart(2, "0")} s`;
  if (value < 172800) return `${Math.floor(value / 3600)} h ${String(Math.floor((value % 3600) / 60)).padStart(2, "0")} min`;
  return `${(value / 86400).toFixed(1)} days`;
};
const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

const tone = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const TONES = 7;
const colour = place => `var(--c${place % TONES})`;

// A word as a shell takes it: names are whatever users wrote.
const quoted = word => (/^[\w.:/@%+=-]+$/.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`);

const command = text => {
  const button = h("button", { type: "button", "data-key": `copy ${text}`, "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  });
  return h("div", { class: "command" }, h("code", {}, text), button);
};

const table = (heads, rows, caption) =>
  h("div", { class: "wide", role: "region", "aria-label": caption, tabindex: "0" },
    h("table", {}, h("thead", {}, h("tr", {}, heads.map(([text, kind]) => h("th", { scope: "col", class: kind }, text)))),
      h("tbody", {}, rows)));
