// The ward: draws the feed, and sends the doctor's decisions.

import { RATE, Trace, decode, drawTrend } from "./trace.js";

const beds = new Map();
let state = null, ward = null, selected = null, newest = 0, play = null, lastFrame = null, speed = 1, known = null;
const busy = new Set(), answered = new Set(), trouble = new Map(), cards = new Map();
const colours = {};
const byId = (id) => document.getElementById(id);

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value != null && value !== false) element.setAttribute(key, value === true ? "" : value);
  element.append(...children.filter((child) => child != null));
  return element;
}

const time = (text) => (text ?? "").slice(11, 19);
const minutes = (seconds) => { const whole = Math.max(0, Math.floor(seconds)); return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`; };
const bedOf = (patient) => ward?.patients.find((one) => one.patient === Number(patient))?.bed ?? `patient ${patient}`;

const shortOf = (patient) => bedOf(patient).replace(/^patient /, "");

// ---- theme

function theme(name) {
  document.documentElement.dataset.theme = name;
  const found = getComputedStyle(document.documentElement);
  for (const [key, variable] of [["pap", "--pap"], ["ecg", "--ecg"], ["limit", "--limit"], ["soft", "--pap-soft"]]) colours[key] = found.getPropertyValue(variable).trim();
  for (const bed of beds.values()) bed.trace.again();
}

function nextTheme() {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("ward-theme", name);
  theme(name);
}

// ---- patients

function makeBeds() {
  byId("beds").replaceChildren(...ward.patients.map((patient) => {
    const wave = make("canvas", { class: "wave", role: "img", "aria-label": `ECG and pulmonary artery pressure of ${patient.bed}` });
    const trend = make("canvas", { class: "trend", role: "img", "aria-label": "averages of the last five minutes, and the limit" });
    const pap = make("div", { class: "figure pap" }), ecg = make("div", { class: "figure ecg" });
    const tag = make("span", { class: "tag", hidden: true });
    const element = make("article", { class: "bed", "data-patient": patient.patient },
      make("div", { class: "name" }, make("strong", {}, patient.bed), make("span", { class: "story" }, patient.story), tag),
      wave, make("div", { class: "figures" }, ecg, pap),
      trend, make("div", { class: "under" }, `5 min, limit ${patient.pap_limit} mmHg`));
    beds.set(patient.patient, { patient, element, pap, ecg, tag, trend, trace: new Trace(wave, colours) });
    return element;
  }));
}

function put(element, figure, unit) {
  element.replaceChildren(figure, make("small", {}, unit));
}

function showBeds() {
  const asking = new Map(state.questions.map((question) => [question.patient, question]));
  for (const [id, bed] of beds) {
    const points = state.trend[id] ?? [];
    const last = points.at(-1)?.[1] ?? null;
    const lines = state.lines[id] ?? {};
    const fault = Object.entries(lines).find(([, told]) => told !== "ok");
    const question = asking.get(id);
    put(bed.pap, last === null ? "–" : last.toFixed(0), "mmHg, mean");
    put(bed.ecg, lines.ecg && lines.ecg !== "ok" ? "–" : state.rates[id] ?? "–", "beats/min");
    bed.element.classList.toggle("high", last !== null && last >= bed.patient.pap_limit);
    bed.element.classList.toggle("asks", Boolean(question));
    bed.element.classList.toggle("fault", Boolean(fault) && !question);
    bed.tag.hidden = !question && !fault;
    bed.tag.className = question ? "tag ask" : "tag fault";
    bed.tag.textContent = question ? `waits for the doctor ${minutes(question.left_s)}` : fault ? fault[1] : "";
    drawTrend(bed.trend, points, bed.patient.pap_limit, state.passed_s, colours);
  }
}

// ---- decisions

const nameOf = (question) => `${question.stream}/${question.patient}/${question.batch_id}`;

async function decide(question, give) {
  const name = nameOf(question);
  if (busy.has(name)) return;
  busy.add(name);
  trouble.delete(name);
  showQuestions();
  const body = { patient: question.patient, give, decided_by: "the doctor at this page" };
  try {
    const answer = await fetch(`/v1/questions/${question.stream}/${question.batch_id}?question=${question.question}`, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
    });
    if (!answer.ok) throw new Error((await answer.json()).error?.message ?? `the server answered ${answer.status}`);
    answered.add(name);  // a state already in flight may still contain the question
    state.questions = state.questions.filter((other) => nameOf(other) !== name);
  } catch (error) {
    trouble.set(name, error.message);
  }
  busy.delete(name);
  showQuestions();
}

function showQuestions() {
  const questions = state?.questions ?? [];
  if (!questions.some((question) => nameOf(question) === selected)) selected = questions.length ? nameOf(questions[0]) : null;
  byId("question-count").hidden = !questions.length;
  byId("question-count").textContent = questions.length;
  document.title = questions.length ? `(${questions.length}) tidegate · the ward` : "tidegate · the ward";
  for (const name of cards.keys()) if (!questions.some((question) => nameOf(question) === name)) cards.delete(name);
  for (const question of questions) if (!cards.has(nameOf(question))) cards.set(nameOf(question), card(question));
  const shown = byId("questions"), wanted = questions.map((question) => cards.get(nameOf(question)).element);
  if (!wanted.length) wanted.push(nobody);
  for (const element of [...shown.children]) if (!wanted.includes(element)) element.remove();
  wanted.forEach((element, i) => { if (shown.children[i] !== element) shown.insertBefore(element, shown.children[i] ?? null); });
  for (const question of questions) renew(question, cards.get(nameOf(question)));
}

const nobody = make("p", { class: "none" }, "No decision is pending.");

// A card stays the same element for as long as its question is open: a click is not lost when a state arrives in the middle of it.
function card(question) {
  const name = nameOf(question);
  const unit = question.sign.includes("pressure") ? "mmHg" : "beats/min";
  const accept = make("button", { class: "accept" }, "Accept ", make("kbd", {}, "A"));
  const decline = make("button", { class: "decline" }, "Decline ", make("kbd", {}, "D"));
  accept.addEventListener("click", () => decide(question, true));
  decline.addEventListener("click", () => decide(question, false));
  const clock = make("span"), left = make("i"), error = make("p", { class: "error" });
  const element = make("article", { class: "question", "data-name": name, "data-patient": question.patient },
    make("h3", {}, bedOf(question.patient), clock),
    make("p", {}, `${question.sign}: ${question.value.toFixed(0)} ${unit}, limit ${question.limit}`),
    make("p", { class: "drug" }, `${question.drug} ${question.dose} ${question.unit_of_dose}`),
    make("p", { class: "dim" }, question.recent ? `recently: ${question.recent}` : "nothing given in the last 24 hours"),
    make("div", { class: "left" }, left),
    make("div", { class: "row" }, accept, decline, make("span", { class: "dim" }, `alert ${question.batch_id}`)),
    error);
  element.addEventListener("pointerdown", () => { selected = name; showQuestions(); });
  return { element, accept, decline, clock, left, error };
}

function renew(question, shown) {
  const name = nameOf(question);
  shown.element.classList.toggle("selected", name === selected);
  shown.accept.disabled = shown.decline.disabled = busy.has(name);
  shown.clock.textContent = minutes(question.left_s);
  shown.left.parentElement.classList.toggle("late", question.left_s < 15);
  shown.left.style.width = `${Math.min(100, (100 * question.left_s) / ward.deadline_s)}%`;
  shown.error.textContent = trouble.get(name) ?? "";
  shown.error.hidden = !trouble.has(name);
}

function move(by) {
  const names = (state?.questions ?? []).map(nameOf);
  if (!names.length) return;
  selected = names[(names.indexOf(selected) + by + names.length) % names.length];
  showQuestions();
}

// ---- lists

function showEvents() {
  const names = state.events.map((event) => `${event.patient}.${event.number}`);
  byId("event-count").textContent = state.event_count === 1 ? "1 administration" : `${state.event_count} administrations`;
  if (names.join() === byId("events").dataset.names) return;
  byId("events").dataset.names = names.join();
  byId("events").replaceChildren(...state.events.map((event, i) => make("tr", { class: known && !known.has(names[i]) ? "new" : null, "data-drug": event.drug, "data-patient": event.patient },
    make("td", {}, time(event.at)), make("td", {}, shortOf(event.patient)), make("td", {}, event.drug),
    make("td", {}, event.dose == null ? "" : `${event.dose} ${event.unit ?? ""}`),
    make("td", { class: `origin-${event.origin}` }, event.until ? `${event.origin}, infusion` : event.origin))));
  if (!state.events.length) byId("events").append(make("tr", {}, make("td", { colspan: 5, class: "dim" }, "Nothing has been given yet.")));
  known = new Set(names);
}

function showWaits() {
  const groups = new Map();
  for (const wait of state.waits) {
    const name = `${wait.patient}/${wait.held_by}`;
    if (!groups.has(name)) groups.set(name, { ...wait, units: new Map() });
    const units = groups.get(name).units;
    units.set(wait.unit, (units.get(wait.unit) ?? new Set()).add(wait.position));
  }
  const open = state.questions.map((question) => make("p", { class: "open" }, make("b", {}, question.unit), ` of ${bedOf(question.patient)} waits for a person, and holds its part of MedEvents.`));
  const lines = [...groups.values()].map((group) => make("p", {}, "Behind it: ", ...[...group.units].flatMap(([unit, positions], i) => [i ? ", " : null, make("b", {}, unit), positions.size > 1 ? ` ×${positions.size}` : null]), ` (${bedOf(group.patient)}, behind ${group.held_by} at ${group.behind})`));
  byId("waits").replaceChildren(...(open.length + lines.length ? [...open, ...lines] : [make("p", { class: "none" }, "No one is waiting.")]));
}

function showNews() {
  byId("news").replaceChildren(...state.news.map((one) => make("li", { class: `kind-${one.kind}` }, make("time", {}, time(one.at)), make("span", {}, shortOf(one.patient)), make("span", { class: `kind-${one.kind}` }, one.told))));
}

function showHead() {
  byId("clock").textContent = time(state.at);
  const wrong = Object.values(state.safe).reduce((a, b) => a + b, 0);
  byId("safety").className = wrong ? "pill bad" : "pill good";
  byId("safety").textContent = wrong
    ? `unsafe: ${state.safe.doubled} double doses, ${state.safe.clashing} interactions, ${state.safe.repeated} repeated, ${state.safe.misapplied} misapplied`
    : "safe: no double dose, no interaction, every alert and decision once";
  byId("pause").textContent = state.ended ? "Ended" : state.paused ? "Resume" : "Pause";
  byId("pause").disabled = state.ended;
  byId("connection").className = state.failed ? "pill bad" : state.ended ? "pill" : state.paused ? "pill warn" : "pill good";
  byId("connection").title = state.failed ?? "";
  byId("connection").textContent = state.failed ? "the shift stopped with an error" : state.ended ? "the shift is over" : state.paused ? "paused" : "live";
  const speeds = byId("speed"), now = String(state.speed);
  if (![...speeds.options].some((option) => option.value === now)) speeds.add(new Option(`${now}×`, now));
  if (document.activeElement !== speeds) speeds.value = now;
}

// ---- the dataflow graph

let nodes = null, before = null;

async function loadGraph() {
  const answer = await fetch("/v1/graph?format=svg");
  if (!answer.ok) return;
  const drawn = new DOMParser().parseFromString(await answer.text(), "image/svg+xml").documentElement;
  byId("graph").replaceChildren(document.importNode(drawn, true));
  nodes = new Map([...byId("graph").querySelectorAll("[data-id]")].map((node) => [node.dataset.id, node]));
}

function showGraph() {
  if (!nodes) return;
  const now = { at: performance.now(), commits: state.commits };
  if (before && now.at - before.at < 900) return;
  const waiting = new Set(state.questions.map((question) => question.unit === "emergency" ? "procedure:administer" : "procedure:administer_slower"));
  const members = { emergency: ["watch_pressure"], cardiac: ["watch_rate"] };
  for (const [unit, count] of Object.entries(now.commits)) {
    for (const name of members[unit] ?? [unit]) {
      const node = nodes.get(`procedure:${name}`);
      if (!node || !before) continue;
      const rate = ((count - (before.commits[unit] ?? 0)) * 1000) / (now.at - before.at);
      node.querySelector(".rate").textContent = rate ? `${rate.toFixed(rate < 10 ? 1 : 0)}/s` : "";
      node.classList.toggle("busy", rate > 0);
    }
  }
  for (const [id, node] of nodes) node.classList.toggle("waits", waiting.has(id));
  byId("rates").textContent = `${state.packets.toLocaleString("en")} packets, ${state.unfinished} unfinished`;
  before = now;
}

// ---- the feed

function onWave(wave) {
  const seconds = Object.values(wave.pap)[0] ?? Object.values(wave.ecg)[0];
  if (!seconds) return;
  speed = wave.speed;
  for (const name of ["pap", "ecg"]) {
    for (const [id, text] of Object.entries(wave[name])) {
      const samples = decode(text), channel = beds.get(Number(id))?.trace[name];
      if (!channel) continue;
      const count = Math.floor(samples.length / RATE);
      for (let i = 0; i < count; i++) channel.add(Math.round(wave.t) - count + i, samples.subarray(i * RATE, (i + 1) * RATE));
    }
  }
  newest = wave.t;
}

function onState(found) {
  if (!found.questions) return;
  found.questions = found.questions.filter((question) => !answered.has(nameOf(question)));
  state = found;
  showHead(); showBeds(); showQuestions(); showEvents(); showWaits(); showNews(); showGraph();
}

function frame(now) {
  if (newest && ward) {
    const passed = lastFrame === null ? 0 : Math.min(0.25, (now - lastFrame) / 1000);
    const target = newest - Math.max(0.3, 0.25 * speed);
    if (play === null || Math.abs(target - play) > 3 + speed) play = target;
    else play = Math.min(newest, play + passed * speed * (1 + 0.5 * Math.max(-0.8, Math.min(1, target - play))));
    for (const bed of beds.values()) bed.trace.draw(Math.min(play, newest));  // what is already drawn is not drawn again
  }
  lastFrame = now;
  requestAnimationFrame(frame);
}

function follow() {
  const feed = new EventSource("/ward/events");
  feed.addEventListener("ward", (event) => {
    ward = JSON.parse(event.data);
    byId("source").textContent = `${ward.name}, ${ward.patients.length} patients`;
    if (!beds.size) makeBeds();
  });
  feed.addEventListener("wave", (event) => onWave(JSON.parse(event.data)));
  feed.addEventListener("state", (event) => onState(JSON.parse(event.data)));
  feed.addEventListener("error", () => {
    byId("connection").className = "pill bad";
    byId("connection").textContent = "no connection";
  });
}

async function control(wanted) {
  await fetch("/ward/control", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(wanted) });
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, dialog")) return;
  const question = state?.questions.find((one) => nameOf(one) === selected);
  const key = event.key.toLowerCase();
  if (key === "a" && question) decide(question, true);
  else if (key === "d" && question) decide(question, false);
  else if (key === "arrowdown") move(1);
  else if (key === "arrowup") move(-1);
  else if (key === " " && !event.target.closest("button, a")) control({ paused: !state?.paused });
  else if (key === "t") nextTheme();
  else if (key === "?") byId("help").showModal();
  else return;
  event.preventDefault();
}

theme(localStorage.getItem("ward-theme") ?? (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark"));
byId("pause").addEventListener("click", () => control({ paused: !state?.paused }));
byId("speed").addEventListener("change", (event) => control({ speed: Number(event.target.value) }));
byId("theme").addEventListener("click", nextTheme);
byId("keys").addEventListener("click", () => byId("help").showModal());
document.addEventListener("keydown", onKey);
follow();
loadGraph();
requestAnimationFrame(frame);
