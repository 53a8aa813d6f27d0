// The chat page, and the example of how to use the API. Two rules carry it:
// rows are the truth: refresh() reads them and brings the page in line, as often as one likes;
// a stream is a cursor into a journal: whoever remembers the last seq can drop it and rejoin it.

const $ = (selector) => document.querySelector(selector);
const log = $("#log"), composer = $("#composer"), box = $("#content");
const otherTabs = new BroadcastChannel("agentruns");
const conversation = new URLSearchParams(location.search).get("conversation");

let live = null; // the run that is followed: {run, cursor, source, reply}
let draft = null; // the draft in the message box, where it holds one
let unsent = null; // a body whose fate is unknown, and its idempotency key
let reads = 0; // numbers the refreshes: an answer that was overtaken is dropped

// --- The API -------------------------------------------------------------------------------------

export async function api(method, path, body, headers = {}) {
  const csrf = document.cookie.match(/csrftoken=([^;]+)/)?.[1] ?? "";
  const response = await fetch(path, {
    method,
    headers: {"Content-Type": "application/json", "X-CSRFToken": csrf, ...headers},
    body: body && JSON.stringify(body),
  });
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  if (response.status === 401) location.reload(); // signed out: the page leads to the sign-in
  throw new Error(answer.detail ?? Object.values(answer).flat().join(" ") ?? `Error ${response.status}`);
}

export async function attempt(action) {
  try {
    $("#problem").textContent = "";
    return await action();
  } catch (error) {
    $("#problem").textContent = error instanceof TypeError ? "The server can't be reached. Try again." : error.message;
  }
}

// --- Reading the rows ----------------------------------------------------------------------------

async function refresh() {
  const read = ++reads;
  // In this order: what has stopped being active by now has its reply among the messages.
  const {active_runs: active, drafts} = await api("GET", `/api/conversations/${conversation}`);
  const [{results: messages}, {results: runs}] = await Promise.all([
    api("GET", `/api/conversations/${conversation}/messages`),
    api("GET", `/api/runs?conversation=${conversation}`), // newest first
  ]);
  if (read !== reads) return;
  if (live && live.run.run_id !== active[0]?.run_id) leave();
  if (active.length && !live) follow(active[0]);
  draw(messages, runs, active);
  drawDrafts(drafts);
  $("#stop").hidden = !active.length;
  $("#send").textContent = active.length ? "Queue" : "Send";
}

function draw(messages, runs, active) {
  const nodes = [];
  const last = runs.find((run) => run.started_at || run.status !== "cancelled");
  const place = ({message_id, status}) => // in line, from 0; -1: does not wait
    status === "queued" ? active.findIndex((run) => run.user_message_id === message_id) : -1;
  for (const message of messages.sort((one, other) => place(one) - place(other))) {
    if (message.status === "draft" || message.message_id === live?.run.reply_message_id) continue;
    const isUser = message.role === "user";
    const node = document.getElementById(message.message_id) ?? stamp(isUser ? "user" : "reply", message.message_id);
    const run = runs.find((run) => message.message_id === (isUser ? run.user_message_id : run.reply_message_id));
    setText(node.querySelector(".text"), message.content);
    if (isUser) drawWaiting(node, message, place(message), active);
    else for (const part of message.parts) endStep(stepOf(node, part.call_id, part.name, part.arguments), part);
    // The ending stands under the reply, or under the question where there is no reply.
    const isAnswered = isUser && messages.some(({message_id}) => message_id === run?.reply_message_id);
    drawEnding(node, isAnswered ? null : run, run === last);
    nodes.push(node);
  }
  if (live) {
    const asked = [live.run.user_message_id, runs.find((run) => run.run_id === live.run.retry_of)?.reply_message_id];
    nodes.splice(nodes.findLastIndex(({id}) => asked.includes(id)) + 1, 0, live.reply);
  }
  nodes.forEach((node, index) => log.children[index] === node || log.insertBefore(node, log.children[index] ?? null));
  while (log.children.length > nodes.length) log.lastChild.remove();
}

function drawWaiting(node, message, place, active) {
  node.querySelector(".waiting").hidden = place < 0;
  setText(node.querySelector(".place"), place ? `Waits, number ${place} in line` : "Next in line");
  const stop = (then) => attempt(async () => {
    await api("POST", `/api/runs/${active[place].run_id}/stop`); // its message is a draft from now on
    await changed(then());
  });
  node.querySelector(".cancel").onclick = () => stop(() => {});
  node.querySelector(".edit").onclick = () => stop(() => takeUp(message));
}

