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
      trend, make("div", { class: "under" }, `5 min, limit ${patient.pap_limit}`));
    beds.set(patient.patient, { patient, element, pap, ecg, tag, trend, trace: new Trace(wave, colours) });
    return element;
  }));
}

function put(element, figure, unit) {
  element.replaceChildren(figure, make("small", {}, unit));
}

// A figure has the colour of its own limit: calm below, a warning near it, an alarm from it on.
function level(element, value, limit) {
  element.classList.toggle("none", value === null);
  element.classList.toggle("over", value !== null && value >= limit);
  element.classList.toggle("near", value !== null && value < limit && value >= 0.9 * limit);
}

function showBeds() {
  const asking = new Map(state.questions.map((question) => [question.patient, question]));
  const off = state.power !== "on";
  for (const [id, bed] of beds) {
    const points = state.trend[id] ?? [];
    const last = points.at(-1)?.[1] ?? null;
    const lines = state.lines[id] ?? {};
    const fault = Object.entries(lines).find(([, told]) => told !== "ok");
    const rate = lines.ecg && lines.ecg !== "ok" ? null : state.rates[id] ?? null;
    const question = asking.get(id);
    put(bed.pap, last === null ? "–" : last.toFixed(0), "mmHg, 1 min mean");
    put(bed.ecg, rate === null ? "–" : rate, "beats/min");
    level(bed.pap, last, bed.patient.pap_limit);
    level(bed.ecg, rate, bed.patient.rate_limit);
    bed.element.classList.toggle("high", (last !== null && last >= bed.patient.pap_limit) || (rate !== null && rate >= bed.patient.rate_limit));
    bed.element.classList.toggle("asks", Boolean(question));
    bed.element.classList.toggle("fault", Boolean(fault) && !question);
    bed.element.classList.toggle("off", off);
    bed.tag.hidden = !off && !question && !fault;
    bed.tag.className = off ? "tag off" : question ? "tag ask" : "tag fault";
    bed.tag.textContent = off ? "computer off" : question ? `waits for you ${minutes(question.left_s)}` : fault ? fault[1] : "";
    drawTrend(bed.trend, points, bed.patient.pap_limit, state.passed_s, colours);
  }
}

// ---- decisions

const nameOf = (question) => `${question.stream}/${question.patient}/${question.batch_id}/${question.digest}`;

