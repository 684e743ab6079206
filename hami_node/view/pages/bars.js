// A card as a bar: as long as its memory, with the slices that are granted.

import { el, podPath } from "./dom.js";
import { counted, memory, part } from "./format.js";

/** True for cards without memory of their own to grant: their cores are granted one by one. */
export const isByCores = (card) => card.memory[1] === 0 && card.cores[1] > 0;

/** What is still free on a card. */
export function freeWords(card) {
  if (isByCores(card)) return counted(card.cores[1] - card.cores[0], "core") + " free";
  return memory(card.memory[1] - card.memory[0]) + " free";
}

/** What a bar shows, in words. */
export function cardWords(card) {
  const [slots, allSlots] = card.slots;
  const state = card.ok ? "" : `sick${card.why ? ` (${card.why})` : ""}, `;
  const granted = isByCores(card) ? `${card.cores[0]} of ${counted(card.cores[1], "core")}` : part(...card.memory);
  return `card ${card.index}: ${state}${granted} granted, ${slots} of ${counted(allSlots, "slot")}`;
}

/**
 * The bar. `pods` are the names that slices refer to; slices of `namespace` stand out, if it is given.
 */
export function bar(card, pods, namespace) {
  const byCores = isByCores(card);
  const [used, all] = byCores ? card.cores : card.memory;
  const amount = (value) => (byCores ? counted(value, "core") : memory(value));
  const scale = Math.max(all, used, 1);
  const made = el("div", {
    class: "bar" + (card.ok ? "" : " sick") + (used > all ? " over" : ""),
    role: "img",
    "aria-label": cardWords(card),
    title: `${card.model} · ${cardWords(card)}`,
  });
  let drawn = 0;
  for (const [pod, mib, cores] of card.slices) {
    const name = pods[pod];
    const isOurs = !namespace || name.startsWith(namespace + "/");
    const own = byCores ? cores : mib;
    made.append(segment(isOurs ? (namespace ? "slice ours" : "slice") : "slice dim", own / scale, {
      href: podPath(name),
      tabindex: "-1",
      title: byCores ? `${name}: ${amount(cores)}` : `${name}: ${memory(mib)}, ${cores} % of cores`,
      "aria-label": name,
    }));
    drawn += own;
  }
  if (used > drawn) made.append(segment("slice rest", (used - drawn) / scale, { title: amount(used - drawn) + " more" }));
  return made;
}

function segment(kind, share, options) {
  const made = el(options.href ? "a" : "span", { class: kind, ...options });
  made.style.width = (100 * share).toFixed(3) + "%";
  return made;
}

/** A plain bar of a share. */
export function gauge(used, all, words) {
  const made = el("div", { class: "gauge" + (used > all ? " over" : ""), role: "img", "aria-label": words });
  const inside = el("span");
  inside.style.width = Math.min(100, all > 0 ? (100 * used) / all : 0).toFixed(2) + "%";
  made.append(inside);
  return made;
}
