// The page: which view is shown, the keyboard, the theme, and the stream of changes.

import { clean, el, fill } from "./dom.js";
import { Live } from "./live.js";
import { nodeView } from "./node_view.js";
import { nodesView } from "./nodes_view.js";
import { podView } from "./pod_view.js";
import { problemsView } from "./problems_view.js";
import { showState, showSummary } from "./summary.js";
import { waitingView } from "./waiting_view.js";
import { whatifView } from "./whatif_view.js";

const VIEWS = {
  nodes: nodesView, node: nodeView, pod: podView, waiting: waitingView, whatif: whatifView, problems: problemsView,
};
const ORDER = ["nodes", "waiting", "whatif", "problems"];
const THEMES = ["system", "light", "dark"];

const main = document.getElementById("main");
const keys = document.getElementById("keys");
const failure = el("p", { class: "banner bad", role: "alert", hidden: true });
main.before(failure);

let shown = null;
let page = null;
let stale = null;

class Page {
  constructor(hash) {
    const [path, query] = hash.replace(/^#?\/?/, "").split("?");
    const [view, ...rest] = path.split("/").map(decode);
    this.view = Object.hasOwn(VIEWS, view) ? view : "nodes";
    this.path = rest;
    this.params = Object.fromEntries(new URLSearchParams(query ?? ""));
    this.nodes = undefined;
  }

  /** Say in the address what is shown, so that it can be sent to somebody. */
  setParams(params) {
    this.params = Object.fromEntries(Object.entries(params).filter(([, value]) => value));
    const query = new URLSearchParams(this.params).toString();
    const path = [this.view, ...this.path].map(encodeURIComponent).join("/");
    history.replaceState(null, "", `#/${path}${query ? "?" + query : ""}`);
  }

  go(path) {
    location.hash = path;
  }

  fail(why) {
    if (this !== page) return;
    failure.textContent = clean(why);
    failure.hidden = !why;
  }
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function route() {
  shown?.close?.();
  page = new Page(location.hash);
  page.fail("");
  fill(main);
  const title = page.path.join("/") || page.view;
  document.title = `${clean(title)} · hami-node`;
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.dataset.view === page.view || (link.dataset.view === "nodes" && page.view === "node");
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  shown = VIEWS[page.view](main, page);
}

// -- live --------------------------------------------------------------------------------------

const live = new Live(
  (change) => {
    stale = change.summary.stale;
    showSummary(change.summary);
    if (page) page.nodes = change.summary.nodes;
    shown?.changed?.(change);
  },
  (state) => showState(state, stale),
);

// -- keyboard ----------------------------------------------------------------------------------

function isTyping(target) {
  return target.matches?.("input, select, textarea") ?? false;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
  if (event.key === "Escape") {
    if (isTyping(event.target)) event.target.blur();
    if (shown?.clear?.()) return;
    if (page.view === "node" || page.view === "pod") history.length > 1 ? history.back() : page.go("/nodes");
    return;
  }
  if (isTyping(event.target)) return;
  const actions = {
    "/": () => shown?.search?.focus(),
    j: () => shown?.list?.move(1),
    k: () => shown?.list?.move(-1),
    ArrowDown: shown?.list ? () => shown.list.move(1) : undefined,
    ArrowUp: shown?.list ? () => shown.list.move(-1) : undefined,
    Home: shown?.list ? () => shown.list.move(-Infinity) : undefined,
    End: shown?.list ? () => shown.list.move(Infinity) : undefined,
    t: nextTheme,
    "?": () => keys.showModal(),
    ...Object.fromEntries(ORDER.map((view, i) => [String(i + 1), () => (location.hash = "/" + view)])),
  };
  const action = actions[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

document.getElementById("help").addEventListener("click", () => keys.showModal());
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which view is shown
  main.focus();
});

// -- theme -------------------------------------------------------------------------------------

const themeButton = document.getElementById("theme");

function stored() {
  try {
    return localStorage.getItem("theme") ?? "system";
  } catch {
    return "system"; // storage is off
  }
}

function setTheme(theme) {
  const wanted = THEMES.includes(theme) ? theme : "system";
  document.documentElement.dataset.theme = wanted;
  themeButton.textContent = { system: "◑ system", light: "☀ light", dark: "☾ dark" }[wanted];
  try {
    localStorage.setItem("theme", wanted);
  } catch {
    // kept for this page only
  }
}

function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
}

themeButton.addEventListener("click", nextTheme);

// ----------------------------------------------------------------------------------------------

setTheme(stored());
window.addEventListener("hashchange", route);
route();
live.start();
