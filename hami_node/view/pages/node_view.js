// One node: each card with its slices, what is wrong, and how the node is served.

import { ask } from "./api.js";
import { bar, gauge, isByCores } from "./bars.js";
import { el, fill, podLink, table } from "./dom.js";
import { ago, clock, memory, part } from "./format.js";
import { nodeMarks } from "./nodes_view.js";

export function nodeView(main, page) {
  const name = page.path[0] ?? "";
  const body = el("div", {});
  let node = null;
  let used = { cards: {}, slices: [], note: "" };
  const show = () => node && fill(body, draw(node, used));
  const load = async () => {
    try {
      node = await ask("node", { name });
      show();
      page.fail("");
    } catch (error) {
      page.fail(error.message);
    }
  };
  // a daemon that hangs must not delay the rest
  const loadUsed = async () => {
    used = await ask("used", { name }).catch((error) => ({ cards: {}, slices: [], note: error.message }));
    show();
  };
  fill(main, el("p", { class: "back" }, el("a", { href: "/nodes", text: "← all nodes" })), el("h1", { text: name }), body);
  load();
  loadUsed();
  const timer = setInterval(() => {
    load();
    loadUsed();
  }, 15000);
  return {
    changed: ({ nodes }) => (nodes === null || nodes.includes(name)) && load(),
    close: () => clearInterval(timer),
  };
}

function draw(node, used) {
  const holders = new Map();
  const bySlice = new Map(used.slices.map((it) => [sliceKey(it.pod, it.container, it.uuid), it]));
  for (const holder of node.holders) {
    holder.used = bySlice.get(sliceKey(`${holder.namespace}/${holder.pod}`, holder.container, holder.uuid));
    const card = holder.uuid.split("[")[0];
    holders.set(card, [...(holders.get(card) ?? []), holder]);
  }
  const marks = nodeMarks({ ...node, problems: 0 });
  const others = node.holders.filter((holder) => holder.index === null);
  return [
    marks.length ? el("p", { class: "marks" }, marks) : null,
    node.why ? el("p", { class: "note bad", text: "It offers no card: " + node.why }) : null,
    problems(node.problems),
    facts(node),
    used.note ? el("p", { class: "quiet", text: used.note }) : null,
    node.cards.map((card) => drawCard(card, holders.get(card.uuid) ?? [], used.cards[card.uuid])),
    others.length ? el("section", { class: "panel" }, el("h2", { text: "Held beside these cards" }), slices(others)) : null,
    node.hidden ? el("p", { class: "note", text: `${node.hidden} more slices are not shown` }) : null,
  ];
}

const sliceKey = (pod, container, uuid) => JSON.stringify([pod, container, uuid]);

export function problems(found) {
  if (!found.length) return null;
  return el("section", { class: "panel bad" },
    el("h2", { text: "What is wrong" }),
    el("ul", {}, found.map((it) => el("li", {}, el("strong", { text: it.where + ": " }), el("span", { text: it.why })))));
}

function facts(node) {
  const rows = [
    ["Report", node.reported ? `${node.handshake} ${ago(node.reported)} (${clock(node.reported)})` : node.handshake || "none"],
    ["Containers offered", node.allocatable && `${node.allocatable} by kubelet, ${node.offered} by the cards' slots`],
    ["Node lock", node.lock || "free"],
    ["Pods are told apart by", node.identity],
    ["Limiter of new containers", node.limiter],
    ["How containers get cards", node.handover],
    ["kubelet", node.kubelet],
    ["Container engine", node.engine],
  ];
  return el("dl", { class: "facts" },
    rows.filter(([, text]) => text).flatMap(([title, text]) => [el("dt", { text: title }), el("dd", { text })]));
}

function drawCard(card, holders, used) {
  const pods = [...new Set(holders.map((it) => `${it.namespace}/${it.pod}`))];
  const drawn = { ...card, slices: holders.map((it) => [pods.indexOf(`${it.namespace}/${it.pod}`), it.memory, it.cores]) };
  const more = [card.model, card.mode, card.numa === null ? "" : `NUMA node ${card.numa}`, card.uuid];
  const amounts = [
    ...(isByCores(card) ? [] : [["memory granted", ...card.memory, part(...card.memory)]]),
    ...(used ? [["memory used", used.memory ?? 0, card.memory[1], usedWords(used, card)]] : []),
    ["slots", ...card.slots, `${card.slots[0]} of ${card.slots[1]}`],
    ["cores granted", ...card.cores, `${card.cores[0]} of ${card.cores[1]}`],
  ];
  return el("section", { class: "panel card-panel" },
    el("h2", {}, el("span", { text: `Card ${card.index}` }), card.ok ? null : el("span", { class: "mark bad", text: "sick: takes no pod" })),
    el("p", { class: "quiet", text: more.filter(Boolean).join(" · ") }),
    card.ok || !card.why ? null : el("p", { class: "note bad", text: card.why }),
    bar(drawn, pods),
    el("div", { class: "amounts" }, amounts.map(([title, used, all, words]) =>
      el("div", {}, el("span", { class: "quiet", text: title }), gauge(used, all, `${title}: ${words}`), el("span", { text: words })))),
    holders.length ? slices(holders) : el("p", { class: "quiet", text: "nobody holds a slice" }));
}

function usedWords(used, card) {
  const cores = used.cores === null ? "" : `, ${used.cores} % of the time busy`;
  return (used.memory === null ? "unknown" : part(used.memory, card.memory[1])) + cores;
}

export function slices(holders) {
  const isKnown = holders.some((it) => it.used);
  const usedMemory = (it) => (it.used?.memory == null ? "" : memory(it.used.memory));
  return table(["Pod", "Container", "#Memory", ...(isKnown ? ["#used"] : []), "#Cores", ...(isKnown ? ["#used"] : []), "State"],
    holders.map((it) => [
      podLink(`${it.namespace}/${it.pod}`),
      it.container,
      it.shares || memory(it.memory),
      ...(isKnown ? [usedMemory(it)] : []),
      it.shares ? "" : it.cores,
      ...(isKnown ? [it.used?.cores ?? ""] : []),
      it.served ? it.phase : "kubelet has not asked yet",
    ]));
}
