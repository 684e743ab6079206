// What is published wrongly, closed cards, and what is held that does not exist.

import { ask } from "./api.js";
import { el, fill, nodeLink } from "./dom.js";
import { counted } from "./format.js";
import { nodePath } from "./dom.js";
import { VirtualList } from "./virtual.js";

const ROW = 62;

export function problemsView(main, page) {
  const search = el("input", {
    type: "search", id: "search", placeholder: "node, pod or reason", "aria-label": "Search", value: page.params.q,
    maxlength: "100", autocomplete: "off", spellcheck: "false",
  });
  const found = el("p", { class: "found", role: "status" });
  const list = new VirtualList({
    height: ROW,
    label: "Problems",
    load: (offset, limit) => ask("problems", { q: page.params.q, offset, limit }),
    draw: (row) => el("div", { class: "row waiting" },
      el("div", { class: "who" },
        row.node ? nodeLink(row.node, { class: "name", tabindex: "-1" }) : null,
        el("span", { class: "quiet", text: row.where })),
      el("p", { class: "why", text: row.why })),
    key: (row) => JSON.stringify(row),
    open: (row) => row.node && page.go(nodePath(row.node)),
    onTotal: (total) => (found.textContent = total ? counted(total, "problem") : "nothing is wrong"),
    onError: (why) => page.fail(why),
  });
  let timer = 0;
  const change = () => {
    page.setParams({ q: search.value.trim() });
    list.restart();
  };
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(change, 200);
  });
  fill(main,
    el("h1", { class: "hidden", text: "Problems" }),
    el("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } }, search, found),
    list.element);
  list.refresh();
  return {
    search,
    list,
    clear() {
      if (!search.value) return false;
      search.value = "";
      change();
      return true;
    },
    changed: ({ nodes }) => (nodes === null || nodes.length) && list.refresh(),
    close: () => list.close(),
  };
}
