// All nodes with their cards: search, filter, sort.

import { ask } from "./api.js";
import { bar, freeWords, isByCores } from "./bars.js";
import { el, fill, nodeLink, nodePath, podLink } from "./dom.js";
import { ago, counted, memory, number } from "./format.js";
import { VirtualList } from "./virtual.js";

const ROW = 62; // px, as in app.css
const TYPING_MS = 200;
const ONLY = [
  ["", "all nodes"],
  ["held", "with slices"],
  ["free", "with room"],
  ["sick", "with sick cards"],
  ["problems", "with problems"],
  ["late", "late reports"],
  ["not-ready", "not ready"],
];
const SORT = [
  ["name", "by name"],
  ["free", "most room on a card first"],
  ["used", "fullest first"],
  ["problems", "most problems first"],
];

export function nodesView(main, page) {
  const params = page.params;
  const search = el("input", {
    type: "search", id: "search", placeholder: "node, pod, model or UUID", "aria-label": "Search",
    value: params.q, maxlength: "100", autocomplete: "off", spellcheck: "false",
  });
  const names = el("datalist", { id: "namespaces" });
  const namespace = el("input", {
    type: "search", placeholder: "all namespaces", "aria-label": "Namespace", list: "namespaces",
    value: params.ns, maxlength: "253", autocomplete: "off", spellcheck: "false",
  });
  const only = choice("Which nodes", ONLY, params.only);
  const sort = choice("Order", SORT, params.sort);
  const found = el("p", { class: "found", role: "status" });
  const pods = el("p", { class: "pods" });
  const rooms = el("div", { class: "legend" });

  const list = new VirtualList({
    height: ROW,
    label: "Nodes",
    load: async (offset, limit) => {
      const { q, ns, only, sort } = page.params;
      const answer = await ask("nodes", { q, ns, only, sort, offset, limit });
      const rows = answer.rows.map((row, i) => ({ ...row, reported: answer.reported[i], late: answer.late[i] }));
      return { total: answer.total, rows };
    },
    draw: (row) => drawNode(row, page.params.ns),
    // the time of a report is no reason to draw a row again
    key: (row) => JSON.stringify({ ...row, reported: 0 }) + (page.params.ns ?? ""),
    open: (row) => page.go(nodePath(row.name)),
    onTotal: (total) => (found.textContent = counted(total, "node")),
    onError: (why) => page.fail(why),
  });

  let timer = 0;
  const change = () => {
    page.setParams({
      q: search.value.trim(), ns: namespace.value.trim(), only: only.value, sort: sort.value,
    });
    list.restart();
    findPods();
  };
  const typed = () => {
    clearTimeout(timer);
    timer = setTimeout(change, TYPING_MS);
  };
  search.addEventListener("input", typed);
  namespace.addEventListener("input", typed);
  only.addEventListener("change", change);
  sort.addEventListener("change", change);

  async function findPods() {
    const { q, ns } = page.params;
    if (!q) return fill(pods);
    try {
      const answer = await ask("pods", { q, ns });
      if (q !== page.params.q) return;
      if (!answer.total) return fill(pods);
      const links = answer.rows.flatMap((row, i) => [i ? ", " : "", podLink(row.pod)]);
      const more = answer.total - answer.rows.length;
      fill(pods, counted(answer.total, "pod") + ": ", links, more > 0 ? ` and ${number(more)} more` : null);
    } catch (error) {
      page.fail(error.message);
    }
  }

  async function loadNamespaces() {
    const answer = await ask("namespaces").catch(() => ({ rows: [] }));
    fill(names, answer.rows.map((row) => el("option", { value: row.name, label: counted(row.pods, "pod") })));
  }
  namespace.addEventListener("focus", loadNamespaces);

  fill(
    rooms,
    el("span", { class: "key slice" }), "granted ",
    el("span", { class: "key free" }), "free ",
    el("span", { class: "key sick" }), "sick ",
    el("span", { text: "a bar is a card's memory; a slice is a container's share of it" }),
  );
  fill(
    main,
    el("h1", { class: "hidden", text: "Nodes" }),
    el("form", { class: "filters", role: "search", on: { submit: (event) => event.preventDefault() } },
      search, namespace, names, only, sort, found),
    pods,
    list.element,
    rooms,
  );
  list.refresh();
  findPods();
  return {
    search,
    list,
    clear() {
      if (!search.value) return false;
      search.value = "";
      change();
      return true;
    },
    changed({ nodes }) {
      // sorted and filtered lists may change by any node; else only what is in sight matters
      const { q, ns, only, sort } = page.params;
      const isPlain = !q && !ns && !only && (!sort || sort === "name");
      const shown = new Set(list.visible().map((row) => row.name));
      const isNew = nodes !== null && page.nodes !== undefined && page.nodes !== list.total;
      if (nodes === null || isNew || (nodes.length && !isPlain) || nodes.some((name) => shown.has(name))) {
        list.refresh();
      }
    },
    close: () => list.close(),
  };
}

function choice(label, options, value) {
  const made = el("select", { "aria-label": label },
    options.map(([key, text]) => el("option", { value: key, text })));
  made.value = value ?? options[0][0];
  if (made.selectedIndex < 0) made.selectedIndex = 0;
  return made;
}

function drawNode(row, namespace) {
  const marks = nodeMarks(row);
  return el("div", { class: "row" },
    el("div", { class: "who" },
      nodeLink(row.name, { class: "name", tabindex: "-1" }),
      el("span", { class: "marks" }, marks.length ? marks : el("span", {
        class: "quiet", text: nodeWords(row.cards),
      }))),
    el("div", { class: "cards" + (row.cards.length > 8 ? " dense" : "") },
      row.cards.map((card) => el("div", { class: "card" },
        bar(card, row.pods, namespace),
        el("span", { class: "caption", text: caption(card) })))));
}

/** What is unusual about a node, as marks with words. */
export function nodeMarks(row) {
  const marks = [];
  const add = (text, kind) => marks.push(el("span", { class: "mark " + kind, text }));
  if (!row.ready) add("not ready", "bad");
  if (row.cordoned) add("cordoned", "warn");
  const sick = row.cards.filter((card) => !card.ok).length;
  if (sick) add(`${sick} sick`, "bad");
  if (row.late) add(row.reported ? `reported ${ago(row.reported)}` : "given up", "warn");
  const rest = row.problems - sick;
  if (rest > 0) add(counted(rest, "problem"), "warn");
  if (row.lock) add(`locked by ${row.lock}`, "plain");
  if (row.simulated) add("simulated", "plain");
  if (row.alone) add("fixed shares", "plain");
  return marks;
}

function nodeWords(cards) {
  if (!cards.length) return "no cards";
  const sum = (what) => cards.reduce((all, card) => all + card[what][1] - card[what][0], 0);
  return isByCores(cards[0]) ? counted(sum("cores"), "core") + " free" : memory(sum("memory")) + " free";
}

function caption(card) {
  if (!card.ok) return `${card.index} · ✕ sick`;
  return `${card.index} · ${freeWords(card)}`;
}

