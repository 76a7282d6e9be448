// The console: tabs, the keyboard, and a look at the server every second.

import { get } from "./api.js";
import { setUpTail, showStreams, showTables, startTail, stopTail } from "./data.js";
import { loadGraph, showFlow } from "./flow.js";
import { remember } from "./rates.js";
import { byId, number } from "./show.js";
import { showAnswers, showLocks, showQuestions, showTrouble } from "./work.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
let before = null;
let app = null;
let streams = new Map();
let timer = null;

function select(tab, focus = true) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !chosen;
  }
  const name = tab.getAttribute("aria-controls");
  if (focus) tab.focus();
  if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
  if (name === "streams") startTail(); else stopTail();
}

function keys(event) {
  const typing = event.target.closest("input, textarea, select, dialog");
  if (event.key === "Escape" && typing && !event.target.closest("dialog")) { event.target.blur(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const place = tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
  if (/^[1-6]$/.test(event.key)) select(tabs[Number(event.key) - 1]);
  else if (event.key === "ArrowRight" && event.target.closest("nav")) select(tabs[(place + 1) % tabs.length]);
  else if (event.key === "ArrowLeft" && event.target.closest("nav")) select(tabs[(place + tabs.length - 1) % tabs.length]);
  else if (event.key === "/") { event.preventDefault(); select(byId("tab-sql"), false); byId("query").select(); }
}

function count(id, value) {
  byId(id).hidden = !value;
  byId(id).textContent = number(value);
}

function health(text, mood) {
  byId("health").textContent = text;
  byId("health").className = `pill ${mood}`;
}

async function refresh() {
  clearTimeout(timer);
  try {
    const now = await get("/v1/status");
    remember(now, before);
    showFlow(now, before);
    if (now.streams) {
      showStreams(now, before);
      showQuestions(now.questions, streams, refresh);
      showAnswers(now.recent_answers);
      count("count-decisions", now.questions.length);
      count("count-locks", showLocks(now));
      showTrouble(now, refresh);
      count("count-trouble", now.halted.length + now.dead_letters);
    }
    if (now.halted.length) health(`${now.halted.length} halted`, "bad");
    else if (now.log && !now.log.taking) health("log refuses records", "bad");
    else if (now.busy) health("busy", "warn");
    else if (now.unfinished > now.capacity / 2) health("under pressure", "warn");
    else health("running", "good");
    byId("moment").textContent = `position ${number(now.sequence)} · ${new Date(now.at).toLocaleTimeString("en-GB")}`;
    before = now;
  } catch (error) {
    health(error.status ? error.message : "not reachable", "bad");
  }
  timer = setTimeout(refresh, document.hidden ? 5000 : 1000);
}

async function start() {
  for (const tab of tabs) tab.addEventListener("click", () => select(tab, false));
  document.addEventListener("keydown", keys);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  app = await get("/v1/app");
  byId("app").textContent = app.name;
  document.title = `${app.name} · tidegate`;
  streams = new Map(app.streams.map((stream) => [stream.name, stream]));
  showTables(app);
  setUpTail(app);
  await loadGraph(await get("/v1/graph"));
  const wanted = tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash);
  if (wanted) select(wanted, false);
  await refresh();
}

start().catch((error) => health(error.message, "bad"));
