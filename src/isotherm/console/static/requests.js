// Answers of the API. The newest look at the cluster may be an old one: `error` then says why.

export class Unavailable extends Error {
  // `status` is that of HTTP, 0 without an answer of the console.
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export async function fetchJson(path) {
  let response;
  try {
    response = await fetch(path, { headers: { accept: "application/json" } });
  } catch {
    throw new Unavailable("The console itself does not answer. Was it stopped?");
  }
  let body;
  try {
    body = await response.json();
  } catch {
    throw new Unavailable(`Something other than the console answers: HTTP ${response.status}. Does a proxy in front of it ask for a login?`);
  }
  if (!response.ok) throw new Unavailable(body.error || `HTTP ${response.status}`, response.status);
  return body;
}

let facts = null;

// What holds as long as the console runs, such as the options of commands for its cluster.
export async function consoleFacts() {
  facts ??= await fetchJson("api/console");
  return facts;
}

export const topicPath = (name) => `api/topics/${encodeURIComponent(name)}`;
