// The numbers at the top, and what is wrong with the page itself.

import { gauge } from "./bars.js";
import { clean, el, fill } from "./dom.js";
import { ago, clock, counted, number, part, percent } from "./format.js";

const byId = (id) => document.getElementById(id);

export function showSummary(summary) {
  if (summary.nodes === undefined) return;
  const [used, all] = summary.memory;
  const [slots, allSlots] = summary.slots;
  const off = summary.nodes - summary.ready;
  const nodeNotes = [off ? `${off} not ready` : "", summary.late ? `${summary.late} late` : ""].filter(Boolean).join(", ");
  fill(byId("summary"),
    cell("Nodes with cards", number(summary.nodes), reading(summary) || nodeNotes || "all report"),
    cell("Cards", number(summary.cards), summary.sick ? `✕ ${number(summary.sick)} sick` : "none is sick", summary.sick > 0),
    cell("Memory granted", percent(used, all), part(used, all), used > all, gauge(used, all, `memory granted: ${part(used, all)}`)),
    cell("Slots taken", percent(slots, allSlots), `${number(slots)} of ${number(allSlots)}`, slots > allSlots, gauge(slots, allSlots, "slots taken")),
    cell("Containers with a slice", number(summary.holders), ""),
    cell("Pods that wait", number(summary.waiting), ""));
  count("count-waiting", summary.waiting);
  count("count-problems", summary.problems);
  banner("stale", summary.stale && `The API server is away since ${clock(summary.stale.since)} (${ago(summary.stale.since)}): what you see is from then. ${summary.stale.why}`);
  banner("missing", summary.missing.length ? "Left out, because your rights do not allow it: " + summary.missing.join("; ") : "");
}

function reading(summary) {
  if (summary.left) return `reading, ${number(summary.left)} changes left`;
  return summary.synced ? "" : "reading the cluster";
}

function cell(title, value, note, isBad = false, more = null) {
  return el("div", { class: "cell" + (isBad ? " bad" : "") },
    el("span", { class: "title", text: title }), el("strong", { text: value }), more, el("span", { class: "note", text: note }));
}

function count(id, value) {
  byId(id).textContent = value ? number(value) : "";
  byId(id).title = value ? counted(value, "entry").replace("entrys", "entries") : "";
}

function banner(id, text) {
  const shown = byId(id);
  const wanted = text ? clean(text) : "";
  if (shown.textContent !== wanted) shown.textContent = wanted;
  shown.hidden = !wanted;
}

const STATES = {
  live: ["● live", "good"],
  polling: ["◐ every 15 s", "warn"],
  away: ["○ no connection", "bad"],
};

export function showState(state, isStale) {
  const [text, kind] = isStale && state === "live" ? ["◌ stale", "warn"] : STATES[state];
  const pill = byId("live");
  if (pill.textContent !== text) pill.textContent = text;
  pill.className = "pill " + kind;
}
