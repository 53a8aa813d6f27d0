// Draws the OpenAPI document as a page: one section an operation. Everything is set as text.

const page = document.getElementById("docs");

function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children.filter(Boolean));
  return made;
}

function list(entries) {
  const items = entries.flatMap(([term, text]) => [element("dt", term), element("dd", text)]);
  return items.length ? element("dl", "", ...items) : null;
}

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.enum) return schema.enum.filter((value) => value !== null).join(" | ");
  if (schema.type === "array") return `list of ${typeOf(schema.items)}`;
  if (schema.allOf) return schema.allOf.map(typeOf).join(" & ");
  return schema.format ?? schema.type ?? "";
}

function examplesOf(content) {
  const examples = Object.values(content.examples ?? {});
  return examples.map(({ value }) =>
    element("pre", typeof value === "string" ? value : JSON.stringify(value, null, 2)));
}

function contents(content) {
  return Object.entries(content ?? {}).flatMap(([mediaType, one]) =>
    [element("p", `${mediaType}: ${typeOf(one.schema)}`), ...examplesOf(one)]);
}

function parameterLine({ name, in: place, required, schema, description }) {
  const facts = [place, typeOf(schema), required && "required"].filter(Boolean).join(", ");
  return [name, `${facts}. ${description ?? ""}`];
}

function answer([status, { description, content, headers }]) {
  const lines = Object.entries(headers ?? {}).map(([name, header]) => [name, header.description ?? ""]);
  return element("details", "",
    element("summary", "", element("code", status), ` ${description ?? ""}`),
    list(lines), ...contents(content));
}

function operation(path, method, described) {
  return element("details", "",
    element("summary", "", element("code", `${method.toUpperCase()} ${path}`), ` ${described.summary ?? ""}`),
    described.description && element("p", described.description),
    list((described.parameters ?? []).map(parameterLine)),
    described.requestBody && element("h3", "Body"),
    ...contents(described.requestBody?.content),
    element("h3", "Answers"),
    ...Object.entries(described.responses).map(answer));
}

function component([name, schema]) {
  const required = new Set(schema.required ?? []);
  const lines = Object.entries(schema.properties ?? {}).map(([field, one]) =>
    [field, [typeOf(one), one.nullable && "or null", !required.has(field) && "optional", one.description]
      .filter(Boolean).join(", ")]);
  return element("details", "", element("summary", name), list(lines) ?? element("p", typeOf(schema)));
}

async function draw() {
  const response = await fetch(page.dataset.schema);
  if (!response.ok) throw new Error(`the document was answered with ${response.status}`);
  const schema = await response.json();
  for (const [path, operations] of Object.entries(schema.paths)) {
    for (const [method, described] of Object.entries(operations)) {
      page.append(operation(path, method, described));
    }
  }
  page.append(element("h2", "Objects"), ...Object.entries(schema.components.schemas).map(component));
}

draw().catch((error) => page.append(element("p", `The document could not be read: ${error.message}.`)));
