// A list of which only the visible rows exist, fetched in parts as they come into sight.

import { el } from "./dom.js";

const PART = 50; // rows of a request
const KEPT = 12; // parts that are kept
const BEYOND = 6; // rows drawn above and below the visible ones

export class VirtualList {
  #parts = new Map();
  #drawn = new Map();
  #active = -1;
  #total = 0;
  #frame = 0;
  #turn = 0;

  /**
   * load(offset, limit) gives {total, rows}; draw(row, index) an element; key(row) tells whether a
   * drawn row is still right; open(row) opens it.
   */
  constructor({ height, label, load, draw, key, open, onTotal, onError }) {
    Object.assign(this, { height, load, draw, key, open, onTotal, onError });
    this.room = el("div", { class: "rows" });
    this.element = el("div", { class: "list", tabindex: "0", role: "list", "aria-label": label }, this.room);
    this.element.addEventListener("scroll", () => this.#soon(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.#press(event));
    this.observer = new ResizeObserver(() => this.#soon());
    this.observer.observe(this.element);
  }

  close() {
    this.observer.disconnect();
    cancelAnimationFrame(this.#frame);
    this.#turn += 1;
  }

  get total() {
    return this.#total;
  }

  /** Other rows: begin at the top. */
  restart() {
    this.#turn += 1;
    this.#parts.clear();
    this.#active = -1;
    this.element.scrollTop = 0;
    this.refresh();
  }

  /** The same rows may have changed: fetch the visible ones again. */
  refresh() {
    for (const part of this.#parts.values()) part.isOld = true;
    this.#show(true);
  }

  /** The rows in sight. */
  visible() {
    return [...this.#drawn.values()].map(({ row }) => row).filter(Boolean);
  }

  #soon() {
    if (!this.#frame) this.#frame = requestAnimationFrame(() => this.#show());
  }

  #span() {
    if (this.#total <= PART) return [0, this.#total];
    const top = Math.floor(this.element.scrollTop / this.height) - BEYOND;
    const count = Math.ceil(this.element.clientHeight / this.height) + 2 * BEYOND;
    const first = Math.max(0, Math.min(top, this.#total - count));
    return [first, Math.min(this.#total, first + count)];
  }

  #show(isFirst = false) {
    this.#frame = 0;
    const [first, end] = this.#span();
    const last = Math.max(first, end - 1);
    for (let part = Math.floor(first / PART); part <= Math.floor(last / PART); part++) {
      const known = this.#parts.get(part);
      if (isFirst || !known || known.isOld) this.#fetch(part);
    }
    this.#paint(first, end);
  }

  async #fetch(part) {
    const known = this.#parts.get(part);
    if (known?.isLoading) {
      known.isAgain = true;
      return;
    }
    const entry = { rows: known?.rows ?? [], isOld: false, isLoading: true, isAgain: false };
    this.#parts.delete(part);
    this.#parts.set(part, entry);
    const turn = this.#turn;
    try {
      const answer = await this.load(part * PART, PART);
      if (turn !== this.#turn) return;
      entry.rows = answer.rows;
      this.#count(answer.total);
      this.onError("");
    } catch (error) {
      if (turn !== this.#turn) return;
      this.onError(error.message);
    } finally {
      entry.isLoading = false;
    }
    while (this.#parts.size > KEPT) this.#parts.delete(this.#parts.keys().next().value);
    this.#paint(...this.#span());
    if (entry.isAgain) this.#fetch(part);
    else this.#soon();
  }

  #count(total) {
    this.#total = total;
    this.room.style.height = total * this.height + "px";
    this.onTotal(total);
  }

  #row(index) {
    return this.#parts.get(Math.floor(index / PART))?.rows[index % PART];
  }

  #paint(first, end) {
    for (const [index, { element }] of this.#drawn) {
      if (index < first || index >= end) {
        element.remove();
        this.#drawn.delete(index);
      }
    }
    for (let index = first; index < end; index++) {
      const row = this.#row(index);
      const key = row === undefined ? "" : this.key(row);
      const was = this.#drawn.get(index);
      if (was && was.key === key) continue;
      const element = row === undefined ? el("div", { class: "row empty" }) : this.draw(row, index);
      element.style.top = index * this.height + "px";
      element.style.height = this.height + "px";
      element.setAttribute("role", "listitem");
      element.setAttribute("aria-setsize", this.#total);
      element.setAttribute("aria-posinset", index + 1);
      element.classList.toggle("active", index === this.#active);
      if (was) was.element.replaceWith(element);
      else this.#place(element, index);
      this.#drawn.set(index, { element, key, row });
    }
  }

  // In the order of the list, for readers and printers.
  #place(element, index) {
    let next = null;
    for (const [other, { element: drawn }] of this.#drawn) {
      if (other > index && (next === null || other < next.index)) next = { index: other, drawn };
    }
    this.room.insertBefore(element, next?.drawn ?? null);
  }

  #press(event) {
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 10, PageUp: -10 };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps) this.move(steps[event.key]);
    else if (event.key === "Home") this.move(-Infinity);
    else if (event.key === "End") this.move(Infinity);
    else if (event.key === "Enter") {
      const row = this.#row(this.#active);
      if (row === undefined || event.target !== this.element) return;
      this.open(row);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Make another row the active one. */
  move(step) {
    if (!this.#total) return;
    this.#active = Math.max(0, Math.min(this.#total - 1, this.#active + step));
    const top = this.#active * this.height;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) {
      this.element.scrollTop = top + this.height - clientHeight;
    }
    for (const [index, { element }] of this.#drawn) {
      element.classList.toggle("active", index === this.#active);
    }
    this.element.focus({ preventScroll: true });
    this.#soon();
  }
}
