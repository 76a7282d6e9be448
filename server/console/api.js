// Requests to the server this page came from, with the token of this session if it needs one.

const KEY = "tidegate-token";

export class Refused extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.kind = error.type;
  }
}

let asking = null;

function askForToken(why) {
  if (!asking) {
    const dialog = document.getElementById("ask");
    const input = document.getElementById("token");
    document.getElementById("why").textContent = why;
    input.value = "";
    asking = new Promise((resolve) => {
      dialog.addEventListener("close", () => {
        sessionStorage.setItem(KEY, input.value.trim());
        asking = null;
        resolve();
      }, { once: true });
    });
    dialog.showModal();
  }
  return asking;
}

async function send(path, options = {}) {
  const token = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
  const answer = await fetch(path, { ...options, headers });
  if (answer.ok) return answer;
  let error = { type: "ServerError", message: `the server answered ${answer.status}` };
  try { error = (await answer.json()).error; } catch { /* not JSON: keep the status */ }
  if (answer.status === 401) {
    await askForToken(error.message);
    return send(path, options);
  }
  throw new Refused(answer.status, error);
}

export async function get(path) { return (await send(path)).json(); }

export async function getText(path) { return (await send(path)).text(); }

export async function post(path, body) {
  const headers = { "content-type": "application/json" };
  return (await send(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
}

// Server-Sent Events over fetch: unlike EventSource it can send a token.
export async function follow(path, signal, onEvent) {
  const answer = await send(path, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const event = { kind: "message", data: "", id: null };
      for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        const name = line.slice(0, colon), told = line.slice(colon + 1).trimStart();
        if (name === "event") event.kind = told;
        else if (name === "data") event.data += told;
        else if (name === "id") event.id = told;
      }
      if (event.data) onEvent(event);
    }
  }
}
