// The stream of changes. It tells what changed, not how: whoever shows that asks for it.

import { ask } from "./api.js";

const SILENT_MS = 40000; // the server is heard every 15 s
const POLL_MS = 15000; // where too many pages listen already
const AGAIN_MS = 3000;

/** Follows the server. `onChange({summary, nodes, waiting})`, `onState("live" | "polling" | "away")`. */
export class Live {
  #source = null;
  #mark = "";
  #heard = 0;
  #timer = 0;

  constructor(onChange, onState) {
    this.onChange = onChange;
    this.onState = onState;
    this.bytes = 0;
    setInterval(() => this.#check(), 5000);
    // a browser has six connections to a server: tabs in the background give theirs back
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#rest() : this.start()));
  }

  start() {
    this.#source?.close();
    clearTimeout(this.#timer);
    const after = this.#mark ? "?after=" + encodeURIComponent(this.#mark) : "";
    const source = (this.#source = new EventSource("api/stream" + after));
    this.#heard = Date.now();
    source.addEventListener("open", () => this.#hear("live"));
    source.addEventListener("beat", () => this.#hear("live"));
    source.addEventListener("change", (event) => {
      this.#mark = event.lastEventId;
      this.bytes += event.data.length;
      this.#hear("live");
      this.onChange(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      if (source !== this.#source) return;
      source.close();
      this.#timer = setTimeout(() => this.#instead(), 200);
    });
  }

  #rest() {
    this.#source?.close();
    this.#source = null;
    clearTimeout(this.#timer);
  }

  #hear(state) {
    this.#heard = Date.now();
    this.onState(state);
  }

  #check() {
    if (!document.hidden && Date.now() - this.#heard > SILENT_MS) this.start();
  }

  // Without the stream: ask once, say how it is, and try the stream again.
  async #instead() {
    let wait = AGAIN_MS;
    try {
      const summary = await ask("summary");
      this.#hear("polling");
      this.onChange({ summary, nodes: null, waiting: true });
      wait = POLL_MS;
    } catch {
      this.onState("away");
    }
    this.#timer = setTimeout(() => this.start(), this.#mark && wait === POLL_MS ? wait : AGAIN_MS);
  }
}
