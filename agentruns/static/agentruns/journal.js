// Append the events of a run to its page while it is not over; then show the page as it ended.
"use strict";
{
    const PAUSE = 1000;
    const table = document.getElementById("agentruns-journal");
    const body = table.tBodies[0];

    const lastSeq = () => Number(body.lastElementChild?.dataset.seq ?? 0);

    const cell = (row, text) => { row.insertCell().textContent = text; };

    const append = event => {
        const row = body.insertRow();
        row.dataset.seq = event.seq;
        cell(row, event.seq);
        cell(row, event.created_at.slice(11, 23));
        cell(row, event.type);
        const code = document.createElement("code");
        code.textContent = event.payload ?? "";
        row.insertCell().append(code);
        while (body.rows.length > Number(table.dataset.most)) body.deleteRow(0);
    };

    const follow = async () => {
        let answer;
        try {
            const response = await fetch(`${table.dataset.url}?after=${lastSeq()}`);
            if (!response.ok || response.redirected) return;  // logged out, or deleted
            answer = await response.json();
        } catch {
            answer = {events: []};  // the server is away: ask again
        }
        answer.events.forEach(append);
        if (answer.ended) location.reload();
        else setTimeout(follow, PAUSE);
    };

    if (table.dataset.ended === "no") setTimeout(follow, PAUSE);
}
