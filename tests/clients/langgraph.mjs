// Drives LangGraph's own SDK: `node langgraph.mjs JSON`; prints what it saw as one line of JSON.
import { writeFileSync } from "node:fs";
import { Client } from "@langchain/langgraph-sdk";

const told = JSON.parse(process.argv[2]);
const clientOf = (origin) => new Client({ apiUrl: `http://${origin}/lg`, apiKey: told.token });
const client = clientOf(told.origin);
const gate = `${told.folder}/gate`;
const openGate = () => writeFileSync(gate, "");
const input = { messages: [{ role: "user", content: "Go" }] };
const streamMode = ["values", "messages-tuple", "updates", "custom"];
const { thread_id: thread } = await client.threads.create();

const collect = async (stream, look = () => {}) => {
  const parts = [];
  for await (const part of stream) {
    parts.push(part);
    look(part);
  }
  return parts;
};

const scenarios = {
  async cut() {
    let run = null;
    const stream = clientOf(told.cut).runs.stream(thread, "story", {
      input, streamMode, metadata: { gate }, streamResumable: true,
      onRunCreated: (created) => { run = created; setTimeout(openGate, 1_500); },
    });
    const parts = await collect(stream);
    const whole = await collect(client.runs.joinStream(thread, run.run_id));
    return { parts, whole, values: await client.runs.join(thread, run.run_id) };
  },
  async stop() {
    const run = await client.runs.create(thread, "endless", { input, streamMode });
    const watching = collect(client.runs.joinStream(thread, run.run_id), (part) => {
      if (part.event === "messages") clientOf(told.origin).runs.cancel(thread, run.run_id, true);
    });
    const parts = await watching;
    return { last: parts.at(-1).event, run: await client.runs.get(thread, run.run_id) };
  },
  async errors() {
    const parts = await collect(client.runs.stream(thread, "faulty", { input }));
    const waited = await client.runs.wait(thread, "faulty", { input }).catch((error) => error);
    const busy = await client.runs.create(thread, "endless", { input });
    const refused = await client.runs
      .create(thread, "story", { input, multitaskStrategy: "reject" })
      .catch((error) => error);
    await client.runs.cancel(thread, busy.run_id, true);
    return {
      events: parts.slice(-3).map((part) => part.event),
      error: parts.at(-2).data,
      waited: String(waited.message ?? JSON.stringify(waited)),
      status: refused.status,
    };
  },
};

console.log(JSON.stringify(await scenarios[told.scenario]()));
