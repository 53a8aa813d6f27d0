// Drives AG-UI's own HttpAgent: `node agui.mjs JSON`; prints what it saw as one line of JSON.
import { writeFileSync } from "node:fs";
import { HttpAgent } from "@ag-ui/client";

const told = JSON.parse(process.argv[2]);
const headers = { Authorization: `Bearer ${told.token}` };
process.on("unhandledRejection", () => {}); // the client leaves one behind a body that was cut

class Agent extends HttpAgent {
  connect(input) {
    return new HttpAgent({ url: `${this.url}/connect`, headers: this.headers }).run(input);
  }
}

const until = async (condition, what) => {
  const deadline = Date.now() + 25_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`waited in vain for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
};

let count = 0;
const open = (agent = "story", origin = told.origin, threadId = `${process.pid} ${count++}`) => {
  const url = `http://${origin}/agui/agents/${agent}`;
  const client = new Agent({ url, headers, threadId });
  const viewer = { client, errors: [], ends: [], customs: [] };
  client.subscribe({
    onRunErrorEvent: ({ event }) => void viewer.errors.push(event.message),
    onRunFinishedEvent: ({ event }) => void viewer.ends.push(event),
    onCustomEvent: ({ event }) => void viewer.customs.push(event.name),
  });
  viewer.gate = `${told.folder}/gate-${encodeURIComponent(threadId)}`;
  return viewer;
};
const say = ({ client }) => client.addMessage({ id: `m-${count++}`, role: "user", content: "Hello" });
const run = async (viewer, runId) => {
  const failed = (error) => viewer.errors.push(error.message);
  await viewer.client.runAgent({ runId, forwardedProps: { gate: viewer.gate } }).catch(failed);
};
const connect = (viewer) => viewer.client.connectAgent({ runId: `c-${count++}` });
const textOf = ({ client }) =>
  client.messages.filter(({ role }) => role === "assistant").map(({ content }) => content).join("");
const beforeGate = (viewer) => () => textOf(viewer).includes("the gate.");
const seen = ({ client, errors, ends, customs }) => ({
  messages: client.messages,
  errors,
  ends,
  customs,
});

const scenarios = {
  async whole() {
    const viewer = open();
    writeFileSync(viewer.gate, "");
    say(viewer);
    await run(viewer, "r");
    return seen(viewer);
  },

  // Each through a proxy that cuts its first connection somewhere else; back by either door.
  async cut() {
    const one = async (port, back) => {
      const viewer = open("story", `127.0.0.1:${port}`);
      say(viewer);
      await run(viewer, "r");
      const errors = viewer.errors.splice(0);
      const attached = back === "connect" ? connect(viewer) : run(viewer, "r");
      await until(beforeGate(viewer), "the text before the gate");
      writeFileSync(viewer.gate, "");
      await attached;
      return { errors, ...seen(viewer) };
    };
    return Promise.all(told.ports.map((port, n) => one(port, n % 2 ? "connect" : "run")));
  },

  async viewers() {
    const viewer = open();
    say(viewer);
    const sent = run(viewer, "r");
    await until(beforeGate(viewer), "the text before the gate");
    const other = open("story", told.origin, viewer.client.threadId);
    const attached = connect(other);
    await until(beforeGate(other), "the same for the other viewer");
    viewer.client.abortRun(); // drops this viewer, and nothing else
    await sent;
    writeFileSync(viewer.gate, "");
    await attached;
    const late = open("story", told.origin, viewer.client.threadId);
    await connect(late);
    const fresh = open();
    await connect(fresh);
    return { all: [other, late].map(seen), fresh: seen(fresh) };
  },

  async twice() {
    const viewer = open();
    writeFileSync(viewer.gate, "");
    for (const runId of ["r1", "r2"]) {
      say(viewer);
      await run(viewer, runId);
    }
    const late = open("story", told.origin, viewer.client.threadId);
    await connect(late);
    return { first: seen(viewer), late: seen(late) };
  },

  async stop() {
    const viewer = open("endless");
    say(viewer);
    const sent = run(viewer, "r");
    await until(() => viewer.client.messages.at(-1)?.toolCalls, "a call");
    const path = `${viewer.client.url}/stop/${encodeURIComponent(viewer.client.threadId)}`;
    const { status } = await fetch(path, { method: "POST", headers });
    await sent;
    return { answer: status, ...seen(viewer) };
  },

  async fail() {
    const viewer = open("faulty");
    say(viewer);
    await run(viewer, "r");
    return seen(viewer);
  },

  async killed() {
    const viewer = open("doomed");
    say(viewer);
    const sent = run(viewer, "r");
    await until(() => textOf(viewer) === "On and on", "text");
    writeFileSync(`${told.folder}/speaking`, "");
    await sent;
    return seen(viewer);
  },

  async asked() {
    const viewer = open("curious");
    const again = (interrupt, status, payload, of = viewer) =>
      of.client
        .runAgent({ runId: `a-${count++}`, resume: [{ interruptId: interrupt.id, status, payload }] })
        .catch((error) => of.errors.push(error.message));
    say(viewer);
    await run(viewer, "r");
    const late = open("curious", told.origin, viewer.client.threadId);
    await connect(late);
    const shown = structuredClone({ first: seen(viewer), late: seen(late) });
    const [refund] = viewer.client.pendingInterrupts;
    await again(refund, "resolved", { approved: true });
    const [name] = viewer.client.pendingInterrupts;
    await again(refund, "resolved", "something else", late); // it was answered otherwise
    late.client.pendingInterrupts = [];
    await again({ ...refund, id: `${refund.id}?` }, "cancelled", undefined, late);
    late.client.pendingInterrupts = [];
    await again({ id: "nothing" }, "resolved", 1, late);
    await again(name, "resolved", "Ann");
    viewer.client.pendingInterrupts = [];
    await again(name, "resolved", "Ann"); // as after a cut
    return { ...shown, refund, name, last: seen(viewer), refused: late.errors };
  },

  async givenUp() {
    const viewer = open("curious");
    say(viewer);
    await run(viewer, "r");
    const [{ id }] = viewer.client.pendingInterrupts;
    await viewer.client.runAgent({ resume: [{ interruptId: id, status: "cancelled" }] });
    say(viewer);
    await run(viewer, "r2"); // the thread goes on
    return seen(viewer);
  },

  async refused() {
    const viewer = open("nobody");
    say(viewer);
    await run(viewer, "r");
    return seen(viewer);
  },
};

console.log(JSON.stringify(await scenarios[told.scenario]()));
process.exit(0);
