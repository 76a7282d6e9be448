// Decisions to answer, locks, and what went wrong.

import { post } from "./api.js";
import { byId, clock, make, put, seconds, table } from "./show.js";

const WHOLE = /INT$|INTEGER$/; // types of integers
const cards = new Map(); // question -> its card, kept so that typed input is not lost

function field(column) {
  const name = { name: column.name, required: !column.nullable };
  if (column.type === "BOOLEAN") {
    // no default: the person must choose
    const choice = make("select", name, make("option", { value: "" }, "choose …"),
      make("option", { value: "true" }, "yes"), make("option", { value: "false" }, "no"));
    return make("label", {}, column.name, choice);
  }
  if (WHOLE.test(column.type)) {
    // text throughout: a JavaScript number would round integers beyond 2^53
    return make("label", {}, column.name, make("input", { ...name, type: "text", inputmode: "numeric", pattern: "-?[0-9]+" }));
  }
  const kind = /DOUBLE|FLOAT|DECIMAL/.test(column.type) ? "number" : "text";
  return make("label", {}, column.name, make("input", { ...name, type: kind, step: "any" }));
}

function value(column, text) {
  if (text === "") return null;
  if (column.type === "BOOLEAN") return text === "true";
  return /DOUBLE|FLOAT/.test(column.type) ? Number(text) : text;
}

function card(question, stream, refresh) {
  const columns = stream.columns.filter((column) => column.name !== stream.key);
  const problem = make("p", { class: "error", role: "alert" });
  const form = make("form", { "aria-label": `answer ${question.unit}` }, ...columns.map(field), make("button", { class: "primary" }, "Answer"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const row = stream.key ? { [stream.key]: question.key } : {};
    for (const column of columns) row[column.name] = value(column, form.elements[column.name].value);
    form.querySelector("button").disabled = true;
    try {
      const path = `/v1/questions/${encodeURIComponent(question.stream)}/${question.batch_id}`;
      await post(`${path}?question=${encodeURIComponent(question.question)}`, row);
      refresh();
    } catch (error) {
      problem.textContent = error.message;
      form.querySelector("button").disabled = false;
    }
  });
  const evidence = Object.entries(question.batches).map(([name, rows]) =>
    make("div", {}, make("p", { class: "dim" }, name), table(Object.keys(rows[0] ?? {}).map((key) => [key, key]), rows, "no rows")));
  const since = make("span", { class: "dim since" });
  const title = question.key == null ? question.unit : `${question.unit} · ${stream.key} ${question.key}`;
  return make("article", { class: "question" }, make("h3", {}, title), since, ...evidence, form, problem);
}

export function showQuestions(questions, streams, refresh) {
  const wanted = new Map(questions.map((question) => [question.question, question]));
  for (const [name, element] of cards) {
    if (!wanted.has(name)) { element.remove(); cards.delete(name); }
  }
  const place = byId("questions");
  place.querySelector(".none")?.remove();
  for (const [name, question] of wanted) {
    if (!cards.has(name)) {
      cards.set(name, card(question, streams.get(question.stream), refresh));
      place.append(cards.get(name));
    }
    const left = question.deadline_in_s == null ? "" : `, default in ${seconds(question.deadline_in_s)}`;
    cards.get(name).querySelector(".since").textContent =
      `asked ${seconds(question.asked_s)} ago${left} · batch ${question.batch_id} at position ${question.position}`;
  }
  if (!wanted.size) place.append(make("p", { class: "none" }, "No decision is pending."));
}

function link(text, key, kind = "waiter") {
  return make("span", { class: `link ${kind}` }, text, key == null ? null : make("small", {}, ` key ${key}`));
}

function arrow(why, since) {
  return make("span", { class: "arrow" }, `${why}${since == null ? "" : `, ${seconds(since)}`} →`);
}

export function showLocks(now) {
  const unitAt = new Map(now.executions.map((execution) => [execution.position, execution.unit]));
  const since = new Map(now.locks.map((lock) => [lock.position, lock.age_s]));
  const waits = now.executions.flatMap((execution) => {
    const behind = /^(.*) behind position ([\d.]+)$/.exec(execution.reason);
    return behind ? [{ ...execution, why: behind[1], behind: behind[2] }] : [];
  });
  const asked = new Map(now.questions.map((question) => [question.position, question.stream]));
  put("waits", ...(waits.length ? waits.map((row) => make("p", { class: "chain" },
    link(`${row.unit} at ${row.position}`, row.key), arrow(row.why, since.get(row.position)),
    link(`${unitAt.get(row.behind) ?? "?"} at ${row.behind}`, null, "holder"),
    ...(asked.has(row.behind) ? [arrow("waits for a person"), link(asked.get(row.behind), null, "person")] : []),
  )) : [make("p", { class: "none" }, "Nothing is waiting.")]));
  put("marks", table([["item", "item"], ["low-water mark", "position"], ["held by", "held_by"]],
    now.low_water_marks, "No unfinished writer."));
  put("executions", table([
    ["position", "position"], ["unit", "unit"], ["key", "key"], ["state", "state"], ["reason", "reason"],
    ["accepted", (row) => clock(row.accepted_at)],
  ], now.executions, "Everything is finished."));
  return waits.length;
}

export function showTrouble(now, refresh) {
  const resume = (dataflow) => make("button", {
    onclick: async () => {
      try { await post(`/v1/dataflows/${encodeURIComponent(dataflow)}/resume`, {}); } catch (error) { alert(error.message); }
      refresh();
    },
  }, "Resume");
  put("halted", table([["dataflow", "name"], ["", (row) => resume(row.name)]],
    now.halted.map((name) => ({ name })), "No dataflow is halted."));
  put("dead", table([
    ["at", (row) => clock(row.at_time)], ["procedure", "procedure"], ["stream", "stream"], ["batch", "batch_id"],
    ["rows", "rows"], ["error", "error"],
  ], now.recent_dead_letters.slice(0, 50), "No dead letters."));
  put("aborts", table([
    ["at", (row) => clock(row.at_time)], ["position", "position"], ["procedure", "procedure"], ["batch", "batch_id"],
    ["key", "key"], ["reason", "reason"],
  ], now.recent_aborts.slice(0, 50), "Nothing was aborted."));
}
