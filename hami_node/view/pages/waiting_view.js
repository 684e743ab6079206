// Pods that wait for cards, since when and why.

import { ask } from "./api.js";
import { el, fill, nodeLink, podLink } from "./dom.js";
import { counted, duration } from "./format.js";
import { podPath } from "./dom.js";
import { VirtualList } from "./virtual.js";

const ROW = 62;

export function waitingView(main, page) {
  const search = el("input", {
    type: "search", id: "search", placeholder: "pod", "aria-label": "Search", value: page.params.q,
    maxlength: "100", autocomplete: "off", spellcheck: "false",
  });
  const namespace = el("input", {
    type: "search", placeholder: "all namespaces", "aria-label": "Namespace", value: page.params.ns,
    maxlength: "253", autocomplete: "off", spellcheck: "false",
  });
  const found = el("p", { class: "found", role: "status" });
  let again = 0;
  const list = new VirtualList({
    height: ROW,
    label: "Pods that wait",
    load: async (offset, limit) => {
      const answer = await ask("waiting", { q: page.params.q, ns: page.params.ns, offset, limit });
      clearTimeout(again);
      if (answer.later) again = setTimeout(() => list.refresh(), 1500);
      return answer;
    },
    draw,
    key: (row) => JSON.stringify(row) + Math.floor(Date.now() / 60000),
    open: (row) => page.go(podPath(row.pod)),
    onTotal: (total) => (found.textContent = total ? counted(total, "pod") : "no pod waits for cards"),
    onError: (why) => page.fail(why),
  });
  let timer = 0;
  const change = () => {
    page.setParams({ q: search.value.trim(), ns: namespace.value.trim() });
    list.restart();
  };
  for (const input of [search, namespace]) {
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(change, 200);
    });
  }
  fill(main,
    el("h1", { class: "hidden", text: "Pods that wait" }),
    el("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } }, search, namespace, found),
    list.element);
  list.refresh();
  const slow = setInterval(() => list.refresh(), 15000);
  return {
    search,
    list,
    clear() {
      if (!search.value) return false;
      search.value = "";
      change();
      return true;
    },
    changed: ({ waiting, nodes }) => (waiting || nodes === null) && list.refresh(),
    close() {
      clearInterval(slow);
      clearTimeout(again);
      list.close();
    },
  };
}

function draw(row) {
  const created = Date.parse(row.created);
  const since = Number.isNaN(created) ? "" : "waits " + duration((Date.now() - created) / 1000);
  return el("div", { class: "row waiting" },
    el("div", { class: "who" },
      podLink(row.pod, { class: "name", tabindex: "-1" }),
      el("span", { class: "quiet", text: [since, row.asks].filter(Boolean).join(" · ") })),
    el("p", { class: "why", text: row.is_known ? row.why : "being worked out" },
      row.reserved ? [" on ", nodeLink(row.reserved, { tabindex: "-1" })] : null));
}
