// A pod's story: what it asks for, what it got, and its way there in the order of time.

import { ask } from "./api.js";
import { el, fill, nodeLink, table } from "./dom.js";
import { clock, counted, memory } from "./format.js";
import { problems, slices } from "./node_view.js";

const KINDS = {
  created: "created", reserved: "reserved", bound: "bound", granted: "granted", phase: "allocation", event: "event",
};

export function podView(main, page) {
  const key = page.path.join("/");
  const body = el("div", {});
  let isBusy = false;
  let node = "";
  const load = async () => {
    if (isBusy) return;
    isBusy = true;
    try {
      const pod = await ask("pod", { name: key });
      node = pod.node;
      fill(body, draw(pod));
      page.fail("");
    } catch (error) {
      page.fail(error.message);
    }
    isBusy = false;
  };
  fill(main, el("p", { class: "back" }, el("a", { href: "/nodes", text: "← all nodes" })), el("h1", { text: key }), body);
  load();
  const timer = setInterval(load, 10000);
  return { changed: ({ waiting, nodes }) => (waiting || nodes === null || nodes.includes(node)) && load(), close: () => clearInterval(timer) };
}

function draw(pod) {
  return [
    el("p", { class: "lead" }, el("span", { class: "mark plain", text: pod.state }), el("span", { text: pod.summary })),
    el("dl", { class: "facts" },
      el("dt", { text: "Asks for" }), el("dd", { text: pod.asks || "nothing that can be read" }),
      el("dt", { text: "Node" }), el("dd", {}, pod.node ? nodeLink(pod.node) : el("span", { text: "none yet" })),
      el("dt", { text: "Phase" }), el("dd", { text: pod.phase }),
      pod.resize ? [el("dt", { text: "Resize" }), el("dd", { text: pod.resize })] : null),
    cures(pod.cures),
    problems(pod.problems),
    pod.held.length ? el("section", { class: "panel" }, el("h2", { text: "What it holds" }), slices(pod.held)) : null,
    el("section", { class: "panel" },
      el("h2", { text: "Its way" }),
      pod.missing ? el("p", { class: "note", text: pod.missing }) : null,
      el("ol", { class: "story" }, pod.steps.map(step))),
    verdicts(pod),
  ];
}

function step(it) {
  const count = it.count > 1 ? ` (${it.count} times)` : "";
  const by = it.by ? ` · ${it.by}` : "";
  return el("li", { class: it.warning ? "warning" : null },
    el("time", { text: it.at === null ? "" : clock(it.at) }),
    el("span", { class: "mark " + (it.warning ? "warn" : "plain"), text: (it.warning ? "⚠ " : "") + (it.reason || KINDS[it.kind] || it.kind) }),
    el("span", { class: "text", text: it.text + count }),
    el("span", { class: "quiet", text: by }));
}

/** Changes that would help. */
export function cures(found) {
  if (!found.length) return null;
  return el("section", { class: "panel good" },
    el("h2", { text: "What would help" }), el("ul", {}, found.map((text) => el("li", { text }))));
}

/** How nodes judge a pod. */
export function verdicts(found) {
  if (!found.nodes?.length) return null;
  const counts = Object.entries(found.counts).map(([verdict, count]) => `${verdict}: ${counted(count, "node")}`);
  const room = (best) => best
    ? `card ${best.index}: ${memory(best.memory)}, ${best.cores} cores, ${counted(best.slots, "slot")}${best.usable ? "" : " (not usable)"}` : "";
  return el("section", { class: "panel" },
    el("h2", { text: "Node by node" }),
    el("p", { class: "quiet", text: counts.join(" · ") }),
    found.reasons.length
      ? table(["#Nodes", "Why not"], found.reasons.map((it) => [it.nodes, it.why])) : null,
    table(["Node", "Verdict", "Most room", "Why"],
      found.nodes.map((it) => [nodeLink(it.node), it.verdict, room(it.best), it.why]),
      "the nodes that come closest"));
}
