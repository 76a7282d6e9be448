// Small pieces of page: elements, tables, numbers. Text is always set as text, never as HTML.

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export function number(value, digits = 0) {
  return value == null ? "" : value.toLocaleString("en", { maximumFractionDigits: digits });
}

export function rate(value) {
  return value == null ? "" : `${number(value, value < 10 ? 1 : 0)}/s`;
}

export function seconds(value) {
  if (value == null) return "";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${number(value, 1)} s`;
  return value < 7200 ? `${number(value / 60)} min` : `${number(value / 3600, 1)} h`;
}

export function bytes(value) {
  if (value < 10240) return `${number(value)} B`;
  return value < 10485760 ? `${number(value / 1024)} KB` : `${number(value / 1048576, 1)} MB`;
}

export function clock(stamp) {
  return stamp ? new Date(stamp.endsWith("Z") ? stamp : `${stamp}Z`).toLocaleTimeString("en-GB") : "";
}

const stamped = (stamp) => new Date(stamp.endsWith("Z") || stamp.includes("+") ? stamp : `${stamp}Z`);

export function moment(stamp) { return stamped(stamp).toLocaleString("en-GB"); }

export function until(stamp, now) {
  const left = (stamped(stamp) - stamped(now)) / 1000;
  return left > 0 ? seconds(left) : "due";
}

function shown(value) {
  if (value == null) return "";
  if (typeof value === "number") return number(value, 2);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// columns: [heading, field or function of a row, "number" to align it as a number in any case]
export function table(columns, rows, none) {
  if (!rows.length) return make("p", { class: "none" }, none);
  const numeric = columns.map(([, of, kind]) => kind === "number" || rows.every((row) => {
    const value = typeof of === "function" ? of(row) : row[of];
    return value == null || typeof value === "number" || (typeof value === "string" && /^[\d.,]+(\/s| ms| s| min| h)$/.test(value));
  }));
  const kind = (place) => (numeric[place] ? "number" : null);
  return make("table", {},
    make("thead", {}, make("tr", {}, ...columns.map(([heading], i) => make("th", { scope: "col", class: kind(i) }, heading)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...columns.map(([, of], i) => {
      const value = typeof of === "function" ? of(row) : row[of];
      if (value instanceof Node) return make("td", {}, value);
      const text = shown(value);
      return make("td", { class: kind(i) ?? (text.length < 25 ? "short" : null) }, text);
    })))));
}

export function put(id, ...content) { byId(id).replaceChildren(...content); }
