// Decisions to answer, locks, and what went wrong.

import { post } from "./api.js";
import { byId, clock, make, put, seconds, table } from "./show.js";

const WHOLE = /INT$|INTEGER$/; // types of integers
const cards = new Map(); // question -> its card and what it shows, kept so that typed input is not lost

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

function card(question, stream, refresh, note = "") {
  const columns = stream.columns.filter((column) => column.name !== stream.key);
  const problem = make("p", { class: "error", role: "alert" }, note);
  const path = `/v1/questions/${encodeURIComponent(question.stream)}/${question.batch_id}`;
  const named = `question=${encodeURIComponent(question.question)}&digest=${encodeURIComponent(question.digest)}`;
  const form = make("form", { "aria-label": `answer ${question.unit}` }, ...columns.map(field), make("button", { class: "primary" }, "Answer"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const row = stream.key ? { [stream.key]: question.key } : {};
    for (const column of columns) row[column.name] = value(column, form.elements[column.name].value);
    form.querySelector("button").disabled = true;
    try {
      await post(`${path}?${named}`, row);
      receipt(title, question, row);
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
  const anew = make("button", {
    class: "anew",
    title: "Withdraw the question; what led to it runs again, with the code in force now",
    onclick: async () => {
      try { await post(`${path}/reask?${named}`, {}); refresh(); } catch (error) { problem.textContent = error.message; }
    },
  }, "Ask anew");
  const shown = make("p", { class: "dim" }, `digest ${question.digest.slice(0, 12)}… `, anew);
  return make("article", { class: "question" }, make("h3", {}, title), since, ...evidence, form, problem, shown);
}

function said(row) {
  return Object.entries(row).map(([name, given]) => `${name} ${given}`).join(", ");
}

// What this page has just answered: the server has acknowledged it.
function receipt(title, question, row) {
  put("receipt", make("span", { class: "receipt", "data-question": question.question },
    make("b", {}, `Acknowledged at ${new Date().toLocaleTimeString("en-GB")}: ${title}`), `: ${said(row)} `,
    make("small", { class: "dim" }, `batch ${question.batch_id}, question ${question.question}, digest ${question.digest.slice(0, 12)}…`)));
}

export function showAnswers(answers) {
  put("answers", table([
    ["at", (row) => clock(row.at_time)], ["answer", (row) => JSON.parse(row.rows).map(said).join("; ")],
    ["outcome", "outcome"], ["unit", "unit"], ["key", "key"], ["batch", "batch_id"],
    ["digest", (row) => (row.digest ? `${row.digest.slice(0, 12)}…` : "answered before it was asked")],
  ], answers.slice(0, 50), "Nothing was answered yet."));
}

export function showQuestions(questions, streams, refresh) {
  const wanted = new Map(questions.map((question) => [question.question, question]));
  for (const [name, { element }] of cards) {
    if (!wanted.has(name)) { element.remove(); cards.delete(name); }
  }
  const place = byId("questions");
  place.querySelector(".none")?.remove();
  for (const [name, question] of wanted) {
    const before = cards.get(name);
    if (before?.digest !== question.digest) {
      const note = before ? "Asked anew since you looked: this may show something else than before." : "";
      const element = card(question, streams.get(question.stream), refresh, note);
      if (before) before.element.replaceWith(element); else place.append(element);
      cards.set(name, { element, digest: question.digest });
    }
    const left = question.deadline_in_s == null ? "" : `, default in ${seconds(question.deadline_in_s)}`;
    cards.get(name).element.querySelector(".since").textContent =
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
  const button = (label, path) => make("button", {
    onclick: async () => {
      try { await post(path, {}); } catch (error) { alert(error.message); }
      refresh();
    },
  }, label);
  const halt = (row, act, label) => button(label,
    `/v1/dataflows/${encodeURIComponent(row.dataflow)}/${act}${row.key === null ? "" : `?key=${encodeURIComponent(row.key)}`}`);
  put("halted", ...(now.halts.length ? now.halts.map((row) => make("div", { class: "halt" },
    make("p", {}, make("strong", {}, row.key === null ? row.dataflow : `${row.dataflow}, key ${row.key}`),
      ` stopped in front of batch ${row.batch_id} at position ${row.position} (${row.waiting - 1} waiting behind it). `,
      halt(row, "resume", "Resume"), " ", halt(row, "skip", "Skip this batch")),
    make("p", { class: "bad" }, row.error),
    make("pre", {}, row.trace),
    make("pre", {}, row.truncated ? `${row.rows ?? ""} … (${row.row_count} rows)` : row.rows ?? ""),
  )) : [make("p", { class: "none" }, "No dataflow is halted.")]));
  put("dead", table([
    ["at", (row) => clock(row.at_time)], ["position", "position"], ["procedure", "procedure"], ["stream", "stream"],
    ["batch", "batch_id"], ["rows", "rows"], ["error", "error"],
    ["", (row) => row.position === null || row.stream === null ? ""
      : button("Requeue", `/v1/dead_letters/${encodeURIComponent(row.position)}/requeue`)],
  ], now.recent_dead_letters.slice(0, 50), "No dead letters."));
  put("aborts", table([
    ["at", (row) => clock(row.at_time)], ["position", "position"], ["procedure", "procedure"], ["batch", "batch_id"],
    ["key", "key"], ["reason", "reason"], ["rows", (row) => row.truncated ? `${row.rows ?? ""} …` : row.rows ?? ""],
  ], now.recent_aborts.slice(0, 50), "Nothing was aborted."));
}
