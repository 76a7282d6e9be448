// The dataflow: figures, the graph with live rates and back-pressure, executions, windows, merges.

import { getText } from "./api.js";
import { perSecond, spark } from "./rates.js";
import { byId, bytes, clock, make, number, put, rate, seconds, table } from "./show.js";

let nodes = null;
let edges = [];
let units = {};

export async function loadGraph(described) {
  for (const node of described.nodes) if (node.kind === "procedure") units[node.name] = node;
  const text = await getText("/v1/graph?format=svg");
  const svg = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  put("graph", document.importNode(svg, true));
  nodes = new Map([...byId("graph").querySelectorAll("g.node")].map((node) => [node.dataset.id, node]));
  edges = [...byId("graph").querySelectorAll("path.edge")];
}

function figure(name, value, more = "", mood = null, extra = null) {
  return make("div", { class: mood }, make("dt", {}, name), make("dd", {}, value), make("small", {}, more), extra);
}

function replica(facts) {
  if (!facts) return figure("query replica", "none");
  if (!facts.ready) return figure("query replica", "not ready", facts.last_trouble ?? "", "warn");
  return figure("query replica", facts.behind ? `${number(facts.behind)} behind` : "current", `${number(facts.connections)} connections`);
}

function figures(now, before) {
  const spent = before ? (Date.parse(now.at) - Date.parse(before.at)) / 1000 : 0;
  const speed = spent > 0 ? (now.sequence - before.sequence) / spent : null;
  const share = now.unfinished / now.capacity;
  const commits = Object.values(now.commits).reduce((a, b) => a + b, 0);
  const aborts = Object.values(now.aborts).reduce((a, b) => a + b, 0);
  const meter = make("meter", { min: 0, max: 1, high: 0.5, optimum: 0, value: share, "aria-label": "share of the capacity in use" });
  put("figures",
    figure("batches and calls", speed == null ? "–" : rate(speed), `${number(now.sequence)} in total`, "live", spark("all", 160, 30)),
    figure("unfinished", number(now.unfinished), `of ${number(now.capacity)}`, share > 0.5 ? "warn" : null, meter),
    figure("oldest unfinished", now.oldest_unfinished_s ? seconds(now.oldest_unfinished_s) : "–",
      now.questions?.length ? `${number(now.questions.length)} wait for people` : ""),
    figure("committed", number(commits), `${number(aborts)} aborted`),
    figure("unmerged rows", number(now.unmerged_rows), now.merges === 1 ? "1 merge" : `${number(now.merges)} merges`),
    replica(now.replica),
    now.log
      ? figure("log", bytes(now.log.end), now.log.taking ? `${number(now.log.syncs)} syncs` : "refuses records", now.log.taking ? null : "bad")
      : figure("log", "none", "in memory", "warn"));
}

function paint(now, before) {
  const halted = new Set(now.halted);
  for (const stream of now.streams) {
    const node = nodes.get(`stream:${stream.stream}`);
    if (!node) continue;
    const speed = perSecond(now, before, stream.border ? "pushed" : "emitted", stream.stream);
    const parts = [speed == null ? null : rate(speed), stream.queued ? `${number(stream.queued)} queued` : null];
    node.querySelector(".rate").textContent = parts.filter(Boolean).join(" · ");
    node.classList.toggle("busy", speed > 0);
    node.classList.toggle("pressed", stream.queued > 0);
  }
  for (const [name, procedure] of Object.entries(units)) {
    const node = nodes.get(`procedure:${name}`);
    if (!node) continue;
    const speed = perSecond(now, before, "commits", procedure.unit);
    node.querySelector(".rate").textContent = speed == null ? "" : rate(speed);
    const share = now.procedures_busy[name] ?? 0;
    if (share > 0.01) node.querySelector(".rate").textContent += ` · ${Math.round(100 * Math.min(share, 1))} % busy`;
    node.classList.toggle("busy", speed > 0);
    node.classList.toggle("hot", share > 0.5);
    node.classList.toggle("halted", halted.has(procedure.dataflow));
  }
  for (const edge of edges) {
    const ends = [edge.dataset.from, edge.dataset.to].map((id) => nodes.get(id));
    edge.classList.toggle("busy", ends.every((node) => node?.classList.contains("busy")));
  }
}

export function showFlow(now, before) {
  figures(now, before);
  byId("bottleneck").textContent = now.bottleneck ?? "";
  if (!now.streams) return;
  if (nodes) paint(now, before);
  put("units", table([
    ["unit", "unit"], ["", (row) => spark(`commits:${row.unit}`)], ["a second", (row) => rate(row.speed)], ["committed", "count"],
  ], Object.entries(now.commits).map(([unit, count]) => ({ unit, count, speed: perSecond(now, before, "commits", unit) })), "Nothing has run yet."));
  put("windows", table([
    ["window", (row) => `${row.procedure}.${row.name}`], ["key", "key"], ["kind", "kind"],
    ["held", "held"], ["bytes", (row) => bytes(row.bytes)], ["fired", "fired"], ["late", "late"],
  ], now.windows.slice(0, 12), "No windows hold anything."));
  put("merges", table([
    ["merge", "number"], ["rows", "rows"], ["took", (row) => seconds(row.seconds)], ["at", (row) => clock(row.at_time)],
  ], now.recent_merges.slice(0, 8), "Nothing has been merged yet."));
  const followers = now.subscriptions.map((row) => ({ ...row, subscription: row.name }));
  const topics = now.topics.map((row) => ({ ...row, batches: row.end_offset - row.first_offset }));
  put("topics", table([
    ["stream", "stream"], ["keep", (row) => row.keep ?? "until acknowledged"], ["batches", "batches"], ["bytes", (row) => bytes(row.bytes)],
  ], topics.slice(0, 12), "Nothing is kept or followed."), table([
    ["subscription", "subscription"], ["stream", "stream"], ["lag", "waiting"], ["behind", (row) => seconds(row.lag_s)],
  ], followers.slice(0, 12), ""));
}
