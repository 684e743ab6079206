// What a pod of some size would find, and how the free memory is spread.

import { ask } from "./api.js";
import { gauge } from "./bars.js";
import { el, fill, nodeLink, table } from "./dom.js";
import { counted, memory, number, percent } from "./format.js";
import { cures, verdicts } from "./pod_view.js";

const TYPING_MS = 300;

export function whatifView(main, page) {
  const { params } = page;
  const resource = el("select", { "aria-label": "Kind of card", id: "resource" });
  const input = (name, label, more) => {
    const made = el("input", { type: "number", min: "0", step: "1", inputmode: "numeric", id: name, value: params[name], ...more });
    return [el("label", { for: name, text: label }), made];
  };
  const [countLabel, count] = input("count", "Cards", { min: "1", value: params.count ?? "1" });
  const [memoryLabel, mib] = input("memory", "MiB on each", { placeholder: "whole card", step: "1024" });
  const [coresLabel, cores] = input("cores", "Cores (%)", { placeholder: "0" });
  const namespace = el("input", { id: "namespace", type: "text", value: params.ns ?? "default", maxlength: "253", spellcheck: "false" });
  const answer = el("div", { "aria-live": "polite" });
  const rooms = el("div", {});
  let control = new AbortController();
  let timer = 0;
  let vendors = [];

  async function work() {
    control.abort();
    control = new AbortController();
    const wanted = { resource: resource.value, count: count.value, memory: mib.value, cores: cores.value, ns: namespace.value.trim() };
    page.setParams(wanted);
    try {
      fill(answer, draw(await ask("whatif", wanted, control.signal)));
      page.fail("");
    } catch (error) {
      if (error.name !== "AbortError") page.fail(error.message);
    }
  }
  async function spread() {
    try {
      fill(rooms, drawRooms(await ask("rooms")));
    } catch (error) {
      page.fail(error.message);
    }
  }
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(work, TYPING_MS);
  };
  for (const it of [count, mib, cores, namespace]) it.addEventListener("input", soon);
  resource.addEventListener("change", () => {
    limit();
    work();
  });
  function limit() {
    const vendor = vendors.find((it) => it.count === resource.value);
    mib.disabled = !vendor?.memory;
    cores.disabled = !vendor?.cores;
  }
  fill(main,
    el("h1", { text: "What would a pod find?" }),
    el("p", { class: "quiet", text: "The engine that places real pods is asked, with the cards, grants and quotas of this moment. Nothing is written." }),
    el("form", { class: "whatif", on: { submit: (event) => (event.preventDefault(), work()) } },
      el("label", { for: "resource", text: "Kind" }), resource, countLabel, count, memoryLabel, mib, coresLabel, cores,
      el("label", { for: "namespace", text: "Namespace" }), namespace),
    answer, rooms);
  (async () => {
    try {
      vendors = (await ask("options")).vendors;
      fill(resource, vendors.map((it) => el("option", { value: it.count, text: `${it.count} (${it.title || it.count})` })));
      if (params.resource) resource.value = params.resource;
      if (resource.selectedIndex < 0) resource.selectedIndex = 0;
      limit();
      await work();
    } catch (error) {
      page.fail(error.message);
    }
  })();
  spread();
  const slow = setInterval(() => {
    soon();
    spread();
  }, 15000);
  return {
    search: mib,
    changed: () => {},
    close() {
      clearInterval(slow);
      clearTimeout(timer);
      control.abort();
    },
  };
}

function draw(found) {
  const places = found.places ?? [];
  const first = places[0];
  const where = first && `${first.cards.map((card) => `card ${card.index}`).join(", ")}`;
  const more = places.length >= found.most ? `At least ${found.most}` : number(places.length);
  return [
    el("section", { class: "panel " + (first ? "good" : "bad") },
      el("h2", { text: first ? "It fits" : "It does not fit now" }),
      first
        ? el("p", { class: "lead" }, el("span", { text: "It would go to " }), nodeLink(first.node), el("span", { text: `, ${where}. ` }),
            el("strong", { text: `${more} of them fit, one after another.` }))
        : el("p", { class: "lead", text: found.summary }),
      el("p", { class: "quiet", text: found.asks })),
    cures(first ? [] : found.cures),
    places.length > 1 ? el("details", { class: "panel" },
      el("summary", { text: "Where each would go" }),
      table(["#", "Node", "Cards"], places.map((it, i) => [i + 1, nodeLink(it.node),
        it.cards.map((card) => `${card.index}: ${memory(card.memory)}`).join(", ")]))) : null,
    verdicts(found),
  ];
}

function drawRooms(found) {
  if (!found.cards) return el("section", { class: "panel" }, el("h2", { text: "Fragmentation" }), el("p", { text: "No card takes another container." }));
  return el("section", { class: "panel", id: "rooms" },
    el("h2", { text: "Fragmentation" }),
    el("p", {}, el("span", { text: `${memory(found.free)} are free on ${counted(found.cards, "card")} that take another container. The largest slice that still fits is ` }),
      el("strong", { text: memory(found.largest.mib) }), el("span", { text: " on " }), nodeLink(found.largest.node)),
    el("table", {},
      el("caption", { text: "pods with one card each; quotas and wishes are not looked at" }),
      el("thead", {}, el("tr", {}, ["Size of a slice", "Pods that fit", "Cards with room", "Free memory that such pods can use"].map((text, i) =>
        el("th", { scope: "col", class: i === 1 || i === 2 ? "number" : null, text })))),
      el("tbody", {}, found.sizes.map((it) => {
        const words = percent(it.pods * it.mib, found.free);
        return el("tr", {}, el("td", { text: memory(it.mib) }), el("td", { class: "number", text: number(it.pods) }),
          el("td", { class: "number", text: number(it.cards) }),
          el("td", { class: "with-gauge" }, gauge(it.pods * it.mib, found.free, words), el("span", { text: words })));
      }))));
}
