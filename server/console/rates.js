// How fast things went during the last minutes: one number per look, and the line they form.

const KEPT = 90;
const LEAST = 24; // a line has room for at least this many points
const lines = new Map(); // "group:name" -> the last rates, oldest first

export function perSecond(now, before, group, name) {
  if (!before) return null;
  const spent = (Date.parse(now.at) - Date.parse(before.at)) / 1000;
  return spent > 0 ? Math.max(0, ((now[group][name] ?? 0) - (before[group][name] ?? 0)) / spent) : null;
}

function keep(name, value) {
  if (!lines.has(name)) lines.set(name, []);
  const line = lines.get(name);
  line.push(value);
  if (line.length > KEPT) line.shift();
}

export function remember(now, before) {
  if (!before) return;
  const spent = (Date.parse(now.at) - Date.parse(before.at)) / 1000;
  if (spent <= 0) return;
  keep("all", Math.max(0, (now.sequence - before.sequence) / spent));
  for (const group of ["pushed", "emitted", "commits"]) {
    for (const name of Object.keys(now[group])) keep(`${group}:${name}`, perSecond(now, before, group, name));
  }
}

const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// The rates as a line over its area; newest at the right. Purely visual: the number is beside it.
export function spark(name, width = 120, height = 26) {
  const values = lines.get(name) ?? [];
  const drawing = shape("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  if (values.length < 2) return drawing;
  const most = Math.max(...values, 1e-9), step = width / (Math.max(values.length, LEAST) - 1), from = width - (values.length - 1) * step;
  const points = values.map((value, place) => `${(from + place * step).toFixed(1)},${(height - 1 - (value / most) * (height - 3)).toFixed(1)}`);
  drawing.append(
    shape("polygon", { points: `${from.toFixed(1)},${height} ${points.join(" ")} ${width},${height}` }),
    shape("polyline", { points: points.join(" "), "vector-effect": "non-scaling-stroke" }));
  return drawing;
}