const WORDS = {
  agent_error: "The agent broke off with an error.",
  worker_lost: "The worker that ran this was lost. Its lease lapsed, and another worker ended the run.",
  worker_shutdown: "The worker was shut down before the answer was whole.",
  input_expired: "Nobody answered in time.",
  timeout: "This took longer than a run may take.",
};

function ending(run) {
  if (run?.status === "cancelled" && run.started_at) return "Stopped. What was written is kept.";
  if (run?.status === "failed") return `${WORDS[run.error.code] ?? run.error.message} What was written is kept.`;
  return "";
}

function drawEnding(node, run, isLast) {
  const words = ending(run), retry = node.querySelector(".retry");
  node.querySelector(".ending").hidden = !words;
  setText(node.querySelector(".ending span"), words);
  retry.hidden = !isLast;
  retry.onclick = () => attempt(() => api("POST", `/api/runs/${run.run_id}/retry`).then(changed));
}

// --- Following a run -----------------------------------------------------------------------------

function follow(run) {
  live = {run, cursor: 0, reply: stamp("reply", run.reply_message_id)};
  busy(run.status === "running" ? "Works" : "Waits for a worker");
  join();
}

function leave() {
  live.source.close();
  live.reply.querySelector(".busy").hidden = live.reply.querySelector(".question").hidden = true;
  live = null;
  light("ready", "Ready");
}

function join() {
  live.source?.close();
  const source = live.source = new EventSource(`/api/runs/${live.run.run_id}/events?from=${live.cursor}`);
  source.onopen = () => light("live", "Live");
  source.onmessage = ({data}) => take(JSON.parse(data));
  source.onerror = () => {
    if (source !== live?.source) return;
    light("rejoining", `Connection lost, rejoining after event ${live.cursor}`);
    // The browser comes back by itself, with Last-Event-ID, unless it was told not to: by a 204
    // (the run has ended) or by an answer that is no stream.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => source === live?.source && rejoin(), 1000);
  };
}

async function rejoin() {
  if (!conversation) return;
  try {
    await refresh();
    if (live) join();
  } catch {
    setTimeout(() => navigator.onLine && rejoin(), 1000);
  }
}

function take(event) {
  if (event.seq <= live.cursor) return;
  live.cursor = event.seq;
  $("#light-event").textContent = `event ${event.seq}`;
  const isLow = scrollY + innerHeight > document.body.scrollHeight - 80;
  events[event.type]?.(event, live.reply);
  if (isLow) scrollTo(0, document.body.scrollHeight);
}

const events = {
  run_started: () => { busy("Works"); refresh().catch(() => {}); }, // what waited is sent now
  content_delta: ({delta}, reply) => reply.querySelector(".text").append(delta),
  reasoning_delta: ({delta}, reply) => {
    reply.querySelector(".reasoning").hidden = false;
    reply.querySelector(".reasoning div").append(delta);
  },
  tool_call_started: (event, reply) => stepOf(reply, event.call_id, event.name, event.arguments),
  tool_call_delta: ({call_id, delta}, reply) => stepOf(reply, call_id).querySelector(".arguments").append(delta),
  tool_call_arguments: (event, reply) => stepOf(reply, event.call_id, event.name, event.arguments),
  tool_call_finished: (event, reply) => endStep(stepOf(reply, event.call_id, event.name), event),
  input_required: ({key, question}, reply) => ask(reply, key, question),
  input_received: (event, reply) => { reply.querySelector(".question").hidden = true; busy("Waits for a worker"); },
  run_resumed: () => busy("Works"),
  progress: ({percent}, reply) => // the demo's own event, by run.emit
    Object.assign(reply.querySelector(".step:last-child progress") ?? {}, {hidden: false, value: percent}),
  complete: ({status, error}) => {
    note(`The run ended ${status}${error ? ` (${error.code})` : ""} with event ${live.cursor}.`);
    announce(ending({status, error, started_at: true}) || "The answer is complete.");
    leave();
    changed();
  },
};

// --- Small parts ---------------------------------------------------------------------------------

const pretty = (value) => typeof value === "string" ? value : JSON.stringify(value, null, 2);
const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const announce = (words) => { $("#announcer").textContent = words; };
const note = (words) => dispatchEvent(new CustomEvent("note", {detail: words}));

function stamp(name, id) {
  return Object.assign($(`#${name}-template`).content.firstElementChild.cloneNode(true), id && {id});
}

