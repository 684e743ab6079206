// Elements and text. Nothing here or elsewhere parses HTML: what is shown is text.

// Characters that change how other text is read: controls, direction marks, invisible ones.
const HIDDEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** The text with hidden characters written out, such as \u202e. */
export function clean(text) {
  return String(text ?? "").replace(
    HIDDEN,
    (found) => "\\u" + found.charCodeAt(0).toString(16).padStart(4, "0"),
  );
}

/** An element. `text`, `class`, `href` (within the page) and `on` are special; the rest are attributes. */
export function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") made.textContent = clean(value);
    else if (name === "class") made.className = value;
    else if (name === "on") {
      for (const [kind, listener] of Object.entries(value)) made.addEventListener(kind, listener);
    } else if (name === "href") made.setAttribute("href", "#" + value);
    else made.setAttribute(name, value === true ? "" : clean(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== undefined && child !== null) made.append(child);
  }
  return made;
}

/** Replace what is inside. */
export function fill(parent, ...children) {
  const kept = children.flat(Infinity).filter((child) => child !== undefined && child !== null);
  parent.replaceChildren(...kept);
}

/** A table. `columns` are titles; a title that begins with # is of numbers. */
export function table(columns, rows, caption) {
  const isNumber = columns.map((title) => title.startsWith("#"));
  return el(
    "table",
    {},
    caption ? el("caption", { text: caption }) : null,
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        columns.map((title, i) =>
          el("th", { scope: "col", class: isNumber[i] ? "number" : null, text: title.replace("#", "") }),
        ),
      ),
    ),
    el(
      "tbody",
      {},
      rows.map((cells) =>
        el(
          "tr",
          {},
          cells.map((cell, i) => {
            const options = { class: isNumber[i] ? "number" : null };
            return cell instanceof Node ? el("td", options, cell) : el("td", { ...options, text: cell });
          }),
        ),
      ),
    ),
  );
}

/** A link to a pod's page. */
export function podLink(key, options = {}) {
  return el("a", { href: podPath(key), text: key, ...options });
}

/** A link to a node's page. */
export function nodeLink(name, options = {}) {
  return el("a", { href: nodePath(name), text: name, ...options });
}

export const podPath = (key) => "/pod/" + key.split("/").map(encodeURIComponent).join("/");
export const nodePath = (name) => "/node/" + encodeURIComponent(name);
