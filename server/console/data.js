// Tables with a SQL box, and streams with a tail.

import { follow, post } from "./api.js";
import { perSecond, spark } from "./rates.js";
import { byId, make, moment, number, put, rate, table, until } from "./show.js";

const SHOWN = 500; // rows of a result

// ---- SQL

const quoted = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);

export function showTables(app) {
  const entry = (name, more) => make("li", {}, make("button", {
    onclick: () => { byId("query").value = `SELECT * FROM ${name} LIMIT 100`; runQuery(); },
  }, name, more ? make("small", {}, more) : null));
  put("tables", make("ul", {}, ...app.tables.map((one) =>
    entry(quoted(one.name), one.columns.map((c) => (one.primary_key.includes(c.name) ? `${c.name}*` : c.name)).join(", ")))));
  put("plain-views", ...(app.plain_views.length ? [make("h2", {}, "Views"), make("ul", {}, ...app.plain_views.map((one) =>
    entry(quoted(one.name), one.columns.map((c) => c.name).join(", "))))] : []));
  put("views", make("ul", {}, ...app.views.map((name) => entry(`tidegate.${name}`))));
  if (app.tables.length) byId("query").value = `SELECT * FROM ${quoted(app.tables[0].name)} LIMIT 100`;
  byId("run").addEventListener("click", runQuery);
  byId("query").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); runQuery(); }
  });
  if (!app.queries) put("result", make("p", { class: "none" }, "This server has no query replica, so it can't answer SQL."));
  byId("run").disabled = !app.queries;
}

async function runQuery() {
  const sql = byId("query").value.trim();
  if (!sql || byId("run").disabled) return;
  const began = performance.now();
  byId("ran").textContent = "running …";
  try {
    const found = await post("/v1/query", { sql, row_limit: SHOWN });
    if (found.error) throw new Error(found.error.message);
    const columns = found.columns.map((column, place) => [column.name, (row) => row[place], /int|float|double|decimal/.test(column.type) ? "number" : null]);
    put("result", table(columns, found.rows, "No rows."));
    const more = found.rows.length === SHOWN ? ", the first" : "";
    byId("ran").textContent = `${number(found.rows.length)} ${found.rows.length === 1 ? "row" : "rows"}${more}, ${number(performance.now() - began)} ms`;
  } catch (error) {
    put("result", make("p", { class: "error", role: "alert" }, error.message));
    byId("ran").textContent = "";
  }
}

// ---- streams

export function showStreams(now, before) {
  put("stream-list", table([
    ["stream", "stream"], ["kind", (row) => (row.awaited ? "border, awaited" : row.border ? "border" : "interior")],
    ["key", "key"], ["last batch", (row) => (row.keys == null ? row.last_batch_id : `${number(row.keys)} keys`)],
    ["batches", (row) => now[row.border ? "pushed" : "emitted"][row.stream] ?? 0],
    ["", (row) => spark(`${row.border ? "pushed" : "emitted"}:${row.stream}`)],
    ["a second", (row) => rate(perSecond(now, before, row.border ? "pushed" : "emitted", row.stream))],
    ["queued", "queued"], ["subscribers", (row) => now.subscribers[row.stream]?.subscribers ?? 0],
  ], now.streams, "The app has no streams."));
  put("due", table([
    ["due", (row) => (row.due ? moment(row.due) : "as soon as time passes")],
    ["in", (row) => (row.due ? until(row.due, now.at) : "")], ["stream", "stream"],
    ["set by", (row) => row.schedule ?? row.procedure], ["timer", "timer"],
  ], now.next_timers.slice(0, 20), "No timer is pending, and the app has no schedule."));
  byId("pending").textContent = now.timers > 20 ? `the first of ${number(now.timers)}` : "";
}

const KEPT = 200;
let stop = null;
let paused = false;
let waiting = [];

export function setUpTail(app) {
  const choice = byId("tailed");
  choice.append(...app.streams.filter((stream) => !stream.border).map((stream) => make("option", {}, stream.name)));
  choice.addEventListener("change", startTail);
  byId("pause").addEventListener("click", () => {
    paused = !paused;
    byId("pause").setAttribute("aria-pressed", String(paused));
    byId("pause").textContent = paused ? "Resume" : "Pause";
    if (!paused) draw();
  });
  setInterval(draw, 250);
}

function tuple(row) {
  return make("span", { class: "tuple" }, ...Object.entries(row).flatMap(([name, value]) => [
    make("span", { class: "dim" }, name), ` ${typeof value === "string" ? value : JSON.stringify(value)}  `]));
}

// Batches are drawn a few times a second, however fast they come.
function draw() {
  if (paused || !waiting.length) return;
  const items = waiting.slice(-KEPT).reverse().map((batch) => make("li", {},
    make("span", { class: "dim", title: batch.cursor }, batch.position ?? ""),
    make("span", { class: "dim" }, batch.key == null ? `#${batch.batch_id}` : `#${batch.batch_id} ${batch.key}`),
    make("span", {}, ...batch.rows.map(tuple))));
  waiting = [];
  byId("tail").prepend(...items);
  while (byId("tail").childElementCount > KEPT) byId("tail").lastElementChild.remove();
}

export function stopTail() { stop?.abort(); stop = null; }

export async function startTail() {
  stopTail();
  const stream = byId("tailed").value;
  if (!stream) return;
  const mine = (stop = new AbortController());
  byId("tail").replaceChildren();
  waiting = [];
  let cursor = null;
  while (!mine.signal.aborted) {
    try {
      const path = `/v1/streams/${encodeURIComponent(stream)}/events${cursor ? `?cursor=${encodeURIComponent(cursor)}` : ""}`;
      byId("tail-state").textContent = "following";
      await follow(path, mine.signal, (event) => {
        cursor = event.id ?? cursor;
        if (event.kind === "batch") waiting.push(JSON.parse(event.data));
        if (waiting.length > KEPT * 5) waiting = waiting.slice(-KEPT);
      });
    } catch (error) {
      if (mine.signal.aborted) return;
      if (error.status === 410) cursor = null;
      byId("tail-state").textContent = error.message;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
