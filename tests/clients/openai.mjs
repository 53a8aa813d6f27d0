// Drives OpenAI's own SDK: `node openai.mjs JSON`; prints what it saw as one line of JSON.
import { writeFileSync } from "node:fs";
import OpenAI from "openai";

const told = JSON.parse(process.argv[2]);
const clientOf = (origin) =>
  new OpenAI({ baseURL: `http://${origin}/v1`, apiKey: told.token, maxRetries: 0 });
const client = clientOf(told.origin);
const gate = `${told.folder}/gate`;
const openGate = () => writeFileSync(gate, "");
const story = { model: "story", input: "Go", background: true, metadata: { gate } };

const collect = async (stream, into = [], look = () => {}) => {
  for await (const event of stream) {
    into.push(event);
    look(event);
  }
  return into;
};
const replay = (id, query = {}) => client.responses.retrieve(id, { stream: true, ...query });

const scenarios = {
  async cut() {
    const seen = [];
    const run = await client.responses.create(story);
    let failure = null;
    try {
      await collect(await clientOf(told.cut).responses.retrieve(run.id, { stream: true }), seen);
    } catch (error) {
      failure = error.constructor.name;
    }
    openGate();
    const after = seen.length ? { starting_after: seen.at(-1).sequence_number } : {};
    const rest = await collect(await replay(run.id, after));
    const whole = await collect(await replay(run.id));
    return { failure, seen, rest, whole };
  },
  async helper() {
    openGate();
    const stream = client.responses.stream(story);
    const events = await collect(stream);
    const final = await stream.finalResponse();
    const middle = events[Math.floor(events.length / 2)].sequence_number;
    const again = client.responses.stream({ response_id: final.id, starting_after: middle });
    const rest = await collect(again);
    return { text: final.output_text, last: (await again.finalResponse()).id === final.id,
      events: events.map((event) => event.sequence_number), middle,
      rest: rest.map((event) => event.sequence_number) };
  },
  async stop() {
    const events = [];
    const stream = await client.responses.create({ ...story, model: "endless", stream: true });
    await collect(stream, events, (event) => {
      if (event.type === "response.function_call_arguments.done") {
        client.responses.cancel(events[0].response.id);
      }
    });
    return { type: events.at(-1).type, response: events.at(-1).response };
  },
  async errors() {
    const failed = await client.responses.create({ model: "faulty", input: "Go" });
    const refusal = await client.responses.create({ model: "stori", input: "Go" }).catch((e) => e);
    return { failed, refusal: [refusal.constructor.name, refusal.status, refusal.code] };
  },
};

console.log(JSON.stringify(await scenarios[told.scenario]()));