async function decide(question, give) {
  const name = nameOf(question);
  if (busy.has(name)) return;
  busy.add(name);
  trouble.delete(name);
  showQuestions();
  const body = { stream: question.stream, batch_id: question.batch_id, digest: question.digest, give };
  try {
    const answer = await fetch("/ward/answer", {
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

const nobody = make("p", { class: "none" }, "Nothing to decide right now.");

// A card stays the same element for as long as its question is open: a click is not lost when a state arrives in the middle of it.
function card(question) {
  const name = nameOf(question);
  const accept = make("button", { class: "accept" }, "Accept ", make("kbd", {}, "A"));
  const decline = make("button", { class: "decline" }, "Decline ", make("kbd", {}, "D"));
  accept.addEventListener("click", () => decide(question, true));
  decline.addEventListener("click", () => decide(question, false));
  const clock = make("span"), left = make("i"), error = make("p", { class: "error" });
  const element = make("article", { class: "question", "data-name": name, "data-patient": question.patient },
    make("h3", {}, bedOf(question.patient), clock),
    make("p", {}, `${question.sign}: ${question.value.toFixed(0)} ${question.unit_of_value}, limit ${question.limit}`),
    make("p", { class: "drug" }, `Give ${question.drug} ${question.dose} ${question.unit_of_dose}?`),
    make("p", { class: "dim" }, question.recent ? `Given in the last 24 hours: ${question.recent}` : "Nothing given in the last 24 hours"),
    make("div", { class: "left" }, left),
    make("div", { class: "row" }, accept, decline),
    error);
  element.addEventListener("pointerdown", () => { selected = name; showQuestions(); });
  return { element, accept, decline, clock, left, error };
}

function renew(question, shown) {
  const name = nameOf(question);
  shown.element.classList.toggle("selected", name === selected);
  shown.accept.disabled = shown.decline.disabled = busy.has(name) || state.power !== "on";
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
  byId("event-count").textContent = state.event_count === 1 ? "1 dose" : `${state.event_count} doses`;
  if (names.join() === byId("events").dataset.names) return;
  byId("events").dataset.names = names.join();
  byId("events").replaceChildren(...state.events.map((event, i) => make("tr", { class: known && !known.has(names[i]) ? "new" : null, "data-drug": event.drug, "data-patient": event.patient },
    make("td", {}, time(event.at)), make("td", {}, shortOf(event.patient)), make("td", {}, event.drug),
    make("td", {}, event.dose == null ? "" : `${event.dose} ${event.unit ?? ""}`),
    make("td", { class: `origin-${event.origin}` }, event.until ? `${BY[event.origin] ?? event.origin}, infusion` : BY[event.origin] ?? event.origin))));
  if (!state.events.length) byId("events").append(make("tr", {}, make("td", { colspan: 5, class: "dim" }, "Nothing has been given yet.")));
  known = new Set(names);
}

const BY = { alert: "your decision", visit: "at the bed", schedule: "the plan", record: "the chart" };
const plural = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

function showWaits() {
  const waiting = new Map();
  for (const wait of state.waits) waiting.set(Number(wait.patient), [...(waiting.get(Number(wait.patient)) ?? []), plural(wait.number, wait.what)]);
  byId("waits").replaceChildren(...state.questions.map((question) => {
    const behind = waiting.get(question.patient);
    return make("p", {}, make("b", {}, bedOf(question.patient)), ` is kept as it is until you decide${behind ? `; waiting for that: ${behind.join(", ")}` : ""}.`);
  }));
}

// A decision leaves a receipt, which the engine keeps.
function showReceipts() {
  const names = state.receipts.map((one) => one.receipt).join();
  if (byId("receipts").dataset.names === names) return;
  byId("receipts").dataset.names = names;
  byId("receipts").replaceChildren(...state.receipts.map((one) => make("li", { class: `kind-${one.kind}`, "data-receipt": one.receipt },
    make("div", {}, make("b", {}, `${one.drug} ${one.dose}`), ` ${{ given: "accepted and given", declined: "declined", lapsed: "not given: nobody decided in time" }[one.kind]}, ${bedOf(one.patient)}`),
    make("div", { class: "dim" }, `${one.sign} (${one.value.toFixed(0)} ${one.unit}, limit ${one.limit}). Asked ${time(one.asked_at)}, ${one.kind === "lapsed" ? `time was up at ${time(one.decided_at)}` : `decided ${time(one.decided_at)} by ${one.by}`}.${one.line ? ` Line ${one.line} on the chart.` : ""} Receipt ${one.receipt}.`))));
  if (!state.receipts.length) byId("receipts").append(make("li", { class: "none" }, "Nothing has been decided yet."));
}

// ---- both wards

function showScore() {
  for (const [where, found] of [["here", state.harmed], ["there", state.other.harmed]]) {
    const harmed = new Map(found.map((one) => [one.patient, one]));
    byId(`harmed-${where}`).textContent = harmed.size;
    byId(`harmed-${where}`).classList.toggle("bad", harmed.size > 0);
    byId(`harmed-${where}`).nextElementSibling.textContent = harmed.size === 1 ? "patient harmed" : "patients harmed";
    byId(`harms-${where}`).replaceChildren(...[...harmed.values()].map((one) => make("p", {}, `${bedOf(one.patient)}, ${time(one.at)}, ${one.kind === "recent" ? "a dose too many" : "drugs that do not go together"}: ${one.text}`)));
  }
}

function showOutage() {
  const last = state.outages.at(-1), shown = byId("outage");
  shown.hidden = !last;
  if (!last) return;
  shown.className = state.power === "on" ? "back" : "dark";
  const all = last.doses_back === last.doses && last.receipts_back === last.receipts && last.questions_back === last.questions;
  const told = state.power === "off" ? [`The power is out. Process ${last.pid}, the ward's computer, was killed at ${time(last.at)}; the monitors go on and keep what they measure.`]
    : state.power === "starting" ? ["The computer starts again and reads what it had written down."]
    : [`The computer is back as process ${last.new_pid}, after ${last.took_s.toFixed(1)} s. `, make("b", {}, all ? "Everything is there: " : "Something is missing: "),
      `${last.doses_back} of ${plural(last.doses, "dose")}, ${last.receipts_back} of ${plural(last.receipts, "receipt")}, ${last.questions_back} of ${plural(last.questions, "open decision")}. `,
      `${plural(last.held, "second")} of measurements waited in the monitors and ${last.held === 1 ? "was" : "were"} taken, each once.`];
  shown.replaceChildren(make("p", {}, ...told));
}

function showEnding() {
  const shown = byId("ending");
  shown.hidden = !state.ended || Boolean(state.failed);
  if (shown.hidden || shown.childElementCount) return;
  const count = (name) => state.counts[name] ?? 0;
  const here = new Set(state.harmed.map((one) => one.patient)).size, there = new Set(state.other.harmed.map((one) => one.patient)).size;
  const decided = count("accepted") + count("declined");
  shown.append(make("h2", {}, "The shift is over"),
    make("p", {}, `${plural(decided, "decision")} (${count("accepted")} accepted, ${count("declined")} declined), and ${count("lapsed")} that nobody made in time. ${plural(count("given"), "dose")} given; ${count("refused") + count("held back")} stopped, because they came too early or did not go with another drug. ${plural(count("alarms"), "measurement")} that could not be trusted.`),
    make("p", {}, state.outages.length ? `The plug was pulled ${state.outages.length === 1 ? "once" : `${state.outages.length} times`}; ${state.outages.every((one) => one.doses_back === one.doses && one.receipts_back === one.receipts && one.questions_back === one.questions) ? "nothing was lost." : "something was lost."}` : "The plug was not pulled."),
    make("p", { class: "result" }, "Patients harmed here: ", make("b", {}, here), "; in the ward without guarantees: ", make("b", {}, there), "."));
}

function showNews() {
  byId("news").replaceChildren(...state.news.map((one) => make("li", { class: `kind-${one.kind}` }, make("time", {}, time(one.at)), make("span", {}, shortOf(one.patient)), make("span", { class: `kind-${one.kind}` }, one.told))));
}

function showHead() {
  byId("clock").textContent = time(state.at);
  byId("intro").hidden = state.begun || state.ended;
  byId("begin").disabled = false;
  byId("plug").disabled = state.power !== "on" || state.ended || !state.begun;
  byId("pause").textContent = state.ended ? "Ended" : state.paused ? "Resume" : "Pause";
  byId("pause").disabled = state.ended;
  byId("connection").className = state.failed || state.power !== "on" ? "pill bad" : state.ended ? "pill" : state.paused ? "pill warn" : "pill good";
  byId("connection").title = state.failed ?? "";
  byId("connection").textContent = state.failed ? "the shift stopped with an error" : state.power !== "on" ? "no power" : state.ended ? "the shift is over" : !state.begun ? "ready" : state.paused ? "paused" : "live";
  const speeds = byId("speed"), now = String(state.speed);
  if (![...speeds.options].some((option) => option.value === now)) speeds.add(new Option(`${now}×`, now));
  if (document.activeElement !== speeds) speeds.value = now;
}

// ---- the dataflow graph

let nodes = null, before = null;

async function loadGraph() {
  const answer = await fetch("/ward/graph.svg");
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
  byId("console").hidden = !state.console;
  if (state.console) byId("console").href = state.console;
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
  showHead(); showScore(); showOutage(); showEnding(); showBeds(); showQuestions(); showReceipts(); showEvents(); showWaits(); showNews(); showGraph();
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
byId("begin").addEventListener("click", () => control({ begun: true }));
byId("plug").addEventListener("click", () => fetch("/ward/plug", { method: "POST" }));
byId("theme").addEventListener("click", nextTheme);
byId("keys").addEventListener("click", () => byId("help").showModal());
document.addEventListener("keydown", onKey);
follow();
loadGraph();
requestAnimationFrame(frame);
