// Amounts and times for people.

const GROUPED = new Intl.NumberFormat("en");

/** 12,345. */
export const number = (value) => GROUPED.format(value);

/** MiB as MiB, GiB, TiB or PiB, with at most three digits. */
export function memory(mib) {
  let value = mib;
  for (const unit of ["MiB", "GiB", "TiB"]) {
    if (Math.abs(value) < 1024) return short(value) + " " + unit;
    value /= 1024;
  }
  return short(value) + " PiB";
}

function short(value) {
  const digits = Math.abs(value) >= 100 || Number.isInteger(value) ? 0 : 1;
  return value.toFixed(digits).replace(/\.0$/, "");
}

/** `3 of 40 GiB`. */
export function part(used, all) {
  const [first, second] = [memory(used), memory(all)];
  const unit = second.slice(second.indexOf(" "));
  return (first.endsWith(unit) ? first.slice(0, -unit.length) : first) + " of " + second;
}

export const percent = (used, all) => (all > 0 ? Math.round((100 * used) / all) : 0) + " %";

/** Seconds as `40 s`, `5 min`, `3 h`, `2 d`. */
export function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 100) return s + " s";
  if (s < 6000) return Math.round(s / 60) + " min";
  if (s < 172800) return Math.round(s / 3600) + " h";
  return Math.round(s / 86400) + " d";
}

/** How long ago. */
export const ago = (unixS) => duration(Date.now() / 1000 - unixS) + " ago";

/** A time of the day, with the date if that is not today. */
export function clock(unixS) {
  const at = new Date(unixS * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return new Date().toDateString() === at.toDateString() ? time : `${day} ${time}`;
}

/** `1 pod`, `2 pods`. */
export const counted = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
