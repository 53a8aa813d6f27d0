// Drives the AI SDK's own chat: `node aisdk.mjs JSON`; prints what it saw as one line of JSON.
import { writeFileSync } from "node:fs";
import { Chat } from "@ai-sdk/react";
import { DefaultChatTransport, WebSocketChatTransport } from "ai";
import WebSocket from "ws";

const told = JSON.parse(process.argv[2]);
const headers = { Authorization: `Bearer ${told.token}` };

const until = async (condition, what) => {
  const deadline = Date.now() + 25_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`waited in vain for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
};

let count = 0;
const open = (origin = told.origin, id = `chat/${process.pid} ${count++}`, messages = []) => {
  const api = `http://${origin}/api/chat`;
  const transport = told.socket
    ? new WebSocketChatTransport({ url: `ws://${origin}/ws/chat/`, webSocket: WebSocket, headers })
    : new DefaultChatTransport({ api, headers });
  const failures = [];
  const chat = new Chat({ id, transport, messages, onError: (error) => failures.push(error) });
  return { chat, failures, api, gate: `${told.folder}/gate-${encodeURIComponent(id)}` };
};
const send = ({ chat, gate }, agent = "story") =>
  chat.sendMessage({ text: "Hello" }, { body: { agent, metadata: { gate } } });
const textOf = ({ chat }) => {
  const parts = chat.messages.findLast((message) => message.role === "assistant")?.parts ?? [];
  return parts.filter((part) => part.type === "text").map((part) => part.text).join("");
};
const beforeGate = (viewer) => () => textOf(viewer).includes("the gate.");
const seen = ({ chat, failures }) => ({
  status: chat.status,
  errors: failures.map((error) => error.message),
  roles: chat.messages.map((message) => message.role),
  id: chat.lastMessage?.id,
  parts: chat.lastMessage?.parts,
  metadata: chat.lastMessage?.metadata,
});
const stop = ({ chat, api }) =>
  fetch(`${api}/${encodeURIComponent(chat.id)}/stop`, { method: "POST", headers });

const scenarios = {
  async whole() {
    const viewer = open();
    writeFileSync(viewer.gate, "");
    await send(viewer);
    return seen(viewer);
  },

  // Each through a proxy that cuts its first connection somewhere else.
  async cut() {
    const one = async (port) => {
      const viewer = open(`127.0.0.1:${port}`);
      await send(viewer);
      const first = seen(viewer);
      const resumed = viewer.chat.resumeStream();
      await until(beforeGate(viewer), "the text before the gate");
      writeFileSync(viewer.gate, "");
      await resumed;
      return { first, last: seen(viewer) };
    };
    return Promise.all(told.ports.map(one));
  },

  // Two viewers and a second message of the same id, then a look at the idle chat.
  async viewers() {
    const viewer = open();
    const sent = send(viewer);
    await until(beforeGate(viewer), "the text before the gate");
    const other = open(told.origin, viewer.chat.id, [viewer.chat.messages[0]]);
    const resumed = other.chat.resumeStream();
    await until(beforeGate(other), "the same for the other viewer");
    await viewer.chat.stop(); // drops this viewer, and nothing else
    const again = open(told.origin, viewer.chat.id, [viewer.chat.messages[0]]);
    const reloaded = again.chat.resumeStream();
    await until(beforeGate(again), "the same after a reload");
    writeFileSync(viewer.gate, "");
    await Promise.all([sent, resumed, reloaded]);
    const idle = open(told.origin, viewer.chat.id);
    await idle.chat.resumeStream();
    return { stopped: seen(viewer), all: [other, again].map(seen), idle: seen(idle) };
  },

  async stop() {
    const viewer = open();
    const sent = send(viewer, "endless");
    await until(() => viewer.chat.lastMessage?.parts.at(-1)?.state === "input-available", "a call");
    const { status } = await stop(viewer);
    await sent;
    return { answer: status, ...seen(viewer) };
  },

  async fail() {
    const viewer = open();
    await send(viewer, "faulty");
    return seen(viewer);
  },

  async regenerate() {
    const viewer = open();
    await send(viewer, "faulty");
    const first = seen(viewer);
    await viewer.chat.regenerate();
    return { first, last: seen(viewer) };
  },

  async killed() {
    const viewer = open();
    const sent = send(viewer, "doomed");
    await until(() => textOf(viewer) === "On and on", "text");
    writeFileSync(`${told.folder}/speaking`, "");
    await sent;
    return seen(viewer);
  },

  async refused() {
    const viewer = open();
    await send(viewer, "nobody");
    return seen(viewer);
  },
};

console.log(JSON.stringify(await scenarios[told.scenario]()));
process.exit(0);
