// Serves the page, and forwards its two calls to the operator with a token of the portal. It stands
// for the server of a portal, which has one already.
//
//   API=https://boundary-operator-plan-api.boundary-operator TOKEN_FILE=token \
//   NODE_EXTRA_CA_CERTS=ca.crt PORT=8000 node server.mjs

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

const { API, TOKEN_FILE, PORT = "8000" } = process.env;
if (!API || !TOKEN_FILE) {
  console.error("set API to the address of the API and TOKEN_FILE to a file with a token");
  process.exit(1);
}

const CALLS = /^\/v1\/boundaries\/[A-Za-z0-9._-]+\/compute-plans(:check$|\?|$)/;
const MAX_BODY = 128 * 1024;

async function body(request) {
  const chunks = [];
  let length = 0;
  for await (const chunk of request) {
    length += chunk.length;
    if (length > MAX_BODY) return undefined;
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

async function forward(request, response) {
  // Here a portal looks whether its user may see this boundary.
  const sent = request.method === "POST" ? await body(request) : undefined;
  if (request.method === "POST" && sent === undefined) {
    response.writeHead(413).end();
    return;
  }
  const token = (await readFile(TOKEN_FILE, "utf8")).trim();
  const reply = await fetch(API + request.url, {
    method: request.method,
    headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
    body: sent,
    redirect: "error",
    signal: AbortSignal.timeout(15_000),
  });
  const headers = { "Content-Type": reply.headers.get("Content-Type") ?? "text/plain" };
  const after = reply.headers.get("Retry-After");
  if (after) headers["Retry-After"] = after;
  response.writeHead(reply.status, headers).end(Buffer.from(await reply.arrayBuffer()));
}

const server = createServer(async (request, response) => {
  try {
    if (CALLS.test(request.url) && ["GET", "POST"].includes(request.method)) {
      await forward(request, response);
    } else if (request.method === "GET" && /^\/(\?|$)/.test(request.url)) {
      const page = await readFile(new URL("index.html", import.meta.url));
      response.writeHead(200, { "Content-Type": "text/html; charset=utf-8" }).end(page);
    } else {
      response.writeHead(404).end();
    }
  } catch (error) {
    // The operator does not answer, which is no yes.
    console.error(error.message);
    response.writeHead(503, { "Retry-After": "5" }).end();
  }
});
server.listen(Number(PORT), "127.0.0.1", () => {
  console.log(`http://127.0.0.1:${server.address().port}`);
});
