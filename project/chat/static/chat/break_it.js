// The demo's strip "Break it". The chat works without it, and a page of yours has no such thing.

import {api, attempt, cut, followed} from "./chat.js";

const row = document.querySelector("#row");
const happened = document.querySelector("#happened");

function say(words) {
  const time = new Date().toLocaleTimeString([], {hour12: false});
  happened.prepend(Object.assign(document.createElement("li"), {textContent: `${time} ${words}`}));
}

function press(fault) {
  if (fault !== "cut") return api("POST", `/break/${fault}`).then(({said}) => say(said));
  return followed() ? cut(2000) : say("No stream is open: start an answer first.");
}

async function readRow() {
  row.dataset.run = followed() ?? row.dataset.run ?? "";
  if (!row.dataset.run || document.hidden) return;
  const answer = await fetch(`${row.dataset.url}?run=${row.dataset.run}`).catch(() => null);
  if (answer?.ok) row.innerHTML = await answer.text();
}

addEventListener("note", ({detail}) => say(detail));
for (const button of document.querySelectorAll("[data-fault]"))
  button.onclick = () => attempt(() => press(button.dataset.fault));
document.querySelector("#break").open = matchMedia("(min-width: 60rem)").matches;
setInterval(readRow, 1000);