function stepOf(reply, callId, name, given) {
  const steps = reply.querySelector(".steps");
  let step = [...steps.children].find((step) => step.dataset.call === callId);
  if (!step) {
    step = steps.appendChild(stamp("step"));
    step.dataset.call = callId;
    step.querySelector("b").textContent = name;
  }
  if (given != null) setText(step.querySelector(".arguments"), pretty(given));
  return step;
}

function endStep(step, {result, error}) {
  step.dataset.state = step.querySelector(".state").textContent = error ? "failed" : "done";
  step.querySelector("progress").hidden = true;
  step.querySelector(".result").hidden = false;
  setText(step.querySelector(".result"), pretty(error ?? result ?? null));
}

function ask(reply, key, {text, options}) {
  const form = reply.querySelector(".question"), {run_id: id} = live.run;
  form.hidden = false;
  form.querySelector("p").textContent = text;
  form.querySelector("div").replaceChildren(...options.map((option) =>
    Object.assign(document.createElement("button"), {textContent: option, value: option})));
  form.onsubmit = (submitted) => attempt(() => {
    submitted.preventDefault();
    return api("POST", `/api/runs/${id}/answer`, {key, answer: submitted.submitter.value});
  });
  busy("Waits for your answer");
  announce(text);
}

function busy(words) {
  live.reply.querySelector(".busy").hidden = false;
  live.reply.querySelector(".busy span").textContent = words;
}

function light(state, words) {
  const before = $("#light").dataset.state;
  if (state !== before && state === "rejoining") note(words), announce(words);
  if (state === "live" && before === "rejoining") note(`Rejoined after event ${live.cursor}: nothing is missing.`), announce("Connected again");
  $("#light").dataset.state = state;
  $("#light-text").textContent = words;
  if (state === "ready") $("#light-event").textContent = "";
}

function changed() {
  otherTabs.postMessage(conversation);
  return refresh().catch(rejoin);
}

// --- Composer, drafts, tabs ----------------------------------------------------------------------

function drawDrafts(drafts) {
  const others = drafts.filter(({message_id}) => message_id !== draft?.message_id);
  $("#drafts").hidden = !others.length;
  $("#drafts").replaceChildren(...others.map((each) => {
    const node = stamp("draft");
    node.querySelector("span").textContent = each.content;
    node.querySelector("button").onclick = () => { takeUp(each); node.remove(); };
    return node;
  }));
}

function takeUp(message) {
  const typed = box.value === draft?.content ? "" : box.value.trim();
  box.value = [typed, message.content].filter(Boolean).join("\n");
  draft = message;
  box.focus();
}

composer.onsubmit = (submitted) => attempt(async () => {
  submitted.preventDefault();
  const body = {content: box.value, agent: composer.agent.value, conversation_id: conversation, draft_id: draft?.message_id};
  // The same body again after an answer that never came: the same key, so there is one run.
  if (unsent?.body !== JSON.stringify(body)) unsent = {body: JSON.stringify(body), key: crypto.randomUUID()};
  const run = await api("POST", "/api/runs", body, {"Idempotency-Key": unsent.key});
  unsent = draft = null;
  box.value = "";
  if (!conversation) return location.assign(`?conversation=${run.conversation_id}`);
  await changed();
  scrollTo(0, document.body.scrollHeight);
});

$("#stop").onclick = () => attempt(async () => {
  const {drafts} = await api("POST", `/api/conversations/${conversation}/stop`);
  if (drafts.length && !box.value) takeUp(drafts[0]);
  await changed();
});

box.onkeydown = (pressed) => {
  if (pressed.key !== "Enter" || pressed.shiftKey || pressed.isComposing || matchMedia("(pointer: coarse)").matches) return;
  pressed.preventDefault();
  composer.requestSubmit();
};

document.querySelectorAll(".suggestion").forEach((button) => {
  button.onclick = () => { box.value = button.textContent; composer.requestSubmit(); };
});

// For the demo's strip "Break it".
export const followed = () => live?.run.run_id;
export function cut(milliseconds) {
  live.source.close();
  light("rejoining", `Stream cut after event ${live.cursor}`);
  setTimeout(() => live && join(), milliseconds);
}

// A machine that slept, a network that went, a page out of the browser's cache: read, and rejoin.
addEventListener("pageshow", (shown) => shown.persisted && rejoin());
addEventListener("online", rejoin);
addEventListener("offline", () => { live?.source.close(); light("rejoining", "Offline"); });
document.addEventListener("visibilitychange", () => document.hidden || rejoin());
otherTabs.onmessage = ({data}) => data === conversation && rejoin();

$("#menu").open = matchMedia("(min-width: 60rem)").matches;
if (conversation) attempt(refresh).then(() => scrollTo(0, document.body.scrollHeight));
